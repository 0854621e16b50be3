"""Parses requests from bytes, without I/O: returns heads with their bodies, or a refusal.

`HeadReader` parses complete heads in the usual form. httptools parses other heads and chunked bodies; bodies with a
Content-Length are counted here.

A reader is in one of three states:

- IDLE: between requests. No part of a request has arrived, except for empty lines.
- HEAD: part of a head has arrived. `head` is None, and the parser has all data read.
- BODY: the head is complete and its body is not; `head` and `body` are set. Either `missing` bytes have yet to arrive,
  or (`missing` is 0) the body is chunked, and the parser has all data read.

In all states, `rest` is unread from `at` on. A refusal is final: its receiver drops the reader's contents.
"""

import asyncio
from enum import Enum, auto
from typing import NoReturn, TypeAlias

import httptools

from modserve.core.errors import ModserveError
from modserve.core.requests.memory import MemoryBudget
from modserve.core.tensors.tensor import Buffer
from modserve.protocol.failures import STATUS
from modserve.protocol.http.infer_body import check_json_size
from modserve.protocol.http.request_head import RequestHead
from modserve.settings import HttpSettings

from . import cors
from .body import IncomingBody
from .head import HeadLines, RefusedRequestError, without_origin
from .head_reader import MAX_HEAD, HeadFields, HeadReader

END = b"\r\n\r\n"
"""End of every head, and of every chunked body with its trailers."""

PART = 16 * 1024
"""Part of a body in bytes that must arrive within some time (`time_outs.py`)."""

_MAX_EMPTY_LINES = 64 * 1024
"""Bytes of empty lines before a request, which servers should ignore (RFC 9112, 2.2)."""

_MAX_CHUNKS = 65536
_TOO_MANY_CHUNKS = (
    f"Chunked request body exceeds maximum of {_MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
)
_TOO_MUCH_FRAMING = f"the chunk extensions and trailers of the request's body exceed {MAX_HEAD} bytes"


