"""Settings that are written as model parameters."""

import pytest
from config_build import ONE_EACH, finish, problems

from modserve.core.configuration.model_config import Admission

BATCHING = "max_batch_size: 4 dynamic_batching { }"
LEVELS = "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 1 }"


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def test_values() -> None:
    text = parameter("scheduling.look_ahead", "16") + parameter("scheduling.ageing_microseconds", "20")
    text += parameter("scheduling.separate_by", "adapter, lang")
    found = finish(LEVELS + text + ONE_EACH).config.dynamic_batching
    assert found is not None
    assert (found.look_ahead, found.ageing_ns, found.separate_by) == (16, 20_000, ("adapter", "lang"))


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
            "sequence_batching { }" + parameter("scheduling.admission", "deadline"),
            "parameter 'scheduling.admission' cannot be combined with sequence_batching",
        ),
        (
            BATCHING + parameter("scheduling.lookahead", "1"),
            "unknown parameter 'scheduling.lookahead'; did you mean 'scheduling.look_ahead'?",
        ),
        (
            BATCHING + parameter("scheduling.xyz", "1"),
            "unknown parameter 'scheduling.xyz'; known parameters are: scheduling.",
        ),
        (
            BATCHING + parameter("scheduling.look_ahead", "-1"),
            "parameter 'scheduling.look_ahead' is '-1', expected a whole number from 0 to 999999999999999",
        ),
        (
            BATCHING + parameter("scheduling.look_ahead", "1000000000000000"),
            "parameter 'scheduling.look_ahead' is '1000000000000000', expected a whole number from 0 to 99999999999999",
        ),
        (
            BATCHING + parameter("scheduling.ageing_microseconds", "5"),
            "parameter 'scheduling.ageing_microseconds' needs priority_levels of 2 or more",
        ),
        (parameter("scheduling.look_ahead", "1"), "parameter 'scheduling.look_ahead' needs dynamic_batching"),
    ],
    ids=[
        "admission",
        "status",
        "goal alone",
        "sequences",
        "near",
        "unknown",
        "value",
        "large value",
        "ageing alone",
        "no batcher",
    ],
)
def test_problems(text: str, problem: str) -> None:
    assert problem in str(problems(text + ONE_EACH))


DELAY = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 300 }"
DEADLINE = parameter("scheduling.admission", "deadline")


def latency_goal(microseconds: int) -> str:
    return DEADLINE + parameter("scheduling.latency_goal_microseconds", str(microseconds))


def test_a_queue_delay_that_a_latency_goal_does_not_allow() -> None:
    assert problems(DELAY + latency_goal(300) + ONE_EACH) == [
        "1:38: max_queue_delay_microseconds is 300, expected less than parameter "
        "'scheduling.latency_goal_microseconds', which is 300: requests may wait as long for others"
    ]


@pytest.mark.parametrize(
    "text",
    [
        DELAY + latency_goal(301),
        DELAY + latency_goal(100).replace("deadline", "off"),
        DELAY + DEADLINE,
        latency_goal(1),
    ],
    ids=["shorter", "off", "no goal", "no batcher"],
)
def test_a_queue_delay_that_goes_with_the_goals(text: str) -> None:
    assert finish(text + ONE_EACH).config.max_batch_size == (4 if "batching" in text else 0)


@pytest.mark.parametrize(
    ("text", "look_ahead"),
    [
        ("dynamic_batching { }", 1024),
        ("dynamic_batching { preserve_ordering: true }", 0),
        ("dynamic_batching { } model_transaction_policy { decoupled: true }", 0),
        ("dynamic_batching { preserve_ordering: true }" + parameter("scheduling.look_ahead", "7"), 7),
    ],
    ids=["usually", "responses in order", "decoupled", "as configured"],
)
def test_nobody_is_overtaken_where_clients_see_the_order(text: str, look_ahead: int) -> None:
    found = finish(f"max_batch_size: 8 {text} {ONE_EACH}").config.dynamic_batching
    assert found is not None
    assert found.look_ahead == look_ahead
