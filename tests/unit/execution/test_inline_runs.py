"""When batches run on the event loop's own thread: rules on what executions took, and the pool that follows them."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from pool_bench import Owner

from modserve.core.configuration.model_config import InstanceGroup, InstanceKind, ModelConfig, TensorSpec
from modserve.core.errors import Code
from modserve.core.runtime.clock import LoopClock
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.execution import inline
from modserve.execution.inline import InlineRule, LoopThreadTime, may_run_inline
from modserve.execution.pool import InstancePool
from modserve.scheduling import batching
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import RecordingSink, config, inflight

QUICK, WAITED, SLOW, TOO_LONG = 20_000, 3_000_000, 500_000, 1_450_000_000


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What is known of collections, which do not come during a test."""
    found = inline._Collector()
    monkeypatch.setattr(inline, "_collector", found)
    gc.disable()
    yield found
    gc.enable()
    gc.callbacks[:] = [each for each in gc.callbacks if each != found.observe]


def on_thread(rule: InlineRule, times: int, ns: int = QUICK, cpu_ns: int = QUICK) -> None:
    for _ in range(times):
        rule.ran_on_thread(ns, cpu_ns)


def on_loop(rule: InlineRule, times: int, ns: int = QUICK, cpu_ns: int | None = None) -> None:
    for _ in range(times):
        rule.ran_on_loop(ns, ns if cpu_ns is None else cpu_ns)


def test_an_instance_is_watched_before_it_counts_as_quick() -> None:
    rule = InlineRule()
    on_thread(rule, 31)
    assert not rule.on_loop
    on_thread(rule, 1)
    assert rule.on_loop


def test_waiting_for_the_interpreter_does_not_make_an_execution_long() -> None:
    rule = InlineRule()
    on_thread(rule, 31, ns=WAITED)
    on_thread(rule, 1)
    assert rule.on_loop


@pytest.mark.parametrize(
    ("ns", "cpu_ns"), [(SLOW, SLOW), (TOO_LONG, TOO_LONG), (TOO_LONG, QUICK)], ids=["slow", "too long", "asleep"]
)
def test_two_long_executions_among_many_short_ones_are_too_many(ns: int, cpu_ns: int) -> None:
    rule = InlineRule()
    for _ in range(100):
        on_thread(rule, 2, ns, cpu_ns)
        on_thread(rule, 30)
        assert not rule.on_loop


def test_a_single_long_execution_on_the_thread_is_forgiven() -> None:
    rule = InlineRule()
    on_thread(rule, 1, SLOW, SLOW)
    on_thread(rule, 31)
    assert rule.on_loop


def test_an_engine_that_only_sleeps_is_not_quick() -> None:
    rule = InlineRule()
    on_thread(rule, 10_000, ns=SLOW, cpu_ns=QUICK)
    assert not rule.on_loop


def test_one_execution_that_takes_too_long_goes_back_to_the_thread_at_once() -> None:
    rule = InlineRule()
    on_thread(rule, 32)
    on_loop(rule, 40)
    on_loop(rule, 1, TOO_LONG)
    assert not rule.on_loop


@pytest.mark.parametrize(("ns", "left"), [(5_000_000, True), (25_000_000, False)], ids=["interpreter", "asleep"])
def test_having_waited_on_the_event_loop_is_not_the_engines_fault_unless_it_was_long(ns: int, left: bool) -> None:
    rule = InlineRule()
    on_thread(rule, 32)
    on_loop(rule, 1, ns, cpu_ns=QUICK)
    assert rule.on_loop is left


def test_who_waits_often_on_the_event_loop_goes_back_to_the_thread() -> None:
    rule = InlineRule()
    on_thread(rule, 32)
    on_loop(rule, 4, WAITED, cpu_ns=QUICK)
    assert rule.on_loop
    on_loop(rule, 1, WAITED, cpu_ns=QUICK)
    assert not rule.on_loop


def test_the_processors_time_of_an_execution_is_known_to_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = cpu_ns = time.monotonic_ns() + 10**12  # later than all collections of garbage
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(time, "thread_time_ns", lambda: cpu_ns)
    thread = LoopThreadTime()
    thread.look()
    now_ns, cpu_ns = now_ns + 900_000, cpu_ns + 900_000
    thread.look()  # too soon to ask the system again
    start_ns = now_ns
    now_ns, cpu_ns = now_ns + 5_000_000, cpu_ns + 5_000_000
    assert thread.cpu_ns(start_ns) == 5_000_000
    thread.look()
    start_ns = now_ns
    now_ns, cpu_ns = now_ns + 3_000_000, cpu_ns + 100_000
    assert thread.cpu_ns(start_ns) == 100_000


