"""Executions that take too long: their requests fail, and another instance takes the place of theirs."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from pool_bench import CONFIG, SOURCE, Owner, answer, copied, member, refused, sink, until

from modserve.backends.api import EngineRequest, Executor, InstanceHandle, RequestsDone
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.execution.execution_limit import GUARD_NS, ExecutionLimit
from modserve.execution.job import Job
from modserve.execution.pool import InstancePool
from modserve.testing import FakeClock, PuppetBackend, config, instance_spec

S = 1_000_000_000
LIMIT = 1000 * S
"""So long that the test's own time does not matter."""
LATE = LIMIT + 100 * S
REASON = "an execution took longer than 1000 s ('--execution-timeout-secs' or 'limits.execution_timeout_ms')"
TEXT = f"model 'model', instance 'model_0' was lost: {REASON}"


class Clock(FakeClock):
    """Begins at the time by which executions are stamped."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ns = time.monotonic_ns()


class PoolBench:
    def __init__(
        self,
        *engines: Executor,
        by_request: bool = False,
        config: ModelConfig = CONFIG,
        limit_ns: int = LIMIT,
    ) -> None:
        self.clock = Clock()
        self.backend = PuppetBackend(by_request=by_request)
        self.model = self.backend.open(SOURCE)
        self.statistics = ModelStatistics()
        self.settled = 0
        self.pool = InstancePool(
            ModelId("model", 3),
            config,
            [("model_0", engine) for engine in engines or [self._engine()]],
            self.statistics,
            Owner(self._on_settled),
            asyncio.get_running_loop(),
            may_inline=True,
            make=self._make,
            clock=self.clock,
            execution_timeout_ns=limit_ns,
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
    assert remote.reasons == [REASON]
    assert not entry.settled  # that follows when the process has ended
    bench.pool.close()


class Streaming(Remote):
    """One whose executions end at once; it responds later."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[EngineRequest] = []

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        self.requests += requests
        done(None)

    def close(self) -> None: ...


async def test_a_decoupled_model_is_given_up_when_it_has_responded_to_nothing_for_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Streaming()
    bench = PoolBench(engine, config=config(decoupled=True))
    pool, clock = bench.pool, bench.clock
    monkeypatch.setattr(time, "monotonic_ns", clock.now_ns)
    streamed, waiting = member(1), member(2)
    bench.start(streamed)
    bench.start(waiting)
    await until(lambda: pool.free_places() == 2)
    for _ in range(3):
        clock.advance(LIMIT * 3 // 5)
        assert pool.oldest_execution_ns(clock.now_ns()) == LIMIT * 3 // 5
        engine.requests[0].respond({"OUTPUT0": engine.requests[0].inputs["INPUT0"]})
        assert pool.oldest_execution_ns(clock.now_ns()) == 0
    clock.advance(LIMIT - 1)
    assert not waiting.settled
    clock.advance(1)
    assert refused(waiting) == (Code.UNAVAILABLE, TEXT)
    assert len(sink(streamed).responses) == 3
    assert streamed.settled
    assert pool.oldest_execution_ns(clock.now_ns()) == 0
    pool.stop_watching()
    pool.close()


async def test_the_age_of_an_execution_counts_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PoolBench()
    monkeypatch.setattr(time, "monotonic_ns", bench.clock.now_ns)
    assert bench.pool.oldest_execution_ns(bench.clock.now_ns()) == 0
    entry = member(1)
    bench.start(entry)
    execution = bench.backend.next_execution()
    bench.clock.advance(LIMIT // 2)
    entry.cancel()  # the client is gone, and the engine still at it
    assert bench.pool.oldest_execution_ns(bench.clock.now_ns()) == LIMIT // 2
    execution.finish(copied(execution))
    await until(lambda: bench.pool.free_places() == 1)
    assert bench.pool.oldest_execution_ns(bench.clock.now_ns()) == 0
    bench.pool.stop_watching()
    assert bench.clock.next_timer_ns() is None
    bench.pool.close()


class Steady:
    """An engine whose executions all take the same time."""

    data_dependent = False

    def execute(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        return {"OUTPUT0": inputs["INPUT0"]}

    def close(self) -> None: ...


@pytest.mark.parametrize(("limit_ns", "inline"), [(GUARD_NS - 1, False), (GUARD_NS, True), (0, True)])
async def test_a_limit_of_minutes_keeps_no_short_execution_off_the_event_loop(limit_ns: int, inline: bool) -> None:
    bench = PoolBench(Steady(), limit_ns=limit_ns)
    slot = bench.pool.reserve()
    assert slot is not None
    assert (slot.inline_rule is not None) == inline
    bench.pool.close()


async def test_time_counts_from_when_the_engine_begins() -> None:
    over: list[list[bool]] = []
    clock = FakeClock()
    clock.advance(1)
    instance = Silent()
    first, second = Job([member(1)]), Job([member(2)])

    def give_up(instance: Silent) -> None:
        over.append([limit.on_end(job) for job in limit.of(instance)])
        instance.since_ns = 0

    limit = ExecutionLimit(10, clock, lambda: [instance], give_up)
    limit.on_start(instance, first)
    clock.advance(5)
    limit.on_start(instance, second)
    assert limit.of(instance) == [first, second]
    clock.advance(100)
    assert not over
    instance.since_ns = clock.now_ns()
    clock.advance(9)
    assert not over
    clock.advance(1)
    assert over == [[True, True]]
    clock.advance(20)
    assert over == [[True, True]]
    assert clock.next_timer_ns() is None
    assert not limit.on_end(second)


class Silent:
    """An instance that has said nothing since a time; 0: it does nothing."""

    since_ns = 0

    def silent_ns(self, now_ns: int) -> int | None:
        return now_ns - self.since_ns if self.since_ns else None


async def test_no_timer_is_left_when_all_is_over() -> None:
    clock = FakeClock()
    instance = Silent()
    limit = ExecutionLimit(10, clock, lambda: [instance], lambda instance: pytest.fail("too early"))
    job = Job([member(1)])
    limit.on_start(instance, job)
    assert limit.on_end(job)
    clock.advance(10)
    assert clock.next_timer_ns() is None
