"""HTTP streams: the responses of a decoupled model as lines of JSON, by modserve's ``infer_stream``."""

import asyncio
import json
from collections.abc import Sequence

from modserve.client.values import FINAL

from .http_slots import CHUNKED, Heads, HttpSlot
from .requests import PreparedRequest
from .slots import Endpoint, ResponseListener

LINES = "application/x-ndjson"
_LONGEST_ERROR = 300


class HttpStreamSlot(HttpSlot):
    """A request at a time; each line of its response is reported to the owner. A failure comes as for other calls."""

    def __init__(
        self, endpoint: Endpoint, requests: Sequence[PreparedRequest], owner: ResponseListener, heads: Heads
    ) -> None:
        super().__init__(endpoint, requests, owner, heads)
        self._chunks: Chunks | None = None
        """Of the response that comes in; None before and behind it."""
        self._line = b""
        self._error = ""
        self._is_final = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._chunks = None
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._chunks is None and self._missing <= 0:
            data, self._received = self._received + data, b""
            end = data.find(b"\r\n\r\n")
            status, length, closes = self._heads.of(data[:end]) if end >= 0 else (0, 0, False)
            if (status, length) == (200, CHUNKED):
                self._closes = closes
                self._chunks, self._line, self._error, self._is_final = Chunks(), b"", "", False
                data = data[end + 4 :]
        if self._chunks is None:
            super().data_received(data)
            return
        try:
            self._read(self._chunks, data)
        except ValueError:
            self._chunks = None
            self.abort("the server's response cannot be read")

    def _read(self, chunks: "Chunks", data: bytes) -> None:
        """Raises ValueError for what is no chunk, or no JSON."""
        *lines, self._line = (self._line + chunks.decode(data)).split(b"\n")
        for line in filter(None, lines):
            row = json.loads(line)
            if "error" in row:
                self._error = str(row["error"])[:_LONGEST_ERROR]
            elif row.get("outputs") and self.start:
                self._owner.on_response(self)
            self._is_final = bool(row.get("parameters", {}).get(FINAL))
        if chunks.ended:
            self._chunks = None
            self._finish(self._error or ("" if self._is_final else "the server aborted the stream"))


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
