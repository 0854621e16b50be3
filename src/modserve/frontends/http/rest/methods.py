"""HEAD, OPTIONS and the allowed methods, the same for all paths of the application."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import Request
from starlette.routing import BaseRoute, Match

from modserve.core.errors import ModserveError
from modserve.frontends.http.wire.asgi import SLASH
from modserve.frontends.http.wire.context import AsgiApp, Message

_ASTERISK = "*"
_METHODS = ("GET", "POST")
"""All that the application's paths have, but for HEAD and OPTIONS."""


async def with_slashes(request: Request) -> None:
    """A dependency that gives path parameters their slashes back before the handler sees them."""
    if SLASH in request.scope["path"]:
        request.scope["path_params"] = {
            name: value.replace(SLASH, "/") if isinstance(value, str) else value
            for name, value in request.path_params.items()
        }


def allowed(scope: Any) -> list[str]:
    """The methods of the path that `scope` asks for; none if there is no such path."""
    routes: Iterable[BaseRoute] = scope["app"].routes
    methods = [
        method
        for method in _METHODS
        if scope["path"] == _ASTERISK
        or any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    if not methods:
        return []
    return [*methods, "HEAD", "OPTIONS"] if "GET" in methods else [*methods, "OPTIONS"]


class AnyMethod:
    """An application that responds to HEAD as to GET, without the body, and to OPTIONS with the methods of the path."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        method = scope["method"] if scope["type"] == "http" else None
        if method == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, _without_body(send))
        elif method == "OPTIONS" and (methods := _allowed(scope)):
            headers = [(b"allow", ", ".join(methods).encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body"})
        else:
            await self._app(scope, receive, send)


def _allowed(scope: Any) -> list[str]:
    try:
        return allowed(scope)
    except ModserveError:  # a path that is none, about which the application has more to say
        return []


def _without_body(send: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head
