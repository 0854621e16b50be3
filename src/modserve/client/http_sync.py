"""HTTP for threads: the standard library's client, and connections that are kept for the next call."""

import http.client
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from modserve.core.errors import Code

from . import http_messages as messages
from .address import CONNECT_SECONDS, Access, Address
from .errors import ClientError, make_timeout_error, unreachable
from .http_messages import HttpRequest, HttpResponse
from .idle import has_ended
from .input_values import ClientCall, Result
from .transport import ControlCall

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

    def infer(self, call: ClientCall) -> Result:
        return messages.result(self._call(messages.infer(self._address, call)))

    def stream(self, call: ClientCall) -> Generator[Result]:
        with self._exchange(messages.stream(self._address, call)) as exchange:
            if exchange.response.status != 200:
                messages.check(exchange.whole())
            for line in exchange.lines():
                result = messages.parse_streamed(line)
                if not result.is_bare_end:
                    yield result

    def page(self, path: str, timeout: float | None) -> bytes:
        """Return the body of any page of the server."""
        response = self._call(HttpRequest("GET", path, {}, timeout=timeout))
        messages.check(response)
        return response.body

    def lines(self, path: str, body: bytes, timeout: float | None) -> Generator[bytes]:
        """The lines of the response to a body of JSON that are not empty, as they come. `path` is below the prefix."""
        headers = {"content-type": "application/json"}
        request = HttpRequest("POST", self._address.prefix + path, headers, (body,), timeout)
        with self._exchange(request) as exchange:
            if exchange.response.status != 200:
                messages.check(exchange.whole())
            yield from exchange.lines()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(self, request: HttpRequest) -> HttpResponse:
        with self._exchange(request) as exchange:
            return exchange.whole()

    @contextmanager
    def _exchange(self, request: HttpRequest) -> "Iterator[_Exchange]":
        """Yield a connection on which `request` has been sent. A response that is not read to its end closes it.

        Failures of the connection leave the block as ClientError.
        """
        end = None if request.timeout is None else time.monotonic() + request.timeout
        exchange: _Exchange | None = None
        try:
            exchange = _Exchange(self._connection(request.timeout), end)
            exchange.send(request, {**self._headers, **request.headers})
            yield exchange
        except TimeoutError as error:
            raise make_timeout_error(request.timeout) from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(str(self._address), error) from error
        finally:
            if exchange is not None:
                self._release(exchange)

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        """Return a kept connection that is open on both sides, or a new one. Raises OSError."""
        while True:
            with self._lock:
                if self._closed:
                    raise ClientError(Code.UNAVAILABLE, f"the client of {self._address} is closed")
                if not self._idle:
                    break
                kept = self._idle.pop()
            if not has_ended(kept.sock):
                return kept
            kept.close()
        seconds = CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS)
        try:
            return self._open(seconds)
        except TimeoutError as error:
            if timeout is not None and timeout < CONNECT_SECONDS:
                raise
            no_connection = TimeoutError(f"no connection within {CONNECT_SECONDS:g} s")
            raise unreachable(str(self._address), no_connection) from error

    def _open(self, seconds: float) -> http.client.HTTPConnection:
        """Return a new connection, which names the host by `Address.host_name`. Raises OSError."""
        if self._address.socket:
            connection: http.client.HTTPConnection = UnixConnection(self._address.socket, timeout=seconds)
            connection.connect()
            return connection
        name, port = self._address.host_name, self._address.port
        sock = socket.create_connection((self._address.host, port), seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            connection = http.client.HTTPConnection(name, port, timeout=seconds)
            connection.sock = sock
        else:
            connection = http.client.HTTPSConnection(name, port, timeout=seconds, context=self._tls)
            connection.sock = self._tls.wrap_socket(sock, server_hostname=name)
        return connection

    def _release(self, exchange: "_Exchange") -> None:
        if exchange.complete and not exchange.response.will_close:
            with self._lock:
                if not self._closed and len(self._idle) < _KEPT:
                    self._idle.append(exchange.connection)
                    return
        exchange.connection.close()


class UnixConnection(http.client.HTTPConnection):
    """A connection to the Unix socket at `path`."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class _Exchange:
    """A request and its response on a connection, until `end` on the monotonic clock."""

    response: http.client.HTTPResponse

    def __init__(self, connection: http.client.HTTPConnection, end: float | None) -> None:
        self.connection = connection
        self._end = end
        self.complete = False
        """The response has been read to its end."""

    def send(self, request: HttpRequest, headers: Mapping[str, str]) -> None:
        """Send all of it, and read the head of the response. Raises OSError, HTTPException."""
        connection = self.connection
        self._limit()
        connection.putrequest(request.method, request.target, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("content-length", str(request.length))
        small = b"".join(request.parts) if request.length < _PIECE else None
        connection.endheaders(small or None)
        if small is None:
            for part in request.parts:
                self._limit()
                connection.send(part)
        self._limit()
        self.response = connection.getresponse()

    def _limit(self) -> None:
        """Give the socket the time that is left. Raises TimeoutError if none is."""
        left = None if self._end is None else self._end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        if self.connection.sock is not None:
            self.connection.sock.settimeout(left)

    def whole(self) -> HttpResponse:
        """Return the response with all of its body."""
        pieces = list(self._pieces())
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        headers = {name.lower(): value for name, value in self.response.getheaders()}
        return HttpResponse(self.response.status, headers, body)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the body that are not empty, as they come."""
        rest = b""
        for piece in self._pieces():
            *lines, rest = (rest + piece).split(b"\n")
            yield from filter(None, lines)
        if rest:
            yield rest

    def _pieces(self) -> Iterator[bytes]:
        """Each as it comes, so that the time limit is checked between them."""
        self._limit()
        response = self.response
        if response.length is not None and self._end is None:  # in one go
            if whole := response.read():
                yield whole
        else:
            while piece := response.read1(_PIECE):
                yield piece
                self._limit()
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            response.close()  # or the connection would expect more to read
        self.complete = True
