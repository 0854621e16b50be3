"""HTTP for threads: the standard library's client, and connections that are kept for the next call."""

import http.client
import select
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

from modserve.core.errors import Code

from . import http_messages as messages
from .address import CONNECT_SECONDS, Access, Address
from .errors import ClientError, timed_out, unreachable
from .http_messages import HttpRequest, HttpResponse
from .transport import ControlCall
from .values import InferCall, Result

_PIECE = 1 << 20
_KEPT = 32
"""Idle connections; more are closed after their call."""


class HttpTransport:
    """Implements `Transport`. Each call has a connection of its own while it lasts."""

    def __init__(self, address: Address, access: Access) -> None:
        self._address = address
        self._headers = dict(access.headers)
        self._tls = access.context() if address.secure else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None: ...

    def call(self, control: ControlCall) -> Any:
        return messages.answer(control, self._call(messages.request(self._address, control)))

    def infer(self, call: InferCall) -> Result:
        return messages.result(self._call(messages.infer(self._address, call)))

    def stream(self, call: InferCall) -> Generator[Result]:
        request = messages.stream(self._address, call)
        with _Exchange(self, request) as exchange:
            response = exchange.response
            if response.status != 200:
                messages.check(exchange.whole())
            for line in exchange.lines():
                result = messages.streamed(line)
                if not result.is_bare_end:
                    yield result

    def page(self, path: str) -> bytes:
        """What the server has at a path, whatever it is."""
        reply = self._call(HttpRequest("GET", path, {}))
        messages.check(reply)
        return reply.body

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(self, request: HttpRequest) -> HttpResponse:
        with _Exchange(self, request) as exchange:
            return exchange.whole()

    @property
    def where(self) -> str:
        return str(self._address)

    def headers_of(self, request: HttpRequest) -> dict[str, str]:
        return {**self._headers, **request.headers, "content-length": str(request.length)}

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """One that is kept and open on both sides, or a new one. Raises OSError."""
        while True:
            with self._lock:
                if self._closed:
                    raise ClientError(Code.UNAVAILABLE, f"the client of {self._address} is closed")
                if not self._idle:
                    break
                kept = self._idle.pop()
            if not _has_ended(kept.sock):
                return kept
            kept.close()
        host, port = self._address.host, self._address.port
        if self._tls is None:
            made = http.client.HTTPConnection(host, port, timeout=timeout)
        else:
            made = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        made.connect()
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        connection.close()


def _has_ended(sock: socket.socket | None) -> bool:
    """Whether the server has closed an idle connection, or said something that nobody asked for."""
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class _Exchange:
    """One request on one connection. What is not read to its end closes the connection: the server stops then."""

    def __init__(self, transport: HttpTransport, request: HttpRequest) -> None:
        self._transport = transport
        self._request = request
        self._end = None if request.timeout is None else time.monotonic() + request.timeout
        self._connection: http.client.HTTPConnection | None = None
        self._complete = False

    def __enter__(self) -> "_Exchange":
        with self._failures():
            self._connection = connection = self._connect()
            self._limit()
            request = self._request
            headers = self._transport.headers_of(request)
            connection.putrequest(request.method, request.target, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            small = b"".join(request.parts) if request.length < _PIECE else None
            connection.endheaders(small or None)
            if small is None:
                for part in request.parts:
                    self._limit()
                    connection.send(part)
            self._limit()
            self.response = connection.getresponse()
        return self

    def _connect(self) -> http.client.HTTPConnection:
        left = self._left()
        if left is not None and left < CONNECT_SECONDS:
            return self._transport.connection(left)
        try:
            return self._transport.connection(CONNECT_SECONDS)
        except TimeoutError as error:
            no_connection = TimeoutError(f"no connection within {CONNECT_SECONDS:g} s")
            raise unreachable(self._transport.where, no_connection) from error

    def __exit__(self, *_: object) -> None:
        self._over(keep=self._complete and not self.response.will_close)

    def _over(self, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if keep:
            self._transport.keep(connection)
        else:
            connection.close()

    def _left(self) -> float | None:
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _limit(self) -> None:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(self._left())

    def _failures(self) -> "_Failures":
        return _Failures(self, self._transport.where, self._request.timeout)

    def whole(self) -> HttpResponse:
        """The response with all of its body."""
        response = self.response
        with self._failures():
            pieces = list(self._pieces())
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._complete = True
        return HttpResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def _pieces(self) -> Iterator[bytes]:
        """Each as it comes, so that the time is looked at between them."""
        self._limit()
        length = self.response.length
        if length is not None and self._end is None:  # in one go
            whole = self.response.read()
            if whole:
                yield whole
            return
        while piece := self.response.read1(_PIECE):
            yield piece
            self._limit()
        if self.response.length:
            raise http.client.IncompleteRead(b"", self.response.length)
        self.response.close()  # or the connection would think that there is more to read

    def lines(self) -> Iterator[bytes]:
        """The lines of the body that are not empty, as they come."""
        rest = b""
        with self._failures():
            for piece in self._pieces():
                *lines, rest = (rest + piece).split(b"\n")
                yield from filter(None, lines)
        self._complete = True
        if rest:
            yield rest

    def abandon(self) -> None:
        self._over(keep=False)


class _Failures:
    """What the connection raises leaves the block as ClientError, and ends the connection."""

    def __init__(self, exchange: _Exchange, where: str, timeout: float | None) -> None:
        self._exchange = exchange
        self._where = where
        self._timeout = timeout

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, GeneratorExit):
            return
        with suppress(OSError):
            self._exchange.abandon()
        if isinstance(error, ClientError):
            return
        if isinstance(error, TimeoutError):
            raise timed_out(self._timeout) from error
        if isinstance(error, OSError | http.client.HTTPException):
            raise unreachable(self._where, error) from error
