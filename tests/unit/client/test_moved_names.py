"""A name in DNS that has another address after a while, or none: what the clients of threads and of asyncio do."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from modserve.client.address import Access, Address
from modserve.client.errors import ClientError
from modserve.client.http_async import AsyncHttpTransport
from modserve.client.http_sync import HttpTransport
from modserve.client.transport import SERVER, ControlCall
from modserve.core.errors import Code

NAME = "modserve.test"


class NamedServer:
    """At one of the addresses of this machine; it says which one, to any request."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host = host
        self.held = socket.socket()  # nobody else gets its port
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.held.bind((host, port))
        self.port = int(self.held.getsockname()[1])
        self._listener = socket.create_server((host, self.port), reuse_port=True)
        self._connections: list[socket.socket] = []
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        body = b'{"name":"%s"}' % self.host.encode()
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection, body), daemon=True).start()

    @staticmethod
    def _serve(connection: socket.socket, body: bytes) -> None:
        with connection.makefile("rb") as reader:
            while line := reader.readline():
                if line == b"\r\n":
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    def end(self) -> None:
        """As a server that goes: its connections end, and nobody is at its address."""
        if self._ended:
            return
        self._ended = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the client was first
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        self.end()
        self.held.close()


@pytest.fixture
def servers() -> Iterator[list[NamedServer]]:
    first = NamedServer("127.0.0.1")
    second = NamedServer("127.0.0.2", first.port)
    yield [first, second]
    for each in (first, second):
        each.close()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the name has at the moment."""
    now = ["127.0.0.1"]
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *words: Any, **named: Any) -> Any:
        if host not in (NAME, NAME.encode()):
            return real(host, *words, **named)
        if not now:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [row for each in now for row in real(each, *words, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return now


@contextlib.contextmanager
def threads(place: Address) -> Iterator[Callable[[], Any]]:
    transport = HttpTransport(place, Access())
    with contextlib.closing(transport):
        yield lambda: transport.call(ControlCall(SERVER, timeout=20))


@contextlib.contextmanager
def event_loop(place: Address) -> Iterator[Callable[[], Any]]:
    transport = AsyncHttpTransport(place, Access())
    with asyncio.Runner() as runner:
        yield lambda: runner.run(transport.call(ControlCall(SERVER, timeout=20)))
        runner.run(transport.close())


Client = Callable[[Address], AbstractContextManager[Callable[[], Any]]]


@pytest.mark.parametrize("client", [threads, event_loop])
def test_another_address_after_a_while(client: Client, servers: list[NamedServer], resolver: list[str]) -> None:
    """Kept connections go on; once they end, the name is looked up again."""
    with client(Address("http", NAME, servers[0].port)) as call:
        assert call() == {"name": "127.0.0.1"}
        resolver[:] = ["127.0.0.2"]
        assert call() == {"name": "127.0.0.1"}
        servers[0].end()
        assert call() == {"name": "127.0.0.2"}
        resolver[:] = []
        assert call() == {"name": "127.0.0.2"}


@pytest.mark.parametrize("client", [threads, event_loop])
def test_no_address(client: Client, servers: list[NamedServer], resolver: list[str]) -> None:
    """It may have one the next time."""
    resolver[:] = []
    with client(Address("http", NAME, servers[0].port)) as call:
        with pytest.raises(ClientError, match="Name or service not known") as raised:
            call()
        assert (raised.value.code, raised.value.status) == (Code.UNAVAILABLE, None)
        resolver[:] = ["127.0.0.1"]
        assert call() == {"name": "127.0.0.1"}


@pytest.mark.parametrize("client", [threads, event_loop])
def test_the_first_of_two_addresses_is_dead(client: Client, servers: list[NamedServer], resolver: list[str]) -> None:
    servers[0].end()
    resolver[:] = ["127.0.0.1", "127.0.0.2"]
    with client(Address("http", NAME, servers[1].port)) as call:
        assert call() == {"name": "127.0.0.2"}
