"""The HTTP port: it opens, stops accepting, and closes when the requests at hand have been served."""

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
"""Seconds for responses on their way when the port closes."""
_USUAL = frozenset((200, 400, 404, 429, 500, 503))
"""Statuses that metrics have from the start, or the first of them would be no increase."""


class HttpListener:
    """Listener that serves `server` on one port, or `app` in place of all its calls. `tasks` is the parent of requests'
    tasks.

    With an `authority`, to callers that it knows. `metrics` is the page of metrics, if this port has it;
    `without_admin`: another port has the calls of operators.
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
        """Number of responses by status: of all that occurred, and of `_USUAL`."""
        statuses = [0] * STATUSES if self._context is None else self._context.statuses
        return {str(status): count for status, count in enumerate(statuses) if count or status in _USUAL}

    async def start(self, accepting: bool = True) -> int:
        """Open the port and return its number, 0 for a Unix socket. Raises OSError, or CertificateError.

        Unless `accepting`, no connection comes before `accept`.
        """
        loop = asyncio.get_running_loop()
        assert self._app is not None, "one of the two: this is a bug"
        calls, authority = self._calls, self._authority
        # Callers' names are kept in tasks, which calls of the port's own have not.
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
        """Take connections, if the port is open and does not yet."""
        if self._socket is not None:
            await self._socket.accept()

    def report_load(self, report: LoadReport) -> None:
        """Set the server load that responses report from now on. Only for a port with the option for it."""
        if self._context is not None:
            self._context.report_load(*reports.lines(report, self._options.orca))

    async def retire(self, seconds: float, closing: bool = True) -> None:
        """Take no new connections, and serve each of those that are open once more, for `seconds` at most.

        An idle one is not closed before: a request may be on its way, whose client could not know. Unless `closing`,
        there may be new ones, and each serves a single request.
        """
        context = self._context
        if self._socket is None or context is None:
            return
        if closing:
            await self._socket.close()
        await context.say_goodbye(seconds)

    def arriving(self) -> int:
        """Return the number of requests that have begun to arrive, and are not complete."""
        return 0 if self._context is None else sum(connection.arriving for connection in self._context.connections)

    async def stop_accepting(self) -> None:
        """Take no new connections; those that are open are served and then closed."""
        if self._socket is not None:
            await self._socket.close()
        if self._context is not None:
            self._context.closing = True
            for connection in list(self._context.connections):
                connection.close_when_idle()

    async def close(self) -> None:
        """Stop accepting, end streams, leave time for what has been written, and close what is left."""
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
