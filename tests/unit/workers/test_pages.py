"""One metrics page of several."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from modserve.observability import prometheus
from modserve.workers.pages import LARGEST, LEAST, merged, with_workers

FIRST = b"""# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 3.0
nv_inference_count{model="b",version="1"} 1.0
# HELP modserve_ready 1 when the server accepts inference
# TYPE modserve_ready gauge
modserve_ready 1.0
# HELP modserve_engine_info Always 1
# TYPE modserve_engine_info gauge
modserve_engine_info{model="a"} 1.0
# HELP modserve_queue_duration_seconds Time
# TYPE modserve_queue_duration_seconds histogram
modserve_queue_duration_seconds_bucket{model="a",le="0.1"} 1.0
modserve_queue_duration_seconds_bucket{model="a",le="+Inf"} 2.0
modserve_queue_duration_seconds_sum{model="a"} 0.25
modserve_queue_duration_seconds_count{model="a"} 2.0
"""
SECOND = b"""# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 4.0
nv_inference_count{model="c d",version="1"} 5.0
# HELP modserve_ready 1 when the server accepts inference
# TYPE modserve_ready gauge
modserve_ready 0.0
# HELP modserve_engine_info Always 1
# TYPE modserve_engine_info gauge
modserve_engine_info{model="a"} 1.0
# HELP modserve_queue_duration_seconds Time
# TYPE modserve_queue_duration_seconds histogram
modserve_queue_duration_seconds_bucket{model="a",le="0.1"} 5.0
modserve_queue_duration_seconds_bucket{model="a",le="+Inf"} 6.0
modserve_queue_duration_seconds_sum{model="a"} 0.5
modserve_queue_duration_seconds_count{model="a"} 6.0
"""


def samples(page: bytes) -> dict[str, str]:
    lines = (line for line in page.decode().splitlines() if not line.startswith("#"))
    return dict(line.rsplit(" ", 1) for line in lines)


def test_counters_and_histograms_are_added_up_and_information_is_not() -> None:
    assert samples(merged([FIRST, SECOND])) == {
        'nv_inference_count{model="a",version="1"}': "7.0",
        'nv_inference_count{model="b",version="1"}': "1.0",
        'nv_inference_count{model="c d",version="1"}': "5.0",
        "modserve_ready": "0.0",
        'modserve_engine_info{model="a"}': "1.0",
        'modserve_queue_duration_seconds_bucket{model="a",le="0.1"}': "6.0",
        'modserve_queue_duration_seconds_bucket{model="a",le="+Inf"}': "8.0",
        'modserve_queue_duration_seconds_sum{model="a"}': "0.75",
        'modserve_queue_duration_seconds_count{model="a"}': "8.0",
    }


def test_every_family_is_described_once() -> None:
    page = merged([FIRST, SECOND, FIRST]).decode()
    heads = [line for line in page.splitlines() if line.startswith("# TYPE ")]
    assert len(heads) == len(set(heads)) == 4


def test_a_page_alone_stays_as_it_is() -> None:
    assert merged([FIRST]) == FIRST


def test_a_family_that_only_one_worker_has() -> None:
    assert merged([b"", FIRST]) == FIRST


def test_pages_of_openmetrics() -> None:
    page = b"""# HELP done Done
# TYPE done counter
done_total 1.0
# HELP t Times
# TYPE t histogram
t_bucket{le="0.5"} 1.0%b
t_bucket{le="+Inf"} 1.0
t_count 1.0
t_sum 0.25
# EOF
"""
    first, second = b' # {trace_id="a"} 0.25 1.000', b' # {trace_id="b"} 0.25 2.000'
    whole = with_workers(merged([page % first, page % b"", page % second]), 2, 3, openmetrics=True).decode()
    assert whole.endswith("modserve_worker_restarts_total 3.0\n# EOF\n")
    assert 't_bucket{le="0.5"} 3.0 # {trace_id="b"} 0.25 2.000\n' in whole
    read = text_string_to_metric_families(whole)  # type: ignore[no-untyped-call]
    kinds = {family.name: family.type for family in read}
    assert kinds == {
        "done": "counter",
        "t": "histogram",
        "modserve_workers": "gauge",
        "modserve_worker_restarts": "counter",
    }


def test_workers_without_requests_have_no_quantiles() -> None:
    page = b'# HELP s A summary\n# TYPE s summary\ns{quantile="0.5"} %b\n'
    assert samples(merged([page % b"NaN", page % b"3.0", page % b"NaN"])) == {'s{quantile="0.5"}': "3.0"}
    assert samples(merged([page % b"NaN", page % b"NaN"])) == {'s{quantile="0.5"}': "NaN"}


def test_quantiles_are_those_of_the_worst() -> None:
    page = b'# HELP s A summary\n# TYPE s summary\ns{quantile="0.5"} %b\ns_sum 1.0\ns_count 2.0\n'
    expected = {'s{quantile="0.5"}': "3.0", "s_sum": "2.0", "s_count": "4.0"}
    assert samples(merged([page % b"1.0", page % b"3.0"])) == expected


def test_help_texts_with_and_without_words_and_values_without_end() -> None:
    page = b"# HELP a One two  three\n# TYPE a gauge\na +Inf\n# HELP b \n# TYPE b gauge\nb 1e+20\n"
    assert merged([page]) == page


def test_what_the_page_says_of_the_workers() -> None:
    page = samples(with_workers(merged([FIRST]), 2, 3))
    assert (page["modserve_workers"], page["modserve_worker_restarts_total"]) == ("2.0", "3.0")


@pytest.mark.parametrize("name", sorted({*LARGEST, *LEAST} - {"python_info"}))
def test_rules_are_for_families_that_there_are(name: str) -> None:
    """Engines choose other names for theirs."""
    known = {*prometheus.RESERVED, "process_max_fds", "process_start_time_seconds"}
    assert name in known or name.startswith(("modserve_", "nv_"))
