"""Servers that are healthy, and close the connection when a call has arrived: how often does a gateway send it?"""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

MARK = "x-counted"
"""Requests with this header are counted. Others, which are health checks, get 200."""
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_ACKNOWLEDGED = b"\0\0\0\4\1\0\0\0\0"
_HEADERS_FRAME, _SETTINGS_FRAME = 1, 4


class VanishingServers:
    """`addresses` are their ports of HTTP and gRPC; `take` gives how many calls they have seen, by server."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._calls: list[int] = []
        self._listeners = ExitStack()
        self.addresses = [
            (self._listen(number, grpc=False), self._listen(number, grpc=True)) for number in range(count)
        ]

    def take(self) -> list[int]:
        """The servers that have seen a call since the last time, each as often as it has."""
        with self._lock:
            calls, self._calls = self._calls, []
        return calls

    def close(self) -> None:
        self._listeners.close()

    def _listen(self, number: int, grpc: bool) -> int:
        listener = self._listeners.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        self._listeners.callback(listener.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=self._accept, args=(listener, number, grpc), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, number: int, grpc: bool) -> None:
        serve = self._serve_http2 if grpc else self._serve_http
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed by the test
                return
            threading.Thread(target=self._connection, args=(serve, connection, number), daemon=True).start()

    @staticmethod
    def _connection(serve: object, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            assert callable(serve)
            serve(connection, number)

    def _count(self, number: int) -> None:
        with self._lock:
            self._calls.append(number)

    def _serve_http(self, connection: socket.socket, number: int) -> None:
        data = b""
        while piece := connection.recv(65536):
            data += piece
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                continue
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if len(rest) < (int(length[1]) if length else 0):
                continue
            if MARK.encode() in head.lower():
                self._count(number)
                return
            connection.sendall(_OK)
            data = b""

    def _serve_http2(self, connection: socket.socket, number: int) -> None:
        connection.sendall(_SETTINGS)
        data = b""
        while piece := connection.recv(65536):
            data = (data + piece).removeprefix(_PREFACE)
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3]):
                kind, flags = data[3], data[4]
                data = data[9 + int.from_bytes(data[:3]) :]
                if kind == _HEADERS_FRAME:
                    self._count(number)
                    return
                if kind == _SETTINGS_FRAME and not flags:
                    connection.sendall(_ACKNOWLEDGED)


@contextmanager
def vanishing(count: int) -> Iterator[VanishingServers]:
    servers = VanishingServers(count)
    try:
        yield servers
    finally:
        servers.close()
