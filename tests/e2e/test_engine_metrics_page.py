"""Counts of an engine, and memory and CPU of its processes, on the metrics page of a real server."""

import os
import signal
from pathlib import Path

from open_server import OpenServer
from prometheus_client.parser import text_string_to_metric_families
from repositories import write_identity
from server_process import ServerProcess, eventually, serving
from wire import Ask, Input, http, http_infer, ints


def page(server: ServerProcess) -> list[str]:
    """The lines about the engine's metrics."""
    text = http(server.metrics_port, "GET", "/metrics").body.decode()
    return [line for line in text.splitlines() if "test_" in line]


def test_they_come_with_the_model_and_go_with_it(tmp_path: Path, open_server: OpenServer) -> None:
    write_identity(tmp_path, "metered", backend="metered", extra="instance_group [ { count: 2 kind: KIND_CPU } ]")
    with open_server.host(tmp_path) as server:
        for rows in (1, 3, 8):
            ask = Ask((Input("INPUT0", "INT32", (rows, 1), ints(*range(rows))),), model="metered")
            assert http_infer(server.http_port, ask).status == 200
        assert page(server) == [
            r"# HELP test_executions Executions\nof all instances",
            "# TYPE test_executions counter",
            r'test_executions{who="a \"test\""} 3.0',
            "# HELP test_rows Rows of executions",
            "# TYPE test_rows histogram",
            'test_rows_bucket{le="1.0"} 1.0',
            'test_rows_bucket{le="4.0"} 2.0',
            'test_rows_bucket{le="+Inf"} 3.0',
            "test_rows_count 3.0",
            "test_rows_sum 12.0",
            "# HELP test_rows_lately Rows of the last execution",
            "# TYPE test_rows_lately gauge",
            "test_rows_lately 8.0",
        ]
        assert http(server.http_port, "POST", "/v2/repository/models/metered/unload").status == 200
        eventually(lambda: page(server) == [])


BUSY = """import time

class TritonPythonModel:
    def initialize(self, args):
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    def execute(self, requests):
        return [None for _ in requests]
"""
CPU, MEMORY = "modserve_model_process_cpu_seconds_total", "modserve_model_process_resident_bytes"


def processes(server: ServerProcess) -> dict[str, float]:
    """The figures of processes by name, which only this model has."""
    text = http(server.metrics_port, "GET", "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = [sample for sample in samples if sample.name in (CPU, MEMORY)]
    assert all(sample.labels == {"model": "busy", "version": "1"} for sample in found)
    return {sample.name: sample.value for sample in found}


def test_a_process_that_dies_leaves_its_cpu_time_and_no_memory(tmp_path: Path) -> None:
    write_identity(tmp_path, "busy", backend="python")
    (tmp_path / "busy" / "1" / "model.py").write_text(BUSY)
    write_identity(tmp_path, "other")
    with serving(tmp_path, options=["--log-verbose=1"], errors=["was killed by SIGKILL"]) as server:
        first = processes(server)
        assert first[CPU] >= 0.3
        assert first[MEMORY] > 1_000_000
        tasks = Path(f"/proc/{server.pid}/task").iterdir()
        (pid,) = (child for task in tasks for child in (task / "children").read_text().split())
        os.kill(int(pid), signal.SIGKILL)
        eventually(lambda: MEMORY not in processes(server))
        assert processes(server)[CPU] >= first[CPU]
        eventually(lambda: MEMORY in processes(server), 30)
        assert processes(server)[CPU] >= first[CPU] + 0.3
