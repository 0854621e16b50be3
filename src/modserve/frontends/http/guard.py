"""An application behind the keys of its callers."""

from collections.abc import Callable
from typing import Any, Final

from modserve.access import caller, credentials
from modserve.access.authority import Authority
from modserve.access.identity import Identity
from modserve.access.permissions import OPEN, SLASH, CallNeed, need_of
from modserve.core.errors import ModserveError
from modserve.core.requests import request_ids
from modserve.protocol import failures
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server

from . import error_forms
from .wire.asgi import CERTIFICATE, IDENTITY, NOTE, origin_of
from .wire.context import AsgiApp

_ID: Final = request_ids.HEADER.encode()


class GuardedApp:
    """An application that authenticates callers, and lets `app` ask its server in the caller's name.

    OPTIONS passes: it says what a path can do, does none of it, and browsers ask it without headers of their own.
    """

    def __init__(
        self,
        app: AsgiApp,
        authority: Authority,
        server: Server,
        need_of: Callable[[str, str], tuple[CallNeed, str]] = need_of,
    ) -> None:
        """`need_of` returns the need of a method and path, and the model that the path names."""
        self._need_of = need_of
        self._app = app
        self._authority = authority
        self._server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            try:
                await self._admit(scope)
            except ModserveError as error:
                await self._refuse(scope, send, error)
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Any) -> None:
        """Make the authenticated caller the task's caller. Raises what keeps the call from being served."""
        method, authority = scope["method"], self._authority
        need, model = self._need_of("GET" if method == "HEAD" else method, scope["path"])
        if method == "OPTIONS":
            need, model = OPEN, ""
        shown = credentials.of_headers(scope["headers"]) or scope.get("extensions", {}).get(CERTIFICATE, ())
        identity: Identity | None = authority.recognise(shown)
        if identity is None and not authority.is_open(need):
            if not shown:
                raise credentials.missing(scope["query_string"])
            identity = await authority.authenticate(shown, scope.get("client"))
        if identity is not None:
            scope[IDENTITY] = identity
        caller.enter(authority, shown, identity, need)
        if model:
            caller.current().check(model.replace(SLASH, "/"))

    async def _refuse(self, scope: Any, send: Any, error: ModserveError) -> None:
        status, request_id = failures.spelling(error).http, _request_id(scope)
        self._server.failure_log.record("HTTP", "", None, "", status, error.message, request_id, origin_of(scope))
        body = error_forms.encode(scope["path"], error, status)[1]
        headers = [(name.encode(), value.encode()) for name, value in failures.headers(error).items()]
        headers += [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", MIME_JSON.encode()),
            (request_ids.HEADER.encode(), request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _request_id(scope: Any) -> str:
    """Return the request's id in the access log, or the one its client has sent, or a new one."""
    if (note := scope.get(NOTE)) is not None:
        known: str = note.request_id
        return known
    values = [value for name, value in scope["headers"] if name == _ID]
    return request_ids.choose(request_ids.check(values[-1].decode("latin-1").strip())) if values else request_ids.make()
