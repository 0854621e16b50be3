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
        ([(4, 900), (4, 100)], 4, 100),
        ([(4, 900), (4, 100), (4, 200)], 4, 120),
        ([(4, 100), (4, 100), *[(8, 300)] * 255, (4, 200)], 4, 150),
        ([(4, 100), (4, 100), *[(8, 300)] * 800, (4, 200)], 4, 200),
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
        "the first counts until the second",
        "weighted",
        "the old counts less",
        "the old counts no more",
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


@pytest.mark.parametrize(
    ("executions", "size", "expected"),
    [
        ([], 4, 0),
        ([(4, 100)], 2, 100),
        ([(4, 100)], 64, 100),
        ([(4, 100), (8, 300)], 6, 200),
        ([(4, 100), (8, 300)], 8, 300),
        ([(4, 100), (8, 300)], 10, 300),
        ([(4, 300), (8, 100)], 6, 100),
        ([(8, 900)] + [(4, 100)] * 8, 8, 900),
        ([(8, 900)] + [(4, 100)] * 16, 8, 450),
        ([(8, 900)] + [(4, 100)] * 16, 6, 275),
        ([(8, 900)] + [(4, 100)] * 16, 64, 450),
        ([(8, 900)] + [(4, 100)] * 40, 8, 100),
        ([(8, 900)] * 2 + [(4, 100)] * 256, 8, 900),
        ([(8, 900)] * 2 + [(4, 100)] * 512, 8, 450),
        ([(4, 900)] + [(8, 100)] * 40, 4, 900),
        ([(8, 50)] + [(4, 100)] * 40, 8, 50),
        ([(8, 900), (9, 900)] + [(4, 100)] * 17, 9, 421),
    ],
    ids=[
        "nothing known",
        "below",
        "above the only one",
        "between",
        "seen",
        "above",
        "no more than a larger one",
        "seen lately",
        "half forgotten",
        "below one half forgotten",
        "above one half forgotten",
        "no less than a smaller one seen lately",
        "seen more than once is believed longer",
        "seen more than once, and half forgotten",
        "smaller than those seen lately",
        "faster than those seen lately",
        "several in doubt",
    ],
)
def test_run_times_at_best(executions: list[tuple[int, int]], size: int, expected: int) -> None:
    assert seen(*executions).at_best(size) == expected


def test_at_best_something_is_known_after_all_was_forgotten() -> None:
    made = seen(*[(8, 900)] * 10, *[(1, 100)] * 5000)
    assert (made.at_best(1), made.at_best(8)) == (100, 100)


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
