"""The search among configurations, on servers that exist only in numbers; and what a point makes of a configuration."""

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from google.protobuf import text_format

from modserve.commands.bench.inputs import DataOptions
from modserve.commands.bench.measures import LoadLevel, Measurement, MeasurementWindow, summary
from modserve.commands.bench.profiler import LatencyGoal, MeasurementRules
from modserve.commands.tune import show
from modserve.commands.tune.space import (
    OFF,
    CoordinateSearch,
    Point,
    SearchLimits,
    Value,
    apply,
    changes,
    describe,
    space,
    why_not,
)
from modserve.commands.tune.tuning import Hooks, Trial, TuneResult, TuneSetup, tune
from modserve.pb import inference as pb

DIMENSIONS: Mapping[str, Sequence[Value]] = {
    "delay_us": (OFF, 0, 100, 500, 1000),
    "instances": (1, 2, 4, 8),
    "threads": (0, 1, 2, 4),
}
START: Point = {"delay_us": 0, "instances": 1, "threads": 0}


def searched(rate: Callable[[Point], float]) -> tuple[CoordinateSearch, list[Point]]:
    search = CoordinateSearch(DIMENSIONS, START, rate(START))
    points = []
    while (point := search.next()) is not None:
        points.append(point)
        search.record(point, rate(point))
        assert len(points) < 80
    return search, points


def smooth(point: Point) -> float:
    """Best at 500 µs, four instances and one thread."""
    distance: float = abs(list(DIMENSIONS["delay_us"]).index(point["delay_us"]) - 3)
    distance += abs(math.log2(int(point["instances"])) - 2)
    distance += abs(list(DIMENSIONS["threads"]).index(point["threads"]) - 1)
    return float(1000 / (1 + distance))


def test_it_finds_the_best_of_a_smooth_hill() -> None:
    search, points = searched(smooth)
    assert search.best == {"delay_us": 500, "instances": 4, "threads": 1}
    everything = list(itertools.product(*DIMENSIONS.values()))
    assert len(points) < len(everything) / 3
    keys = [tuple(sorted(point.items())) for point in points]
    assert len(set(keys)) == len(keys)
    assert tuple(sorted(START.items())) not in keys


def test_a_flat_plain_is_looked_at_once_in_each_direction() -> None:
    search, points = searched(lambda point: 100.0)
    assert search.best == START
    assert points == [
        {**START, "delay_us": 100},
        {**START, "delay_us": OFF},
        {**START, "instances": 2},
        {**START, "threads": 1},
    ]


def test_noise_is_no_gain() -> None:
    search, _ = searched(lambda point: 102.0 if point["instances"] == 2 else 100.0)
    assert search.best == START


def test_anything_is_better_than_nothing() -> None:
    search, _ = searched(lambda point: 1.0 if point["threads"] == 1 else 0.0)
    assert search.best["threads"] == 1


def test_two_that_help_only_together_come_with_the_second_round() -> None:
    """More instances help only with one thread each."""
    search, _ = searched(lambda p: 100.0 * (int(p["instances"]) if p["threads"] == 1 else 1) + 10 * (p["threads"] == 1))
    assert (search.best["instances"], search.best["threads"]) == (8, 1)


# Points and configurations

CONFIG = """
name: "m" backend: "onnxruntime" max_batch_size: 16
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { preferred_batch_size: [ 4, 16 ] max_queue_delay_microseconds: 300 }
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
"""


def config(text: str = CONFIG) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


def test_the_space_of_a_model() -> None:
    dimensions, present = space(
        config(), "onnxruntime", SearchLimits(4, goal_ms=10, rows=2, max_batch=64, engines=True)
    )
    assert present == {"delay_us": 300, "max_batch": 16, "instances": 1, "threads": 2, "engine": "onnxruntime"}
    assert dimensions == {
        "delay_us": [OFF, 0, 100, 300, 500, 1000, 2000, 5000],
        "max_batch": [2, 4, 8, 16, 32, 64],
        "instances": [1, 2, 4, 8],
        "threads": [0, 1, 2, 4],
        "engine": ("onnxruntime", "auto"),
    }


def test_the_space_of_a_model_without_batches() -> None:
    text = 'name: "m" backend: "python" instance_group { count: 3 }'
    dimensions, present = space(config(text), "python", SearchLimits(2, 10))
    assert (dimensions, present) == ({"instances": [1, 2, 3, 4]}, {"instances": 3})


