"""HTTP for threads, against a socket that says what it is to say."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from modserve.client.address import Access, Address
from modserve.client.errors import ClientError
from modserve.client.http_sync import HttpTransport
from modserve.client.transport import ENGINE, HEALTH, INDEX, SERVER, STATISTICS, ControlCall


def response(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


class Scripted:
    """Takes one connection after the other, each for its responses; `targets` are those of the requests."""

    def __init__(self, *connections: tuple[bytes, ...]) -> None:
        self._connections = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("http", "127.0.0.1", self._listener.getsockname()[1])
        self.targets: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for responses in self._connections:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as reader:
                for text in responses:
                    self._read(reader)
                    connection.sendall(text)

    def _read(self, reader: BinaryIO) -> None:
        line, length = reader.readline().decode(), 0
        self.targets.append(" ".join(line.split()[:2]))
        while (line := reader.readline().decode().strip().lower()) != "":
            if line.startswith("content-length:"):
                length = int(line.partition(":")[2])
        reader.read(length)

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


@contextmanager
def scripted(*connections: tuple[bytes, ...]) -> Iterator[tuple[HttpTransport, Scripted]]:
    server = Scripted(*connections)
    transport = HttpTransport(server.address, Access())
    try:
        yield transport, server
    finally:
        transport.close()
        server.close()


def test_calls_on_one_connection() -> None:
    stats, engine = response(b'{"model_stats":[]}'), response(b'{"engine":"e"}')
    with scripted((stats, engine, response(b"[]"), response(b"text"))) as (transport, server):
        assert transport.call(ControlCall(STATISTICS)) == {"model_stats": []}
        assert transport.call(ControlCall(ENGINE, "a b", 3)) == {"engine": "e"}
        assert transport.call(ControlCall(INDEX)) == []
        assert transport.page("/metrics", 60) == b"text"
    assert server.targets == [
        "GET /v2/models/stats",
        "GET /v2/models/a%20b/versions/3/engine",
        "POST /v2/repository/index",
        "GET /metrics",
    ]


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    with scripted((response(b'{"a":1}'),), (response(b'{"a":2}'),)) as (transport, _):
        assert transport.call(ControlCall(SERVER)) == {"a": 1}
        sock = transport._idle[0].sock
        assert sock is not None
        assert sock.recv(1) == b""  # its end has come
        assert transport.call(ControlCall(SERVER)) == {"a": 2}


@pytest.mark.parametrize(
    ("text", "health"),
    [
        (response(b'{"phase":"serving","reasons":[{"name":"m"}]}', 400), ("serving", 1, False)),
        (response(b"", 503), (None, 0, False)),
        (response(b"<html>"), (None, 0, True)),
        (response(b"[]"), (None, 0, True)),
    ],
)
def test_health(text: bytes, health: tuple[str | None, int, bool]) -> None:
    with scripted((text,)) as (transport, _):
        body = transport.call(ControlCall(HEALTH))
    assert (body.get("phase"), len(body.get("reasons", ())), body["ready"]) == health


def test_health_that_is_refused() -> None:
    with scripted((response(b'{"error":"restricted"}', 403),)) as (transport, _), pytest.raises(ClientError) as raised:
        transport.call(ControlCall(HEALTH))
    assert (raised.value.message, raised.value.status) == ("restricted", 403)


@pytest.mark.parametrize(
    ("text", "reason"),
    [(b"", "it closed the connection without a response"), (b"220 mail\r\n", "its response is not HTTP")],
)
def test_reasons_of_failures(text: bytes, reason: str) -> None:
    with scripted((text,)) as (transport, server), pytest.raises(ClientError) as raised:
        transport.call(ControlCall(SERVER))
    assert raised.value.message == f"cannot reach a server at {server.address}: {reason}"
    assert raised.value.status is None


@pytest.mark.parametrize("body", [b"", b"<html>"])
def test_a_page_of_another_server(body: bytes) -> None:
    with scripted((response(body),)) as (transport, _), pytest.raises(ClientError, match="it is not JSON") as raised:
        transport.call(ControlCall(STATISTICS))
    assert raised.value.status == 200


def test_nobody_there() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and never listening
        address = Address("http", *bound.getsockname())
        with pytest.raises(ClientError) as raised:
            HttpTransport(address, Access()).call(ControlCall(SERVER))
    assert raised.value.message == f"cannot reach a server at {address}: Connection refused"


def test_a_connection_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is not that of the call."""
    transport = HttpTransport(Address("http", "host", 1), Access())

    def connect(place: tuple[str, int], timeout: float) -> None:
        raise TimeoutError(timeout)

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ClientError, match="cannot reach a server at http://host:1: no connection within 10 s"):
        transport.call(ControlCall(SERVER, timeout=60))
    with pytest.raises(ClientError, match="no response within 5 s"):
        transport.call(ControlCall(SERVER, timeout=5))


# Access


def test_headers_as_metadata() -> None:
    access = Access({"Key": "v", "triton-grpc-protocol-a": "w"})
    assert list(access.metadata()) == [("key", "v"), ("triton-grpc-protocol-key", "v"), ("triton-grpc-protocol-a", "w")]


def test_files_for_tls_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(ClientError, match=r"cannot use .*ca\.pem for TLS: .*; expected PEM files"):
        Access(root_cert=file).context()
    with pytest.raises(ClientError, match=r"cannot use .*nosuch for TLS: "):
        Access(client_key=tmp_path / "nosuch").pem()
    assert Access(insecure=True).context().verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"a b": "c"}, "'a b' is not a valid header name"),
        ({"": "c"}, "'' is not a valid header name"),
        ({"a": "b\r\nc: d"}, "the value of header 'a' has characters that headers cannot contain"),
        ({"a": "€"}, "the value of header 'a' has characters"),
    ],
)
def test_headers_that_cannot_be_sent(headers: dict[str, str], text: str) -> None:
    with pytest.raises(ClientError, match=text):
        Access(headers)


def test_another_port_of_a_host() -> None:
    assert str(Address("https", "::1", 9, "/a").at_port(8001, "grpcs")) == "grpcs://[::1]:8001"
