"""The page in its two formats."""

import math

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser

from modserve.core.statistics.histogram import Histogram
from modserve.observability.families import Labels, family, histogram_family, labelled, number, render, summary_family


def parse_openmetrics(page: str) -> dict[str, Metric]:
    return {each.name: each for each in parser.text_string_to_metric_families(page)}  # type: ignore[no-untyped-call]


def test_labels_have_their_places() -> None:
    labels = Labels({"version": "1", "model": 'a"\n\\'})
    assert labels.text == 'model="a\\"\\n\\\\",version="1"'
    assert labels.having("kind", "x").startswith('kind="x",model=')
    assert labels.having("state", 'y"').endswith(',state="y\\"",version="1"')
    assert labels.having("zone", "z").endswith(',version="1",zone="z"')
    assert Labels({}).having("quantile", "0.5") == 'quantile="0.5"'
    assert labelled({}) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0.0"), (999_999, "999999.0"), (1_000_000, "1e+06"), (12_345_678, "1.2345678e+07"), (-3, "-3.0")),
        *((0.25, "0.25"), (True, "1.0"), (math.inf, "+Inf"), (math.nan, "NaN")),
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
    assert render(made).decode().splitlines() == [
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
    page = render(made, openmetrics=True).decode()
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


def test_collectors_of_the_library_in_both_formats() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    assert b"# TYPE process_cpu_seconds_total counter\n" in render(registry.collect())
    read = parse_openmetrics(render(registry.collect(), openmetrics=True).decode())
    assert read["process_cpu_seconds"].type == "counter"
