"""gRPC's channel arguments, as options name them."""

from modserve.settings import GrpcSettings

_CONNECTIONS = {
    "keepalive_time": "grpc.keepalive_time_ms",
    "keepalive_timeout": "grpc.keepalive_timeout_ms",
    "keepalive_permit_without_calls": "grpc.keepalive_permit_without_calls",
    "http2_max_pings_without_data": "grpc.http2.max_pings_without_data",
    "http2_min_recv_ping_interval_without_data": "grpc.http2.min_ping_interval_without_data_ms",
    "http2_max_ping_strikes": "grpc.http2.max_ping_strikes",
}
_AGES = {
    "max_connection_age": "grpc.max_connection_age_ms",
    "max_connection_age_grace": "grpc.max_connection_age_grace_ms",
}
_MAX_PENDING = 1_000_000
"""Calls that wait in the core, with some 3 KB each. No connection has more than `max_concurrent_streams` of them."""

COMPRESSION_LEVELS = {"none": 0, "low": 1, "medium": 2, "high": 3}
"""gRPC picks the algorithm by level from those that the client takes: gzip for low, deflate above."""


def channel_arguments(options: GrpcSettings) -> list[tuple[str, int]]:
    """What a server is made with."""
    arguments = [
        ("grpc.max_send_message_length", -1),
        # Beyond it the library's core ends the call with RESOURCE_EXHAUSTED, before it has made room for the message.
        ("grpc.max_receive_message_length", options.max_message or -1),
        # The front end inflates messages itself: see `inflating`.
        ("grpc.per_message_decompression", 0),
        # Beyond those the core ends calls with CANCELLED, at random, and those of other clients, too.
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        # Two servers on one port would share it silently.
        ("grpc.so_reuseport", int(options.reuse_port)),
    ]
    if options.max_concurrent_streams:
        # Clients keep further calls back until others have ended; those that do not are refused. The core's overload
        # protection also counts calls that have ended for the client: of 6,000 at a time it refused up to 1,059.
        arguments.append(("grpc.max_concurrent_streams", options.max_concurrent_streams))
        arguments.append(("grpc.http.overload_protection", 0))
    arguments += [(argument, int(getattr(options, field))) for field, argument in _CONNECTIONS.items()]
    arguments += [(argument, age) for field, argument in _AGES.items() if (age := getattr(options, field))]
    if level := COMPRESSION_LEVELS[options.compression]:
        arguments.append(("grpc.default_compression_level", level))
    return arguments
