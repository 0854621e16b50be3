"""Settings that are written as model parameters."""

import pytest
from config_build import ONE_EACH, finish, problems

BATCHING = "max_batch_size: 4 dynamic_batching { }"


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def test_values() -> None:
    text = parameter("scheduling.look_ahead", "16") + parameter("scheduling.ageing_microseconds", "20")
    found = finish(BATCHING + text + ONE_EACH).config.dynamic_batching
    assert found is not None
    assert (found.look_ahead, found.ageing_ns) == (16, 20_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
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
    ids=["near", "unknown", "value", "no batcher"],
)
def test_problems(text: str, problem: str) -> None:
    assert problem in str(problems(text + ONE_EACH))
