"""The HTTP front end inside another ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from modserve.client.errors import client_errors
from modserve.core.errors import invalid, unavailable
from modserve.frontends.http.application import guard_app, scope_server
from modserve.frontends.http.audited import AuditedApp
from modserve.frontends.http.mounted import MountedApp, refusal
from modserve.frontends.http.rest.app import create_app
from modserve.observability.audit_log import AuditLog
from modserve.process.app import InferenceServer
from modserve.process.listeners import access_control
from modserve.server import Phase
from modserve.settings import Settings

from .connecting import settings_of

_UNSTARTED = (
    "the models of this application have not been loaded: set lifespan=models.lifespan or use 'async with models:' in "
    "the application's own lifespan"
)


def asgi(models: str | Path | Settings | InferenceServer) -> "Mounted":
    """Return the HTTP surface of a server, as an ASGI application to mount in another.

    ::

        models = modserve.asgi("models")
        app = FastAPI(lifespan=models.lifespan)
        app.mount("/models", models)

    `models` is a model repository, a model file, settings, or a server. Settings about HTTP connections (address, TLS,
    CORS, time-outs) have no effect: the other application controls these. Raises `ClientError` if there are no models.
    """
    with client_errors():
        if isinstance(models, InferenceServer):
            return Mounted(models)
        return Mounted(InferenceServer(settings_of(models)))


class Mounted:
    """The HTTP surface of `server` as an ASGI application.

    The server runs during an ``async with`` block of this object, during `lifespan`, or, if the object is the whole
    application, during the ASGI lifespan. A server that is already running is left alone.
    """

    def __init__(self, server: InferenceServer) -> None:
        self.server = server
        self._owned = False
        self._app: MountedApp | None = None
        self._access = access_control(server.settings)
        self._audit: AuditLog | None = None
        self._stop_streams: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        """Load the models. Raises `ClientError` if a repository cannot be read, or the audit log not be opened."""
        with client_errors():
            self._open_audit_log()
        if self.server.phase is Phase.STARTING:
            self._owned = True
            with client_errors():
                await self.server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_streams()
        if self._access is not None:
            self._access.stop()
        if self._owned:
            await self.server.shut_down()
        audit, self._audit, self._app = self._audit, None, None
        if audit is not None:
            await asyncio.to_thread(audit.close)

    def _open_audit_log(self) -> None:
        target = self.server.settings.audit_log
        if not target or self._audit is not None:
            return
        try:
            self._audit = AuditLog(target, None, self.server.settings.proxies)
        except OSError as error:
            raise invalid(f"cannot open the audit log '{target}': {error.strerror or error}") from None

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Serve the models during an app's lifespan: ``FastAPI(lifespan=models.lifespan)``, and so in Starlette."""
        async with self:
            yield

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            if self.server.loop is None:
                await refusal(scope, unavailable(_UNSTARTED))(scope, receive, send)
                return
            if self.server.loop is not asyncio.get_running_loop():
                raise RuntimeError("the server of these models runs on another event loop than this application")
            await self._http()(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def _http(self) -> MountedApp:
        if self._app is None:
            access = self._access
            if access is not None:
                access.start()
            authority = None if access is None else access.authority
            app = create_app(scope_server(self.server, authority), self.server.settings.http, authority=authority)
            self._stop_streams = app.state.streams.stop
            inner = guard_app(app, self.server, authority)
            self._open_audit_log()
            if self._audit is not None:
                inner = AuditedApp(inner, self._audit)
            self._app = MountedApp(inner, self.server)
        return self._app

    async def _live(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        """The ASGI lifespan, of an application that is not mounted in another."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.__aenter__()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.__aexit__(None, None, None)
                await send({"type": "lifespan.shutdown.complete"})
                return
