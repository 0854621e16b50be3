"""The batcher that tunes itself: each decision by itself, and the whole of it on a simulated engine."""

import statistics

import pytest
from simulated_engine import MS, Simulation

from modserve.scheduling.adaptive.tuner import Controller, TunerWindow, _Climb

GOAL = 10 * MS


def window(p99_ms: float, *, run_ms: float = 2, per_second: float = 1000, filled: float = 0) -> TunerWindow:
    slowest = [int(p99_ms * (1.09 - 0.03 * rank) * MS) for rank in range(30)]
    return TunerWindow(slowest, 300, int(run_ms * MS), per_second, filled)


def controller(delay_ms: float = 0, batch_size: int = 64, *, item_ms: float = 0.01, limit_ms: float = 0) -> Controller:
    """For a goal of 10 ms and batches of up to 64, which run for `item_ms` an item."""
    made = Controller(GOAL, 64, int(limit_ms * MS), lambda size: int(size * item_ms * MS))
    made.delay_ns = int(delay_ms * MS)
    made.batch_size = batch_size
    return made


@pytest.mark.parametrize(
    ("before", "seen", "reason", "delay_ms", "batch_size"),
    [
        (controller(3), window(9.2), "the goal is held", 3, 64),
        (controller(3), window(9.1), "room for a longer delay", 3.325, 64),
        (controller(3), window(5), "room for a longer delay", 5.99, 64),
        (controller(7, limit_ms=7.2), window(5), "room for a longer delay", 7.2, 64),
        (controller(7), window(3), "room for a longer delay", 7.5, 64),
        (controller(7.5), window(3), "the delay is the longest allowed", 7.5, 64),
        (controller(3), window(5, per_second=40), "too few requests to wait for", 0, 64),
        (controller(3, 32), window(5, filled=0.9), "room for larger batches", 3, 40),
        (controller(3), window(5, filled=0.9), "batches are full without waiting longer", 3, 64),
        (controller(3, 32, item_ms=0.2), window(5, filled=0.9), "batches are full without waiting longer", 3, 32),
        (controller(3), window(10.5), "above the goal for the first time", 3, 64),
        (controller(6), window(12), "a shorter delay", 4.44, 64),
        (controller(6), window(11), "a shorter delay", 5.09, 64),
        (controller(7.2), window(20), "a shorter delay", 3.6, 64),
        (controller(0.5), window(12), "above the goal for the first time", 0.5, 64),
        (controller(1), window(12), "a shorter delay", 0, 64),
        (controller(3), window(12), "a shorter delay", 1.5, 64),
        (controller(1, 64, item_ms=0.2), window(20, run_ms=13, filled=1), "batches take too long", 1, 48),
        (controller(1, 32), window(90, run_ms=2, filled=1), "more requests than batches of this size take", 1, 48),
        (controller(1), window(90, run_ms=2, filled=1), "more requests than the model takes", 1, 64),
        (controller(1, 16), window(20, run_ms=13, filled=1), "the goal is out of reach", 1, 16),
    ],
)
def test_one_decision(before: Controller, seen: TunerWindow, reason: str, delay_ms: float, batch_size: int) -> None:
    found = before.decide(seen)
    assert (found.reason, found.delay_ns / MS, found.batch_size) == (reason, delay_ms, batch_size)


def test_slightly_above_the_goal_counts_the_second_time() -> None:
    made = controller(6)
    assert made.decide(window(10.5)).delay_ns == 6 * MS
    assert made.decide(window(10.5)).reason == "a shorter delay"


def test_a_climb_in_vain_ends_where_it_began_and_is_not_tried_again_at_once() -> None:
    made = controller(0.5)
    reasons = [made.decide(window(p99_ms)).reason for p99_ms in (12, 12, 13, 17)]
    assert reasons[0] == "above the goal for the first time"
    assert reasons[1:] == ["waiting for fewer, larger batches"] * 2 + ["waiting longer did not help"]
    assert made.delay_ns == 0.5 * MS
    assert {made.decide(window(12)).reason for _ in range(10)} == {"the goal is out of reach"}
    assert made.decide(window(12)).reason == "waiting for fewer, larger batches"