class ReadState(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()


IDLE, HEAD, BODY = ReadState


Request: TypeAlias = tuple[RequestHead, Buffer]
"""Head and body of a completely received request."""


class Reader:
    """Request parser. The connection calls the methods in the upper half, httptools the lower half."""

    def __init__(self, heads: HeadReader, options: HttpSettings, memory: MemoryBudget) -> None:
        self.state = IDLE
        self.rest = b""
        self.at = 0
        self.head: RequestHead | None = None
        self.body = IncomingBody()
        self.missing = 0
        self.expecting = False  # the client waits for "100 Continue"
        self.cors = b""  # header lines for a refusal of the current request
        self.empty_lines = 0  # in bytes, since the last request
        self._requests = 0  # ended ones that arrived in parts
        self._heads = heads
        self._options = options
        self._memory = memory
        self._parser: httptools.HttpRequestParser | None = None  # refers back to the reader
        self._lines = HeadLines()
        self._tail = b""  # the last bytes that the parser got: END may be split
        self._framing = 0  # bytes of an incomplete head, or of the framing since the last chunk of a body
        self._trailers = 0  # in bytes
        self._chunks = 0
        self._limited = True  # the body counts against the JSON limit
        self._upgrade = False  # the parser takes the body for data of another protocol
        self._ended = False  # the parser has reached the end of the request
        self._refusal: tuple[int, str] | None = None
        """Status and message with which a callback has stopped the parser. The exception itself may get lost if another
        one was being handled."""

    @property
    def part(self) -> tuple[int, int]:
        """The incomplete part of a request: number of the request, and 0 for its head, from 1 on for its body."""
        return self._requests, 1 + self.body.size // PART if self.state is BODY else 0

    @property
    def path(self) -> bytes:
        """Path of the request with an incomplete body; empty if there is none."""
        head = self.head if self.state is BODY else None
        return b"" if head is None else head.route or head.target.partition(b"?")[0]

    @property
    def ahead(self) -> int:
        """Received bytes that have not been parsed."""
        return len(self.rest) - self.at

    def feed(self, data: bytes) -> None:
        """Append received data."""
        self.rest = self.rest[self.at :] + data if self.rest else data
        self.at = 0

    def drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drop all received data. Nothing is fed afterwards."""
        self.state = IDLE
        self.head = self._parser = None
        self.rest = b""
        self.at = self.missing = 0
        self.body.drop(loop)

    def read_piece(self) -> Request | None:
        """Parse the next piece, and return the request that it completes.

        A piece is a head with its body, or it ends with a head, a body, or a blank line of a chunked body, so that no
        piece takes long. Raises RefusedRequestError; any other exception is a bug.
        """
        data, start = self.rest, self.at
        if self.missing:
            end = self.at = min(start + self.missing, len(data))
            piece = data[start:end]
            self.missing -= end - start
            if not self.missing and not self.body.size:
                return self._end(piece)
            self.body.add(piece, self.missing)
            return None if self.missing else self._end(self.body.take())
        fields = self._heads.scan(data, start) if self.state is IDLE else None
        head = None if fields is None else self._understand_scan(fields, data)
        if fields is None or head is None:
            end = self.at = self._next_end(data, start)
            return self._parse_piece(data[start:end])
        end, length = fields.end, fields.length
        self.empty_lines, self._tail = 0, b""
        if end + length <= len(data):
            self.at, self.cors = end + length, b""
            return head, data[end : self.at]
        self.at = end
        self.state, self.head, self.missing, self.cors = BODY, head, length, head.cors
        self.expecting = fields.expecting
        return None

    def _understand_scan(self, fields: HeadFields, data: bytes) -> RequestHead | None:
        """Return the head of a scan; None for an invalid one, for which the parser has the error message."""
        heads, line = self._heads, fields.line
        if fields.length > self._options.max_json or 0 < self._memory.limit < fields.length:
            return None  # perhaps too long
        try:
            if fields.lines is not None and (line.renamed or line.method == b"OPTIONS"):
                return self._understand(fields.lines, line.method, line.version, fields.keep_alive)[0]
            allowed, marks, block = self._options.cors_allow_origin, fields.marks, b""
            if allowed:
                block = cors.header_block(allowed, line.method, () if marks is None else marks.items())
            head = heads.understand(fields, fields.keep_alive, block)
        except RefusedRequestError:
            return None
        if heads.keyed and fields.lines is None:
            head.raw = data[self.at : fields.end]
        return head

    def _end(self, body: Buffer) -> Request:
        head = self.head
        assert head is not None, "no request ends before its head: this is a bug"
        self.state, self.head = IDLE, None
        self._requests += 1
        self.expecting = self._ended = False
        self.cors = self._tail = b""
        self._framing = 0
        return head, body

    def _next_end(self, data: bytes, start: int) -> int:
        """Return the end of the next piece that may end a head or chunked body begun before `start`."""
        if self._tail:
            early = (self._tail + data[start : start + 3]).find(END)
            if early >= 0:
                return start + early + 4 - len(self._tail)
        end = data.find(END, start)
        return len(data) if end < 0 else end + 4

    def _parse_piece(self, piece: bytes) -> Request | None:
        try:
            if self.state is BODY:
                self._parse_chunks(piece)
            else:
                self._parse_head(piece)
            return self._end(self.body.take()) if self._ended else None
        except httptools.HttpParserCallbackError as failure:
            # A bug of the server, unless a callback reports a refusal.
            if self._refusal is None:
                raise failure.__context__ or failure from None
            refusal, self._refusal = self._refusal, None
        except httptools.HttpParserError as error:
            refusal = 400, f"malformed HTTP request: {error}"
        raise RefusedRequestError(*refusal)

    def _parse_head(self, piece: bytes) -> None:
        """Parse a head or a part of it. The body of a complete head is counted here, without the parser."""
        if self._framing + len(piece) > MAX_HEAD:
            raise RefusedRequestError(431, f"the request's head exceeds {MAX_HEAD} bytes")
        self._parse(piece)
        if self.state is IDLE:
            self.empty_lines += len(piece)
            if self.empty_lines > _MAX_EMPTY_LINES:
                raise RefusedRequestError(400, f"empty lines before the request exceed {_MAX_EMPTY_LINES} bytes")
        elif self.state is HEAD:
            self._framing += len(piece)
        else:
            self._framing = 0
            if self.missing:
                self._parser = None

    def _parse_chunks(self, piece: bytes) -> None:
        progress = self._chunks + self.body.size
        self._parse(piece)
        if self._chunks + self.body.size != progress:
            self._framing = 0
            return
        self._framing += len(piece)
        if self._framing > MAX_HEAD:
            raise RefusedRequestError(431, _TOO_MUCH_FRAMING)

    def _parse(self, piece: bytes) -> None:
        """Feed the parser. Raises httptools.HttpParserError for invalid HTTP, and for a callback's error."""
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        declined = b""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # Upgrades are not supported: the request is served without it.
            declined = self._lines.without_upgrade(self._parser.get_method(), self._parser.get_http_version())
            self._parser = None
        if declined:
            self._parse(declined)
        else:
            self._tail = (self._tail + piece[-3:])[-3:]

    def _understand(
        self, lines: HeadLines, method: bytes, version: str, keep_alive: bool
    ) -> tuple[RequestHead, HeadFields]:
        """Check a complete head. Raises RefusedRequestError."""
        heads, options = self._heads, self._options
        name = None if heads.platform is None else heads.platform.rename(method, lines)
        if name is not None:
            method = name
        if options.cors_allow_origin or method == b"OPTIONS":
            self.cors = cors.header_block(options.cors_allow_origin, method, lines.headers)
        fields = heads.fields_of(heads.request_line(method, lines.target, version), lines)
        head = heads.understand(fields, keep_alive, self.cors)
        if name is not None:
            head.renamed, head.target, head.headers, head.as_sent = True, lines.target, lines.headers, lines.as_sent
        return head, fields

    # Called by the parser (names are httptools')

    def on_message_begin(self) -> None:
        self.state = HEAD
        self.head = None
        self.missing = self.empty_lines = self._framing = self._trailers = self._chunks = 0
        self._upgrade = False
        self._lines = HeadLines()

    def on_url(self, url: bytes) -> None:
        self._lines.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state is BODY:
            # A trailer is not a header (RFC 9110, 6.5.1), and is not used.
            self._trailers += len(name) + len(value) + 4
            if self._trailers > MAX_HEAD:
                self._stop(431, _TOO_MUCH_FRAMING)
            return
        self._lines.headers.append((name.lower(), value))
        if self._options.header_pattern is not None:
            self._lines.as_sent.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        parser, lines = self._parser, self._lines
        assert parser is not None, "it is the parser that calls: this is a bug"
        method = parser.get_method()
        self.state = BODY
        lines.target = without_origin(lines.target)
        if parser.should_upgrade() and method != b"CONNECT":
            self._upgrade = True
            return
        try:
            version, keep_alive = parser.get_http_version(), parser.should_keep_alive()
            self.head, fields = self._understand(lines, method, version, keep_alive)
        except RefusedRequestError as refused:
            self._stop(refused.status, refused.message)
        self._limited = fields.limited
        self._check_size(fields.length)
        if 0 < self._memory.limit < fields.length:
            self._stop(413, self._memory.make_exhausted_error(fields.length).message)
        self.missing, self.expecting = fields.length, fields.expecting

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        if self._chunks > _MAX_CHUNKS:  # the last chunk has no data
            self._stop(400, _TOO_MANY_CHUNKS)
        self._check_size(self.body.size + len(body))
        self.body.add(body, 0)

    def on_message_complete(self) -> None:
        if not self._upgrade:
            self._ended = True

    def _check_size(self, size: int) -> None:
        if self._limited:
            try:
                check_json_size(size, self._options.max_json)
            except ModserveError as error:
                self._stop(STATUS[error.code].http, error.message)

    def _stop(self, status: int, message: str) -> NoReturn:
        """Stop the parser with a refusal."""
        self._refusal = status, message
        raise RefusedRequestError(status, message)
