"""How a server is reached: addresses, headers, files for TLS, and advice where a call fails."""

import http.client
import io
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from modserve.commands.access import Access, RefusedError, UnreachableError, address, headers
from modserve.commands.http_calls import HttpCalls, advice_on
from modserve.core.errors import ModserveError


def test_ports_of_schemes() -> None:
    ports = {scheme: address(f"{scheme}://h").port for scheme in ("http", "https", "grpc", "grpcs")}
    assert ports == {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 8001}
    assert address("h").scheme == "http"
    assert (address("http://h:1/a/").path, address("https://h").secure, address("grpc://h").over_grpc) == (
        "/a",
        True,
        True,
    )


def test_another_port_of_a_host() -> None:
    assert address("https://[::1]:9/a").at_port(8001, "grpcs").url == "grpcs://[::1]:8001"


def test_headers(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("a: b:c\n\n d : e \n")
    assert headers(["x: y", f"@{file}"]) == {"x": "y", "a": "b:c", "d": "e"}


@pytest.mark.parametrize("text", ["x", ": y", "a: b\nc: d", "@nosuch"])
def test_headers_that_are_none(text: str) -> None:
    with pytest.raises(ModserveError, match="option '--header': "):
        headers([text])


def test_files_for_tls_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(ModserveError, match=r"cannot use .*ca\.pem for TLS: .*'--ca-file'"):
        Access(address("https://h"), ca_file=str(file)).context()
    assert Access(address("https://h"), insecure=True).context().verify_mode is ssl.CERT_NONE


# Calls


class Socket:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def response(status: int, body: bytes) -> http.client.HTTPResponse:
    text = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body
    made = http.client.HTTPResponse(Socket(text))  # type: ignore[arg-type]
    made.begin()
    return made


class Connection(http.client.HTTPConnection):
    """Responds with what a test has prepared: an exception is raised."""

    def __init__(self, *outcomes: http.client.HTTPResponse | Exception) -> None:
        super().__init__("host")
        self.outcomes = list(outcomes)
        self.sent: list[tuple[str, str, Any, Any]] = []

    def request(
        self, method: str, url: str, body: Any = None, headers: Any = None, *, encode_chunked: bool = False
    ) -> None:
        self.sent.append((method, url, body, headers))

    def getresponse(self) -> http.client.HTTPResponse:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def calls(
    *outcomes: http.client.HTTPResponse | Exception, url: str = "http://host:8000/p"
) -> tuple[HttpCalls, Connection]:
    connection = Connection(*outcomes)
    return HttpCalls(Access(address(url), {"key": "value"}), connection), connection


def test_a_call() -> None:
    made, connection = calls(response(200, b'{"a": 1}'), response(200, b""))
    assert made.json("GET", "/v2") == {"a": 1}
    assert made.json("POST", "/v2/x", b"{}") is None
    assert connection.sent == [("GET", "/p/v2", None, {"key": "value"}), ("POST", "/p/v2/x", b"{}", {"key": "value"})]


def test_lines_as_they_come() -> None:
    made, _ = calls(response(200, b'{"a":1}\n\n{"a":2}\n'))
    assert list(made.lines("/x", b"", {"accept": "lines"})) == [b'{"a":1}\n', b'{"a":2}\n']


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    made, connection = calls(response(200, b"1"), http.client.RemoteDisconnected("gone"), response(200, b"2"))
    assert [made.json("GET", "/a"), made.json("GET", "/b")] == [1, 2]
    assert len(connection.sent) == 3


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_what_may_have_been_done_is_not_sent_again(method: str) -> None:
    """Nor is a first call, which has met no old connection."""
    outcomes: list[http.client.HTTPResponse | Exception] = [http.client.RemoteDisconnected("gone")]
    if method == "POST":
        outcomes.insert(0, response(200, b"1"))
    made, connection = calls(*outcomes)
    if method == "POST":
        made.json("GET", "/a")
    with pytest.raises(UnreachableError, match="closed the connection without a response"):
        made.json(method, "/b")
    assert not connection.outcomes


@pytest.mark.parametrize(
    ("body", "text"),
    [(b'{"error":"no such thing"}', "no such thing"), (b"<html>", "<html>"), (b"", "status 404"), (b"[]", "[]")],
)
def test_a_refusal(body: bytes, text: str) -> None:
    made, _ = calls(response(404, body))
    with pytest.raises(RefusedError) as raised:
        made.json("GET", "/x")
    assert (raised.value.message, raised.value.status) == (text, 404)


def test_a_status_that_is_expected() -> None:
    made, _ = calls(response(400, b'{"ready":false}'))
    answer = made.call("GET", "/x", refusals=(400,))
    assert (answer.status, answer.json()) == (400, {"ready": False})


def test_another_protocol() -> None:
    made, _ = calls(response(200, b"<html>"))
    with pytest.raises(UnreachableError, match="speaks another protocol"):
        made.json("GET", "/v2")


UNTRUSTED = ssl.SSLCertVerificationError(1, "x")
UNTRUSTED.verify_message = "self-signed certificate"


@pytest.mark.parametrize(
    ("error", "text", "helps"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused", "'modserve serve --model-repository"),
        (TimeoutError("timed out"), "no response in time", "--timeout allows more than 60 s"),
        (http.client.BadStatusLine("x"), "its response is not HTTP", "--url names the HTTP port"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service", "there is no host 'host'; --url or "),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset", "--url https://host:8000"),
        (ssl.SSLError(1, "[SSL] wrong"), "no TLS connection", "--url http://"),
        (UNTRUSTED, "is not trusted: self-signed certificate", "--ca-file"),
    ],
)
def test_what_helps(error: Exception, text: str, helps: str) -> None:
    made, _ = calls(error)
    with pytest.raises(UnreachableError) as raised:
        made.json("GET", "/v2")
    assert raised.value.message.startswith("cannot reach a server at http://host:8000/p: ")
    assert text in raised.value.message
    assert helps in raised.value.advice


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("This API is restricted, expecting header 'k'", "--header"),
        ("explicit model load / unload is not allowed if polling is enabled: …", "--model-control-mode explicit"),
        ("Request for unknown model: 'x' is not found", "modserve models"),
        ("anything else", ""),
    ],
)
def test_what_helps_against_refusals(text: str, helps: str) -> None:
    assert helps in advice_on(text)
    assert bool(helps) == bool(advice_on(text))
