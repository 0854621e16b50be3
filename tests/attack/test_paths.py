"""Spellings of a path, over real sockets, with a key that may only read: nothing is loaded, and tries are audited."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from repositories import EXAMPLES
from server_process import ServerProcess, eventually, serving
from wire import http

from attack import http2
from attack.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, SERVICE, field, frame
from attack.sending import exchange, statuses

LOAD: Final = b"/v2/repository/models/simple/load"
RPC: Final = SERVICE.encode() + b"RepositoryModelLoad"
NAME: Final = http2.message(b"\x12\x06simple")
"""A request for the model 'simple', behind its frame."""

ENDS: Final = (
    *(b"%0A", b"%0D", b"%0D%0A", b"%00", b"%09", b"%20", b"%7F", b"%2e", b"%2F", b"%5C", b"%3F", b"%23", b"%C0%8A"),
    *(b"/", b"//", b"/.", b"/..", b"/%2e%2e", b";", b";x=1", b"?", b"?a=/b", b"#", b"\\", b"\x0b", b"\x7f", b"\xff"),
)
BEGINNINGS: Final = (
    *(b"/", b"//", b"/.", b"/./", b"/..", b"/%2e", b"/x/..", b"/v2/..", b"/%0A", b"\\", b";", b"?", b"*", b""),
    *(b"http://localhost", b"HTTP://user@localhost", b"https://localhost", b"//localhost"),
)


def spellings(path: bytes, last: bytes) -> tuple[bytes, ...]:
    """Other ways to write a path whose `last` part begins with a slash."""
    return (
        *(path + end for end in ENDS),
        *(beginning + path for beginning in BEGINNINGS),
        path.upper(),
        path.replace(last, b"%2F" + last[1:]),
        path.replace(last, b"/" + last),
        path.replace(last, b"/." + last),
        path.replace(last, last[:1] + b"%%%02X" % last[1] + last[2:]),
    )


class Place(NamedTuple):
    server: ServerProcess
    audit: Path
    key: bytes

    def loaded(self) -> bool:
        headers = {"X-API-Key": self.key.decode()}
        return http(self.server.http_port, "GET", "/v2/models/simple/ready", headers=headers).status == 200

    def audited(self) -> list[tuple[str, object]]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [(line["call"], line["status"]) for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("paths")
    command = [sys.executable, "-m", "modserve", "keys", "add", "reader", "--scope=*=read", f"--file={folder}/keys"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    options = ["--model-control-mode=explicit", f"--auth-file={folder}/keys", f"--audit-log={folder}/audit"]
    with serving(EXAMPLES, options=options) as server:
        yield Place(server, folder / "audit", shown[-1].encode())


def test_no_spelling_of_a_target_loads(place: Place) -> None:
    for target in spellings(LOAD, b"/models"):
        head = b"POST %b HTTP/1.1\r\nHost: a\r\nX-API-Key: %b\r\nContent-Length: 2\r\n\r\n{}" % (target, place.key)
        (status,) = statuses(exchange(place.server.http_port, head))
        assert status in (400, 401, 403, 404, 405), (target, status)
    assert not place.loaded()
    eventually(lambda: (f"POST {LOAD.decode()}", 403) in place.audited())
    assert all(status != 200 for _, status in place.audited())


def status_of(place: Place, *fields: tuple[bytes, bytes]) -> int | None:
    """The ``grpc-status`` of a load with these pseudo headers; None if the stream was reset or has none."""
    rest = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"x-api-key", place.key))
    block = b"".join(field(name, value) for name, value in (*fields, *rest))
    with http2.connected(place.server.grpc_port) as connection:
        connection.send(frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, NAME))
        connection.wait_for_answers((1,))
        return connection.wait_for_status(1, 0.0)


def pseudo(path: bytes, scheme: bytes = b"http", authority: bytes = b"a") -> tuple[tuple[bytes, bytes], ...]:
    return (b":method", b"POST"), (b":scheme", scheme), (b":path", path), (b":authority", authority)


def test_no_spelling_of_a_name_loads(place: Place) -> None:
    for path in spellings(RPC, b"/Rep"):
        expected = (7,) if path == RPC else (None, 3, 12)
        assert status_of(place, *pseudo(path)) in expected, path
    assert not place.loaded()


def test_pseudo_headers_that_say_two_things(place: Place) -> None:
    read = SERVICE.encode() + b"ServerLive"
    for fields in (
        (*pseudo(read), (b":path", RPC)),
        (*pseudo(RPC), (b":path", read)),
        (*pseudo(read), (b":authority", RPC)),
        (*pseudo(read), (b"path", RPC), (b":path", RPC)),
        (*pseudo(read), (b":Path", RPC)),
        (*pseudo(read), (b"x-original-url", LOAD), (b"x-rewrite-url", LOAD), (b":method", b"GET")),
    ):
        assert status_of(place, *fields) is None, fields
    assert status_of(place, *pseudo(RPC, b"https", b"localhost:1")) == 7
    assert status_of(place, *pseudo(RPC)) == 7
    assert not place.loaded()
    eventually(lambda: any("RepositoryModelLoad" in call for call, _ in place.audited()))
