"""ASGI middleware that writes calls that change something to the audit log."""

from typing import Any, Final

import orjson

from modserve.access.permissions import SLASH
from modserve.core.requests import request_ids
from modserve.frontends import audit as entries
from modserve.frontends.access import GONE
from modserve.frontends.audit import MOST_CHANGE, AuditEntry
from modserve.observability.audit_log import AuditLog

from .wire.asgi import IDENTITY, origin_of
from .wire.context import AsgiApp, Message

_ID: Final = request_ids.HEADER.lower().encode()


class AuditedApp:
    """Audit log around `app`, which stores a known caller in the scope."""

    def __init__(self, app: AsgiApp, audit: AuditLog) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        entry = entries.entry_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if entry is None:
            await self._app(scope, receive, send)
        else:
            await self._serve(entry, scope, receive, send)

    async def _serve(self, entry: AuditEntry, scope: Any, receive: Any, send: Any) -> None:
        request, response, status = bytearray(), bytearray(), GONE

        async def keep_request(*of: Any) -> Message:
            message: Message = await receive(*of)
            if len(request) <= MOST_CHANGE:
                request.extend(message.get("body", b"")[: MOST_CHANGE + 1])
            return message

        async def keep_response(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                entry.request_id = _request_id(message)
            elif status >= 400 and len(response) <= MOST_CHANGE:
                response.extend(message.get("body", b"")[: MOST_CHANGE + 1])
            await send(message)

        try:
            await self._app(scope, keep_request, keep_response)
        except Exception:
            status = 500
            raise
        finally:
            entry.identity = scope.get(IDENTITY)
            entry.call = entry.call.replace(SLASH, "%2F")
            entry.model = entry.model.replace(SLASH, "/")
            if entries.shows_request(scope["path"]):
                entry.change = _json(request)
            entry.error = _error(_json(response))
            known = entry.identity is not None or status < 400
            entry.record(self._audit, origin_of(scope), status, known=known)


def _request_id(start: Message) -> str:
    """Return the request id of a response."""
    values = [value for name, value in start.get("headers", ()) if name.lower() == _ID]
    return values[-1].decode("latin-1") if values else ""


def _json(body: bytearray) -> object:
    """Parse JSON; None for a long or invalid body."""
    if not body or len(body) > MOST_CHANGE:
        return None
    try:
        content: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return content


def _error(content: object) -> str:
    message = content.get("error") if isinstance(content, dict) else None
    return message if isinstance(message, str) else ""
