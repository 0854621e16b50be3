"""A minimal HTTP/2 client for gRPC: calls with one message, and streams.

Header blocks are written once: after two or three of them all fields are in the server's table, and the block stays the
same bytes. Received blocks are cached by their bytes as long as reading them leaves the table unchanged.
`hpack` reads and writes new ones.
"""

import asyncio
import urllib.parse
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Protocol, cast

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from modserve.core.wire import grpc_status

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = Struct(">HBBBI")
_SETTING = Struct(">HI")
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_LARGEST = (1 << 31) - 1
_REFILL = 1 << 29
_BLOCKS = 256
_LONGEST_ERROR = 300
_NO_STATUS = "stream ended without a status"
_LAST_STREAM = (1 << 31) - 5


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload


_OPENING = (
    _PREFACE
    + frame(_SETTINGS, 0, 0, _SETTING.pack(2, 0) + _SETTING.pack(4, _LARGEST))
    + frame(_WINDOW, 0, 0, (_LARGEST - 65_535).to_bytes(4, "big"))
)
"""Connection preface and settings: no pushed streams, and windows that nothing fills."""


PREFIX = 5
"""Bytes before a message of gRPC's: whether it is compressed, and its length."""


class GrpcMessage(NamedTuple):
    """A message as gRPC sends it, behind its length."""

    body: bytes
    short: bytes
    """Header of a frame with the whole message, up to the stream number."""

    @classmethod
    def of(cls, message: bytes) -> "GrpcMessage":
        body = b"\0" + len(message).to_bytes(4, "big") + message
        length = min(len(body), 0xFFFFFF)
        return cls(body, _HEAD.pack(length >> 8, length & 255, _DATA, _END_STREAM, 0)[:5])


class CallListener(Protocol):
    """Receiver of a call's response."""

    def on_end(self, error: str) -> None:
        """End the call; `error` is empty for status OK. Called once, and not after `Http2ClientConnection.reset`."""

    def on_data(self, data: bytes) -> None:
        """Receive a part of the response's messages; only for calls of `Http2ClientConnection.open`."""


class _Upload:
    """Unsent body of a call and its send window. With `ends`, the call ends after this body."""

    __slots__ = ("body", "ends", "position", "window")

    def __init__(self, body: bytes, window: int, ends: bool) -> None:
        self.body, self.position, self.window, self.ends = body, 0, window, ends


