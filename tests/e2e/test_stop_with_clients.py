"""SIGTERM while clients keep their connections: none of their requests is lost."""

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException

import pytest
from repositories import EXAMPLES
from server_process import LOADED, ServerProcess, eventually, started
from tritonclient.grpc import service_pb2
from wire import SECONDS, Ask, binary_request, channel, connect, infer_path, message, stub

CLIENTS = 40
FAREWELL = 0.9
"""Seconds after the signal in which a request on an idle connection is still served; the server waits a bit longer."""
BODY, HEADERS = binary_request(Ask())
CALLS: dict[str, Callable[[HTTPConnection], None]] = {
    "infer": lambda to: to.request("POST", infer_path("simple"), BODY, HEADERS),
    "metadata": lambda to: to.request("GET", "/v2/models/simple"),
}


class Clients:
    """Each sends one request after the other on a connection that it keeps, until it hears that it is the last."""

    def __init__(self, server: ServerProcess, call: Callable[[HTTPConnection], None]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.signalled = math.inf
        self._server = server
        self._call = call
        self._lock = threading.Lock()

    def run(self, pause: float) -> None:
        """Sends with `pause` seconds between a response and the next request."""
        with closing(connect(self._server.http_port)) as connection:
            begun = False
            while True:
                sent = time.monotonic()
                try:
                    self._call(connection)
                    answer = connection.getresponse()
                    answer.read()
                except (OSError, HTTPException) as error:
                    # A machine that does much else may let a client send so late that it is its own fault.
                    self._count(f"lost: {error!r}" if sent < self.signalled + FAREWELL else "told")
                    return
                self._count(f"{answer.status}")
                if not begun:
                    begun = True
                    self._count("begun")
                if answer.will_close:
                    self._count("told")
                    return
                time.sleep(pause)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


@pytest.mark.parametrize("kind", CALLS)
def test_no_request_on_a_kept_connection_is_lost(kind: str) -> None:
    with started(EXAMPLES) as server, ThreadPoolExecutor(CLIENTS) as threads:
        server.wait_for(LOADED)
        clients = Clients(server, CALLS[kind])
        running = [threads.submit(clients.run, (number % 8) / 40) for number in range(CLIENTS)]
        eventually(lambda: clients.outcomes["begun"] == CLIENTS and clients.outcomes["200"] > 10 * CLIENTS)
        clients.signalled = time.monotonic()
        server.signal(signal.SIGTERM)
        for each in running:
            each.result(SECONDS)
        server.wait(0)
    assert clients.outcomes["told"] == CLIENTS, clients.outcomes
    assert set(clients.outcomes) == {"200", "begun", "told"}, clients.outcomes


def test_requests_that_have_begun_to_arrive_are_served() -> None:
    """They arrive later than a request on an idle connection may."""
    late = threading.Event()

    def requests() -> Iterator[service_pb2.ModelInferRequest]:
        assert late.wait(SECONDS)
        yield message(Ask())

    with started(EXAMPLES) as server:
        server.wait_for(LOADED)
        with closing(connect(server.http_port)) as upload, channel(server.grpc_port) as opened:
            stream = stub(opened).ModelStreamInfer(requests(), timeout=SECONDS)
            # On the same connection, behind the stream.
            assert stub(opened).ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS).live
            upload.putrequest("POST", infer_path("simple"))
            for name, value in {**HEADERS, "Content-Length": str(len(BODY))}.items():
                upload.putheader(name, value)
            upload.endheaders(BODY[:-1])
            server.signal(signal.SIGTERM)
            time.sleep(FAREWELL + 0.5)
            upload.send(BODY[-1:])
            late.set()
            response = upload.getresponse()
            assert (response.status, response.will_close) == (200, True)
            assert next(iter(stream)).error_message == ""
        server.wait(0)
