"""The gRPC port: HTTP/2 on the event loop, in `frontends/http2`."""

import asyncio
import math
import resource
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from modserve.frontends.certificates import Certificates
from modserve.frontends.http2.connection import Http2Connection
from modserve.frontends.http2.limits import LIMITS, ConnectionLimits
from modserve.frontends.http2.policies import Policies
from modserve.frontends.listening import FAREWELL, HANDSHAKE, ListeningSocket, listen
from modserve.protocol.restricted import ADMIN_RPCS
from modserve.server import Server
from modserve.settings import GrpcSettings

from .dispatch import Dispatcher
from .grpc_port import GrpcPort
from .model_stream import InferStreams
from .server_call import ServerCall
from .service import rpc_table

if TYPE_CHECKING:
    from modserve.access.authority import Authority
    from modserve.observability.audit_log import AuditLog

    from .audit import RpcAudit
    from .guard import RpcGuard

_BACKLOG: Final = 2.0
"""Seconds for taking over calls that have arrived, at most."""

_QUIET: Final = 0.02
"""Seconds without a byte from any client, after which none is on its way."""

_LATE: Final = 0.02
"""Seconds by which such a look may come too late, and still count."""

_TURNS: Final = 5
"""Turns of the event loop, more than it takes to read what has come."""

_KEPT: Final = 16
"""Descriptors that are left to others, at least."""

_PROTOCOL: Final = "h2"

CODINGS: Final = {"none": (), "low": ("gzip", "deflate"), "medium": ("deflate", "gzip"), "high": ("deflate", "gzip")}
"""What responses are compressed with by the option's value, the best first: as gRPC's library picks it."""


class GrpcListener:
    """Serves `server` on one port; with an `authority`, to callers that it knows.

    `without_admin`: another port serves the calls of operators, and this one does not know them.
    """

    def __init__(
        self,
        server: Server,
        address: str,
        port: int,
        options: GrpcSettings,
        authority: "Authority | None" = None,
        audit: "AuditLog | None" = None,
        without_admin: bool = False,
    ) -> None:
        self._server = server
        self._address = address
        self._number = port
        self._options = options
        scoped, guard = _guarded(server, authority)
        most = options.max_message or 0
        self._dispatcher = Dispatcher(server, options.limits, max_message=most, guard=guard, audit=_audited(audit))
        self._streams = InferStreams(scoped, options, self._dispatcher.inflater)
        rpcs = rpc_table(scoped, options, self._dispatcher.inflater, self._streams)
        hidden = ADMIN_RPCS if without_admin else ()
        self._rpcs = {path: rpc for path, rpc in rpcs.items() if rpc.method.name not in hidden}
        self._port: GrpcPort | None = None
        self._socket: ListeningSocket | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return 0 if self._port is None else len(self._port.connections)

    @property
    def responses(self) -> dict[str, int]:
        """How many calls ended, by the names of their status."""
        return self._dispatcher.responses

    @property
    def endings(self) -> dict[str, int]:
        """How many connections it has ended before their time, by the reason."""
        return {} if self._port is None else self._port.endings

    async def start(self) -> int:
        """Open the port and return its number, 0 for a Unix socket. Raises OSError, or CertificateError."""
        loop, options = asyncio.get_running_loop(), self._options
        grpc_port = self._port = GrpcPort(
            loop,
            policies(options),
            self._dispatcher,
            self._rpcs,
            max_message=options.max_message or 0,
            codings=CODINGS[options.compression],
            access=self._server.access_log,
            limits=connection_limits(options),
        )
        grpc_port.last_descriptor = _last_descriptor()
        tls: dict[str, Any] = {}
        if options.tls is not None:
            context = Certificates(options.tls, (_PROTOCOL,)).server_context()
            tls = {"ssl": context, "ssl_handshake_timeout": HANDSHAKE, "ssl_shutdown_timeout": FAREWELL}
        factory: Any = lambda: Http2Connection(grpc_port)  # noqa: E731
        self._socket = await listen(factory, self._address, self._number, options.reuse_port, tls)
        grpc_port.start_ticking()
        return self._socket.port

    async def stop(self, grace: float | None) -> None:
        """Tell clients to go elsewhere, and let calls under way finish for `grace` seconds; None: none.

        Streams read no more requests, and end when those they have read are settled. Calls that clients send before
        they know are still served, by a server that says that it stops.
        """
        self._streams.stop()
        if self._socket is not None:
            self._socket.close()
        if (grpc_port := self._port) is None:
            return
        try:
            if grace is not None:
                for connection in list(grpc_port.connections):
                    connection.go_away()
                await _within(grpc_port.idle, grace)
            for connection in list(grpc_port.connections):
                for stream in list(connection.streams.values()):
                    if isinstance(stream, ServerCall):
                        stream.stop()
                connection.close_when_done()
            await _within(grpc_port.idle, 0.0 if grace is None else grpc_port.limits.farewell)
            for connection in list(grpc_port.connections):
                connection.abort()
            await grpc_port.idle.wait()
        finally:
            grpc_port.stop_ticking()
            grpc_port.deadlines.close()

    async def take_backlog(self, limit: float = _BACKLOG) -> None:
        """Return when every call that has arrived is under way, or after `limit` seconds.

        Time in which the machine did not let this process run does not count as quiet.
        """
        grpc_port, loop = self._port, asyncio.get_running_loop()
        end = loop.time() + limit
        while grpc_port is not None and (began := loop.time()) < end:
            received = grpc_port.received
            await asyncio.sleep(_QUIET)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if loop.time() - began <= _QUIET + _LATE and received == grpc_port.received:
                return


def _audited(audit: "AuditLog | None") -> "RpcAudit | None":
    if audit is None:
        return None
    from .audit import RpcAudit

    return RpcAudit(audit)


def _guarded(server: Server, authority: "Authority | None") -> tuple[Server, "RpcGuard | None"]:
    """The server as handlers ask it, and what finds out in whose name."""
    if authority is None:
        return server, None
    from modserve.server.scoped import ScopedServer

    from .guard import RpcGuard

    return ScopedServer(server), RpcGuard(authority)


def connection_limits(options: GrpcSettings) -> ConnectionLimits:
    """What one connection may cost, by the options."""
    patience = float(options.client_timeout) or math.inf
    return replace(LIMITS, streams=options.max_concurrent_streams, silence=patience, blockage=patience)


def policies(options: GrpcSettings) -> Policies:
    """How connections are kept and ended, by the options."""
    return Policies(
        keepalive=options.keepalive_time / 1e3,
        keepalive_timeout=options.keepalive_timeout / 1e3,
        keepalive_when_idle=options.keepalive_permit_without_calls,
        pings_without_data=options.http2_max_pings_without_data,
        ping_interval=options.http2_min_recv_ping_interval_without_data / 1e3,
        ping_strikes=options.http2_max_ping_strikes,
        age=options.max_connection_age / 1e3,
        grace=options.max_connection_age_grace / 1e3,
    )


def _last_descriptor() -> int:
    """Of those that connections may take: the last eighth of the process's is for other ports and files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if limit == resource.RLIM_INFINITY else limit - max(limit // 8, _KEPT)


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but not for longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
