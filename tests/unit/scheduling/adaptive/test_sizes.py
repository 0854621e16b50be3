"""How large batches of requests of one length grow, in simulated time."""

from dataclasses import replace

import pytest
from simulated_lengths import MS, POLICIES, Cost, Simulation, configured

from modserve.core.configuration.model_config import DynamicBatching, ModelConfig
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics
from modserve.scheduling.adaptive.utilisation import Utilisation
from modserve.testing import config

COSTS: dict[str, Cost] = {
    "in proportion": lambda rows, length: 4.0 * rows,
    "nearly": lambda rows, length: 0.1 + 4.0 * rows,
    "constant": lambda rows, length: 8.0,
    "superlinear": lambda rows, length: 2 * rows**1.15,
    "best at four": lambda rows, length: 2 + 1.5 * rows + 0.8 * max(0, rows - 4),
}
"""Milliseconds."""


def model(policy: str) -> ModelConfig:
    if policy == "alone":
        return config(max_batch_size=16)
    batching = DynamicBatching((16,), measured_sizes=policy == "measured")
    return config(max_batch_size=16, dynamic_batching=batching)


def simulated(policy: str, cost: Cost) -> Simulation:
    return Simulation("alone", cost, noise=0.1, model=model(policy))


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_the_rate_of_busy_clients(cost: Cost) -> None:
    rates = {}
    for policy in ("alone", "largest", "measured"):
        simulation = simulated(policy, cost)
        simulation.closed_loop(16, 3)
        rates[policy] = simulation.closed_loop(16, 6)
    assert rates["measured"] >= 0.98 * max(rates.values()), rates


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_the_latency_at_moderate_load(cost: Cost) -> None:
    rate = 0.75 * simulated("alone", cost).closed_loop(16, 2)
    latencies = {}
    for policy in ("alone", "largest", "measured"):
        simulation = simulated(policy, cost)
        simulation.open_loop(rate, 8)
        latencies[policy] = simulation.open_loop(rate, 20)
    assert latencies["measured"] <= 1.03 * min(latencies.values()), latencies


def test_a_long_queue_drains_at_the_best_rate() -> None:
    """Which has come all at once: so the load was low until now."""
    spans = {}
    for policy in ("alone", "largest", "measured"):
        simulation = simulated(policy, COSTS["nearly"])
        simulation.open_loop(100, 5)
        count = len(simulation.engine.latencies)
        begin_ns = simulation.clock.now_ns()
        for _ in range(400):
            simulation.send()
        while len(simulation.engine.latencies) < count + 400:
            simulation.clock.advance(1_000_000)
        spans[policy] = simulation.clock.now_ns() - begin_ns
    assert spans["measured"] <= 1.03 * min(spans.values()), spans


def test_quick_models_are_left_alone() -> None:
    batches = []
    for policy in ("largest", "measured"):
        simulation = simulated(policy, lambda rows, length: 0.05 * rows)
        simulation.closed_loop(16, 0.5)
        batches.append(simulation.engine.batches)
    assert batches[0] == batches[1]


# ---- Several places


def side_by_side(cost: Cost, *, measured: bool, shared: bool = False) -> Simulation:
    """Two instances behind a queue delay, which take as long again if they share what they run on."""
    batching = DynamicBatching((16,), max_queue_delay_ns=MS, measured_sizes=measured)
    policy = config(max_batch_size=16, dynamic_batching=batching)
    simulation = Simulation("largest", cost, noise=0.1, instances=2, model=policy)
    engine = simulation.engine
    if shared:
        engine.cost = lambda rows, length: cost(rows, length) * engine.busy
    return simulation


def busy_rate(simulation: Simulation) -> float:
    simulation.closed_loop(16, 3)
    return simulation.closed_loop(16, 6)


def test_what_waited_together_is_spread_over_the_places_that_are_free() -> None:
    """All that the clients have would be one batch, and the other instance would have nothing to do."""
    cost = COSTS["in proportion"]
    assert busy_rate(side_by_side(cost, measured=True)) > 1.7 * busy_rate(side_by_side(cost, measured=False))


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_is_not_spread_where_its_parts_take_as_long(shared: bool) -> None:
    cost = COSTS["constant"]
    rates = [busy_rate(side_by_side(cost, measured=measured, shared=shared)) for measured in (True, False)]
    assert rates[0] > 0.97 * rates[1]


@pytest.mark.parametrize("policy", POLICIES[2:])
def test_padded_requests_are_spread_too(policy: str) -> None:
    model = configured(policy)
    assert model.dynamic_batching is not None
    model = replace(model, dynamic_batching=replace(model.dynamic_batching, max_queue_delay_ns=MS))
    simulation = Simulation(
        policy, COSTS["in proportion"], noise=0.1, instances=2, model=model, length=lambda chance: 8
    )
    rate = busy_rate(simulation)
    assert (rate > 400) == (policy == "measured"), "two instances do 500 a second"


@pytest.mark.parametrize(
    ("free", "waiting", "expected"),
    [(0, 16, 16), (1, 16, 8), (1, 15, 8), (3, 16, 4), (1, 1, 1), (1, 32, 32), (1, 24, 12), (7, 3, 1)],
)
def test_the_share_of_a_place_where_time_is_in_proportion(free: int, waiting: int, expected: int) -> None:
    load = Utilisation(ChoiceStatistics())
    load.use(1, lambda: free)
    assert load.share(waiting, [4.0 * rows for rows in range(17)]) == expected


def test_there_are_no_shares_where_parts_take_nearly_as_long() -> None:
    load = Utilisation(ChoiceStatistics())
    load.use(1, lambda: 1)
    assert load.share(16, [8.0 + 0.1 * rows for rows in range(17)]) == 16
