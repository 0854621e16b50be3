"""The percentiles that people see, by `modserve top` and in the console, beside the exact ones of the access log."""

import http.client
import json
import re
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from python_models import tensors, write_python
from server_process import ServerProcess, eventually, serving

from modserve.commands.bench.percentiles import percentiles_ms
from modserve.commands.destination import Destination, address
from modserve.commands.top.command import Frames
from modserve.commands.top.frame import cells
from modserve.commands.top.source import SnapshotSource
from modserve.core.statistics.summary import FINE_QUERY

HOST = "127.0.0.1"
CODE = """
import time
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(float(requests[0].inputs()[0].as_numpy()[0]) / 1000)
        return [pb_utils.InferenceResponse(each.inputs()) for each in requests]
"""
BODY = '{"inputs": [{"name": "T", "datatype": "INT32", "shape": [1], "data": [%d]}]}'
SLOW_MS, QUICK_MS = 180, 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    config = "\n".join((tensors("input", T="INT32 1"), tensors("output", T="INT32 1"), "instance_group { count: 4 }"))
    write_python(repository, "sleep", CODE, config, modes=["thread"])
    with serving(repository, options=["--workers=2", "--access-log=all"]) as server:
        yield server


def load(server: ServerProcess, seconds: float) -> int:
    """Four clients of their own connections, which both workers get some of. How many requests they have sent."""

    def client(milliseconds: int) -> int:
        end, sent = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            with closing(http.client.HTTPConnection(HOST, server.http_port, timeout=30)) as connection:
                connection.request("POST", "/v2/models/sleep_thread/infer", BODY % milliseconds)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
            sent += 1
        return sent

    with ThreadPoolExecutor(4) as threads:
        return sum(threads.map(client, (QUICK_MS, QUICK_MS, QUICK_MS, SLOW_MS)))


def logged_ns(server: ServerProcess) -> list[int]:
    """What each request has taken, by the access log."""
    return [int(text) * 1000 for text in re.findall(r" infer model=sleep_thread .* total_us=(\d+)", server.log)]


def console(server: ServerProcess) -> list[float]:
    """p50 and p99 since the load, in milliseconds."""
    with closing(http.client.HTTPConnection(HOST, server.http_port, timeout=30)) as connection:
        connection.request("GET", "/console/events")
        response = connection.getresponse()
        line = response.readline()
        while not line.startswith(b"data: "):
            line = response.readline()
    found: list[float] = json.loads(line.removeprefix(b"data: "))["models"]["1:sleep_thread"]["since_load"]
    return found


def test_top_and_console_show_what_the_access_log_has(server: ServerProcess) -> None:
    def between_the_looks(_: float) -> None:
        sent = load(server, 2.0)
        eventually(lambda: len(logged_ns(server)) == sent)

    place = Destination(address(f"http://{HOST}:{server.http_port}"))
    source = SnapshotSource(place, f"http://{HOST}:{server.metrics_port}")
    with closing(Frames(source, 1.0, 1, between_the_looks)) as frames:
        [frame] = frames
    exact = percentiles_ms(array("q", logged_ns(server)), (50.0, 99.0))
    [row] = [cells(row) for row in frame.rows if row.model == "sleep_thread"]
    _, p50, p99 = (float(text) for text in re.findall(r"([\d.]+) ms", " ".join(row)))
    assert [p50, p99] == [pytest.approx(each, rel=0.05) for each in exact.values()]
    assert [p50, p99] == [pytest.approx(each, rel=0.02) for each in console(server)], "the same figure everywhere"


def test_only_who_asks_gets_the_fine_buckets(server: ServerProcess) -> None:
    load(server, 0.2)
    pages = []
    for path in ("/metrics", f"/metrics?{FINE_QUERY}"):
        with closing(http.client.HTTPConnection(HOST, server.metrics_port, timeout=30)) as connection:
            connection.request("GET", path)
            pages.append(connection.getresponse().read().decode())
    usual, fine = pages
    assert "modserve_request_durations" not in usual
    assert "modserve_request_longest_seconds" not in usual
    counts = re.findall(r'^modserve_request_durations\{.*seconds="[\d.]+".*\} (\S+)$', fine, re.MULTILINE)
    [requests] = re.findall(r"^modserve_request_duration_seconds_count\{.*\} (\S+)$", fine, re.MULTILINE)
    assert sum(map(float, counts)) == float(requests), "of both workers"
