"""Trace settings and sampling, as Triton's, and which traces go to which file."""

from pathlib import Path
from typing import Any

import pytest
from trace_builders import AtOnce, files, tracer

from modserve.core.configuration.trace_settings import TraceChange, TraceLevel, TraceSettings
from modserve.core.errors import ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.version import ModelId
from modserve.observability.request_trace import Trace
from modserve.observability.trace import Tracer

TIMESTAMPS, TENSORS, OFF = TraceLevel.TIMESTAMPS, TraceLevel.TENSORS, TraceLevel.OFF
FILE = "t.json"


class Model:
    """As much of a servable as sampling needs."""

    def __init__(self, name: str) -> None:
        self.id = ModelId(name, 1)

    def submit(self, request: Any, sink: Any, now_ns: int) -> Any:
        raise AssertionError("nothing is submitted")


def sampled(found: Tracer, requests: int, model: str = "a") -> list[int]:
    """Which of the requests, from 1 on, were traced; their traces have ended."""
    hits = []
    for number in range(1, requests + 1):
        trace = found.sample(Model(model))  # type: ignore[arg-type]
        if trace is not None:
            trace.end()
            hits.append(number)
    return hits


def begun(found: Tracer, model: str = "a") -> Trace:
    trace = found.sample(Model(model))  # type: ignore[arg-type]
    assert trace is not None
    return trace


# Settings


def quiet(**settings: Any) -> Tracer:
    return Tracer(TraceSettings(**{"file": FILE, **settings}), AtOnce())


@pytest.mark.parametrize(
    ("changes", "of_all", "of_a"),
    [
        ([], TraceSettings(file=FILE), TraceSettings(file=FILE)),
        ([("", {"rate": 5})], TraceSettings(rate=5, file=FILE), TraceSettings(rate=5, file=FILE)),
        ([("a", {"rate": 5})], TraceSettings(file=FILE), TraceSettings(rate=5, file=FILE)),
        ([("b", {"rate": 5})], TraceSettings(file=FILE), TraceSettings(file=FILE)),
        (
            [("a", {"rate": 5}), ("", {"rate": 6, "count": 7})],
            TraceSettings(rate=6, count=7, file=FILE),
            TraceSettings(rate=5, count=7, file=FILE),
        ),
        ([("", {"rate": 5}), ("", {"rate": None})], TraceSettings(file=FILE), TraceSettings(file=FILE)),
        (
            [("", {"rate": 5}), ("a", {"rate": 6, "log_frequency": 9}), ("a", {"rate": None})],
            TraceSettings(rate=5, file=FILE),
            TraceSettings(rate=5, log_frequency=9, file=FILE),
        ),
        (
            [("a", {"rate": 5}), ("a", {"rate": None, "level": None})],
            TraceSettings(file=FILE),
            TraceSettings(file=FILE),
        ),
        ([("", {"level": TENSORS})], TraceSettings(TENSORS, file=FILE), TraceSettings(TENSORS, file=FILE)),
        ([("a", {"level": TENSORS})], TraceSettings(file=FILE), TraceSettings(TENSORS, file=FILE)),
        (
            [("", {"rate": 0, "count": 0})],
            TraceSettings(rate=0, count=0, file=FILE),
            TraceSettings(rate=0, count=0, file=FILE),
        ),
    ],
    ids=str,
)
def test_settings(changes: list[tuple[str, TraceChange]], of_all: TraceSettings, of_a: TraceSettings) -> None:
    found = quiet()
    for model, change in changes:
        found.change(change, model)
    assert found.settings() == of_all
    assert found.settings("a") == of_a


@pytest.mark.parametrize(
    ("start", "model", "change", "reason"),
    [
        ({"file": ""}, "", {"level": TIMESTAMPS}, "trace file name is not given"),
        ({"file": ""}, "a", {"level": TENSORS}, "trace file name is not given"),
        ({"rate": 0}, "", {"level": TIMESTAMPS}, "sample rate must be non-zero"),
        ({"level": TIMESTAMPS}, "", {"rate": 0}, "sample rate must be non-zero"),
        ({"level": TIMESTAMPS}, "a", {"rate": 0}, "sample rate must be non-zero"),
        ({"level": TIMESTAMPS}, "", {"count": 0}, "trace count must be non-zero, -1 does not limit it"),
    ],
)
def test_what_can_not_trace_is_refused(start: dict[str, Any], model: str, change: TraceChange, reason: str) -> None:
    found = quiet(**start)
    before = found.settings()
    with pytest.raises(ModserveError) as raised:
        found.change(change, model)
    assert raised.value.message == f"Attempting to set invalid trace setting :{reason}"
    assert found.settings() == found.settings("a") == before


def test_a_change_that_one_model_can_not_follow_changes_nothing() -> None:
    found = quiet(level=TIMESTAMPS)
    found.change({"level": TENSORS}, "a")
    with pytest.raises(ModserveError, match="sample rate must be non-zero"):
        found.change({"level": OFF, "rate": 0})
    assert found.settings() == TraceSettings(TIMESTAMPS, file=FILE)


def test_a_level_without_a_file_at_the_start_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert not quiet(level=TIMESTAMPS, file="").on
    assert "trace file name is not given" in caplog.text


