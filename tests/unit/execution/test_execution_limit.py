"""Executions that take too long: their requests fail, and another instance takes the place of theirs."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from pool_bench import CONFIG, SOURCE, Owner, answer, copied, member, refused, sink, until

from modserve.backends.api import EngineRequest, Executor, InstanceHandle, RequestsDone
from modserve.core.errors import Code
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.execution_limit import ExecutionLimit
from modserve.execution.job import Job
from modserve.execution.pool import InstancePool
from modserve.testing import FakeClock, PuppetBackend, instance_spec

S = 1_000_000_000
LIMIT = 1000 * S
"""So long that the test's own time does not matter."""
LATE = LIMIT + 100 * S
TEXT = (
    "model 'model', instance 'model_0' was lost: an execution took longer than 1e+06 ms ('limits.execution_timeout_ms')"
)


class Clock(FakeClock):
    """Begins at the time by which executions are stamped."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ns = time.monotonic_ns()


class PoolBench:
    def __init__(self, *engines: Executor, by_request: bool = False) -> None:
        self.clock = Clock()
        self.backend = PuppetBackend(by_request=by_request)
        self.model = self.backend.open(SOURCE)
        self.statistics = ModelStatistics()
        self.settled = 0
        self.pool = InstancePool(
            ModelId("model", 3),
            CONFIG,
            [("model_0", engine) for engine in engines or [self._engine()]],
            self.statistics,
            Owner(self._on_settled),
            asyncio.get_running_loop(),
            may_inline=True,
            make=self._make,
            clock=self.clock,
            execution_timeout_ns=LIMIT,
        )

    def _engine(self) -> Executor:
        return self.model.instance(instance_spec(CONFIG))

    def _make(self, number: int, close: Callable[[], None]) -> "Future[Executor]":
        close()
        attempt: Future[Executor] = Future()
        attempt.set_result(self._engine())
        return attempt

    def _on_settled(self, count: int) -> None:
        self.settled += count

    def start(self, *entries: Any) -> None:
        slot = self.pool.reserve()
        assert slot is not None
        self.statistics.pending += len(entries)
        self.pool.run(slot, list(entries), "full")

    def lose(self) -> None:
        self.clock.advance(LIMIT)
        while not self.statistics.instances_lost:  # the execution began a little after the clock
            self.clock.advance(S // 10)

    async def until_revived(self) -> None:
        self.clock.advance(S)
        await until(lambda: self.statistics.instance_restarts == 1)


async def test_a_stuck_thread_is_given_up_and_another_instance_serves() -> None:
    bench = PoolBench()
    entries = member(1), member(2)
    bench.start(*entries)
    stuck = bench.backend.next_execution()
    bench.lose()
    assert [refused(entry) for entry in entries] == [(Code.UNAVAILABLE, TEXT)] * 2
    assert bench.settled == 2
    await bench.until_revived()
    later = member(3)
    bench.start(later)
    execution = bench.backend.next_execution()
    execution.finish(copied(execution))
    await until(lambda: later.settled)
    assert answer(later) == [[3] * 4]
    assert bench.backend.open_instances == 2
    stuck.finish(copied(stuck))
    await until(lambda: bench.backend.open_instances == 1)
    assert bench.settled == 3
    assert [sink(entry).settled for entry in entries] == [1, 1]
    bench.pool.close()
    assert bench.backend.open_instances == 0


async def test_an_engine_that_fails_late_says_nothing_any_more() -> None:
    bench = PoolBench()
    entry = member(1)
    bench.start(entry)
    stuck = bench.backend.next_execution()
    bench.lose()
    stuck.fail(ValueError("too late"))
    await until(lambda: bench.backend.open_instances == 0)
    assert sink(entry).settled == 1
    bench.pool.close()


async def test_a_pool_ends_while_a_thread_is_stuck() -> None:
    bench = PoolBench()
    bench.start(member(1))
    stuck = bench.backend.next_execution()
    bench.lose()
    bench.pool.close()  # does not wait for it
    assert bench.backend.open_instances == 1
    stuck.finish(copied(stuck))
    await until(lambda: bench.backend.open_instances == 0)


async def test_an_execution_in_time_is_left_alone() -> None:
    bench = PoolBench()
    for value in range(3):
        entry = member(value)
        bench.start(entry)
        execution = bench.backend.next_execution()
        bench.clock.advance(LIMIT // 5)
        execution.finish(copied(execution))
        await until(partial(getattr, entry, "settled"))
        assert answer(entry) == [[value] * 4]
    bench.clock.advance(LATE)
    assert bench.statistics.instances_lost == 0
    bench.pool.close()


async def test_requests_that_are_answered_one_by_one_fail_as_well() -> None:
    bench = PoolBench(by_request=True)
    answered, open_ = member(1), member(2)
    bench.start(answered, open_)
    stuck = bench.backend.next_execution()
    first = stuck.requests[0]
    first.respond({"OUTPUT0": first.inputs["INPUT0"]}, final=True)
    await until(lambda: answered.settled)
    bench.lose()
    assert answer(answered) == [[1] * 4]
    assert refused(open_) == (Code.UNAVAILABLE, TEXT)
    stuck.requests[1].respond({"OUTPUT0": first.inputs["INPUT0"]}, final=True)
    stuck.finish()
    await until(lambda: bench.backend.open_instances == 0)
    assert sink(open_).settled == 1
    bench.pool.close()


class Remote:
    """An engine on the event loop whose executions end when the test says so; closing it blocks till then."""

    max_in_flight = 2

    def __init__(self) -> None:
        self.done: list[RequestsDone] = []
        self.ended = threading.Event()
        self.closed = threading.Event()

    def attach(self, handle: InstanceHandle) -> None: ...

    def detach(self) -> None: ...

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        self.done.append(done)

    def close(self) -> None:
        self.ended.wait(30)
        self.closed.set()


async def test_an_engine_with_callbacks_is_given_up_with_all_that_it_has_and_closed_when_it_comes_back() -> None:
    remote = Remote()
    bench = PoolBench(remote)
    one, two = member(1), member(2)
    bench.start(one)
    bench.start(two)
    bench.clock.advance(LATE)
    await until(lambda: one.settled and two.settled)
    assert refused(one) == refused(two) == (Code.UNAVAILABLE, TEXT)
    await bench.until_revived()
    assert not remote.closed.is_set()
    remote.done[0](None)
    remote.ended.set()
    await until(remote.closed.is_set)
    bench.pool.close()


class Killed(Remote):
    """One whose process can be ended."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []
        self.ended.set()

    def attach(self, handle: InstanceHandle) -> None:
        self.handle = handle

    def kill_because(self, reason: str) -> None:
        self.reasons.append(reason)


