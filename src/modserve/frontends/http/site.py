"""What all connections of the HTTP front end share."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from modserve.server import Server

from .options import HttpOptions
from .routes import InferRoute

Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_HEADS = 1024
_MEMORABLE = 2048
"""Bytes of the longest head worth remembering; longer ones could fill the memory."""


class OpenConnection(Protocol):
    """A connection as its listener needs it."""

    def close_when_idle(self) -> None:
        """Answer what is under way, then close."""
        ...

    def abort(self) -> None: ...


class Site:
    """The server behind a listener, its limits, and its connections.

    `heads` remembers what the head of an inference request means, byte for byte: clients send the same one again and
    again. What it holds is bounded.
    """

    def __init__(
        self,
        server: Server,
        app: AsgiApp,
        tasks: asyncio.TaskGroup,
        loop: asyncio.AbstractEventLoop,
        options: HttpOptions,
    ) -> None:
        self.server = server
        self.app = app
        self.tasks = tasks
        self.loop = loop
        self.options = options
        self.connections: set[OpenConnection] = set()
        self.heads: dict[bytes, InferRoute] = {}
        self.closing = False
        self.idle = asyncio.Event()
        """Set while there is no connection."""
        self.idle.set()

    def opened(self, connection: OpenConnection) -> None:
        self.connections.add(connection)
        self.idle.clear()

    def closed(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.idle.set()

    def remember(self, head: bytes, route: InferRoute) -> None:
        if len(head) > _MEMORABLE:
            return
        if len(self.heads) >= _HEADS:
            self.heads.clear()
        self.heads[head] = route
