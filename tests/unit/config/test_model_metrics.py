"""``model_metrics``: buckets of histograms."""

import pytest
from config_build import ONE_EACH, finish, problems

from modserve.core.statistics.model_statistics import FIRST_RESPONSE, HISTOGRAM_FAMILIES, ModelStatistics
from modserve.observability import prometheus


def control(family: str, buckets: str) -> str:
    return (
        f"model_metrics {{ metric_control {{ metric_identifier {{ family: '{family}' }} "
        f"histogram_options {{ buckets: {buckets} }} }} }}\n"
    )


def test_buckets() -> None:
    text = control("modserve_batch_size", "[3, 6]") + control("modserve_request_duration_seconds", "[0.001, 2]")
    built = finish(text.replace("}\nmodel_metrics {", "") + ONE_EACH)
    assert (built.config.histogram_buckets, built.warnings) == (
        {"modserve_batch_size": (3, 6), "modserve_request_duration_seconds": (0.001, 2)},
        [],
    )
    statistics = ModelStatistics()
    statistics.set_buckets(built.config.histogram_buckets)
    assert (statistics.batch_size_histogram.bounds, statistics.request_bounds) == ((3, 6), (1e6, 2e9))
    assert len(statistics.queue_histogram.bounds) > 2


def test_every_family_of_the_page_can_have_its_own() -> None:
    assert tuple(name for name, *_ in prometheus._HISTOGRAMS) == HISTOGRAM_FAMILIES
    statistics = ModelStatistics()
    statistics.set_buckets(dict.fromkeys(HISTOGRAM_FAMILIES, (7.0,)))
    for _, _, unit, read in prometheus._HISTOGRAMS:
        histograms = [read(statistics, decoupled) for decoupled in (False, True)]
        assert {each.bounds for each in histograms if each is not None} == {(7 * unit,)}


def test_first_responses_have_buckets_of_their_own() -> None:
    """Also where a request has one response, whose time is that of the request."""
    statistics = ModelStatistics()
    statistics.set_buckets({"modserve_request_duration_seconds": (0.001, 2), FIRST_RESPONSE: (5, 3000)})
    for ns in (1_000_000, 4_000_000, 6_000_000, 4_000_000_000):
        statistics.request_histogram.observe(ns)
    requests, first = statistics.request_durations(), statistics.first_responses(False)
    assert (requests.bounds, requests.buckets) == ((1e6, 2e9), [1, 2, 1])
    assert (first.bounds, first.buckets) == ((5e6, 3e9), [2, 1, 1])
    assert requests.total == first.total == 4_011_000_000
    assert statistics.first_responses(True).buckets == [0, 0, 0]


def test_a_family_that_is_not_here() -> None:
    built = finish(control("nv_inference_other_histogram_ms", "[1, 2]") + ONE_EACH)
    (warning,) = built.warnings
    assert "'nv_inference_other_histogram_ms' has no configurable buckets and is ignored" in warning
    assert "modserve_request_duration_seconds" in warning
    assert built.config.histogram_buckets == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (control("modserve_batch_size", "[]"), "it has 0 buckets, expected 1 to 200"),
        (control("modserve_batch_size", "[2, 1]"), "its buckets are [2.0, 1.0], expected finite numbers, each above"),
        (control("modserve_batch_size", "[1, 1]"), "expected finite numbers, each above the one before it"),
        (control("modserve_batch_size", "[1, inf]"), "expected finite numbers, each above the one before it"),
        ("model_metrics { metric_control { } }\n", "a metric_control needs the name of a histogram"),
        (
            "model_metrics { metric_control { metric_identifier { family: 'modserve_batch_size' } histogram_options { "
            "buckets: 1 } } metric_control { metric_identifier { family: 'modserve_batch_size' } } }\n",
            "'modserve_batch_size' is listed twice",
        ),
    ],
)
def test_mistakes(text: str, problem: str) -> None:
    (only,) = problems(text + ONE_EACH)
    assert problem in only
