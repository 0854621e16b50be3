"""How long batches are likely to run, and requests to wait."""

import pytest

from modserve.scheduling.prediction import RunTimes, wait_ns


def seen(*executions: tuple[int, int]) -> RunTimes:
    made = RunTimes()
    for size, ns in executions:
        made.observe(size, ns)
    return made


@pytest.mark.parametrize(
    ("executions", "size", "expected"),
    [
        ([], 4, 0),
        ([(4, 100)], 4, 100),
        ([(4, 100), (4, 200)], 4, 120),
        ([(4, 100), (8, 300)], 6, 200),
        ([(4, 100), (8, 300)], 1, 100),
        ([(4, 100), (8, 300)], 10, 375),
        ([(4, 100), (8, 150)], 16, 250),
        ([(4, 100), (8, 60)], 16, 60),
        ([(4, 100)], 8, 200),
        ([(1000, 700)], 1001, 700),
        ([(0, 50)], 1, 50),
    ],
    ids=[
        "nothing known",
        "seen",
        "weighted",
        "between",
        "below",
        "above, in proportion at most",
        "above, as before",
        "above, never falling",
        "above the only one",
        "large sizes are rounded",
        "no batch dimension",
    ],
)
def test_run_times(executions: list[tuple[int, int]], size: int, expected: int) -> None:
    assert seen(*executions)(size) == expected


def test_the_latest_executions_count_most() -> None:
    made = seen((1, 1000))
    for _ in range(40):
        made.observe(1, 100)
    assert 100 <= made(1) <= 101


def test_sizes_that_are_seen_no_more_are_forgotten() -> None:
    made = seen((8, 10**9))
    for _ in range(2048):
        made.observe(1, 100)
    assert made(8) == 800


def test_the_number_of_sizes_is_bounded() -> None:
    made = seen(*((size, size) for size in range(1, 2000)))
    assert repr(made).count(" ms") < 130
    assert made(1500) == pytest.approx(1500, rel=0.05)


@pytest.mark.parametrize(
    ("batches", "remaining", "expected"),
    [
        (0, [0], 0),
        (0, [70, 0], 0),
        (0, [70, 30], 30),
        (1, [70, 30], 70),
        (2, [70, 30], 130),
        (5, [70, 30], 270),
        (3, [0], 300),
    ],
)
def test_waiting(batches: int, remaining: list[int], expected: int) -> None:
    assert wait_ns(batches, 100, remaining) == expected
