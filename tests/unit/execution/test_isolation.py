"""What one request's client, a rule that learns or a counter raises costs the other requests nothing."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pool_bench import Bench, answer, copied, member, refused, sink

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.testing import RecordingSink, config


class Raising(RecordingSink):
    """Takes its first outcome, raises, and takes no more, as a call does that has been answered."""

    broken = False

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self.broken:
            return
        self.broken = True
        super().settle(outcome, final)
        raise RuntimeError("the sink broke")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(instances=1)
    yield made
    await asyncio.to_thread(made.pool.close)


def raising(entry: Inflight) -> Inflight:
    entry.sink = Raising()
    return entry


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


async def test_a_sink_that_raises_costs_its_neighbours_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    members = [member(1), raising(member(2)), member(3)]
    execution = bench.run(*members)
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert [answer(entry) for entry in members] == [[[1] * 4], [[2] * 4], [[3] * 4]]
    assert bench.settled == [3]
    assert errors(caplog) == ["the sink broke"]


async def test_a_sink_that_raises_when_its_request_fails(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    members = [raising(member(1)), member(2)]
    bench.run(*members).finish({})
    await bench.until_settled(1)
    assert [refused(entry)[0] for entry in members] == [Code.INTERNAL] * 2
    assert bench.settled == [2]


@pytest.mark.parametrize("counter", ["record_execution", "record_successes", "record_failure"])
async def test_statistics_that_raise_cost_nobody_an_answer(counter: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("can not count")

    bench = Bench(instances=1, statistics=type("Broken", (ModelStatistics,), {counter: broken})())
    members = [member(1), member(2), member(3)]
    execution = bench.run(*members)
    members[2].cancel()
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert [answer(entry) for entry in members[:2]] == [[[1] * 4], [[2] * 4]]
    assert bench.settled == [3]
    assert errors(caplog) == ["can not count"]
    await asyncio.to_thread(bench.pool.close)


async def test_what_learns_from_executions_may_raise(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("can not learn")

    bench.learner.observe = broken
    entry = member(1)
    execution = bench.run(entry)
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert answer(entry) == [[1] * 4]
    assert errors(caplog) == ["can not learn"]


async def test_a_scheduler_that_raises_when_a_slot_is_free(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("can not schedule")

    bench.owner.slot_free = broken
    entry = member(1)
    execution = bench.run(entry)
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert answer(entry) == [[1] * 4]
    assert bench.pool.reserve() is not None
    assert errors(caplog) == ["can not schedule"]


async def test_an_engine_that_answers_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(instances=1, by_request=True)
    members = [raising(member(1)), member(2)]
    execution = bench.run(*members)
    for request in execution.requests:
        request.respond({"OUTPUT0": request.inputs["INPUT0"]})
    execution.finish()
    await bench.until_settled(2)
    assert [answer(entry) for entry in members] == [[[1] * 4], [[2] * 4]]
    assert errors(caplog) == ["the sink broke"]
    await asyncio.to_thread(bench.pool.close)


async def test_the_answers_of_a_very_large_batch_come_in_turns_of_the_event_loop() -> None:
    """In order, and before those of the batch after it."""

    class Slow(RecordingSink):
        def settle(self, outcome: Outcome, final: bool) -> None:
            super().settle(outcome, final)
            assert isinstance(outcome, InferenceResponse)
            order.append(int(outcome.outputs["OUTPUT0"].array[0, 0]))
            end_ns = asyncio.get_running_loop().time() + 20e-6
            while asyncio.get_running_loop().time() < end_ns:
                pass

    order: list[int] = []
    bench = Bench(instances=1, model=config(max_batch_size=1024))
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(order))
        if len(order) < 1001:
            asyncio.get_running_loop().call_soon(turn)

    members = [member(number) for number in range(1000)]
    last = member(1000)
    for entry in (*members, last):
        entry.sink = Slow()
    execution = bench.run(*members)
    execution.finish({"OUTPUT0": np.array(execution.inputs["INPUT0"])})
    await bench.until_free()
    turn()
    execution = bench.run(last)
    execution.finish(copied(execution))
    async with asyncio.timeout(30):
        while sum(bench.settled) < 1001:
            bench._changed.clear()
            await bench._changed.wait()
    assert order == list(range(1001))
    assert max(after - before for before, after in itertools.pairwise(turns)) < 500
    await asyncio.to_thread(bench.pool.close)


def test_sinks_are_told_once_even_if_they_raise(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    entry = raising(member(1))
    entry.cancel()
    entry.settle(None)
    entry.settle(ModserveError(Code.INTERNAL, "later"))
    assert [error.code for error in sink(entry).errors] == [Code.CANCELLED]
    assert errors(caplog) == ["the sink broke"]
