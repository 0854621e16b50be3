"""The gRPC port: HTTP/2 on the event loop, in `frontends/http2`."""

import asyncio
import math
import resource
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from modserve.core.statistics.load_report import LoadReport
from modserve.frontends.certificates import Certificates
from modserve.frontends.http2.connection import Http2Connection
from modserve.frontends.http2.headers import literal
from modserve.frontends.http2.limits import LIMITS, ConnectionLimits
from modserve.frontends.http2.policies import Policies
from modserve.frontends.listening import FAREWELL, HANDSHAKE, ListeningSocket, listen
from modserve.protocol.control import load_report
from modserve.protocol.restricted import ADMIN_RPCS
from modserve.server import Server
from modserve.settings import GrpcSettings

from .dispatch import Dispatcher
from .grpc_port import GrpcPort
from .load_reports import LoadReports
from .model_stream import InferStreams
from .server_call import ServerCall
from .service import rpc_table

if TYPE_CHECKING:
    from modserve.access.authority import Authority
    from modserve.observability.audit_log import AuditLog

    from .audit import RpcAudit
    from .guard import RpcGuard

_LOAD: Final = load_report.BINARY_HEADER.encode()

_KEPT: Final = 16
"""Descriptors that are left to others, at least."""

_PROTOCOL: Final = "h2"

CODINGS: Final = {"none": (), "low": ("gzip", "deflate"), "medium": ("deflate", "gzip"), "high": ("deflate", "gzip")}
"""Codings of responses by the option's value, the best first, in the order of gRPC's library."""


class GrpcListener:
    """Listener that serves `server` on one port; with an `authority`, to callers that it knows.

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
        scoped, guard = _guard_server(server, authority)
        most = options.max_message or 0
        self._dispatcher = Dispatcher(server, options.limits, max_message=most, guard=guard, audit=_make_audit(audit))
        self._streams = InferStreams(scoped, options, self._dispatcher.inflater)
        self._reports = None if options.orca == "off" else LoadReports(scoped)
        rpcs = rpc_table(scoped, options, self._dispatcher.inflater, self._streams, self._reports)
        hidden = ADMIN_RPCS if without_admin else ()
        self._rpcs = {path: rpc for path, rpc in rpcs.items() if rpc.method.name not in hidden}
        self._port: GrpcPort | None = None
        self._socket: ListeningSocket | None = None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._port is None else len(self._port.connections)

    @property
    def responses(self) -> dict[str, int]:
        """Number of calls that ended, by the name of their status."""
        return self._dispatcher.responses

    @property
    def endings(self) -> dict[str, int]:
        """Number of connections that the port ended before their time, by the reason."""
        return {} if self._port is None else self._port.endings

    async def start(self, accepting: bool = True) -> int:
        """Open the port, as `HttpListener.start` does."""
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
        self._socket = await listen(factory, self._address, self._number, options.reuse_port, tls, accepting)
        grpc_port.start_ticking()
        return self._socket.port

    async def accept(self) -> None:
        """Take connections, if the port is open and does not yet."""
        if self._socket is not None:
            await self._socket.accept()

    def report_load(self, report: LoadReport) -> None:
        """Set the server load that trailers, and streams of reports, report from now on."""
        message = load_report.message(report)
        if self._reports is not None:
            self._reports.latest = message
        if self._port is not None and self._options.orca != "request":
            self._port.report_load(literal(_LOAD, load_report.trailer(message)))

    async def retire(self, seconds: float) -> None:
        """Take no new connections, and tell the clients of open ones to go elsewhere.

        Returns when all have heard it, or after `seconds`: until then all their calls are served. Streams read what has
        come of them by then, and end when that is settled.
        """
        if self._socket is None or self._port is None:
            return
        await self._socket.close()
        await self._port.say_goodbye(seconds)
        self._streams.retire()

    def arriving(self) -> int:
        """Return the number of calls that have begun, and have requests of which some part has not been read."""
        if self._port is None:
            return 0
        calls = (call for connection in self._port.connections for call in connection.streams.values())
        unary = sum(isinstance(call, ServerCall) and call.arriving for call in calls)
        return unary + self._streams.arriving()

    async def finish(self, seconds: float) -> None:
        """End connections as soon as their calls are over; returns when all are, or after `seconds`.

        Streams read no more requests, and end when those they have read are settled.
        """
        self._streams.stop()
        if self._socket is not None:
            await self._socket.close()
        if self._port is not None:
            for connection in list(self._port.connections):
                connection.go_away()
            await _within(self._port.idle, seconds)

    async def close(self) -> None:
        """End all calls, leave time for what has been written, and close what is left."""
        self._streams.stop()
        if self._socket is not None:
            await self._socket.close()
        if (grpc_port := self._port) is None:
            return
        try:
            for connection in list(grpc_port.connections):
                for stream in list(connection.streams.values()):
                    if isinstance(stream, ServerCall):
                        stream.stop()
                connection.close_when_done()
            await _within(grpc_port.idle, grpc_port.limits.farewell)
            for connection in list(grpc_port.connections):
                connection.abort()
            await grpc_port.idle.wait()
        finally:
            grpc_port.stop_ticking()
            grpc_port.deadlines.close()


def _make_audit(audit: "AuditLog | None") -> "RpcAudit | None":
    if audit is None:
        return None
    from .audit import RpcAudit

    return RpcAudit(audit)


def _guard_server(server: Server, authority: "Authority | None") -> tuple[Server, "RpcGuard | None"]:
    """Return the server that handlers call, and the guard that authenticates their callers."""
    if authority is None:
        return server, None
    from modserve.server.scoped import ScopedServer

    from .guard import RpcGuard

    return ScopedServer(server), RpcGuard(authority)


def connection_limits(options: GrpcSettings) -> ConnectionLimits:
    """Return the limits of one connection, by the options."""
    patience = float(options.client_timeout) or math.inf
    return replace(LIMITS, streams=options.max_concurrent_streams, silence=patience, blockage=patience)


def policies(options: GrpcSettings) -> Policies:
    """Return the policies by which connections are kept and ended, by the options."""
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
    """Return the last descriptor that connections may take: the process's last eighth is for other ports and files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if limit == resource.RLIM_INFINITY else limit - max(limit // 8, _KEPT)


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but not for longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
