"""Minimal HTTP/1.1 client: requests are prepared bytes, and only the end of a response matters.

A connection is a slot. Response heads hardly differ and are cached by their bytes. Streamed responses, such as from
modserve's ``infer_stream``, are read line by line as they arrive.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from modserve.client.input_values import FINAL

from .inputs import PreparedRequest
from .slots import RETRY_SECONDS, Endpoint, RequestSlot, ResponseListener

_HEADS = 64
_LONGEST_ERROR = 300
_LAST_CHUNK = b"0\r\n\r\n"

CHUNKED, UNTIL_CLOSED = -1, -2
"""Body lengths that are unknown before the end of the body."""


class HttpSlot(asyncio.Protocol):
    """A connection. Reconnects if the server closes it after a response."""

    def __init__(
        self, endpoint: Endpoint, requests: Sequence[PreparedRequest], owner: ResponseListener, heads: "Heads"
    ) -> None:
        self.start = 0
        self._endpoint, self._requests, self._owner, self._heads = endpoint, requests, owner, heads
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsent: bytes | None = None
        """Request that waits for a new connection."""
        self._received = b""
        """Incomplete head, or the response so far if its length is unknown."""
        self._parts: list[bytes] = []
        """Body of an error."""
        self._missing = 0
        """Outstanding bytes of the body."""
        self._status = 0
        self._closes = False
        self._why = ""

    async def open(self) -> None:
        """Open the connection. Raises OSError."""
        await self._endpoint.connect(lambda: self)

    def send(self, index: int, tag: bytes = b"") -> None:
        transport = self._transport
        before, after = self._requests[index]
        request = before + tag + after if tag else before
        if transport is not None and not self._closes:
            transport.write(request)
            return
        self._unsent = request
        if transport is None:
            self._opening = asyncio.create_task(self._reopen())
        else:
            transport.close()

    async def _reopen(self) -> None:
        try:
            await self.open()
        except OSError as error:
            await asyncio.sleep(RETRY_SECONDS)
            self._unsent = None
            self._finish(f"cannot connect: {error.strerror or error}")

    def abort(self, why: str) -> None:
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self.start = 0
        self._unsent = None
        if self._opening is not None:
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    # The protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received, self._parts, self._missing, self._closes = b"", [], 0, False
        if self._unsent is not None:
            request, self._unsent = self._unsent, None
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._missing > 0:
            self._missing -= len(data)
            if self._status != 200:
                self._parts.append(data)
            if self._missing <= 0:
                self._complete()
            return
        if self._received:
            data = self._received + data
            self._received = b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._received = data
            return
        self._status, length, self._closes = self._heads.of(data[:end])
        missing = end + 4 + length - len(data)
        if length >= 0 and missing <= 0 and self._status == 200:
            self._finish("")
        elif self._status == 100:
            if len(data) > end + 4:
                self.data_received(data[end + 4 :])
        elif length >= 0:
            self._missing = missing
            self._parts = [data[end + 4 :]] if self._status != 200 else []
            if missing <= 0:
                self._complete()
        elif length == CHUNKED and data.endswith(_LAST_CHUNK):
            self._parts = [data[end + 4 :]]
            self._complete()
        else:
            self._received = data

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        head, _, body = self._received.partition(b"\r\n\r\n")
        self._received = b""
        if self._unsent is not None:
            self._opening = asyncio.create_task(self._reopen())
        elif body and self._heads.of(head)[1] == UNTIL_CLOSED:
            self._parts = [body]
            self._complete()
        elif self.start:
            why, self._why = self._why, ""
            self._finish(why or f"connection closed {f'with {error}' if error else 'by the server'}")

    def _complete(self) -> None:
        error = "" if self._status == 200 else _error_text(self._status, b"".join(self._parts))
        self._parts, self._missing = [], 0
        self._finish(error)

    def _finish(self, error: str) -> None:
        if self.start:
            self._owner.on_done(self, error)


class Heads:
    """Cache of parsed response heads: status, body length, and True if the connection closes afterwards."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, int, bool]] = {}

    def of(self, head: bytes) -> tuple[int, int, bool]:
        known = self._known.get(head)
        if known is None:
            known = read_head(head)
            if len(self._known) < _HEADS:
                self._known[head] = known
        return known


def read_head(head: bytes) -> tuple[int, int, bool]:
    """Return the status, the body length, CHUNKED or UNTIL_CLOSED, and True if the connection closes afterwards."""
    first, *lines = head.split(b"\r\n")
    parts = first.split(b" ", 2)
    status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
    fields = {
        name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(b":") for line in lines)
    }
    closes = fields.get(b"connection") == b"close" or (first.startswith(b"HTTP/1.0") and b"connection" not in fields)
    length = fields.get(b"content-length", b"")
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        return status, CHUNKED, closes
    if length.isdigit():
        return status, int(length), closes
    return status, 0 if status in (100, 204, 304) else UNTIL_CLOSED, closes


def _error_text(status: int, body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)  # an object in OpenAI's API
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace").strip()
    return f"{status}: {text[:_LONGEST_ERROR]}" if text else f"status {status}"