# Sampling


@pytest.mark.parametrize(
    ("settings", "hits"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"rate": 3}, [3, 6]),
        ({"rate": 7}, []),
        ({"count": 2}, [1, 2]),
        ({"rate": 2, "count": 2}, [2, 4]),
        ({"count": 0}, []),
        ({"rate": 0}, []),
        ({"level": OFF}, []),
    ],
    ids=str,
)
def test_every_how_many_requests(tmp_path: Path, settings: dict[str, Any], hits: list[int]) -> None:
    found = tracer(tmp_path, **settings)
    assert sampled(found, 6) == hits


def test_the_count_shows_what_remains(tmp_path: Path) -> None:
    found = tracer(tmp_path, count=3)
    assert sampled(found, 2) == [1, 2]
    assert found.settings().count == found.settings("a").count == 1
    assert found.on
    sampled(found, 2)
    assert found.settings().count == 0
    assert not found.on
    found.change({"count": 1})
    assert found.on
    assert sampled(found, 2) == [1]


def test_an_exhausted_count_does_not_stop_other_changes(tmp_path: Path) -> None:
    found = tracer(tmp_path)
    found.change({"count": 1})
    sampled(found, 1)
    found.change({"rate": 2})
    assert found.settings().count == 0
    assert not found.on


def test_models_without_own_settings_are_counted_together(tmp_path: Path) -> None:
    found = tracer(tmp_path, rate=2)
    found.change({"rate": 1}, "own")
    assert [sampled(found, 1, model) for model in ("a", "b", "own", "a", "b", "own")] == [[], [1], [1], [], [1], [1]]


def test_one_model_may_be_traced_alone(tmp_path: Path) -> None:
    found = tracer(tmp_path, OFF)
    assert not found.on
    found.change({"level": TIMESTAMPS}, "a")
    assert found.on
    assert sampled(found, 2, "a") == [1, 2]
    assert sampled(found, 2, "b") == []


def test_a_change_counts_anew(tmp_path: Path) -> None:
    found = tracer(tmp_path, rate=3)
    assert sampled(found, 2) == []
    found.change({"rate": 2})
    assert sampled(found, 3) == [2]


def test_a_trace_has_the_version_that_responded(tmp_path: Path) -> None:
    """A routing chooses one when the request is submitted."""
    found = tracer(tmp_path)
    trace = begun(found)
    trace.on_settle(InferenceResponse("a", 7, {}), True, None)
    trace.end()
    found.close()
    assert '"model_version":7' in (tmp_path / "trace.json").read_text()


# Files


@pytest.mark.parametrize(
    ("settings", "requests", "expected"),
    [
        ({}, 0, {}),
        ({}, 3, {"": [1, 2, 3]}),
        ({"log_frequency": 1}, 2, {".0": [1], ".1": [2]}),
        ({"log_frequency": 2}, 5, {".0": [1, 2], ".1": [3, 4], ".2": [5]}),
        ({"count": 2}, 5, {".0": [1, 2]}),
        ({"count": 3}, 2, {"": [1, 2]}),
        ({"count": 3, "log_frequency": 2}, 5, {".0": [1, 2], ".1": [3]}),
        ({"rate": 2, "count": 2}, 6, {"": [1, 2]}),
    ],
    ids=str,
)
def test_which_file(tmp_path: Path, settings: dict[str, Any], requests: int, expected: dict[str, list[int]]) -> None:
    found = tracer(tmp_path, **settings)
    sampled(found, requests)
    found.close()
    assert files(tmp_path) == expected


def test_files_are_complete_after_every_trace(tmp_path: Path) -> None:
    found = tracer(tmp_path, log_frequency=3)
    for number in (1, 2):
        sampled(found, 1)
        assert files(tmp_path) == {".0": list(range(1, number + 1))}


def test_a_change_ends_the_file_at_hand(tmp_path: Path) -> None:
    found = tracer(tmp_path)
    sampled(found, 1)
    for change in ({"count": 2}, {"count": 5}, {"log_frequency": 5}, {"count": None, "log_frequency": None}):
        found.change(change)
        sampled(found, 2)
    found.close()
    assert files(tmp_path) == {"": [1, 4, 5, 8, 9], ".0": [2, 3], ".1": [6, 7]}


def test_traces_under_way_keep_their_settings(tmp_path: Path) -> None:
    found = tracer(tmp_path, log_frequency=2)
    slow, also = begun(found), begun(found)
    found.change({"log_frequency": 0})
    sampled(found, 1)
    slow.end()
    also.end()
    also.end()
    found.close()
    assert files(tmp_path) == {"": [3], ".0": [1, 2]}


def test_what_ends_after_the_end_is_not_written(tmp_path: Path) -> None:
    found = tracer(tmp_path)
    late = begun(found)
    sampled(found, 1)
    found.close()
    found.close()
    late.end()
    assert files(tmp_path) == {"": [2]}
    assert not found.on


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("old, and longer than what is to come, by far" * 20)
    found = tracer(tmp_path)
    sampled(found, 1)
    found.close()
    assert files(tmp_path) == {"": [1]}
