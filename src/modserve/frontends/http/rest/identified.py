"""Request ids and access-log entries for requests served by the application."""

import time
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from starlette.types import Receive, Send

from modserve.access.permissions import SLASH
from modserve.core.requests import request_ids
from modserve.frontends import access as entries
from modserve.frontends.http import exchange
from modserve.frontends.http.exchange import RequestInfo
from modserve.frontends.http.wire.asgi import IDENTITY, NOTE, origin_of
from modserve.frontends.http.wire.context import AsgiApp, Message
from modserve.observability.access_log import AccessLog

if TYPE_CHECKING:
    from modserve.access.identity import Identity

_HEADER: Final = request_ids.HEADER.encode()


def request_info(request: Request) -> RequestInfo:
    """Return the information about a request served by `Identified` or `log_calls`."""
    note: RequestInfo | None = request.scope.get(NOTE)
    return _note(request.scope) if note is None else note


def _note(scope: Any, logged: bool = False) -> RequestInfo:
    value: bytes | None = None
    for name, value_sent in scope["headers"]:
        if name == _HEADER:
            value = value_sent
    id = "" if value is None else request_ids.check(value.decode("latin-1").strip())
    note = scope[NOTE] = exchange.make_request_info(id, origin_of(scope), logged)
    return note


class Identified:
    """ASGI middleware that adds the request id to responses if the client sent one or may need one."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note: RequestInfo = scope.get(NOTE) or _note(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start" and (note.echoed or message["status"] >= 400):
                headers = [each for each in message.get("headers", ()) if each[0].lower() != _HEADER]
                message = {**message, "headers": [*headers, (_HEADER, note.request_id.encode())]}
            await send(message)

        await self._app(scope, receive, send_with_id)


def log_calls(app: AsgiApp, access: AccessLog) -> AsgiApp:
    """Return the application with an access-log entry for each request."""

    async def serve(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        start_ns, note = time.monotonic_ns(), _note(scope, logged=True)
        received = sent = 0
        status, over = entries.GONE, False

        async def count_received() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def count_sent(message: Message) -> None:
            nonlocal sent, status, over
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
                over = not message.get("more_body", False)
            await send(message)

        try:
            await app(scope, count_received, count_sent)
        except Exception:
            status, over = 500, True
            raise
        finally:
            what = f"{scope['method']} {scope['path'].replace(SLASH, '%2F')}"
            status = status if over else entries.GONE
            call, note.call = note.call, None
            identity: Identity | None = scope.get(IDENTITY)
            note.origin.caller = "" if identity is None else identity.name
            if call is not None:
                counts = status, received, sent, note.count
                entries.record(access, call, what, *counts, start_ns)
            else:
                entry = "HTTP", note.origin, what, "", -1, status, received, sent, 1, "", note.request_id
                tenant = "" if identity is None else identity.tenant.name
                access.record(*entry, start_ns, 0, None, "", tenant)

    return serve