def test_a_delay_that_was_too_short_is_not_gone_back_to_for_some_time() -> None:
    made = controller(0.5)
    found = [made.decide(window(p99_ms)).delay_ns / MS for p99_ms in (30, 30, 20, 15, 14)]
    assert found == [0.5, 2, 3.5, 5, 2.75]  # half the way back
    made = controller(4.75)
    made._short, made._short_left = _Climb(4 * MS, 30 * MS), 40
    assert {made.decide(window(12)).reason for _ in range(11)} == {"the goal is out of reach"}
    assert made.decide(window(12)).delay_ns < 4 * MS


def test_with_slack_a_delay_that_was_too_short_is_forgotten() -> None:
    made = controller(0.5)
    for p99_ms in (30, 30, 20, 15, 14):
        made.decide(window(p99_ms))
    while made.decide(window(7)).reason != "room for a longer delay":
        pass
    made.delay_ns = 8 * MS
    assert made.decide(window(17, per_second=5000)).delay_ns == 4 * MS


def test_one_late_window_after_others_that_held_the_goal_is_chance() -> None:
    made = controller(3)
    for _ in range(3):
        made.decide(window(9.2))
    assert [made.decide(window(10.5)).reason for _ in range(4)] == [
        "the goal is held",
        "the goal is held",
        "above the goal for the first time",
        "a shorter delay",
    ]


def test_under_another_load_what_was_before_says_nothing() -> None:
    made = controller(6)
    for _ in range(3):
        made.decide(window(9.4))
    assert made.decide(window(11.5, per_second=5000)).reason == "a shorter delay"


def test_it_goes_back_to_a_delay_that_held_the_goal_and_then_below_it() -> None:
    made = controller(2)
    assert made.decide(window(9.4)).reason == "the goal is held"
    made.delay_ns = 5 * MS
    back = made.decide(window(14))
    assert (back.reason, back.delay_ns) == ("back to a delay that held the goal", 2 * MS)
    shorter = made.decide(window(14))
    assert (shorter.reason, shorter.delay_ns) == ("a shorter delay", 1.5 * MS)


def test_a_size_that_was_too_small_is_not_tried_again_at_once() -> None:
    made = controller(0, 32, item_ms=1)
    assert made.decide(window(90, run_ms=2, filled=1)).batch_size == 48
    assert made.decide(window(20, run_ms=13, filled=1)).batch_size == 48
    for _ in range(20):
        made.decide(window(9))
    assert made.decide(window(20, run_ms=13, filled=1)).batch_size == 36


CHANGING = (100, 500, 100)
"""Requests a second, one after the other."""
CHANGING_GOAL = 80


def changing(seconds: float, measured: float, **settings: float) -> list[float]:
    """The p99, of the goal, of the last seconds of each phase: batches of n take 8 ms + n 1.2 ms on one device."""
    simulation = Simulation(base_ms=8, item_ms=1.2, **settings)  # type: ignore[arg-type]
    found = []
    for per_second in CHANGING:
        simulation.run(seconds, per_second)
        found.append(simulation.p99_ms(measured) / CHANGING_GOAL)
    return found


def test_the_goal_is_held_over_a_load_that_changes_by_five() -> None:
    assert all(0.9 <= ratio <= 1.1 for ratio in changing(12, 5, goal_ms=CHANGING_GOAL))


@pytest.mark.parametrize("slots", [1, 2])
def test_the_goal_is_held_by_an_engine_whose_times_scatter(slots: int) -> None:
    """As a text encoder's do, by the lengths of texts: by 30 %. Any delay has late windows then."""
    many = []
    for seed in range(6):
        simulation = Simulation(
            goal_ms=73, base_ms=1.5, item_ms=1.9, max_batch_size=32, slots=slots, scatter=0.3, seed=seed
        )
        simulation.run(4, 67)
        simulation.run(8, 335)
        simulation.run(6, 335)
        many.append(simulation.p99_ms(6) / 73)
    assert 0.9 <= statistics.mean(many) <= 1.1


