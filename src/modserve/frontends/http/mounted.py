"""The REST surface inside another ASGI application: what the port's own front end does for it, done here.

The path below the mount is read as the port reads one (a slash sent as ``%2F`` is part of a name), so that routes and
restrictions see the same paths. A body is read whole, and counts against the server's memory from its first byte.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from fastapi import Response

from modserve.core.errors import ModserveError
from modserve.core.requests.memory import MemoryExhaustedError
from modserve.protocol import failures
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server

from .error_forms import encode, encode_message
from .wire.asgi import decode_path
from .wire.context import AsgiApp, Hold, Message
from .wire.head import RefusedRequestError, check_path

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_SAFE: Final = "/:"


class MountedApp:
    """Wrapper of `app` at the path in a scope's `root_path`."""

    def __init__(self, app: AsgiApp, server: Server) -> None:
        self._app = app
        self._memory = server.memory

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a request over HTTP."""
        inner = {**scope, "path": inner_path(scope), "root_path": "", "app": None}
        held = Hold(self._memory)
        try:
            check_path(_raw_path(scope))
            body = await self._whole(scope, receive, held)
            if body is not None:
                await self._app(inner, _replay(body, receive), send)
        except RefusedRequestError as refused:
            body = encode_message(inner["path"], refused.message, refused.status)
            await Response(body, refused.status, media_type=MIME_JSON)(inner, receive, send)
        except MemoryExhaustedError as error:
            await refusal(scope, error)(inner, receive, send)
        finally:
            held.resize(0)

    async def _whole(self, scope: Any, receive: Receive, held: Hold) -> bytes | None:
        """Return the body; None if the client goes away before its end.

        Raises MemoryExhaustedError, and RefusedRequestError for a body that will never fit.
        """
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit():
            self._hold(held, int(announced))
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            self._hold(held, size)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _hold(self, held: Hold, size: int) -> None:
        if 0 < self._memory.limit < size:
            raise RefusedRequestError(413, self._memory.make_exhausted_error(size).message)
        if size > held.size:
            held.resize(size)


def inner_path(scope: Any) -> str:
    """Return the path below the mount, as the port's front end has it."""
    root: str = scope.get("root_path", "").rstrip("/")
    path = decode_path(_raw_path(scope))
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path or "/"


def _raw_path(scope: Any) -> bytes:
    """Return the path as it was sent, or, where the other application does not say, as it may have been."""
    raw = scope.get("raw_path")
    return quote(scope["path"], _SAFE, errors="replace").encode() if raw is None else bytes(raw).partition(b"?")[0]


def refusal(scope: Any, error: ModserveError) -> Response:
    """Return the response that reports `error`, in the form of the path below the mount."""
    status, body = encode(inner_path(scope), error, failures.spelling(error).http)
    return Response(body, status, dict(failures.headers(error)), MIME_JSON)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return the body in one message, and after it what else comes: that the client has disconnected."""
    left: list[bytes] = [body]

    async def next_message() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return next_message
