"""HTTP responses that are read line by line as they come, such as those of modserve's ``infer_stream``."""

import asyncio
import json
from collections.abc import Sequence
from typing import Protocol

from modserve.client.values import FINAL

from .http_slots import CHUNKED, UNTIL_CLOSED, Heads, HttpSlot
from .requests import PreparedRequest
from .slots import Endpoint, ResponseListener

LINES = "application/x-ndjson"
LONGEST_ERROR = 300
_UNREADABLE = "the server's response cannot be read"


class LineReader(Protocol):
    """Understands the lines of one response after the other."""

    def begin(self) -> None:
        """A response with status 200 comes."""

    def read(self, line: bytes) -> bool:
        """A line that is not empty. Returns whether it counts as a response. Raises ValueError for what is no JSON."""

    def end(self, start: int) -> str:
        """The body of the request that was sent at `start` is complete: the error, empty for success."""


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
    """A request at a time; what `reader` counts as a response is reported to the owner."""

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
        """Of the response that comes in; None before and behind it."""
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
            else:  # the owner may have sent the next request, for which a connection is being opened
                return
        super().connection_lost(error)

    def _read(self, body: "Chunks | SizedBody", data: bytes) -> None:
        """Raises ValueError for what is no chunk, or no JSON."""
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
    """A body of so many bytes, or of UNTIL_CLOSED."""

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
    """The content of a chunked body, which comes in pieces of any size."""

    def __init__(self) -> None:
        self.ended = False
        self._size = b""
        """The beginning of a line with a chunk's size."""
        self._missing = 0
        """Bytes of a chunk that are still to come, with the end of the line behind it."""
        self._is_last = False

    def decode(self, data: bytes) -> bytes:
        """Raises ValueError for a size that is none."""
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
