"""A real Prometheus scrapes the metrics port and answers with the right numbers."""

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from server_process import ServerProcess, eventually
from wire import HOST, Ask, Input, grpc_infer, http, http_infer, ints

MODEL = "scraped"  # of which nobody else makes use
NO_PROMETHEUS = (
    "prometheus is not on PATH, and this test has a real one scrape the server. On Debian: apt-get install prometheus. "
    "Elsewhere: https://prometheus.io/download/"
)
LATE = "context deadline exceeded"
"""What is the matter with a scrape that took longer than it may: nothing that is on the page."""
CONFIG = """\
global:
  scrape_interval: 250ms
  scrape_timeout: 250ms
scrape_configs:
  - job_name: modserve
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
    """Its HTTP API; the port is the one it says it listens on."""

    def __init__(self, directory: Path, target: str, *options: str) -> None:
        executable = shutil.which("prometheus")
        if executable is None:
            pytest.fail(NO_PROMETHEUS, pytrace=False)
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(target=target))
        self._log = directory / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    executable,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={HOST}:0",
                    "--log.level=debug",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._port = eventually(self._listening)
        except BaseException:
            self.close()
            raise

    def _listening(self) -> int:
        """Linux knows: the one listening socket of the process."""
        assert self._process.poll() is None, f"prometheus ended:\n{self._log.read_text()}"
        inodes = set()
        for link in Path(f"/proc/{self._process.pid}/fd").iterdir():
            try:
                name = link.readlink().name
            except FileNotFoundError:
                continue
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
        for line in Path(f"/proc/{self._process.pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return int(fields[1].partition(":")[2], 16)
        return 0

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and values that an instant query gives.

        None while it starts, and from a scrape that came too late on until the next.
        """
        answer = http(self._port, "GET", "/api/v1/query?" + urlencode({"query": expression}))
        if answer.status == 503:
            return []
        assert answer.status == 200, answer.body
        return [(row["metric"], float(row["value"][1])) for row in answer.json["data"]["result"]]

    def values(self, expression: str) -> list[float]:
        return [value for _, value in self.query(expression)]

    def get(self, path: str) -> Any:
        """None while it starts."""
        answer = http(self._port, "GET", path)
        return None if answer.status == 503 else answer.json["data"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture(scope="module")
def prometheus(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    found = Prometheus(tmp_path_factory.mktemp("prometheus"), f"{HOST}:{server.metrics_port}")
    yield found
    found.close()


def rows(count: int) -> Ask:
    return Ask((Input("INPUT0", "INT32", (count, 2), ints(*range(2 * count))),), model=MODEL)


def test_a_query_gives_the_right_count(server: ServerProcess, prometheus: Prometheus) -> None:
    for count in (1, 2, 3):
        assert http_infer(server.http_port, rows(count)).status == 200
        grpc_infer(server.grpc_port, rows(count))
    assert http_infer(server.http_port, rows(9)).status == 400
    expression = f'nv_inference_count{{model="{MODEL}"}}'
    eventually(lambda: prometheus.values(expression) == [12])
    ((labels, _),) = eventually(lambda: prometheus.query(expression))
    assert labels == {
        "__name__": "nv_inference_count",
        "model": MODEL,
        "version": "1",
        "job": "modserve",
        "instance": f"{HOST}:{server.metrics_port}",
    }
    for name, value in (
        ("nv_inference_request_success", 6),
        ("nv_inference_exec_count", 6),
        ("nv_inference_pending_request_count", 0),
        ("modserve_batch_size_count", 6),
        ("modserve_batch_size_sum", 12),
    ):
        query = f'{name}{{model="{MODEL}"}}'
        assert eventually(functools.partial(prometheus.values, query)) == [value], name


def test_histograms_can_be_used_as_such(prometheus: Prometheus) -> None:
    quantile = f'histogram_quantile(0.5, modserve_request_duration_seconds_bucket{{model="{MODEL}"}})'
    ((_, median),) = eventually(lambda: prometheus.query(quantile))
    assert 0 < median < 10


def test_failures_have_their_four_reasons(prometheus: Prometheus) -> None:
    found = eventually(lambda: prometheus.query(f'nv_inference_request_failure{{model="{MODEL}"}}'))
    assert {labels["reason"] for labels, _ in found} == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}


def test_prometheus_finds_nothing_wrong_with_the_page(prometheus: Prometheus) -> None:
    """Not with the last scrape, that is, unless that came too late."""

    def judged() -> list[dict[str, str]]:
        targets = (prometheus.get("/api/v1/targets") or {}).get("activeTargets", [])
        return [each for each in targets if each["health"] != "unknown" and LATE not in each["lastError"]]

    (target,) = eventually(judged)
    assert (target["health"], target["lastError"]) == ("up", "")
    kinds = {name: entry[0]["type"] for name, entry in prometheus.get("/api/v1/metadata").items()}
    assert kinds["nv_inference_count"] == "counter"
    assert kinds["nv_inference_pending_request_count"] == "gauge"
    assert kinds["modserve_request_duration_seconds"] == "histogram"
    assert kinds["process_resident_memory_bytes"] == "gauge"


def test_probes_do_not_count_as_responses(server: ServerProcess) -> None:
    """Or many of them would hide that all other requests fail."""
    line = re.compile(r'^modserve_http_responses_total\{code="(\d+)"\} (\S+)$', re.MULTILINE)

    def responses() -> dict[str, float]:
        page = http(server.metrics_port, "GET", "/metrics").body.decode()
        return {code: float(count) for code, count in line.findall(page)}

    before = responses()
    assert {"200", "400", "404", "429", "500", "503"} <= before.keys()
    paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready", "/v2/models/absent/ready", "/")
    assert [http(server.http_port, "GET", path).status for path in paths] == [200, 200, 200, 404, 200]
    assert responses() == before
    http(server.http_port, "GET", "/v2")
    assert responses() == {**before, "200": before["200"] + 1}
