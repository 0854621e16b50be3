"""The page in its two formats."""

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families as parser_of_text

from modserve.core.statistics.histogram import Histogram
from modserve.observability.families import (
    Labels,
    family,
    format_labels,
    histogram_family,
    number,
    render,
    summary_family,
)
from modserve.observability.server_metrics import ModelProcesses, ProcessCollector


def parse_openmetrics(page: str) -> dict[str, Metric]:
    return {each.name: each for each in parser.text_string_to_metric_families(page)}  # type: ignore[no-untyped-call]


def test_labels_have_their_places() -> None:
    labels = Labels({"version": "1", "model": 'a"\n\\'})
    assert labels.text == 'model="a\\"\\n\\\\",version="1"'
    assert labels.having("kind", "x").startswith('kind="x",model=')
    assert labels.having("state", 'y"').endswith(',state="y\\"",version="1"')
    assert labels.having("zone", "z").endswith(',version="1",zone="z"')
    assert Labels({}).having("quantile", "0.5") == 'quantile="0.5"'
    assert format_labels({}) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0.0"), (999_999, "999999.0"), (1_000_000, "1e+06"), (12_345_678, "1.2345678e+07"), (-3, "-3.0")),
        *((0.25, "0.25"), (True, "1.0"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")),
        *((1_234_567.5, "1.2345675e+06"), (1e10, "1e+10"), (12e14, "1.2e+15"), (1.5e16, "1.5e+16"), (1e-7, "1e-07")),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_both_formats() -> None:
    histogram = Histogram([10.0, 100.0])
    for value in (5.0, 50.0, 60.0, 1000.0):
        histogram.observe(value)
    histogram.exemplify(60.0, "0af7", 1_700_000_000.25)
    histogram.exemplify(1000.0, "0af8", 1_700_000_001)
    made = [
        family("nv_count", "counter", 'Of "Triton"', [('model="a"', 3)]),
        family("own_total", "counter", "Ours", [("", 2)]),
        family("level", "gauge", "A gauge", [("", 0.5)]),
        family("nothing", "gauge", "Not there", []),
        histogram_family("times", "Times", 10, [('model="a"', histogram)]),
        summary_family("spread", "A summary", [(Labels({"model": "a"}), 2, 7.0, [("0.5", 3.0), ("0.9", math.nan)])]),
    ]
    assert render([lambda: made]).decode().splitlines() == [
        '# HELP nv_count Of "Triton"',
        "# TYPE nv_count counter",
        'nv_count{model="a"} 3.0',
        "# HELP own_total Ours",
        "# TYPE own_total counter",
        "own_total 2.0",
        "# HELP level A gauge",
        "# TYPE level gauge",
        "level 0.5",
        "# HELP times Times",
        "# TYPE times histogram",
        'times_bucket{model="a",le="1.0"} 1.0',
        'times_bucket{model="a",le="10.0"} 3.0',
        'times_bucket{model="a",le="+Inf"} 4.0',
        'times_count{model="a"} 4.0',
        'times_sum{model="a"} 111.5',
        "# HELP spread A summary",
        "# TYPE spread summary",
        'spread{model="a",quantile="0.5"} 3.0',
        'spread{model="a",quantile="0.9"} NaN',
        'spread_count{model="a"} 2.0',
        'spread_sum{model="a"} 7.0',
    ]
    page = render([lambda: made], openmetrics=True).decode()
    assert 'le="10.0"} 3.0 # {trace_id="0af7"} 6.0 1700000000.250\n' in page
    assert page.endswith("# EOF\n")
    read = parse_openmetrics(page)
    assert {name: each.type for name, each in read.items()} == {
        "nv_count": "unknown",
        "own": "counter",
        "level": "gauge",
        "times": "histogram",
        "spread": "summary",
    }
    assert read["nv_count"].samples[0].name == "nv_count"
    exemplars = [sample.exemplar for sample in read["times"].samples if sample.exemplar]
    assert [(each.labels, each.value) for each in exemplars] == [({"trace_id": "0af7"}, 6), ({"trace_id": "0af8"}, 100)]


PROCESS = "1 (a name) of) S" + " 0" * 10 + " 150 50 0 0 0 0 0 0 1000 4096 3"
"""As ``/proc/self/stat`` begins: 200 ticks of CPU time, started 1,000 ticks after the machine."""


def test_figures_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "self" / "fd").mkdir(parents=True)
    (tmp_path / "self" / "fd" / "0").touch()
    (tmp_path / "self" / "stat").write_text(PROCESS)
    (tmp_path / "self" / "limits").write_text("Limit  Soft Limit  Hard Limit\nMax open files  1024  4096  files\n")
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert figures(ProcessCollector(tmp_path)) == {
        "process_virtual_memory_bytes": 4096,
        "process_resident_memory_bytes": 3 * page,
        "process_start_time_seconds": 1_700_000_000 + 1000 / ticks,
        "process_cpu_seconds_total": 200 / ticks,
        "process_max_fds": 1024,
        "process_open_fds": 1,
    }
    (tmp_path / "self" / "limits").write_text("Max open files  unlimited  unlimited  files\n")
    assert "process_max_fds" not in figures(ProcessCollector(tmp_path))
    (tmp_path / "self" / "stat").unlink()
    assert figures(ProcessCollector(tmp_path)) == {"process_open_fds": 1}
    assert figures(ProcessCollector(tmp_path / "none")) == {}


def test_figures_of_this_process() -> None:
    found = figures(ProcessCollector())
    assert len(found) == 6
    assert abs(found["process_cpu_seconds_total"] - time.process_time()) < 1
    assert found["process_start_time_seconds"] < time.time()
    assert b"# TYPE process_cpu_seconds_total counter\n" in render([ProcessCollector().collect])
    read = parse_openmetrics(render([ProcessCollector().collect], openmetrics=True).decode())
    assert read["process_cpu_seconds"].type == "counter"


def test_processes_of_models(tmp_path: Path) -> None:
    """Several of one model are added up, and one that has ended leaves its CPU time behind, and no memory."""
    running = {1: 10, 2: 20, 3: 30}
    models = [('model="a",version="1"', 7, [1, 2]), ('model="b",version="1"', 8, [3]), ('model="c"', 9, [])]

    def shown() -> dict[tuple[str, str], Any]:
        for id in range(1, 4):
            folder = tmp_path / str(id)
            folder.mkdir(exist_ok=True)
            (folder / "stat").unlink(missing_ok=True)
            if id in running:
                (folder / "stat").write_text(PROCESS.replace(" 150 ", f" {running[id]} ").replace(" 1000 ", f" {id} "))
        families = parser_of_text(render([processes.collect]).decode())
        samples = [each for family in families for each in family.samples]
        return {(each.labels["model"], each.name): pytest.approx(each.value) for each in samples}

    processes = ModelProcesses(lambda: models, tmp_path)
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    cpu, memory = "modserve_model_process_cpu_seconds_total", "modserve_model_process_resident_bytes"
    assert shown() == {
        ("a", memory): 2 * 3 * page,
        ("a", cpu): 130 / ticks,
        ("b", memory): 3 * page,
        ("b", cpu): 80 / ticks,
    }
    del running[1]  # and nobody has noticed yet
    running[2] += 5
    assert shown()["a", memory] == 3 * page
    models[0] = models[0][0], 7, [3]  # after which another one has taken its place
    models[1] = models[1][0], 8, []
    assert shown() == {("a", memory): 3 * page, ("a", cpu): (60 + 75 + 80) / ticks, ("b", cpu): 80 / ticks}
    models[1] = models[1][0], 88, []  # it was loaded again, and is in the server's process
    assert {name for name, _ in shown()} == {"a"}
    models.clear()
    assert shown() == {}


def figures(collector: ProcessCollector) -> dict[str, float]:
    page = parser_of_text(render([collector.collect]).decode())
    return {sample.name: sample.value for each in page for sample in each.samples}
