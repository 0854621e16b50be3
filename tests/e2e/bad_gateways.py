"""Gateways that do it wrong, each in one way: small, of our own, and in threads of the test."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Serve = Callable[[socket.socket, socket.socket], None]
"""Passes bytes between a client and the server, until either ends."""
_PIECE = 65536


@contextmanager
def bad_gateway(port: int, serve: Serve) -> Iterator[int]:
    """Its port; `port` is that of the server."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    opened: list[socket.socket] = []

    def connection(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", port), 20) as server:
            opened.extend((client, server))
            try:
                serve(client, server)
            finally:
                for each in (client, server):
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed by the test
            while True:
                client, _ = listener.accept()
                threading.Thread(target=connection, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def read_request(client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of a request with a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(_PIECE)
        if not piece:
            raise OSError("the client has gone")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while len(body) < (int(length[1]) if length else 0):
        body += client.recv(_PIECE)
    return head, body


def read_to_the_end(server: socket.socket) -> bytes:
    data = b""
    while piece := server.recv(_PIECE):
        data += piece
    return data


def as_http_1_0(head: bytes) -> bytes:
    """The request as old gateways write it: without a connection that is kept."""
    line, _, fields = head.partition(b"\r\n")
    kept = re.sub(rb"(?im)^(connection|transfer-encoding):.*\r?\n?", b"", fields)
    return line.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n" + kept.rstrip()


def speaks_http_1_0(client: socket.socket, server: socket.socket) -> None:
    head, body = read_request(client)
    server.sendall(as_http_1_0(head) + b"\r\n\r\n" + body)
    while piece := server.recv(_PIECE):
        client.sendall(piece)


def buffers(client: socket.socket, server: socket.socket) -> None:
    """Passes a response on once it has all of it."""
    head, body = read_request(client)
    server.sendall(as_http_1_0(head) + b"\r\n\r\n" + body)
    client.sendall(read_to_the_end(server))


def sends_twice(client: socket.socket, server: socket.socket) -> None:
    """Sends each request again on a second connection, as if the first had been lost; gives the second response."""
    head, body = read_request(client)
    request = as_http_1_0(head) + b"\r\n\r\n" + body
    with socket.create_connection(server.getpeername(), 20) as second:
        server.sendall(request)
        second.sendall(request)
        read_to_the_end(server)
        client.sendall(read_to_the_end(second))


def passes_on(client: socket.socket, server: socket.socket, change: Callable[[bytes], bytes] = bytes) -> None:
    """Bytes in both directions; those of the server as `change` makes them."""

    def upstream() -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(_PIECE):
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)

    threading.Thread(target=upstream, daemon=True).start()
    while piece := server.recv(_PIECE):
        client.sendall(change(piece))


def drops_trailers() -> Serve:
    """An HTTP/2 proxy that ends each stream with its last data, and keeps what follows for itself."""

    def serve(client: socket.socket, server: socket.socket) -> None:
        frames = _Frames()
        passes_on(client, server, frames.without_trailers)

    return serve


class _Frames:
    """Of one connection, in the direction from the server."""

    _DATA, _HEADERS, _END_STREAM = 0, 1, 1

    def __init__(self) -> None:
        self._data = b""
        self._begun: set[int] = set()

    def without_trailers(self, piece: bytes) -> bytes:
        self._data += piece
        result = b""
        while len(self._data) >= 9 and len(self._data) >= 9 + int.from_bytes(self._data[:3]):
            length, kind = int.from_bytes(self._data[:3]), self._data[3]
            stream = int.from_bytes(self._data[5:9]) & 0x7FFFFFFF
            frame, self._data = self._data[: 9 + length], self._data[9 + length :]
            if kind == self._HEADERS and stream in self._begun:
                result += b"\0\0\0\0\1" + frame[5:9]  # an empty DATA frame that ends the stream
                continue
            if kind == self._HEADERS:
                self._begun.add(stream)
            result += frame
        return result


def cuts_silence(seconds: float) -> Serve:
    """Closes a connection on which the server has said nothing for so long."""

    def serve(client: socket.socket, server: socket.socket) -> None:
        server.settimeout(seconds)
        passes_on(client, server)

    return serve
