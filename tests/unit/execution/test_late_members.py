"""Requests whose deadline passes between the queue and the execution."""

import time
from collections.abc import AsyncIterator

import pytest
from pool_bench import Bench, answer, copied, member, refused

from modserve.core.configuration.sequence_config import SequenceBatching
from modserve.core.errors import Code
from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.model_statistics import FailureReason
from modserve.testing import config

TOO_LATE = (Code.UNAVAILABLE, "Request timeout expired")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(instances=1)
    yield made
    made.pool.close()


def late(value: int, batch_size: int = 1, bound: str = "deadline_ns") -> Inflight:
    entry = member(value, batch_size)
    setattr(entry, bound, time.monotonic_ns())
    return entry


def in_time(value: int, bound: str) -> Inflight:
    entry = member(value)
    setattr(entry, bound, time.monotonic_ns() + 3_600 * 10**9)
    return entry


@pytest.mark.parametrize("bound", ["deadline_ns", "queue_limit_ns"])
async def test_those_who_are_late_do_not_run(bench: Bench, bound: str) -> None:
    members = [in_time(1, bound), late(2, 3, bound), member(3)]
    execution = bench.run(*members)
    assert execution.inputs["INPUT0"][:, 0].tolist() == [1, 3]
    execution.finish(copied(execution))
    await bench.until_settled(2)
    assert (answer(members[0]), answer(members[2])) == ([[1] * 4], [[3] * 4])
    assert refused(members[1]) == TOO_LATE
    assert members[1].timing is None
    statistics = bench.statistics
    assert sum(bench.settled) == 3
    assert (statistics.pending, statistics.success.count, statistics.inference_count) == (0, 2, 2)
    assert (list(statistics.batches), statistics.recent[0].batch_size, statistics.recent[0].requests) == ([2], 2, 2)
    assert (statistics.fail.count, statistics.failures[FailureReason.REJECTED]) == (1, 1)


async def test_nothing_runs_when_all_are_late(bench: Bench) -> None:
    members = [late(1), late(2)]
    slot = bench.pool.reserve()
    assert slot is not None
    bench.pool.run(slot, members, "full")
    await bench.until_settled(1)
    assert [refused(entry) for entry in members] == [TOO_LATE] * 2
    assert (bench.settled, bench.statistics.execution_count, list(bench.statistics.recent)) == ([2], 0, [])
    execution = bench.run(member(3))  # the instance is free again
    execution.finish(copied(execution))
    await bench.until_settled(2)


async def test_a_part_of_a_sequence_runs_even_so() -> None:
    bench = Bench(1, config(sequence_batching=SequenceBatching()))
    entry = late(1)
    execution = bench.run(entry)
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert answer(entry) == [[1] * 4]
    bench.pool.close()


async def test_what_is_busy_and_how_long(bench: Bench) -> None:
    assert bench.pool.remaining_ns(0, lambda size: 100) == [0]
    execution = bench.run(member(1, 4))
    job = bench.pool._instances[0].job
    assert job is not None
    begun_ns = job.timing.compute_start_ns
    assert bench.pool.remaining_ns(begun_ns + 30, lambda size: 100 * size) == [370]
    assert bench.pool.remaining_ns(begun_ns + 500, lambda size: 100 * size) == [0]
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert bench.pool.remaining_ns(0, lambda size: 100) == [0]
