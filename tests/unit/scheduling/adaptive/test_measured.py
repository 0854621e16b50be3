"""Batches by measured run times, against the fixed policies, in simulated time.

Never more than 3 % slower than the better of the fixed policies, and never slower than no batching: the rate of busy
clients, and the mean latency at moderate load.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from math import log

import pytest
from simulated_lengths import MS, POLICIES, Cost, Preparing, SharedMachine, Simulation, configured, text_encoder

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.scheduling.adaptive.measured import Measured
from modserve.scheduling.batching import Dispatch, Reason, WaitUntil, dynamic, element_cost
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import QueueSettings
from modserve.testing import inflight

COSTS: dict[str, Cost] = {
    "linear": lambda rows, length: 0.2 + 0.05 * rows * length,
    "in proportion": lambda rows, length: 0.05 * rows * length,
    "constant": lambda rows, length: 8.0,
    "by length alone": lambda rows, length: 2 + 0.1 * length,
    "encoder": lambda rows, length: 0.8 + 0.045 * rows * length + 0.0001 * rows * length * length,
    "quadratic": lambda rows, length: 0.5 + 0.01 * rows * length + 0.002 * rows * length * length,
    "superlinear": lambda rows, length: 0.3 + 0.04 * (rows * length) ** 1.15,
    "steps": lambda rows, length: 0.5 + 0.05 * rows * (-(-length // 16) * 16) * (1.2 if rows > 8 else 1.0),
}
"""Milliseconds."""
SOME = ("linear", "constant", "encoder", "superlinear")
NOISE = 0.1
MANY = 1 << 30


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_the_rate_of_busy_clients(cost: Cost) -> None:
    rates = {}
    for policy in POLICIES:
        simulation = Simulation(policy, cost, noise=NOISE)
        simulation.closed_loop(16, 3)  # which learns
        rates[policy] = simulation.closed_loop(16, 4)
    measured = rates.pop("measured")
    assert measured >= 0.97 * max(rates.values()), rates


@pytest.mark.parametrize("cost", [COSTS[name] for name in SOME], ids=SOME)
def test_the_latency_at_moderate_load(cost: Cost) -> None:
    alone = Simulation("alone", cost)
    rate = 0.6 * alone.closed_loop(16, 2)
    latencies = dict.fromkeys(POLICIES, 0.0)
    for policy in POLICIES:
        for seed in (1, 2, 3):
            simulation = Simulation(policy, cost, noise=NOISE, seed=seed)
            simulation.open_loop(rate, 3)
            latencies[policy] += simulation.open_loop(rate, 6)
    measured = latencies.pop("measured")
    assert measured <= 1.03 * min(latencies.values()), latencies


def test_an_engine_that_prepares_itself_for_each_shape() -> None:
    """At full load, and then at moderate load: there other shapes run, of which most were seldom tried before."""
    rates, latencies = {}, {}
    for policy in POLICIES:
        simulation = Simulation(policy, Preparing(), noise=NOISE)
        simulation.closed_loop(16, 10)
        rates[policy] = simulation.closed_loop(16, 5)
        simulation.stop(1)
        latencies[policy] = simulation.open_loop(0.6 * rates["alone"], 15)
    measured = rates.pop("measured")
    assert measured >= 0.97 * max(rates.values()), rates
    measured = latencies.pop("measured")
    assert measured <= 1.03 * min(latencies.values()), latencies


@pytest.mark.parametrize("cost", [COSTS["encoder"], COSTS["linear"]], ids=["encoder", "linear"])
def test_a_long_queue_drains_at_the_best_rate(cost: Cost) -> None:
    """More requests come than the engine can do."""
    rates = {}
    for policy in POLICIES:
        simulation = Simulation(policy, cost, noise=NOISE)
        simulation.open_loop(800, 3)  # which learns
        begin = len(simulation.engine.latencies)
        simulation.open_loop(800, 4)
        rates[policy] = len(simulation.engine.latencies) - begin
    measured = rates.pop("measured")
    assert measured >= 0.97 * max(rates.values()), rates


def test_two_instances() -> None:
    rates = {}
    for policy in POLICIES:
        simulation = Simulation(policy, COSTS["encoder"], noise=NOISE, instances=2)
        simulation.closed_loop(32, 2)
        rates[policy] = simulation.closed_loop(32, 3)
    measured = rates.pop("measured")
    assert measured >= 0.97 * max(rates.values()), rates


def test_any_length_may_be_padded_to() -> None:
    rates = {}
    for policy in POLICIES:
        simulation = Simulation(policy, COSTS["encoder"], noise=NOISE, multiple_of=1)
        simulation.closed_loop(16, 3)
        rates[policy] = simulation.closed_loop(16, 4)
    measured = rates.pop("measured")
    assert measured >= 0.97 * max(rates.values()), rates


@pytest.mark.parametrize(("before", "after"), [("linear", "constant"), ("constant", "linear")])
def test_an_engine_that_changes(before: str, after: str) -> None:
    """After some 400 batches the rate is nearly as if the engine had always been so."""
    now = [COSTS[before]]
    simulation = Simulation("measured", lambda rows, length: now[0](rows, length), noise=NOISE)
    simulation.closed_loop(16, 3)
    now[0] = COSTS[after]
    batches = len(simulation.engine.batches)
    while len(simulation.engine.batches) < batches + 400:
        simulation.closed_loop(16, 0.2)
    settled = Simulation("measured", COSTS[after], noise=NOISE)
    settled.closed_loop(16, 3)
    assert simulation.closed_loop(16, 4) >= 0.9 * settled.closed_loop(16, 4)


def test_others_use_the_machine_now_and_then() -> None:
    slow = [1.0]
    rates = {}
    for policy in POLICIES:
        slow[0] = 1.0
        simulation = Simulation(policy, lambda rows, length: slow[0] * COSTS["encoder"](rows, length), noise=NOISE)
        simulation.closed_loop(16, 3)
        rates[policy] = 0.0
        for number in range(4):
            slow[0] = 2.0 if number % 2 else 1.0
            rates[policy] += simulation.closed_loop(16, 1)
    measured = rates.pop("measured")
    assert measured >= 0.97 * max(rates.values()), rates


LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "sentences": lambda chance: min(256, max(5, round(chance.lognormvariate(log(28), 0.7)))),
    "passages": lambda chance: chance.randint(5, 256),
}
GAIN = {"sentences": {8: 1.2, 16: 1.3, 32: 1.37}, "passages": {8: 1.01, 16: 1.02, 32: 1.03}}
"""Times the rate of texts one by one, by clients. Passages gain little: batches of long texts lose."""


@pytest.mark.parametrize("clients", [8, 16, 32])
@pytest.mark.parametrize("texts", LENGTHS)
def test_texts_gain_from_batches_and_never_lose(texts: str, clients: int) -> None:
    """In the first seconds, which teach what batches cost, nearly nothing is lost."""
    first, rates = dict.fromkeys(POLICIES, 0.0), dict.fromkeys(POLICIES, 0.0)
    for policy in ("alone", "measured"):
        for seed in range(3):
            simulation = Simulation(policy, text_encoder, noise=NOISE, seed=seed, length=LENGTHS[texts])
            first[policy] += simulation.closed_loop(clients, 5)
            rates[policy] += simulation.closed_loop(clients, 20)
    assert rates["measured"] >= GAIN[texts][clients] * rates["alone"]
    assert first["measured"] >= 0.97 * first["alone"]


@pytest.mark.parametrize("clients", [8, 16, 32])
def test_long_texts_on_a_machine_that_others_use(clients: int) -> None:
    """Times vary by more than any batch gains: the first seconds teach little, and must not cost much."""
    first, rates = dict.fromkeys(POLICIES, 0.0), dict.fromkeys(POLICIES, 0.0)
    for policy in ("alone", "measured"):
        for seed in range(8):
            cost = SharedMachine(text_encoder, seed, times=2.0)
            simulation = Simulation(policy, cost, noise=NOISE, seed=seed, length=LENGTHS["passages"])
            begin_ns = simulation.clock.now_ns()
            cost.now_ns = lambda clock=simulation.clock, begin_ns=begin_ns: clock.now_ns() - begin_ns  # type: ignore[misc]
            first[policy] += simulation.closed_loop(clients, 5)
            rates[policy] += simulation.closed_loop(clients, 40)
    assert first["measured"] >= 0.95 * first["alone"]
    assert rates["measured"] >= rates["alone"]


def test_trials_cost_little() -> None:
    simulation = Simulation("measured", COSTS["linear"], noise=NOISE)
    simulation.closed_loop(16, 10)
    choice = simulation.adaptation.choice
    assert choice is not None
    assert choice.trials > 10
    assert choice.trial_ns < 0.01 * choice.run_ns
    assert sum(choice.batches.values()) == len(simulation.engine.batches)
    assert choice.utilisation == pytest.approx(1.0, abs=0.05)
    assert {length for _, length, _ in choice.costs} >= {8, 16, 24, 32}


def test_nobody_starves() -> None:
    """Long requests among short ones that come faster than they can be run, and cost less together."""
    simulation = Simulation("measured", COSTS["linear"], length=lambda chance: 120 if chance.random() < 0.01 else 8)
    engine, run = simulation.engine, simulation.engine.run
    overtaken: list[bool] = []

    def watched(slot: int, batch: list[Inflight], close_reason: str) -> None:
        others = [entry.arrival for entry in simulation.scheduler.waiting]
        overtaken.append(min(entry.arrival for entry in batch) > min(others, default=MANY))
        run(slot, batch, close_reason)

    engine.run = watched  # type: ignore[method-assign]
    simulation.open_loop(2500, 0.5)
    assert len(overtaken) > 50
    assert not any(overtaken)


# ---- Single decisions


def measured(**more: object) -> Measured:
    """Which knows that time is in proportion to rows times length."""
    policy = DynamicBatching((4,), **more)  # type: ignore[arg-type]
    model = replace(configured("measured", most=4), dynamic_batching=policy)
    rule = Measured(model, dynamic(policy, 4))
    for number in range(200):
        rows, length = 1 + number % 4, 8 * (1 + number % 16)
        timing = ExecutionTiming(rows, "full")
        timing.compute_start_ns = number * 1000 * MS
        timing.compute_end_ns = timing.compute_start_ns + rows * length * 100_000
        member = inflight()
        member.length = length
        rule.observe(timing, [member])
    return rule


def queue_of(*lengths: int) -> LevelQueue:
    queue = LevelQueue(QueueSettings(sums=True, padded=lambda length: length))
    for length in lengths:
        entry = inflight()
        entry.length, entry.queue_start_ns = length, 1
        queue.append(entry)
    return queue


def decided(rule: Measured, queue: LevelQueue, now_ns: int = 1) -> tuple[list[int], Reason]:
    decision = rule.rule(next(iter(queue.candidates())), now_ns)
    assert isinstance(decision, Dispatch)
    members = decision.members or queue.take(next(iter(queue.candidates())), decision.count)
    return [member.length for member in members], decision.reason


def test_decisions() -> None:
    rule = measured()
    assert decided(rule, queue_of(24)) == ([24], Reason.IDLE_INSTANCE)
    assert decided(rule, queue_of(24, 96, 8)) == ([24], Reason.NO_GAIN)


@pytest.mark.parametrize(("sizes", "expected"), [((), 5), ((1, 8), 1), ((1, 4, 8), 4)])
def test_a_limit_of_elements_counts_the_rows_that_run(sizes: tuple[int, ...], expected: int) -> None:
    """Batches cost the same whatever their size: the more, the better. But five requests may run as eight rows of 8."""
    policy = DynamicBatching((8,), max_batch_elements=40, batch_sizes=sizes)
    model = replace(configured("measured", most=8), dynamic_batching=policy)
    rule = Measured(model, dynamic(policy, 8, cost=element_cost(model)))
    for number in range(60):
        timing = ExecutionTiming((1, 4, 8)[number % 3], "full")
        timing.compute_end_ns = 8 * MS
        member = inflight()
        member.length = 8
        rule.observe(timing, [member])
    assert decided(rule, queue_of(*[8] * 8))[0] == [8] * expected


def test_nothing_is_known_at_first() -> None:
    rule = Measured(configured("measured", most=4), dynamic(DynamicBatching((4,)), 4))
    queue = queue_of(24, 96, 8, 16, 25)
    assert decided(rule, queue) == ([24], Reason.NO_GAIN), "the first batch tells what one costs"
    timing = ExecutionTiming(1, "")
    timing.compute_end_ns = 8 * MS
    rule.observe(timing, [next(iter(queue))])
    assert decided(rule, queue) == ([8, 16, 24, 25], Reason.FULL), "the second what a few together cost"


def test_a_queue_delay_is_waited_for() -> None:
    rule = measured(max_queue_delay_ns=100)
    decision = rule.rule(next(iter(queue_of(24, 96).candidates())), 2)
    assert decision == WaitUntil(101)
    assert decided(rule, queue_of(24, 96), 101) == ([24], Reason.NO_GAIN)


def test_those_that_a_batch_leaves_behind_do_not_wait_again() -> None:
    rule = measured(max_queue_delay_ns=100)
    queue = queue_of(24, 96, 8, 112)
    for expected in ([24], [96], [8]):
        together = next(iter(queue.candidates()))
        decision = rule.rule(together, 2)
        assert isinstance(decision, Dispatch)
        assert [member.length for member in decision.members] == expected
        queue.take_members(list(decision.members))
    late = inflight()
    late.length, late.queue_start_ns = 48, 2
    queue.append(late)
    together = next(iter(queue.candidates()))
    decision = rule.rule(together, 2)
    assert isinstance(decision, Dispatch)
    queue.take_members(list(decision.members))
    assert rule.rule(next(iter(queue.candidates())), 2) == WaitUntil(102), "this one came later"


def test_who_is_pressed_for_time_is_in_the_batch() -> None:
    rule = measured(max_queue_delay_ns=10**12)
    queue = queue_of(24, 24)
    pressed = inflight(deadline_ns=10)
    pressed.length = 96
    queue.append(pressed)
    assert decided(rule, queue) == ([96], Reason.NO_GAIN)
