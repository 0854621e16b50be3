"""gRPC's channel arguments."""

from pathlib import Path

import pytest

from modserve import Settings, listeners
from modserve.frontends.grpc.aio import channel_arguments
from modserve.listeners import grpc_settings

DEFAULTS = {
    "grpc.max_send_message_length": -1,
    "grpc.max_receive_message_length": 1 << 20,
    "grpc.per_message_decompression": 0,
    "grpc.server.max_pending_requests": 1_000_000,
    "grpc.server.max_pending_requests_hard_limit": 1_000_000,
    "grpc.max_concurrent_streams": 1_000,
    "grpc.http.overload_protection": 0,
    "grpc.so_reuseport": 0,
    "grpc.keepalive_time_ms": 7_200_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.http2.max_pings_without_data": 2,
    "grpc.http2.min_ping_interval_without_data_ms": 300_000,
    "grpc.http2.max_ping_strikes": 2,
}


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine, eight times the longest message."""
    monkeypatch.setattr(listeners, "allowed_memory", lambda: 8 << 20)


@pytest.mark.parametrize(
    ("field", "value", "argument", "given"),
    [
        ("id", "x", "grpc.so_reuseport", 0),
        ("reuse_grpc_port", True, "grpc.so_reuseport", 1),
        ("grpc_keepalive_time", 3, "grpc.keepalive_time_ms", 3),
        ("grpc_keepalive_timeout", 4, "grpc.keepalive_timeout_ms", 4),
        ("grpc_keepalive_permit_without_calls", True, "grpc.keepalive_permit_without_calls", 1),
        ("grpc_http2_max_pings_without_data", 5, "grpc.http2.max_pings_without_data", 5),
        ("grpc_http2_min_recv_ping_interval_without_data", 6, "grpc.http2.min_ping_interval_without_data_ms", 6),
        ("grpc_http2_max_ping_strikes", 7, "grpc.http2.max_ping_strikes", 7),
        ("grpc_max_connection_age", 8, "grpc.max_connection_age_ms", 8),
        ("grpc_max_connection_age_grace", 9, "grpc.max_connection_age_grace_ms", 9),
        ("grpc_max_message_size", 5, "grpc.max_receive_message_length", 5),
        ("grpc_max_message_size", 0, "grpc.max_receive_message_length", -1),
        ("grpc_max_concurrent_streams", 5, "grpc.max_concurrent_streams", 5),
        ("grpc_infer_response_compression_level", "low", "grpc.default_compression_level", 1),
        ("grpc_infer_response_compression_level", "medium", "grpc.default_compression_level", 2),
        ("grpc_infer_response_compression_level", "high", "grpc.default_compression_level", 3),
    ],
    ids=lambda value: str(value),
)
def test_an_option_is_one_argument(field: str, value: object, argument: str, given: int) -> None:
    settings = Settings.model_validate({"model_repository": "models", field: value})
    assert dict(channel_arguments(grpc_settings(settings))) == {**DEFAULTS, argument: given}


def test_any_number_of_streams() -> None:
    settings = Settings(model_repository=[Path("models")], grpc_max_concurrent_streams=0)
    assert "grpc.max_concurrent_streams" not in dict(channel_arguments(grpc_settings(settings)))


@pytest.mark.parametrize(("machine", "longest"), [(0, -1), (1 << 30, 1 << 27), (1 << 40, 1 << 29)])
def test_the_longest_message_by_default(monkeypatch: pytest.MonkeyPatch, machine: int, longest: int) -> None:
    monkeypatch.setattr(listeners, "allowed_memory", lambda: machine)
    options = grpc_settings(Settings(model_repository=[Path("models")]))
    assert dict(channel_arguments(options))["grpc.max_receive_message_length"] == longest
