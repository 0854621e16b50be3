"""gRPC clients of the benchmark. Unary calls: prepared messages over HTTP/2, six slots per connection.

gRPC streams: a connection per slot, with one ModelStreamInfer for all its requests.
"""

import asyncio
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from modserve.client.input_values import FINAL
from modserve.pb import inference as pb

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
        """Open the connection, if it is not usable. Raises OSError."""
        async with self._lock:
            if self.connection is not None and self.connection.usable:
                return self.connection
            connection = Http2ClientConnection(self._fields)
            await self._endpoint.connect(lambda: connection)
            await connection.ready
            self.connection = connection
            return connection

    def message(self, index: int, tag: bytes) -> GrpcMessage:
        """Return a prepared message. Fields appended to a message are a part of it."""
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
        """Ignore the content of unary responses."""

    def _finish(self, error: str) -> None:
        if self.start:
            self._owner.on_done(self, error)


class GrpcSlots:
    """Factory of slots of one kind that send these messages to `path`, `share` of them over each connection."""

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


_LONGEST_ERROR = 300
_UNREADABLE = "the server's response cannot be read"


class StreamSlot(GrpcSlot):
    """A request at a time on a stream of its own, begun again when it has ended.

    A model that is not `decoupled` gives one response to a request. For one that is, each response is reported to the
    owner, and the request is over with that which says that it is the last.
    """

    def __init__(self, shared: SharedConnection, owner: ResponseListener, decoupled: bool) -> None:
        super().__init__(shared, owner)
        self._decoupled = decoupled
        self._carrier: Http2ClientConnection | None = None
        """The connection that the stream is on."""
        self._received = bytearray()
        self._error = ""
        """Error of the request under way, which is not over with its first error."""

    def _send(self, connection: Http2ClientConnection, message: GrpcMessage) -> None:
        self._error = ""
        if not self._stream or self._carrier is not connection:
            self._received.clear()
            self._carrier = connection
            self._stream = connection.open(self)
        if self._stream:
            connection.send_message(self._stream, message.body)

    def abort(self, why: str) -> None:
        """Reset the stream too, so that nothing of this response arrives later."""
        stream, self._stream = self._stream, 0
        if self._carrier is not None:
            self._carrier.reset(stream)
        self._finish(why)

    def on_end(self, error: str) -> None:
        self._stream = 0
        self._finish(error or "the server has ended the stream")

    def on_data(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= PREFIX:
            end = PREFIX + int.from_bytes(received[1:PREFIX], "big")
            if len(received) < end:
                return
            message = bytes(received[PREFIX:end])
            del received[:end]
            try:
                response = pb.ModelStreamInferResponse.FromString(message)
            except DecodeError:
                self.abort(_UNREADABLE)
                return
            self._read(response)

    def _read(self, response: pb.ModelStreamInferResponse) -> None:
        if not self.start:
            return
        if response.error_message:
            self._error = response.error_message[:_LONGEST_ERROR]
        if not self._decoupled:
            self._finish(self._error)
            return
        answer = response.infer_response
        if answer.outputs and not response.error_message:
            self._owner.on_response(self)
        # An error before the model has the request says nothing of what is to come: nothing is.
        if answer.parameters[FINAL].bool_param if FINAL in answer.parameters else response.error_message:
            self._finish(self._error)
