"""The simulator of several servers, against what queueing theory knows, and where it knows nothing, against itself."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fleet

PLAN = fleet.Plan(rate=70.0, servers=1, service_ms=(10.0, 0.0), overhead_ms=0.0, requests=40_000)
"""One instance, executions of one request that always take as long."""


@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
def test_one_server_is_the_queue_of_the_textbook(load: float) -> None:
    """M/D/1: the mean wait is half of what it is with times by chance (Pollaczek and Khinchine)."""
    outcome = fleet.simulate(replace(PLAN, rate=100 * load))
    assert outcome.mean_ms == pytest.approx(10 + load * 10 / (2 * (1 - load)), rel=0.06)
    assert outcome.batch == 1


@pytest.mark.parametrize("balancer", fleet.BALANCERS)
def test_servers_share_the_load(balancer: str) -> None:
    """At a load where nothing waits, a request takes its execution and the rest of its way."""
    plan = replace(PLAN, rate=3.0, servers=3, balancer=balancer, overhead_ms=2.0, requests=2_000)
    assert fleet.simulate(plan).p50_ms == pytest.approx(12)


def test_of_equal_servers_and_executions_who_takes_turns_does_best() -> None:
    by_requests, in_turn, by_chance = (
        fleet.simulate(replace(PLAN, rate=850.0, servers=10, balancer=name)).p99_ms for name in fleet.BALANCERS
    )
    assert in_turn < by_requests < by_chance


def test_a_slow_server_gets_less_from_who_counts_requests() -> None:
    plan = replace(PLAN, rate=120.0, servers=3, slow=5.0, requests=10_000)
    assert fleet.simulate(plan).mean_ms < fleet.simulate(replace(plan, balancer="round_robin")).mean_ms / 2


def test_batches_grow_with_the_load() -> None:
    plan = replace(PLAN, service_ms=(10.0, 1.0), max_batch=8, requests=10_000)
    small, large = (fleet.simulate(replace(plan, rate=load * plan.capacity)).batch for load in (0.1, 0.9))
    assert 1 <= small < 2 < large <= 8


def test_the_number_that_is_needed_is_the_smallest() -> None:
    plan = replace(PLAN, rate=500.0, requests=10_000)
    number, outcome = fleet.needed(plan, 25)
    assert outcome.p99_ms <= 25
    assert fleet.simulate(replace(plan, servers=number - 1)).p99_ms > 25
    with pytest.raises(ValueError, match="a request alone takes 10 ms"):
        fleet.needed(plan, 9)


def test_service_times_come_from_statistics(tmp_path: Path) -> None:
    """An execution of 6 ms, and 0.5 ms for each request in it."""

    def write(sizes: tuple[int, ...]) -> str:
        batches = [
            {"batch_size": size, "compute_infer": {"count": 10 * size, "ns": int(10 * size * (6 + size / 2) * 1e6)}}
            for size in sizes
        ]
        folder = tmp_path / str(len(sizes)) / "v2" / "models" / "m"
        folder.mkdir(parents=True)
        (folder / "stats").write_text(json.dumps({"model_stats": [{"batch_stats": batches}]}))
        return (tmp_path / str(len(sizes))).as_uri()

    assert fleet.measured(write((1, 2, 8)), "m") == pytest.approx((6.0, 0.5))
    with pytest.raises(ValueError, match="batches of one size only"):
        fleet.measured(write((4,)), "m")
