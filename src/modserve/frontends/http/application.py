"""The application behind the HTTP port: all calls but inference.

FastAPI and the routes are imported on a thread at the first request that needs them. Servers that only get inferences
and probes save that time and memory: most of the 0.15 s and 7 MB by which start-up shrank (`benchmarks/overhead.py`,
start to READY). Until then, this module answers the probes.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from modserve.core.requests import request_ids
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.restricted import ADMIN_PATHS, DRAIN, METRICS_PAGE, PATH_CATEGORY
from modserve.server import Server
from modserve.settings import HttpSettings

from . import probes
from .direct import DirectCalls
from .infer import CallContext
from .local_clients import is_local
from .wire.context import AsgiApp

if TYPE_CHECKING:
    from modserve.access.authority import Authority
    from modserve.observability.audit_log import AuditLog

_PROBES = {"/v2/health/live": probes.live, "/v2/health/ready": probes.ready, "/health": probes.health}
_ID = request_ids.HEADER.lower().encode()


class Application:
    """ASGI application over `server`, used on the event loop's thread.

    `metrics` serves the metrics page to permitted callers. `without_admin`: omits the paths of operators.
    """

    def __init__(
        self,
        server: Server,
        options: HttpSettings,
        authority: "Authority | None" = None,
        audit: "AuditLog | None" = None,
        metrics: AsgiApp | None = None,
        without_admin: bool = False,
    ) -> None:
        self._server = server
        self._metrics = metrics
        self._without_admin = without_admin
        self._authority = authority
        self._audit = audit
        self._options = options
        self._making = asyncio.Lock()
        self._app: AsgiApp | None = None
        self.direct = DirectCalls(CallContext(scope_server(server, authority), options))
        """Calls that the port runs without the application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._metrics is not None and self._is_scrape(scope):
            await self._metrics(scope, receive, send)
            return
        app = self._app
        if app is None:
            if (probe := self._probe(scope)) is not None:
                await _respond(send, *await probe(self._server))
                return
            app = await self._make_app()
        await app(scope, receive, send)

    def _is_scrape(self, scope: Any) -> bool:
        """True for a request of the metrics page. Without a restriction's header, the application refuses it."""
        if scope["path"] != METRICS_PAGE or scope["method"] not in ("GET", "HEAD"):
            return False
        restriction = self._options.restrictions.get(PATH_CATEGORY[METRICS_PAGE])
        return restriction is None or restriction.granted(scope["headers"])

    def _probe(self, scope: Any) -> Callable[[Server], Awaitable[probes.Report]] | None:
        """Return the probe for a request; None if that also needs a log entry, an id, or checks of the caller."""
        logged = self._server.access_log is not None or any(name == _ID for name, _ in scope["headers"])
        more = logged or self._options.restrictions or self._authority is not None
        if more:
            return None
        if scope["path"] == DRAIN and scope["method"] == "POST" and self._audit is None and not self._without_admin:
            client, names = scope["client"], [name.decode("latin-1") for name, _ in scope["headers"]]
            return probes.drain if is_local(client and client[0], names) else None
        return _PROBES.get(scope["path"]) if scope["method"] == "GET" else None

    async def _make_app(self) -> AsgiApp:
        async with self._making:
            if self._app is None:
                module = await asyncio.to_thread(importlib.import_module, "modserve.frontends.http.rest.app")
                identified = importlib.import_module("modserve.frontends.http.rest.identified")
                calls, alone = self.direct, self._without_admin
                app = module.create_app(calls.context.server, self._options, calls, self._authority, alone)
                app = guard_app(app, self._server, self._authority, alone)
                if self._audit is not None:
                    app = importlib.import_module("modserve.frontends.http.audited").AuditedApp(app, self._audit)
                access = self._server.access_log
                self._app = app if access is None else identified.log_calls(app, access)
            return self._app

    def stop_streams(self) -> None:
        """End open streams with an error: the server's time to stop is up."""
        self.direct.streams.stop()


def scope_server(server: Server, authority: "Authority | None") -> Server:
    """Return the server as seen by the caller, if there is an authority."""
    if authority is None:
        return server
    from modserve.server.scoped import ScopedServer

    return ScopedServer(server)


def guard_app(app: AsgiApp, server: Server, authority: "Authority | None", without_admin: bool = False) -> AsgiApp:
    """Return the application behind the authority's checks, if there is one. Its server comes from `scope_server`."""
    if authority is None:
        return app
    from modserve.access.permissions import need_of

    from .guard import GuardedApp

    return GuardedApp(app, authority, server, partial(need_of, hidden=ADMIN_PATHS) if without_admin else need_of)


async def _respond(send: Any, status: int, content: dict[str, Any]) -> None:
    body = orjson.dumps(content)
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", MIME_JSON.encode())]
    if status >= 400:
        headers.append((request_ids.HEADER.encode(), request_ids.make().encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