class Http2ClientConnection(asyncio.Protocol):
    """The client's side. `fields` are the headers of every call."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.usable = False
        self._fields = fields
        self._encoder, self._decoder = Encoder(), Decoder()
        self._block = b""
        self._block_stays = False
        self._known: dict[bytes, str | None] = {}
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, CallListener] = {}
        self._open: dict[int, CallListener] = {}
        """The calls that receive messages, by stream number."""
        self._uploads: dict[int, _Upload] = {}
        self._stream = 1
        self._received = b""
        self._partial = b""
        """A header block that CONTINUATION frames complete."""
        self._partial_ends = 0
        self._window = 65_535
        self._stream_window = 65_535
        self._frame = 16_384
        self._consumed = 0

    # Calls

    def request(self, call: CallListener, message: GrpcMessage) -> int:
        """Begin a call with one message, ignoring its response; return its stream number, or 0 if it has ended."""
        transport = self._transport
        if transport is None:
            call.on_end("connection closed by the server")
            return 0
        stream = self._begin(call)
        number = stream.to_bytes(4, "big")
        size = len(message.body)
        block = self._block if self._block_stays else self._encode()
        if size <= self._frame and size <= self._window and size <= self._stream_window and not self._uploads:
            self._window -= size
            transport.write(b"".join((block[:5], number, block[5:], message.short, number, message.body)))
            return stream
        transport.write(b"".join((block[:5], number, block[5:])))
        self._uploads[stream] = _Upload(message.body, self._stream_window, ends=True)
        self._upload()
        return stream

    def open(self, call: CallListener) -> int:
        """Begin a call with any number of messages, which `send_message` sends; otherwise as `request`."""
        transport = self._transport
        if transport is None:
            call.on_end("connection closed by the server")
            return 0
        stream = self._begin(call)
        block = self._block if self._block_stays else self._encode()
        transport.write(b"".join((block[:5], stream.to_bytes(4, "big"), block[5:])))
        self._uploads[stream] = _Upload(b"", self._stream_window, ends=False)
        self._open[stream] = call
        return stream

    def send_message(self, stream: int, body: bytes) -> None:
        """Send a message of an open call, when there is window for it."""
        upload = self._uploads[stream]
        upload.body = upload.body[upload.position :] + body
        upload.position = 0
        self._upload()

    def _begin(self, call: CallListener) -> int:
        stream = self._stream
        self._stream = stream + 2
        if stream >= _LAST_STREAM:
            self.usable = False
        self._calls[stream] = call
        return stream

    def _encode(self) -> bytes:
        """Return the HEADERS frame without the stream's number."""
        block = self._encoder.encode(self._fields, huffman=True)
        whole = frame(_HEADERS, _END_HEADERS, 0, block)
        head = whole[:5] + whole[9:]
        self._block_stays, self._block = head == self._block, head
        return head

    def _upload(self) -> None:
        transport = self._transport
        assert transport is not None
        for stream, upload in list(self._uploads.items()):
            while (left := len(upload.body) - upload.position) > 0:
                size = min(left, self._frame, self._window, upload.window)
                if size <= 0:
                    break
                begin = upload.position
                flags = _END_STREAM if size == left and upload.ends else 0
                transport.write(frame(_DATA, flags, stream, upload.body[begin : begin + size]))
                upload.position += size
                upload.window -= size
                self._window -= size
            if left <= 0 and upload.ends:
                del self._uploads[stream]

    def reset(self, stream: int) -> None:
        self._uploads.pop(stream, None)
        self._open.pop(stream, None)
        if self._calls.pop(stream, None) is not None and self._transport is not None:
            self._transport.write(frame(_RESET, 0, stream, (8).to_bytes(4, "big")))

    def close(self) -> None:
        self.usable = False
        self._calls.clear()
        self._open.clear()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, stream: int, error: str) -> None:
        self._uploads.pop(stream, None)
        self._open.pop(stream, None)
        call = self._calls.pop(stream, None)
        if call is not None:
            call.on_end(error)

    # The protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_OPENING)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.usable = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the server does not speak HTTP/2 here, or closed the connection"))
        why = f"connection closed {f'with {error}' if error else 'by the server'}"
        for stream in list(self._calls):
            self._end(stream, why)

    def data_received(self, data: bytes) -> None:
        if self._received:
            data = self._received + data
            self._received = b""
        position, end = 0, len(data)
        while end - position >= 9:
            stop = position + 9 + (data[position] << 16 | data[position + 1] << 8 | data[position + 2])
            if stop > end:
                break
            kind, flags = data[position + 3], data[position + 4]
            if kind == _DATA:
                self._consumed += stop - position - 9
                if self._open:
                    self._deliver(flags, data[position + 5 : stop])
                if flags & _END_STREAM:
                    self._end(int.from_bytes(data[position + 5 : position + 9], "big"), _NO_STATUS)
            elif kind in (_HEADERS, _CONTINUATION):
                stream = int.from_bytes(data[position + 5 : position + 9], "big")
                self._read_block(stream, flags, data[position + 9 : stop], kind)
            else:
                stream = int.from_bytes(data[position + 5 : position + 9], "big")
                self._read_other(kind, flags, stream, data[position + 9 : stop])
            position = stop
        if position < end:
            self._received = data[position:]
        if self._consumed > _REFILL and self._transport is not None:
            # An open call has its connection for itself, so that all of it was its data.
            for stream in (0, *self._open):
                self._transport.write(frame(_WINDOW, 0, stream, self._consumed.to_bytes(4, "big")))
            self._consumed = 0

    def _deliver(self, flags: int, rest: bytes) -> None:
        """Deliver data of an open call; `rest` is its frame from the stream's number on."""
        call = self._open.get(int.from_bytes(rest[:4], "big"))
        if call is not None:
            call.on_data(rest[5 : len(rest) - rest[4]] if flags & _PADDED else rest[4:])

    def _read_block(self, stream: int, flags: int, block: bytes, kind: int) -> None:
        """Read a header block: a part of the response without meaning, or the status at its end."""
        if flags & (_PADDED | _PRIORITY) and kind == _HEADERS:
            padding = block[0] if flags & _PADDED else 0
            begin = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
            block = block[begin : len(block) - padding]
        if self._partial:
            block = self._partial + block
            self._partial = b""
            flags |= self._partial_ends
        if not flags & _END_HEADERS:
            self._partial, self._partial_ends = block, flags & _END_STREAM
            return
        error = self._known[block] if block in self._known else self._decode(block)
        if error is not None or flags & _END_STREAM:
            self._end(stream, _NO_STATUS if error is None else error)

    def _decode(self, block: bytes) -> str | None:
        table = self._decoder.header_table
        before = tuple(table.dynamic_entries), table.maxsize
        try:
            fields = dict(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            self.usable = False
            return f"the server's headers cannot be read: {error}"
        error_text = status_error(fields)
        if (tuple(table.dynamic_entries), table.maxsize) != before:
            self._known.clear()
        elif len(self._known) < _BLOCKS:
            self._known[block] = error_text
        return error_text

    def _read_other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if kind == _WINDOW:
            size = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += size
            elif stream in self._uploads:
                self._uploads[stream].window += size
            if self._uploads:
                self._upload()
        elif kind == _PING and not flags & _ACK:
            transport.write(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            for number, value in _SETTING.iter_unpack(payload):
                self._set(number, value)
            transport.write(frame(_SETTINGS, _ACK, 0))
            self.usable = True
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == _RESET:
            self._end(stream, f"stream reset with code {int.from_bytes(payload, 'big')}")
        elif kind == _GOAWAY:
            self.usable = False
            last = int.from_bytes(payload[:4], "big")
            for each in [each for each in self._calls if each > last]:
                self._end(each, "connection closed by the server")

    def _set(self, number: int, value: int) -> None:
        if number == 1:
            self._encoder.header_table_size = min(value, 4096)
            self._block_stays, self._block = False, b""
        elif number == 4:
            for upload in self._uploads.values():
                upload.window += value - self._stream_window
            self._stream_window = value
        elif number == 5:
            self._frame = min(value, 1 << 20)


def status_error(fields: dict[bytes, bytes]) -> str | None:
    """Return the error in trailers, empty for OK; None for a block without a status."""
    code = fields.get(b"grpc-status")
    if code is None:
        http = fields.get(b":status", b"200")
        return None if http == b"200" else f"HTTP status {http.decode(errors='replace')} in place of a gRPC response"
    if code == b"0":
        return ""
    text = urllib.parse.unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))[:_LONGEST_ERROR]
    number = int(code) if code.isdigit() else 2
    name = grpc_status.name_of(number)
    return f"{name}: {text}" if text else name
