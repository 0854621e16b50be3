"""Settings that are written as model parameters."""

import pytest
from config_build import ONE_EACH, finish, problems

from modserve.core.model_config import Admission

BATCHING = "max_batch_size: 4 dynamic_batching { }"


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def test_values() -> None:
    text = parameter("scheduling.look_ahead", "16") + parameter("scheduling.ageing_microseconds", "20")
    text += parameter("scheduling.separate_by", "adapter, lang")
    found = finish(BATCHING + text + ONE_EACH).config.dynamic_batching
    assert found is not None
    assert (found.look_ahead, found.ageing_ns, found.separate_by) == (16, 20_000, ("adapter", "lang"))


def test_values_for_a_batcher_that_tunes_itself() -> None:
    text = parameter("scheduling.p99_goal_microseconds", "15000") + parameter("scheduling.max_delay_microseconds", "9")
    found = finish(BATCHING + text + ONE_EACH).config.dynamic_batching
    assert found is not None
    assert (found.p99_goal_ns, found.tuned_delay_limit_ns) == (15_000_000, 9_000)


@pytest.mark.parametrize("batching", [BATCHING, ""], ids=["dynamic batching", "none"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Admission()),
        (parameter("scheduling.admission", "off"), Admission()),
        (parameter("scheduling.admission", "deadline"), Admission(by_deadline=True)),
        (
            parameter("scheduling.admission", "deadline") + parameter("scheduling.latency_goal_microseconds", "7"),
            Admission(by_deadline=True, latency_goal_ns=7_000),
        ),
        (parameter("scheduling.overload_status", "429"), Admission(too_many=True)),
        (parameter("scheduling.overload_status", "503"), Admission()),
    ],
    ids=["absent", "off", "deadline", "goal", "429", "503"],
)
def test_admission(batching: str, text: str, expected: Admission) -> None:
    assert finish(batching + text + ONE_EACH).config.admission == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            parameter("scheduling.admission", "on"),
            "parameter 'scheduling.admission' is 'on', expected 'off' or 'deadline'",
        ),
        (
            parameter("scheduling.overload_status", "500"),
            "parameter 'scheduling.overload_status' is '500', expected '503' or '429'",
        ),
        (
            parameter("scheduling.latency_goal_microseconds", "5"),
            "parameter 'scheduling.latency_goal_microseconds' needs 'scheduling.admission'",
        ),
        (
            BATCHING + parameter("scheduling.max_delay_microseconds", "5"),
            "parameter 'scheduling.max_delay_microseconds' needs 'scheduling.p99_goal_microseconds'",
        ),
        (
            BATCHING + parameter("scheduling.p99_goal_microseconds", "0"),
            "parameter 'scheduling.p99_goal_microseconds' is '0', expected a whole number of 1 or more",
        ),
        (
            "sequence_batching { }" + parameter("scheduling.admission", "deadline"),
            "parameter 'scheduling.admission' can not be combined with sequence_batching",
        ),
        (
            BATCHING + parameter("scheduling.lookahead", "1"),
            "unknown parameter 'scheduling.lookahead'; did you mean 'scheduling.look_ahead'?",
        ),
        (BATCHING + parameter("scheduling.xyz", "1"), "unknown parameter 'scheduling.xyz'; known are: scheduling."),
        (
            BATCHING + parameter("scheduling.look_ahead", "-1"),
            "parameter 'scheduling.look_ahead' is '-1', expected a whole number of 0 or more",
        ),
        (parameter("scheduling.look_ahead", "1"), "parameter 'scheduling.look_ahead' needs dynamic_batching"),
    ],
    ids=[
        "admission",
        "status",
        "goal alone",
        "limit alone",
        "goal of 0",
        "sequences",
        "near",
        "unknown",
        "value",
        "no batcher",
    ],
)
def test_problems(text: str, problem: str) -> None:
    assert problem in str(problems(text + ONE_EACH))
