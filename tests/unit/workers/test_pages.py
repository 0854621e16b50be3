"""One metrics page of several."""

from collections.abc import Sequence

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from modserve.core.statistics.histogram import Histogram
from modserve.observability import families, prometheus
from modserve.observability.families import Family, Labels, family, histogram_family, number, summary_family
from modserve.workers import pickles
from modserve.workers.pages import LARGEST, LEAST, WorkerPage, families_of, merge, samples_of

NAN = float("nan")


def inferences(**counts: float) -> Family:
    rows = [(f'model="{model}",version="1"', count) for model, count in counts.items()]
    return family("nv_inference_count", "counter", "Inferences", rows)


def ready(value: float) -> Family:
    return family("modserve_ready", "gauge", "1 when the server accepts inference", [("", value)])


def times(*observed: float, trace: str = "") -> Family:
    histogram = Histogram([0.125])
    for each in observed:
        histogram.observe(each)
    if trace:
        histogram.exemplify(observed[0], trace, 1.0)
    return histogram_family("modserve_queue_duration_seconds", "Time", 1, [('model="a"', histogram)])


def spread(median: float) -> Family:
    return summary_family("s", "A summary", [(Labels({"model": "a"}), 2, 1.0, [("0.5", median)])])


ENGINE = family("modserve_engine_info", "gauge", "Always 1", [('model="a"', 1)])
FIRST = [inferences(a=3, b=1), ready(1), ENGINE, times(0.0625, 0.1875)]
SECOND = [inferences(a=4, c=5), ready(0), ENGINE, times(0.0625, 0.0625, 0.375)]


def whole(*pages: Sequence[Family], openmetrics: bool = False) -> str:
    """As it is sent, of pages that the workers have sent each other."""
    told = [pickles.loads(pickles.dumps(WorkerPage(samples_of(each)))) for each in pages]
    made, orphans = merge(told)
    assert not orphans
    return families.page(families_of(made), openmetrics).decode()


def samples(page: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {sample: float(value) for sample, _, value in lines}


def test_counters_and_histograms_are_added_up_and_information_is_not() -> None:
    assert samples(whole(FIRST, SECOND)) == {
        'nv_inference_count{model="a",version="1"}': 7,
        'nv_inference_count{model="b",version="1"}': 1,
        'nv_inference_count{model="c",version="1"}': 5,
        "modserve_ready": 0,
        'modserve_engine_info{model="a"}': 1,
        'modserve_queue_duration_seconds_bucket{model="a",le="0.125"}': 3,
        'modserve_queue_duration_seconds_bucket{model="a",le="+Inf"}': 5,
        'modserve_queue_duration_seconds_sum{model="a"}': 0.75,
        'modserve_queue_duration_seconds_count{model="a"}': 5,
    }


def test_every_family_is_described_once() -> None:
    heads = [line for line in whole(FIRST, SECOND, FIRST).splitlines() if line.startswith("# TYPE ")]
    assert len(heads) == len(set(heads)) == 4


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_page_alone_stays_as_it_is(openmetrics: bool) -> None:
    page = [*FIRST[:3], times(0.25, trace="a"), spread(NAN), family("b", "gauge", 'Of "one" ', [("", 1e20)])]
    assert whole(page, [], openmetrics=openmetrics) == families.page(page, openmetrics).decode()


def test_exemplars_are_those_of_the_last() -> None:
    page = whole([times(0.0625, trace="a")], [times(0.0625)], [times(0.0625, trace="b")], openmetrics=True)
    bucket = 'modserve_queue_duration_seconds_bucket{model="a",le="0.125"}'
    assert f'{bucket} 3.0 # {{trace_id="b"}} 0.0625 1.000\n' in page
    read = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
    assert {family.name: family.type for family in read} == {"modserve_queue_duration_seconds": "histogram"}


@pytest.mark.parametrize(("medians", "of_all"), [((NAN, 3.0, NAN), 3.0), ((NAN, NAN), NAN), ((1.0, 3.0), 3.0)], ids=str)
def test_quantiles_are_those_of_the_worst(medians: Sequence[float], of_all: float) -> None:
    page = whole(*([spread(median)] for median in medians))
    assert f's{{model="a",quantile="0.5"}} {number(of_all)}\n' in page
    assert f's_count{{model="a"}} {number(2 * len(medians))}\n' in page


@pytest.mark.parametrize("name", sorted({*LARGEST, *LEAST} - {"python_info"}))
def test_rules_are_for_families_that_there_are(name: str) -> None:
    """Engines choose other names for theirs."""
    known = {*prometheus.RESERVED, "process_max_fds", "process_start_time_seconds"}
    assert name in known or name.startswith(("modserve_", "nv_"))
