"""An ASGI application that Ray starts and stops."""

from collections.abc import Awaitable, Callable
from typing import Any


def without_lifespan(app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """`app`, which serves HTTP alone: it is started before Ray says so, and stopped later."""

    async def serve(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
        elif scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        else:
            await send({"type": "websocket.close", "code": 1000})

    return serve
