"""HTTP for event loops: HTTP/1.1 over asyncio's streams, as much of it as a client of one server needs."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from modserve.core.errors import Code
from modserve.core.tensors.tensor import Buffer

from . import http_messages as messages
from .address import CONNECT_SECONDS, Access, Address
from .errors import ClientError, make_timeout_error, unreachable
from .http_messages import HttpRequest, HttpResponse
from .idle import has_ended
from .input_values import ClientCall, Result
from .transport import ControlCall

_KEPT = 32
"""Idle connections; more are closed after their call."""
_BUFFER = 1 << 20
"""Bytes that a stream reads ahead; a line of its body may be longer."""
_LONGEST_HEAD = 64 * 1024


class _ProtocolError(Exception):
    """The response is not HTTP/1.1."""


class AsyncHttpTransport:
    """Implements `AsyncTransport`, on one event loop. Each call has a connection of its own while it lasts."""

    def __init__(self, address: Address, access: Access) -> None:
        self._address = address
        self._headers = dict(access.headers)
        self._tls: ssl.SSLContext | None = access.context() if address.secure else None
        self._idle: list[_Connection] = []
        self._closed = False

    async def start(self) -> None: ...

    async def call(self, control: ControlCall) -> Any:
        return messages.answer(control, await self._call(messages.request(self._address, control)))

    async def infer(self, call: ClientCall) -> Result:
        return messages.result(await self._call(messages.infer(self._address, call)))

    async def stream(self, call: ClientCall) -> AsyncGenerator[Result]:
        request = messages.stream(self._address, call)
        end = _end(request)
        async with self._exchange(request, end) as connection:
            async with asyncio.timeout_at(end):
                status, headers = await connection.head()
                if status != 200:
                    messages.check(HttpResponse(status, headers, await _whole(connection.body(headers))))
            async with aclosing(_lines(connection.body(headers))) as lines:
                # No timeout is open at a yield: it would cancel the caller, whatever that does by then.
                while (line := await _next(lines, end)) is not None:
                    result = messages.parse_streamed(line)
                    if not result.is_bare_end:
                        yield result

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        await asyncio.sleep(0)  # in which their sockets are closed, though the loop should end

    async def _call(self, request: HttpRequest) -> HttpResponse:
        end = _end(request)
        async with self._exchange(request, end) as connection, asyncio.timeout_at(end):
            status, headers = await connection.head()
            return HttpResponse(status, headers, await _whole(connection.body(headers)))

    @asynccontextmanager
    async def _exchange(self, request: HttpRequest, end: float | None) -> "AsyncIterator[_Connection]":
        """Yield a connection on which `request` has been sent. What is not read to its end closes it.

        The caller waits for the response until `end`; a TimeoutError becomes the client's.
        """
        connection: _Connection | None = None
        try:
            async with asyncio.timeout_at(end):
                connection = await self._connection()
                await connection.send(self._head(request), request.parts)
            yield connection
        except TimeoutError as error:
            raise make_timeout_error(request.timeout or CONNECT_SECONDS) from error
        except (OSError, EOFError, asyncio.LimitOverrunError, _ProtocolError) as error:
            raise unreachable(str(self._address), error) from error
        finally:
            if connection is not None:
                if connection.reusable and not self._closed and len(self._idle) < _KEPT:
                    self._idle.append(connection)
                else:
                    connection.close()

    async def _connection(self) -> "_Connection":
        if self._closed:
            raise ClientError(Code.UNAVAILABLE, f"the client of {self._address} is closed")
        while self._idle:
            kept = self._idle.pop()
            if kept.open:
                return kept
            kept.close()
        async with asyncio.timeout(CONNECT_SECONDS):
            if self._address.socket:
                streams = await asyncio.open_unix_connection(self._address.socket, limit=_BUFFER)
            else:
                streams = await asyncio.open_connection(
                    self._address.host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=self._address.host_name if self._tls else None,
                    limit=_BUFFER,
                )
        return _Connection(*streams)

    def _head(self, request: HttpRequest) -> bytes:
        headers = {"host": self._address.virtual_host, **self._headers, **request.headers}
        headers["content-length"] = str(request.length)
        lines = [
            f"{request.method} {request.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _end(request: HttpRequest) -> float | None:
    """Return the time at which the request times out, by the event loop's clock; None without a time-out."""
    return None if request.timeout is None else asyncio.get_running_loop().time() + request.timeout


async def _whole(pieces: AsyncIterator[bytes]) -> bytes:
    parts = [piece async for piece in pieces]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _next(lines: AsyncIterator[bytes], end: float | None) -> bytes | None:
    """None at the end of the stream. Raises TimeoutError at `end`, also if lines are always there."""
    if end is not None and asyncio.get_running_loop().time() >= end:
        raise TimeoutError
    async with asyncio.timeout_at(end):
        return await anext(lines, None)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines that are not empty, as they come."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in filter(None, lines):
            yield line
    if rest:
        yield rest


class _Connection:
    """A connection that carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.reusable = False
        """The response has been read to its end, and the server keeps the connection."""
        self._stays = True

    @property
    def open(self) -> bool:
        """True if a request may be sent; data that the event loop has not read yet counts, too."""
        if self._reader.at_eof() or self._writer.is_closing() or self._reader.exception() is not None:
            return False
        return not has_ended(self._writer.get_extra_info("socket"))

    async def send(self, head: bytes, parts: tuple[Buffer, ...]) -> None:
        self.reusable = False
        self._writer.writelines((head, *parts))
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers, with lower-case names, of the response that is no interim one."""
        status = 100
        while 100 <= status < 200:
            text = await self._reader.readuntil(b"\r\n\r\n")
            if len(text) > _LONGEST_HEAD:
                raise _ProtocolError("the head of the response is too long")
            first, *lines = text[:-4].decode("latin-1").split("\r\n")
            version, _, rest = first.partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise _ProtocolError(f"the response starts with {first[:80]!r}")
            status = int(rest[:3])
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise _ProtocolError(f"a header of the response is {line[:80]!r}")
            headers[name.strip().lower()] = value.strip()
        tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
        self._stays = "close" not in tokens and (version != "HTTP/1.0" or "keep-alive" in tokens)
        return status, headers

    async def body(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """Yield the body in pieces, as they come. Raises EOFError for one that is cut."""
        if headers.get("transfer-encoding", "").lower().endswith("chunked"):
            async for piece in self._chunks():
                yield piece
        elif "content-length" in headers:
            length = _number(headers["content-length"], 10)
            if length:
                yield await self._reader.readexactly(length)
        else:
            self._stays = False
            while piece := await self._reader.read(_BUFFER):
                yield piece
        self.reusable = self._stays

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._reader.readuntil(b"\r\n")
            left = _number(line.partition(b";")[0].strip().decode("latin-1"), 16)
            if not left:
                break
            while left:  # a chunk may be longer than the stream reads ahead
                piece = await self._reader.readexactly(min(left, _BUFFER))
                left -= len(piece)
                yield piece
            await self._reader.readexactly(2)
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers

    def close(self) -> None:
        """Close at once, without flushing what is left."""
        self._writer.transport.abort()


def _number(text: str, base: int) -> int:
    if not text.isascii() or not text.isalnum():
        raise _ProtocolError(f"a length of the response is {text[:80]!r}")
    try:
        return int(text, base)
    except ValueError:
        raise _ProtocolError(f"a length of the response is {text[:80]!r}") from None
