"""No counter falls while workers die and come back, or load a model anew: Prometheus would take it for a restart."""

import os
import re
import select
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, eventually, started
from wire import Ask, Input, assert_serving, http, http_infer, ints, metric

Counts = dict[str, float]
"""By the name of a sample and its labels."""

OPTIONS = ["--workers=2", "--model-control-mode=explicit", "--load-model=*"]
SUPERVISING = r"supervising worker (\d), process (\d+)$"
SUCCESS = "nv_inference_request_success"


def counts(server: ServerProcess, openmetrics: bool = False) -> Counts:
    """The samples that only grow. They have the same names in both formats."""
    headers = {"accept": "application/openmetrics-text"} if openmetrics else {}
    found: Counts = {}
    grows = False
    for line in http(server.metrics_port, "GET", "/metrics", headers=headers).body.decode().splitlines():
        if line.startswith("# TYPE "):
            grows = line.endswith((" counter", " histogram", " unknown"))
        elif grows and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            found[sample] = float(value)
    return found


def fallen(before: Counts, after: Counts) -> dict[str, tuple[float, float | None]]:
    return {sample: (value, after.get(sample)) for sample, value in before.items() if after.get(sample, -1) < value}


class Watch:
    """Calls a model and reads the pages, in turns in both formats, until the test ends."""

    def __init__(self, server: ServerProcess) -> None:
        self.pages: list[Counts] = [counts(server)]
        self._server = server
        self._stop = threading.Event()

    def read(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError, HTTPException):  # the worker that has just died had the connection
                self.pages.append(counts(self._server, openmetrics=len(self.pages) % 2 == 1))

    def call(self) -> None:
        ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="other")
        while not self._stop.is_set():
            with suppress(OSError, HTTPException):
                http_infer(self._server.http_port, ask)

    def more(self, pages: int = 4) -> None:
        wanted = len(self.pages) + pages
        eventually(lambda: len(self.pages) >= wanted)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        with ThreadPoolExecutor(2) as threads:
            try:
                work = [threads.submit(self.read), threads.submit(self.call)]
                yield
                self.more()
            finally:
                self._stop.set()
            for each in work:
                each.result()


def pids(server: ServerProcess) -> dict[int, int]:
    return {int(index): int(pid) for index, pid in re.findall(SUPERVISING, server.log, re.MULTILINE)}


def end(pid: int, number: int) -> None:
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, number)
        assert select.select([process], [], [], 30)[0], f"{pid} is still there"
    finally:
        os.close(process)


def test_no_counter_falls(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "simple", tmp_path / "simple")
    write_identity(tmp_path, "other")
    with started(tmp_path, options=OPTIONS) as server:
        eventually(lambda: http(server.http_port, "GET", "/v2/health/ready").status == 200, 60)
        for _ in range(20):
            assert_serving(server)
            assert http(server.http_port, "POST", "/v2/models/simple/infer", b"{").status == 400
        watch = Watch(server)
        with watch.going_on():
            watch.more()
            for restarts, (index, number) in enumerate(((1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGTERM))):
                end(pids(server)[index], number)
                watch.more()
                eventually(lambda: len(re.findall("supervising worker", server.log)) == restarts + 3)  # noqa: B023
                eventually(lambda: ("modserve_workers 2.0\n") in page(server), 60)
                watch.more()
            for _ in range(2):
                assert http(server.http_port, "POST", "/v2/repository/models/other/load", b"{}").status == 200
                watch.more()
        for before, after in zip(watch.pages, watch.pages[1:], strict=False):
            assert fallen(before, after) == {}
        first, last = watch.pages[0], counts(server)
        assert {
            "modserve_worker_restarts_total",
            'modserve_request_duration_seconds_count{model="other",version="1"}',
        } < {*first}
        assert last["modserve_worker_restarts_total"] == 3
        assert metric(server, SUCCESS, model="simple") == 40, "of workers that were all replaced"
        assert metric(server, SUCCESS, model="other") > 0
        assert metric(server, "modserve_http_responses_total", code="400") >= 20

        assert http(server.http_port, "POST", "/v2/repository/models/other/unload", b"{}").status == 200
        eventually(lambda: 'model="other",version="1"} ' not in success(server))
        assert metric(server, SUCCESS, model="simple") == 40
        server.stop(errors=["was killed by SIGKILL"] * 2)


def page(server: ServerProcess) -> str:
    with suppress(OSError, HTTPException):
        return http(server.metrics_port, "GET", "/metrics").body.decode()
    return ""


def success(server: ServerProcess) -> str:
    return "".join(line for line in page(server).splitlines() if line.startswith(SUCCESS))