def test_what_the_garbage_collector_took_is_not_the_engines(monkeypatch: pytest.MonkeyPatch, collector: Any) -> None:
    """Or instances leave the event loop for ever longer whenever a collection happens to come while they run."""
    now = 5_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(time, "thread_time_ns", lambda: now)  # nothing is waited for
    thread = LoopThreadTime()
    LoopThreadTime()  # who watches it is the same for all
    assert gc.callbacks.count(collector.observe) == 1
    thread.look()
    start_ns = now
    now += QUICK
    collector.observe("start", {})
    now += WAITED
    collector.observe("stop", {})
    assert thread.cpu_ns(start_ns) == QUICK
    later_ns = now
    now += SLOW
    assert thread.cpu_ns(later_ns) == SLOW  # that collection was before it began


def test_two_slow_executions_on_the_event_loop_go_back_to_the_thread() -> None:
    rule = InlineRule()
    on_thread(rule, 32)
    on_loop(rule, 32 * 10 + 5)
    on_loop(rule, 1, SLOW)
    assert rule.on_loop
    on_loop(rule, 1, SLOW)
    assert not rule.on_loop


def test_what_is_rarely_long_holds_the_event_loop_ever_more_rarely() -> None:
    """One execution of 200 is long: of 200,000, only eleven or so meet the event loop."""
    rule = InlineRule()
    held = 0
    for number in range(200_000):
        ns = TOO_LONG if number % 200 == 199 else QUICK
        if rule.on_loop:
            held += ns == TOO_LONG
            rule.ran_on_loop(ns, ns)
        else:
            rule.ran_on_thread(ns, ns)
    assert 6 < held < 14


@pytest.mark.parametrize(
    ("ns", "least", "most"), [(3_000_000, 0.85, 1.0), (20_000_000, 0.0, 0.6)], ids=["3 ms", "20 ms"]
)
def test_the_share_of_an_engine_that_is_long_once_in_10_000_executions(ns: int, least: float, most: float) -> None:
    """A few milliseconds, as a neighbour on the machine takes them, cost it little; what others feel does."""
    rule = InlineRule()
    count = 0
    for number in range(1_000_000):
        took = ns if number % 10_000 == 9_999 else QUICK
        if rule.on_loop:
            count += 1
            rule.ran_on_loop(took, took)
        else:
            rule.ran_on_thread(took, took)
    assert least <= count / 1_000_000 <= most


def test_instances_of_different_kinds_are_never_quick() -> None:
    groups = (InstanceGroup("a", InstanceKind.CPU, 1), InstanceGroup("b", InstanceKind.GPU, 1, (0,)))
    assert not may_run_inline(config(instance_groups=groups))
    assert not may_run_inline(config(instance_groups=groups[1:]))
    assert may_run_inline(config(instance_groups=groups[:1]))


@pytest.mark.parametrize(
    ("spec", "max_batch_size", "expected"),
    [
        (TensorSpec("I", dtypes.INT32, (16,)), 8, True),
        (TensorSpec("I", dtypes.FP32, (64, 64)), 4, True),
        (TensorSpec("I", dtypes.FP32, (64, 64)), 5, False),
        (TensorSpec("I", dtypes.FP32, (3, 224, 224)), 0, False),
        (TensorSpec("I", dtypes.INT32, (-1,)), 8, False),
        (TensorSpec("I", dtypes.BYTES, (1,)), 8, False),
        (TensorSpec("I", dtypes.INT32, ()), 0, True),
    ],
    ids=["small", "just small", "too large a batch", "image", "variable", "strings", "scalar"],
)
def test_only_small_inputs_of_fixed_size_qualify(spec: TensorSpec, max_batch_size: int, expected: bool) -> None:
    assert may_run_inline(config(inputs=(spec,), max_batch_size=max_batch_size)) is expected


