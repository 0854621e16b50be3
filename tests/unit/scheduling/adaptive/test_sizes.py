"""How large batches of requests of one length grow, in simulated time."""

import pytest
from simulated_lengths import Cost, Simulation

from modserve.core.model_config import DynamicBatching, ModelConfig
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