async def test_a_process_is_ended() -> None:
    remote = Killed()
    bench = PoolBench(remote)
    entry = member(1)
    bench.start(entry)
    bench.clock.advance(LATE)
    assert remote.reasons == ["an execution took longer than 1e+06 ms ('limits.execution_timeout_ms')"]
    assert not entry.settled  # that follows when the process has ended
    bench.pool.close()


async def test_time_counts_from_when_the_engine_begins() -> None:
    bench = PoolBench()
    clock, over = FakeClock(), []
    limit = ExecutionLimit(10, clock, lambda instance, job: over.append((job, limit.ended(job))))
    instance = bench.pool.reserve()
    assert instance is not None
    first, second = Job([member(1)]), Job([member(2)])
    limit.started(instance, first)
    first.timing.compute_start_ns = clock.now_ns()
    clock.advance(5)
    limit.started(instance, second)
    clock.advance(4)
    assert limit.of(instance) == [first, second]
    clock.advance(1)
    assert over == [(first, True)]
    clock.advance(100)
    assert over == [(first, True)]
    second.timing.compute_start_ns = clock.now_ns()
    clock.advance(20)
    assert over == [(first, True), (second, True)]
    assert clock.next_timer_ns() is None
    assert not limit.ended(second)
    bench.pool.close()


async def test_no_timer_is_left_when_all_is_over() -> None:
    bench = PoolBench()
    clock = FakeClock()
    limit = ExecutionLimit(10, clock, lambda instance, job: pytest.fail("too early"))
    job = Job([member(1)])
    instance = bench.pool.reserve()
    assert instance is not None
    limit.started(instance, job)
    assert limit.ended(job)
    clock.advance(10)
    assert clock.next_timer_ns() is None
    bench.pool.close()