class Doubling:
    """Notes the threads it runs on, and sleeps where the first element says so."""

    data_dependent = False

    def __init__(self) -> None:
        self.threads: list[int] = []

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self.threads.append(threading.get_ident())
        first = inputs["INPUT0"][:, 0]
        if (first < 0).any():
            raise ValueError("negative")
        time.sleep(int(first[0]) // 1000 / 1e3)
        return {"OUTPUT0": inputs["INPUT0"] * 2}

    def close(self) -> None:
        pass


class Silent(Doubling):
    """Says nothing of what its executions take."""

    data_dependent: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name == "data_dependent":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Pool:
    """A pool whose instances count as quick from the start, if they may."""

    def __init__(self, model: ModelConfig, *engines: Doubling) -> None:
        self.engines = engines or (Doubling(),)
        self.statistics = ModelStatistics()
        self.settled: list[int] = []
        self.freed = 0
        self.done = asyncio.Event()
        self.owner = Owner(self.on_settled, self.free)
        self.pool = InstancePool(
            ModelId("model", 1),
            model,
            [(f"model_{number}", engine) for number, engine in enumerate(self.engines)],
            self.statistics,
            self.owner,
            asyncio.get_running_loop(),
            may_inline=True,
        )
        for instance in self.pool._instances.values():
            if instance.inline_rule is not None:
                instance.inline_rule.on_loop = True

    def on_settled(self, count: int) -> None:
        self.settled.append(count)
        self.done.set()

    def free(self) -> None:
        self.freed += 1

    def run(self, sizes: list[int], *values: int) -> list[RecordingSink]:
        sinks = [RecordingSink() for _ in sizes]
        slot = self.pool.reserve()
        assert slot is not None
        members = [inflight(size, sink=sink) for size, sink in zip(sizes, sinks, strict=True)]
        for member, value in zip(members, values, strict=False):
            member.inputs["INPUT0"].array[:] = np.int32(value)
        self.statistics.pending += len(members)
        self.pool.run(slot, members, "full")
        return sinks

    async def until_settled(self, count: int) -> None:
        async with asyncio.timeout(30):
            while sum(self.settled) < count:
                self.done.clear()
                await self.done.wait()


async def test_a_quick_batch_is_answered_at_once_and_frees_its_slot() -> None:
    pool = Pool(config())
    sinks = pool.run([1, 2])
    assert [sink.responses[0].outputs["OUTPUT0"].array.tolist() for sink in sinks] == [[[2] * 4], [[2] * 4] * 2]
    assert pool.engines[0].threads == [threading.get_ident()]
    assert pool.settled == [2]
    assert (pool.statistics.pending, pool.statistics.inference_count, pool.statistics.execution_count) == (0, 3, 1)
    assert pool.freed == 0, "the scheduler that called goes on by itself"
    assert pool.pool.reserve() is not None
    await asyncio.to_thread(pool.pool.close)


async def test_a_quick_batch_that_fails_fails_its_own_requests() -> None:
    pool = Pool(config())
    [sink] = pool.run([1], -1)
    assert [error.code for error in sink.errors] == [Code.INTERNAL]
    assert [len(each.responses) for each in pool.run([1])] == [1]
    await asyncio.to_thread(pool.pool.close)


async def test_a_quick_batch_that_is_refused_runs_again_on_the_thread_of_its_instance() -> None:
    """One by one a large batch would hold the event loop."""
    pool = Pool(config())
    good, bad = pool.run([1, 1], 1, -1)
    assert (good.settled, bad.settled, pool.pool.reserve()) == (0, 0, None)
    await pool.until_settled(2)
    assert (len(good.responses), len(bad.errors)) == (1, 1)
    assert threading.get_ident() not in pool.engines[0].threads[1:]
    await asyncio.to_thread(pool.pool.close)


async def test_each_instance_is_judged_by_its_own_executions() -> None:
    pool = Pool(config(), Doubling(), Doubling())
    pool.run([1], 25000)  # 25 ms, on the event loop
    assert [each.inline_rule.on_loop for each in pool.pool._instances.values() if each.inline_rule is not None] == [
        False,
        True,
    ]
    here = threading.get_ident()
    pool.run([1])
    pool.run([1])
    assert [[thread == here for thread in engine.threads] for engine in pool.engines] == [[True], [True, True]]
    held = pool.pool.reserve()
    pool.run([1])
    await pool.until_settled(4)
    assert [[thread == here for thread in engine.threads] for engine in pool.engines] == [[True, False], [True, True]]
    assert held is not None
    pool.pool.release(held)
    await asyncio.to_thread(pool.pool.close)


async def test_an_engine_that_does_not_say_that_it_is_reliable_stays_on_its_thread() -> None:
    pool = Pool(config(), Silent())
    pool.run([1])
    await pool.until_settled(1)
    assert pool.engines[0].threads != [threading.get_ident()]
    await asyncio.to_thread(pool.pool.close)


async def test_a_backlog_of_quick_batches_lets_others_have_their_turn() -> None:
    """Each execution takes half a millisecond: a thousand of them are no single callback of the event loop."""
    loop = asyncio.get_running_loop()
    pool = Pool(config())

    class Half(Doubling):
        def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
            end_ns = time.monotonic_ns() + 300_000
            while time.monotonic_ns() < end_ns:
                pass
            return super().execute(inputs, outputs)

    await asyncio.to_thread(pool.pool.close)
    pool = Pool(config(), Half())
    scheduler = QueuedScheduler(batching.direct, pool.pool, LoopClock(loop), lambda member, error: None)
    pool.owner.slot_free = scheduler.dispatch
    pool.statistics.pending = 50
    for _ in range(50):
        scheduler.enqueue(inflight(1))
    turns = 0
    while sum(pool.settled) < 50:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    await asyncio.to_thread(pool.pool.close)
