"""Unary gRPC calls: prepared messages over HTTP/2, six slots per connection."""

import asyncio
from collections.abc import Callable, Sequence

from .http2 import PREFIX, GrpcMessage, Http2ClientConnection
from .slots import RETRY_SECONDS, Endpoint, RequestSlot, ResponseListener

SHARE = 6
"""Slots per connection, as in NVIDIA's client."""


class SharedConnection:
    """The connection that some slots share; it is reopened when lost."""

    def __init__(self, endpoint: Endpoint, fields: Sequence[tuple[str, str]], messages: Sequence[GrpcMessage]) -> None:
        self.connection: Http2ClientConnection | None = None
        self.messages = messages
        self._endpoint, self._fields = endpoint, fields
        self._lock = asyncio.Lock()

    async def open(self) -> Http2ClientConnection:
        """Raises OSError."""
        async with self._lock:
            if self.connection is not None and self.connection.usable:
                return self.connection
            connection = Http2ClientConnection(self._fields)
            await self._endpoint.connect(lambda: connection)
            await connection.ready
            self.connection = connection
            return connection

    def message(self, index: int, tag: bytes) -> GrpcMessage:
        """A prepared one. Fields that are written behind those of a message are a part of it."""
        message = self.messages[index]
        return GrpcMessage.of(message.body[PREFIX:] + tag) if tag else message


class GrpcSlot:
    """A call at a time on a connection that it shares; `start` is as in `RequestSlot`."""

    def __init__(self, shared: SharedConnection, owner: ResponseListener) -> None:
        self.start = 0
        self._stream = 0
        self._shared, self._owner = shared, owner
        self._opening: asyncio.Task[None] | None = None

    def send(self, index: int, tag: bytes = b"") -> None:
        connection = self._shared.connection
        if connection is not None and connection.usable:
            self._send(connection, self._shared.message(index, tag))
        else:
            self._opening = asyncio.create_task(self._reopen(index, tag))

    def _send(self, connection: Http2ClientConnection, message: GrpcMessage) -> None:
        self._stream = connection.request(self, message)

    async def _reopen(self, index: int, tag: bytes) -> None:
        try:
            connection = await self._shared.open()
        except OSError as error:
            await asyncio.sleep(RETRY_SECONDS)
            self._finish(f"cannot connect: {error.strerror or error}")
        else:
            self._send(connection, self._shared.message(index, tag))

    def abort(self, why: str) -> None:
        connection = self._shared.connection
        if connection is not None:
            connection.reset(self._stream)
        self._finish(why)

    def close(self) -> None:
        self.start = 0
        if self._opening is not None:
            self._opening.cancel()
        if self._shared.connection is not None:
            self._shared.connection.close()

    def on_end(self, error: str) -> None:
        self._finish(error)

    def on_data(self, data: bytes) -> None:
        """The content of unary responses is ignored."""

    def _finish(self, error: str) -> None:
        if self.start:
            self._owner.on_done(self, error)


class GrpcSlots:
    """Makes slots of one kind that send these messages to `path`, `share` of them over each connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        messages: Sequence[bytes],
        metadata: Sequence[tuple[str, str]],
        make: Callable[[SharedConnection, ResponseListener], RequestSlot] = GrpcSlot,
        share: int = SHARE,
    ) -> None:
        self._endpoint, self._make, self._share = endpoint, make, share
        self._messages = [GrpcMessage.of(message) for message in messages]
        self._fields = [
            (":method", "POST"),
            (":scheme", "https" if endpoint.secure else "http"),
            (":path", path),
            (":authority", endpoint.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "modserve-bench"),
            *((name.lower(), value) for name, value in metadata),
        ]

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        connections = [
            SharedConnection(self._endpoint, self._fields, self._messages) for _ in range(-(-count // self._share))
        ]
        await asyncio.gather(*(shared.open() for shared in connections))
        return [self._make(connections[number % len(connections)], owner) for number in range(count)]
