"""Pages of the console that are opened by the hundred, left, and not read."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, eventually, serving
from wire import assert_serving, http

from attack.measuring import Limits, attacked
from attack.sending import dialled, statuses

EVENTS = b"GET /console/events HTTP/1.1\r\nHost: a\r\n\r\n"
MOST = 64


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its picture is long: it has many models, with long names."""
    repository = tmp_path_factory.mktemp("many")
    for number in range(40):
        write_identity(repository, f"{number:03}" + "n" * 150)
    with serving(EXAMPLES, repository, options=["--http-client-timeout=2"]) as running:
        yield running


def test_two_hundred_pages_of_which_nobody_reads(crowded: ServerProcess) -> None:
    """The first of them are served, the others refused, and those that do not read are disconnected."""
    with attacked(crowded, "console: 200 pages", Limits(peak_mb=64, cpu_seconds=5)), ExitStack() as stack:
        pages = [stack.enter_context(dialled(crowded.http_port)) for _ in range(200)]
        for page in pages:
            page.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            page.sendall(EVENTS)
        time.sleep(3)
        heads = [page.recv(12) for page in pages]
        assert heads.count(b"HTTP/1.1 200") == MOST
        assert heads.count(b"HTTP/1.1 503") == 200 - MOST
        assert_serving(crowded)
    with dialled(crowded.http_port) as page:
        page.sendall(EVENTS)
        assert page.recv(12) == b"HTTP/1.1 200", "there is room again"
    assert_serving(crowded)


def test_pages_that_come_and_go(crowded: ServerProcess) -> None:
    """Each makes the server read all there is, and is gone before it is written."""
    with attacked(crowded, "console: 300 pages that come and go", Limits(peak_mb=48, cpu_seconds=8)):
        for _ in range(300):
            with dialled(crowded.http_port) as page:
                page.sendall(EVENTS)
        assert_serving(crowded)


def test_failures_with_texts_of_clients(crowded: ServerProcess) -> None:
    """They are kept up to a number and a length, whatever they say."""
    with attacked(crowded, "console: 3,000 failures with names of 3,000 bytes", Limits(peak_mb=48, cpu_seconds=8)):
        with dialled(crowded.http_port) as client:
            received = b""
            for number in range(3_000):
                name = f"%3Cscript%3E{number}" + "%C3%A4" * 480
                client.sendall(b"GET /v2/models/%b HTTP/1.1\r\nHost: a\r\n\r\n" % name.encode())
                if number % 50 == 49:
                    received = client.recv(1 << 20)
            assert set(statuses(received[received.index(b"HTTP/1.1") :])) == {404}
        failures = http(crowded.http_port, "GET", "/console/failures")
        assert len(failures.json) == 100
        assert len(failures.body) < 300_000
    eventually(lambda: json.loads(failures.body)[0]["model"].startswith("<script>"))