def test_several_groups_of_instances_stay() -> None:
    text = 'name: "m" instance_group { count: 1 } instance_group { count: 2 }'
    assert space(config(text), "python", SearchLimits(2, 10)) == ({}, {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ensemble_scheduling { }", "ensemble"),
        ("sequence_batching { }", "sequences"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ("", ""),
    ],
)
def test_what_is_not_tuned(text: str, reason: str) -> None:
    assert reason in why_not(config(text))


def changed(**point: Value) -> pb.ModelConfig:
    _, present = space(config(), "onnxruntime", SearchLimits(4, 10, engines=True))
    return apply(config(), {**present, **point}, present, "onnxruntime")


def test_the_present_point_changes_nothing() -> None:
    assert changed() == config()


def test_what_a_point_changes() -> None:
    made = changed(delay_us=500, max_batch=8, instances=2, threads=1)
    assert (made.max_batch_size, made.instance_group[0].count) == (8, 2)
    assert made.dynamic_batching.max_queue_delay_microseconds == 500
    assert list(made.dynamic_batching.preferred_batch_size) == [4]
    assert made.parameters["intra_op_thread_count"].string_value == "1"
    assert not changed(delay_us=OFF).HasField("dynamic_batching")
    assert "intra_op_thread_count" not in changed(threads=0).parameters
    assert changed(engine="auto").backend == "auto"


def test_points_in_words() -> None:
    point: Point = {"delay_us": OFF, "max_batch": 8, "instances": 1, "threads": 0}
    assert describe(point) == "no dynamic batching, max_batch_size 8, 1 instance, default threads"
    assert changes({**point, "instances": 2}, point) == ["2 instances (was: 1 instance)"]


# The whole, with servers that exist only in numbers


def result(rate: float, ms: float) -> Measurement:
    window = MeasurementWindow(1.0, array("q", [round(ms * 1e6)] * round(rate)), Counter())
    return summary(LoadLevel(True, rate), [window], 1, 10, 99)


SETTING = TuneSetup("m", config(), "onnxruntime", START, LatencyGoal(50, 99), MeasurementRules(), DataOptions(), 10)


def outcome_of(
    rate: Callable[[Point], float], seconds: float = 1.0, budget: float = 1000.0, interrupt_after: int = 1000
) -> tuple[TuneResult, list[tuple[Point, float | None]]]:
    now = [0.0]
    attempts: list[tuple[Point, float | None]] = []

    def attempt(point: Point, above: float | None, deadline: float) -> Trial:
        now[0] += seconds
        attempts.append((point, above))
        if point["threads"] == 4:
            return Trial(point, failure="the model does not load: no memory")
        at = rate(point)
        if above is not None and at < above:
            return Trial(point, 0.0, [(result(above, 100), False)])
        return Trial(point, at, [(result(at * 2, 100), False), (result(at, 20), True)])

    def compare(present: Trial, best: Trial, deadline: float) -> tuple[Trial, Trial]:
        return attempt(present.point, None, 0), attempt(best.point, None, 0)

    log: list[Trial] = []
    hooks = Hooks(attempt, compare, log.append, lambda: len(attempts) >= interrupt_after, lambda: now[0])
    made = tune(lambda score: CoordinateSearch(DIMENSIONS, START, score), START, budget, hooks)
    return made, attempts


def test_a_tuning() -> None:
    outcome, attempts = outcome_of(smooth)
    assert outcome.best.point == {"delay_us": 500, "instances": 4, "threads": 1}
    assert attempts[0] == (START, None)
    assert outcome.finals is not None
    assert [trial.point for trial in outcome.finals] == [START, outcome.best.point]
    assert outcome.gain == pytest.approx(smooth(outcome.best.point) / smooth(START))
    above = [bar for _, bar in attempts[1:-2]]
    assert above[0] == pytest.approx(smooth(START) * 1.03)  # hopeless points are given up at that rate


def test_nothing_is_better() -> None:
    outcome, _ = outcome_of(lambda point: 100.0)
    assert (outcome.best.point, outcome.finals) == (START, None)
    assert "No configuration is better than the current one" in "\n".join(show.finals(outcome, SETTING))


def test_the_time_is_over() -> None:
    outcome, attempts = outcome_of(smooth, seconds=10, budget=40)
    assert outcome.out_of_time
    assert len(outcome.trials) == 4
    assert len(attempts) == 6  # and the comparison


def test_too_little_time_is_no_verdict() -> None:
    outcome, _ = outcome_of(lambda point: 100.0, seconds=10, budget=20)
    text = (
        "Not enough time to compare the configurations: raise '--budget-secs'. So far, the current one reaches 100/s "
        "within p99 of at most 50 ms."
    )
    assert list(show.finals(outcome, SETTING)) == ["", text]
    outcome, _ = outcome_of(lambda point: 100.0)
    outcome.trials[1].unfinished = outcome.trials[0].unfinished = True
    assert list(show.finals(outcome, SETTING)) == ["", text], "all were tried, but not to their end"
    assert show.verdict(outcome.trials[0], SETTING).startswith("at least 100/s at p99 ")
    outcome, _ = outcome_of(lambda point: 0.0, seconds=10, budget=20)
    assert "the current one reaches no rate within" in list(show.finals(outcome, SETTING))[1]


def test_ctrl_c_gives_what_there_is() -> None:
    outcome, attempts = outcome_of(smooth, interrupt_after=3)
    assert outcome.interrupted
    assert (len(outcome.trials), len(attempts), outcome.finals) == (2, 3, None)
    outcome, _ = outcome_of(lambda point: 100.0, interrupt_after=3)
    assert list(show.finals(outcome, SETTING))[1].startswith("Interrupted before all configurations were compared. ")


def test_what_a_person_reads() -> None:
    outcome, _ = outcome_of(smooth)
    text = "\n".join([*show.table(outcome, SETTING), *show.finals(outcome, SETTING)])
    assert re.search(r"^current +current +167/s at p99 20.00 ms$", text, re.MULTILINE)
    assert "misses the goal at" in text
    assert "4 instances (was: 1 instance)" in text
    assert "Recommended, with 6.00 times the rate:" in text
    assert (
        show.remarks(outcome, SETTING)[1] == "Measured side by side: 167/s before, 1,000/s after, 6.00 times the rate."
    )


def test_the_page() -> None:
    outcome, _ = outcome_of(smooth)
    text = show.page(outcome, SETTING)
    assert text.count("<svg") == 3
    assert "6.00 times" in text


def test_no_configuration_keeps_the_goal() -> None:
    outcome, _ = outcome_of(lambda point: 0.0)
    assert "No configuration meets p99 of at most 50 ms" in "\n".join(show.finals(outcome, SETTING))
    assert show.page(outcome, SETTING)