@pytest.mark.parametrize(
    ("delay_ms", "late", "unused"),
    [
        (0, True, True),
        (10, True, True),
        (20, False, True),
        (30, False, True),
        (40, False, True),
        (45, True, True),
        (60, True, False),
    ],
)
def test_no_fixed_delay_holds_that_goal(delay_ms: float, late: bool, unused: bool) -> None:
    few, many, again = changing(2, 1.8, delay_ms=delay_ms)
    assert (many > 1.1, few < 0.9 and again < 0.9) == (late, unused)


def test_it_stays_where_the_goal_is_held() -> None:
    tuned = Simulation(goal_ms=15)
    tuned.run(10, 200)
    delays = [decision.delay_ns for decision in tuned.tuner.statistics.decisions]
    assert len(delays) > 5
    assert set(delays[-3:]) == {tuned.tuner.statistics.delay_ns}


def test_a_pause_is_no_part_of_the_rate_and_nothing_is_forgotten_over_it() -> None:
    tuned = Simulation(goal_ms=30)
    tuned.clock.advance(60_000 * MS)
    tuned.run(1.5, 1000)
    state = tuned.tuner.statistics
    before, delay_ns = len(state.decisions), state.delay_ns
    tuned.clock.run()
    tuned.clock.advance(12_000 * MS)
    tuned.run(0.7, 1000)
    assert len(state.decisions) > before > 1
    rates = [decision.per_second for decision in state.decisions]
    assert rates[0] > 400  # of a moment: most of those that came in it were still being executed
    assert all(800 < rate < 1250 for rate in rates[1:])
    assert 0.5 * delay_ns < min(decision.delay_ns for decision in list(state.decisions)[before:])


def test_of_requests_that_are_always_rare_the_times_between_count() -> None:
    tuned = Simulation(goal_ms=15)
    tuned.run(150, 0.5)
    (decision,) = tuned.tuner.statistics.decisions
    assert 0.4 < decision.per_second < 0.6
    assert decision.reason == "too few requests to wait for"


@pytest.mark.parametrize(
    ("per_second", "requests", "seconds"), [(2000, 300, 0.15), (30, 60, 2), (10, 50, 5)], ids=["300", "2 s", "50"]
)
def test_it_decides_after_300_requests_or_50_in_two_seconds(per_second: int, requests: int, seconds: float) -> None:
    tuned = Simulation(goal_ms=1000)
    begin_ns = tuned.clock.now_ns()
    while not tuned.tuner.statistics.decisions:
        tuned.run(0.000001, per_second)
    assert len(tuned.pool.done) == pytest.approx(requests, rel=0.2)
    assert (tuned.clock.now_ns() - begin_ns) / 1e9 == pytest.approx(seconds, rel=0.2)


def test_a_busy_start_is_climbed_out_of() -> None:
    tuned = Simulation(goal_ms=15)
    tuned.run(2.5, 1000)
    first = tuned.tuner.statistics.decisions[0]
    assert first.p99_ns > 1.4 * 15 * MS
    assert tuned.p99_ms(0.5) <= 15


def test_too_many_requests_for_small_batches_get_larger_ones() -> None:
    tuned = Simulation(goal_ms=15, slots=1, item_ms=0.3)
    tuned.run(0.7, 3000)
    sizes = [decision.batch_size for decision in tuned.tuner.statistics.decisions]
    assert min(sizes) < 48 < sizes[-1]


def test_what_is_decided_is_done() -> None:
    tuned = Simulation(goal_ms=15)
    tuned.run(3, 200)
    state = tuned.tuner.statistics
    assert state.decisions[-1].delay_ns == state.delay_ns > 0
    assert state.decisions[-1].p99_ns == state.p99_ns
    delay_ns = state.delay_ns
    tuned.clock.advance(1000 * MS)
    tuned.run(0.0000001, 1)  # one request, which waits for the delay and runs alone
    tuned.clock.advance(1000 * MS)
    assert tuned.pool.done[-1][1] == delay_ns + int(4.2 * MS)
