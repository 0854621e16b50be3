"""Advice on the part that takes most of a request's time."""

import pytest

from modserve.core.statistics.time_parts import advice


@pytest.mark.parametrize(
    ("parts", "beginning"),
    [
        ((83, 0, 17, 0), "83 % of the time is spent in the queue: raise the count of 'instance_group'"),
        ((10, 50, 20, 0), "50 % of the time is spent gathering the engine's inputs: "),
        ((0, 0, 99, 1), "99 % of the time is spent in the engine: "),
        ((0, 10, 20, 70), "70 % of the time is spent reading the engine's outputs: "),
        ((1, 1, 1, 1), "96 % of the time is spent outside the queue and the engine: "),
        ((49, 0, 49, 0), ""),
    ],
)
def test_the_part_that_takes_half_of_the_time(parts: tuple[int, ...], beginning: str) -> None:
    text = advice("m", 100, parts)
    assert text.startswith(beginning)
    assert bool(text) == bool(beginning)


def test_the_model_is_named_where_a_command_helps() -> None:
    assert advice("m", 4, (3, 0, 1, 0)).endswith("'modserve tune m' measures which helps")


def test_no_requests_need_no_advice() -> None:
    assert advice("m", 0, (0, 0, 0, 0)) == ""
