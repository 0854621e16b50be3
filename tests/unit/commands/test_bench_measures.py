"""What windows of latencies come to, when they agree, and which values a range has."""

from array import array

import numpy as np
import pytest
from bench_fakes import MS, window

from modserve.commands.bench.measures import LoadLevel, MeasurementWindow, is_stable, summary, to_json
from modserve.commands.bench.percentiles import PERCENTILES, percentiles_ms
from modserve.commands.bench.plan import read_range, whole_range
from modserve.commands.bench.profiler import MeasurementRules
from modserve.commands.bench.show import client_rows, response_rows, table
from modserve.commands.status_report import VersionUsage

RANGES = {
    "8": (8,),
    "1,4,16": (1, 4, 16),
    "100:500:100": (100, 200, 300, 400, 500),
    "100:450:100": (100, 200, 300, 400),
    "1:64:x2": (1, 2, 4, 8, 16, 32, 64),
    "1:5": (1, 2, 3, 4, 5),
    "0.5:1:0.25": (0.5, 0.75, 1.0),
    "1:1000:x10": (1, 10, 100, 1000),
    "3:3": (3,),
}


@pytest.mark.parametrize("text", RANGES)
def test_a_range(text: str) -> None:
    assert read_range(text) == pytest.approx(RANGES[text])


def test_a_factor_s_values_are_rounded_and_none_comes_twice() -> None:
    assert whole_range("1:10:x1.3") == (1, 2, 3, 4, 5, 6, 8)


@pytest.mark.parametrize(
    "text",
    ["", "a", "1:", ":2", "1:2:3:4", "4:1", "1:64:x1", "1:64:x0.5", "1:64:0", "-1", "0", "1,,2", "nan", "1:inf:x2"],
)
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8"):
        read_range(text)


def test_a_range_of_too_many() -> None:
    with pytest.raises(ValueError, match="such as 8"):
        read_range("1:1000000:0.5")


def test_percentiles_are_latencies_that_were_measured() -> None:
    shuffled = np.random.default_rng(1).permutation(np.arange(1, 1001)) * MS
    assert percentiles_ms(array("q", shuffled.tolist())) == {50: 500, 90: 900, 95: 950, 99: 990, 99.9: 999}


def test_percentiles_of_one_and_of_none() -> None:
    assert percentiles_ms(array("q", [3 * MS])) == dict.fromkeys(PERCENTILES, 3.0)
    assert percentiles_ms(array("q")) == dict.fromkeys(PERCENTILES, 0.0)


STEADY = [window([1.0] * 100), window([1.05] * 105), window([1.09] * 109)]


def test_three_windows_that_agree() -> None:
    assert is_stable(STEADY, 10, 99)
    assert is_stable([window([50.0]), *STEADY], 10, 99)  # what came before them does not matter
    assert not is_stable(STEADY, 5, 99)


@pytest.mark.parametrize(
    "windows",
    [
        STEADY[:2],
        [*STEADY[:2], window([1.0] * 112)],
        [*STEADY[:2], window([1.2] * 105)],
        [*STEADY[:2], window([])],
        [window([]), window([]), window([])],
    ],
    ids=["two", "another rate", "another latency", "nothing in one", "nothing in all"],
)
def test_windows_that_do_not_agree(windows: list[MeasurementWindow]) -> None:
    assert not is_stable(windows, 10, 99)


def test_a_result_is_made_of_the_last_three_windows() -> None:
    windows = [window([100.0]), window([1.0, 2.0], errors={"no": 1}), window([3.0]), window([4.0], waiting=7)]
    for each in windows:
        each.server = VersionUsage(requests=2, executions=1, inferences=2, total_ns=4 * MS, queue_ns=MS)
    result = summary(LoadLevel(True, 2), windows, 3, 10, 99)
    assert (result.requests, result.seconds, result.windows, result.failed, result.waiting) == (4, 3.0, 4, 1, 7)
    assert (result.rate, result.inferences, result.mean) == pytest.approx((4 / 3, 4.0, 2.5))
    assert result.percentiles[99] == 4
    assert not result.stable
    assert result.server is not None
    assert (result.server.requests, result.server.mean_ms("total"), result.server.mean_ms("queue")) == (6, 2.0, 0.5)
    document = to_json(result)
    assert (document["request_rate"], document["latency_ms"]["p50"], document["errors"]) == (2, 2.0, {"no": 1})
    assert document["server"]["mean_ms"]["total"] == 2.0


def test_responses_of_a_decoupled_model() -> None:
    windows = [window([4.0, 6.0]), window([5.0])]
    windows[0].firsts, windows[0].gaps = array("q", [MS, 3 * MS]), array("q", [2 * MS, 2 * MS, 8 * MS])
    windows[1].firsts = array("q", [2 * MS])
    windows[1].sequences = 4
    result = summary(LoadLevel(False, 1), windows, 1, 10, 99)
    assert result.responses is not None
    assert (result.responses.count, result.responses.rate, result.responses.each) == (6, 3.0, 2.0)
    assert result.sequences == 2.0
    row = to_json(result)
    assert row["responses"]["time_to_first_ms"] == {"p50": 2.0, "p99": 3.0}
    assert row["responses"]["time_between_ms"] == {"p50": 2.0, "p99": 8.0}
    names, (cells,) = response_rows([result])
    assert dict(zip(names, cells, strict=True)) == {
        "load": "concurrency 1",
        "responses/s": "3.0",
        "per request": "2.00",
        "first p50": "2.00",
        "first p99": "3.00",
        "between p50": "2.00",
        "between p99": "8.00",
    }
    assert "sequences/s" in client_rows([result], MeasurementRules(), [])[0]


def test_other_models_have_no_responses_of_their_own() -> None:
    result = summary(LoadLevel(False, 1), STEADY, 1, 10, 99)
    assert to_json(result)["responses"] is None
    text = "\n".join(table([result], MeasurementRules()))
    assert "Responses" not in text
    assert "sequences/s" not in text


@pytest.mark.parametrize(("requests", "keeps_up"), [(100, True), (92, True), (91, False)])
def test_a_load_that_keeps_up(requests: int, keeps_up: bool) -> None:
    """Five percent less than was to be sent, and three that end outside of the window."""
    assert summary(LoadLevel(True, 100), [window([1.0] * requests)], 1, 10, 99).keeps_up == keeps_up


def test_a_result_of_nothing() -> None:
    result = summary(LoadLevel(False, 1), [], 1, 10, 99)
    assert (result.requests, result.rate, result.mean, result.server) == (0, 0.0, 0.0, None)


def test_server_times_subtract() -> None:
    assert VersionUsage(5, 6, 7).since(VersionUsage(1, 2, 3)) == VersionUsage(4, 4, 4)