MakeSlot = Callable[[Endpoint, Sequence[PreparedRequest], ResponseListener, Heads], HttpSlot]


class HttpSlots:
    """Factory of connections that send these requests."""

    def __init__(self, endpoint: Endpoint, requests: Sequence[PreparedRequest], make: MakeSlot = HttpSlot) -> None:
        self._endpoint, self._requests, self._make = endpoint, requests, make
        self._heads = Heads()

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        slots = [self._make(self._endpoint, self._requests, owner, self._heads) for _ in range(count)]
        await asyncio.gather(*(slot.open() for slot in slots))
        return slots


LINES = "application/x-ndjson"
LONGEST_ERROR = 300
_UNREADABLE = "the server's response cannot be read"


class LineReader(Protocol):
    """Reader of the lines of consecutive responses."""

    def begin(self) -> None:
        """Begin a response with status 200."""

    def read(self, line: bytes) -> bool:
        """Read a non-empty line, and return True if it counts as a response. Raises ValueError if it is not JSON."""

    def end(self, start: int) -> str:
        """End the body of the request sent at `start`; return its error, empty for success."""


class InferLines:
    """``infer_stream``: each line with outputs is a response."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._error = ""
        self._is_final = False

    def read(self, line: bytes) -> bool:
        row = json.loads(line)
        self._is_final = bool(row.get("parameters", {}).get(FINAL))
        if "error" in row:
            self._error = str(row["error"])[:LONGEST_ERROR]
            return False
        return bool(row.get("outputs"))

    def end(self, start: int) -> str:
        return self._error or ("" if self._is_final else "the server aborted the stream")


class HttpStreamSlot(HttpSlot):
    """Connection for streamed responses, one request at a time. Reports each response that `reader` counts."""

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[PreparedRequest],
        owner: ResponseListener,
        heads: Heads,
        reader: LineReader | None = None,
    ) -> None:
        super().__init__(endpoint, requests, owner, heads)
        self._reader = reader or InferLines()
        self._body: Chunks | SizedBody | None = None
        """Body of the response in progress; None before and after it."""
        self._line = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._body = None
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._body is None and self._missing <= 0:
            data, self._received = self._received + data, b""
            end = data.find(b"\r\n\r\n")
            status, length, closes = self._heads.of(data[:end]) if end >= 0 else (0, 0, False)
            if status == 200:
                self._closes = closes
                self._body, self._line = Chunks() if length == CHUNKED else SizedBody(length), b""
                self._reader.begin()
                data = data[end + 4 :]
        if self._body is None:
            super().data_received(data)
            return
        try:
            self._read(self._body, data)
        except ValueError:
            self._body = None
            self.abort(_UNREADABLE)

    def connection_lost(self, error: Exception | None) -> None:
        body, self._body = self._body, None
        if error is None and isinstance(body, SizedBody) and body.until_closed and not self._why:
            self._transport = None
            try:
                self._end()
            except ValueError:
                self._why = _UNREADABLE
            else:  # the owner may have sent the next request, and a connection for it is being opened
                return
        super().connection_lost(error)

    def _read(self, body: "Chunks | SizedBody", data: bytes) -> None:
        """Read received bytes. Raises ValueError for an invalid chunk or JSON."""
        *lines, self._line = (self._line + body.decode(data)).split(b"\n")
        for line in filter(None, lines):
            if self._reader.read(line) and self.start:
                self._owner.on_response(self)
        if body.ended:
            self._body = None
            self._end()

    def _end(self) -> None:
        line, self._line = self._line, b""
        if line:
            self._reader.read(line)
        if self.start:
            self._finish(self._reader.end(self.start))


class SizedBody:
    """Body of a known length, or of UNTIL_CLOSED."""

    def __init__(self, length: int) -> None:
        self.until_closed = length == UNTIL_CLOSED
        self.ended = length == 0
        self._missing = length

    def decode(self, data: bytes) -> bytes:
        if not self.until_closed:
            self._missing -= len(data)
            self.ended = self._missing <= 0
        return data


class Chunks:
    """Content of a chunked body, received in pieces of any size."""

    def __init__(self) -> None:
        self.ended = False
        self._size = b""
        """Incomplete line with a chunk's size."""
        self._missing = 0
        """Outstanding bytes of a chunk, including its line end."""
        self._is_last = False

    def decode(self, data: bytes) -> bytes:
        """Decode chunks. Raises ValueError for an invalid size."""
        data, self._size = self._size + data, b""
        parts = []
        position = 0
        while position < len(data):
            if not self._missing:
                end = data.find(b"\r\n", position)
                if end < 0:
                    self._size = data[position:]
                    break
                size = int(data[position:end].partition(b";")[0], 16)
                self._missing, self._is_last = size + 2, not size
                position = end + 2
            part = data[position : position + self._missing]
            parts.append(part[: max(0, self._missing - 2)])
            position += len(part)
            self._missing -= len(part)
            self.ended = self._is_last and not self._missing
        return b"".join(parts)
