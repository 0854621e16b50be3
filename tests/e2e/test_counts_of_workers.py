"""No count falls while workers die and come back, or load a model anew: Prometheus would take it for a restart.

The metrics page, the statistics, the console and a routing's counts are all read from the same sums.
"""

import json
import os
import re
import select
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, eventually, started
from tritonclient.grpc import service_pb2
from wire import Ask, Input, assert_serving, channel, connect, http, http_infer, ints, metric, stub

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


def get(server: ServerProcess, path: str) -> Any:
    answer = http(server.http_port, "GET", path)
    if answer.status == 503:
        raise ConnectionResetError("this worker is about to end")
    return answer.json


def statistics(server: ServerProcess) -> Counts:
    return flat(get(server, "/v2/models/stats"))


def statistics_of_one(server: ServerProcess) -> Counts:
    return flat(get(server, "/v2/models/other/versions/1/stats"))


def grpc_statistics(server: ServerProcess) -> Counts:
    with channel(server.grpc_port) as opened:
        answer = stub(opened).ModelStatistics(service_pb2.ModelStatisticsRequest(), timeout=30)
    found: Counts = {}
    for each in answer.model_stats:
        found |= {f"{each.name} success": each.inference_stats.success.count, f"{each.name}": each.inference_count}
        found |= {f"{each.name} of {batch.batch_size}": batch.compute_infer.count for batch in each.batch_stats}
    return found


def console(server: ServerProcess) -> Counts:
    """Views of counts that only grow."""
    with closing(connect(server.http_port)) as connection:
        connection.request("GET", "/console/events")
        response = connection.getresponse()
        line = b"-"
        while line and not line.startswith(b"data: "):
            line = response.readline()
    whole = json.loads(line.removeprefix(b"data: ") or b"{}")
    if not whole:
        raise ConnectionResetError
    rows = {key: {name: row[name] for name in ("total", "failures", "closed")} for key, row in whole["models"].items()}
    return flat({"models": rows, "failures": whole["server"]["failures"], "workers": whole["server"]["workers"]})


def routing(server: ServerProcess) -> Counts:
    routes = get(server, "/v2/models/other/routing")["routes"]
    return {f"{each['name']} {each['version']}": each["requests"] for each in routes}


VIEWS = {view.__name__: view for view in (counts, statistics, statistics_of_one, grpc_statistics, console, routing)}
SHRINKING = ("byte_size", "id", "serving", "batch_size")


def flat(document: Any, path: str = "") -> Counts:
    """The numbers that only grow, by their paths; rows of lists by their names."""
    if isinstance(document, list):
        names = ("name", "version", "batch_size")
        rows = [" ".join(str(row.get(name, "")) for name in names) if isinstance(row, dict) else "" for row in document]
        document = {
            f"{place if not row.strip() else row}": each
            for place, (row, each) in enumerate(zip(rows, document, strict=True))
        }
    if not isinstance(document, dict):
        grows = isinstance(document, int | float) and not path.endswith(SHRINKING)
        return {path: document} if grows else {}
    return {key: value for name, each in document.items() for key, value in flat(each, f"{path} {name}").items()}


def fallen(before: Counts, after: Counts) -> dict[str, tuple[float, float | None]]:
    return {sample: (value, after.get(sample)) for sample, value in before.items() if after.get(sample, -1) < value}


class Watch:
    """Calls a model and reads the pages, in turns in both formats, and the other views, until the test ends."""

    def __init__(self, server: ServerProcess) -> None:
        self.pages: list[Counts] = [counts(server)]
        self.views: dict[str, list[Counts]] = {name: [read(server)] for name, read in VIEWS.items()}
        self.views["counts"] = self.pages
        self._server = server
        self._stop = threading.Event()

    def read(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError, HTTPException):  # the worker that has just died had the connection
                self.pages.append(counts(self._server, openmetrics=len(self.pages) % 2 == 1))
            for name, read in VIEWS.items():
                if read is not counts:
                    with suppress(OSError, HTTPException, grpc.RpcError):
                        self.views[name].append(read(self._server))

    def call(self) -> None:
        ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="other")
        while not self._stop.is_set():
            with suppress(OSError, HTTPException):
                http_infer(self._server.http_port, ask)

    def more(self, pages: int = 4) -> None:
        wanted = {name: len(read) + pages for name, read in self.views.items()}
        eventually(lambda: all(len(self.views[name]) >= number for name, number in wanted.items()))

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
        set_routing(server)
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
        for name, views in watch.views.items():
            for before, after in pairwise(views):
                assert fallen(before, after) == {}, name
            assert max(views[-1].values()) > max(views[0].values()), name
        first, last = watch.pages[0], counts(server)
        assert {
            "modserve_worker_restarts_total",
            'modserve_request_duration_seconds_count{model="other",version="1"}',
        } < {*first}
        assert last["modserve_worker_restarts_total"] == console(server)[" workers restarts"] == 3
        assert statistics(server)[" model_stats simple 1  inference_stats success count"] == 40
        assert console(server)[" models 1:simple total success"] == 40
        assert routing(server)["1 1"] >= watch.views["routing"][-1]["1 1"] > 0
        set_routing(server)
        assert routing(server) == {"1 1": 0}, "another routing, though it is the same document"
        assert metric(server, SUCCESS, model="simple") == 40, "of workers that were all replaced"
        assert metric(server, SUCCESS, model="other") > 0
        assert metric(server, "modserve_http_responses_total", code="400") >= 20

        assert http(server.http_port, "POST", "/v2/repository/models/other/unload", b"{}").status == 200
        eventually(lambda: 'model="other",version="1"} ' not in success(server))
        assert metric(server, SUCCESS, model="simple") == 40
        server.stop(errors=["was killed by SIGKILL"] * 2)


def set_routing(server: ServerProcess) -> None:
    answer = http(server.http_port, "POST", "/v2/models/other/routing", b'{"split": {"1": 1}}')
    assert answer.status == 200, answer.body


def page(server: ServerProcess) -> str:
    with suppress(OSError, HTTPException):
        return http(server.metrics_port, "GET", "/metrics").body.decode()
    return ""


def success(server: ServerProcess) -> str:
    return "".join(line for line in page(server).splitlines() if line.startswith(SUCCESS))
