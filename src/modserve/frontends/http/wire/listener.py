"""The HTTP port: opening, stop of accepting, and closing after the current requests."""

import asyncio
from typing import TYPE_CHECKING, Any

from modserve.core.statistics.load_report import LoadReport
from modserve.frontends import browsers
from modserve.frontends.certificates import Certificates
from modserve.frontends.http.application import Application
from modserve.frontends.listening import FAREWELL, HANDSHAKE, ListeningSocket, listen
from modserve.server import Server
from modserve.settings import HttpSettings

from . import reports
from .connection import HttpConnection
from .context import STATUSES, AsgiApp, HttpContext

if TYPE_CHECKING:
    from modserve.access.authority import Authority
    from modserve.observability.audit_log import AuditLog

_FLUSH = 1.0
"""Seconds for sending the last responses when the port closes."""
_USUAL = frozenset((200, 400, 404, 429, 500, 503))
"""Statuses that metrics show from the start; otherwise their first response would not count as an increase."""


class HttpListener:
    """Listener that serves `server` on one port, or `app` instead of all its calls. `tasks`: parent of request tasks.

    With an `authority`, serves known callers only. `metrics`: the metrics page, if this port has it. `without_admin`:
    another port serves the calls of operators.
    """

    def __init__(
        self,
        server: Server,
        address: str,
        port: int,
        options: HttpSettings,
        tasks: asyncio.TaskGroup,
        app: AsgiApp | None = None,
        authority: "Authority | None" = None,
        audit: "AuditLog | None" = None,
        metrics: AsgiApp | None = None,
        without_admin: bool = False,
    ) -> None:
        self._server = server
        self._address = address
        self._port = port
        self._options = options
        self._tasks = tasks
        self._context: HttpContext | None = None
        self._authority = authority
        more = authority, audit, metrics, without_admin
        self._calls = Application(server, options, *more) if app is None else None
        self._app = app or self._calls
        self._socket: ListeningSocket | None = None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._context is None else len(self._context.connections)

    @property
    def responses(self) -> dict[str, int]:
        """Number of responses by status, including `_USUAL` ones that have not occurred."""
        statuses = [0] * STATUSES if self._context is None else self._context.statuses
        return {str(status): count for status, count in enumerate(statuses) if count or status in _USUAL}

    async def start(self, accepting: bool = True) -> int:
        """Open the port and return its number, 0 for a Unix socket. Raises OSError or CertificateError.

        Without `accepting`, connections are accepted only after `accept`.
        """
        loop = asyncio.get_running_loop()
        assert self._app is not None, "one of the two: this is a bug"
        calls, authority = self._calls, self._authority
        # Callers' names are stored in tasks, which direct calls do not have.
        direct = None if calls is None else calls.direct
        inferences = calls is not None
        context = HttpContext(self._server, self._app, self._tasks, loop, self._options, inferences, direct, authority)
        self._context = context
        tls: dict[str, Any] = {}
        if self._options.tls is not None:
            certificates = Certificates(self._options.tls).server_context()
            tls = {"ssl": certificates, "ssl_handshake_timeout": HANDSHAKE, "ssl_shutdown_timeout": FAREWELL}
        self._socket = await listen(
            lambda: HttpConnection(context), self._address, self._port, self._options.reuse_port, tls, accepting
        )
        context.start_ticking()
        browsers.learn_names()
        return self._socket.port

    async def accept(self) -> None:
        """Accept connections, if the port is open and does not accept any yet."""
        if self._socket is not None:
            await self._socket.accept()

    def report_load(self, report: LoadReport) -> None:
        """Set the server load for the following responses. Only for a port with that option."""
        if self._context is not None:
            self._context.report_load(*reports.lines(report, self._options.orca))

    async def retire(self, seconds: float, closing: bool = True) -> None:
        """Accept no new connections, and serve each open one once more, for at most `seconds`.

        Idle connections stay open until then, as their clients may have sent a request. Without `closing`, new
        connections are accepted, and each serves a single request.
        """
        context = self._context
        if self._socket is None or context is None:
            return
        if closing:
            await self._socket.close()
        await context.say_goodbye(seconds)

    def arriving(self) -> int:
        """Return the number of incomplete requests."""
        return 0 if self._context is None else sum(connection.arriving for connection in self._context.connections)

    async def stop_accepting(self) -> None:
        """Accept no new connections; open connections finish their requests and close."""
        if self._socket is not None:
            await self._socket.close()
        if self._context is not None:
            self._context.closing = True
            for connection in list(self._context.connections):
                connection.close_when_idle()

    async def close(self) -> None:
        """Stop accepting, end streams, allow time for writing, and close remaining connections."""
        await self.stop_accepting()
        if self._calls is not None:
            self._calls.stop_streams()
        if (context := self._context) is None:
            return
        try:
            async with asyncio.timeout(_FLUSH):
                await context.idle.wait()
        except TimeoutError:
            for connection in list(context.connections):
                connection.abort()
            await context.idle.wait()
        finally:
            context.stop_ticking()
