"""Bad requests write so many lines in a second, and no more."""

from modserve.core.runtime.log_limit import LINES_PER_SECOND, LogInterval, LogLimit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_of_a_second() -> None:
    clock = Clock()
    limit = LogLimit(clock)
    assert [limit.allows() for _ in range(LINES_PER_SECOND + 3)] == [True] * LINES_PER_SECOND + [False] * 3
    clock.now += 0.75
    assert (limit.allows(), limit.rest) == (False, 0.25)
    clock.now += 0.25
    assert [limit.allows() for _ in range(LINES_PER_SECOND + 1)] == [True] * LINES_PER_SECOND + [False]


def test_nothing_is_saved_up() -> None:
    clock = Clock()
    limit = LogLimit(clock)
    assert limit.rest == 0.0
    clock.now += 1000.0
    assert [limit.allows() for _ in range(LINES_PER_SECOND + 1)] == [True] * LINES_PER_SECOND + [False]


def test_an_interval_between_lines() -> None:
    interval = LogInterval(10)
    assert [interval.due(now) for now in (0, 1, 9.9, 10, 11, 30)] == [1, 0, 0, 3, 0, 2]
    assert interval.due(40, 5) == 5
