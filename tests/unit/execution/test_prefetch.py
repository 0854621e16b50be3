"""Places that are given out before their executions are over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from pool_bench import CONFIG, SOURCE, Learner, Owner, answer, copied, member, refused, until

from modserve.backends.api import InstanceHandle, InstanceLostError
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.sequence_config import SequenceBatching
from modserve.core.errors import Code, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.testing import PuppetBackend, instance_spec

MS = 1_000_000


class Timers:
    """Those of the running loop, which the test rings."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.set: list[tuple[float, Callable[[], object]]] = []
        vars(loop)["call_later"] = self._call_later

    def _call_later(self, delay: float, callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        self.set.append((delay, lambda: callback(*arguments)))

    def ring(self) -> None:
        self.set.pop(0)[1]()


class Streams:
    """An engine on the event loop that keeps what is started beyond its streams."""

    takes_early = True

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.started: list[Callable[[], None]] = []

    def attach(self, handle: InstanceHandle) -> None:
        pass

    def start(self, inputs: Any, outputs: tuple[str, ...], done: Any) -> None:
        self.started.append(lambda: done({"OUTPUT0": inputs["INPUT0"]}))

    def detach(self) -> None:
        pass

    def close(self) -> None:
        pass


class Bench:
    """A pool of one instance, and a scheduler that runs what waits, each by itself, as soon as there is a place."""

    def __init__(self, engine: Any, model: ModelConfig = CONFIG, expected_ns: int = 20 * MS) -> None:
        loop = asyncio.get_running_loop()
        self.timers = Timers(loop)
        self.waiting: list[Inflight] = []
        self.settled = 0
        self.statistics = ModelStatistics()
        name = ModelId("model", 3)
        owner, learner = Owner(self._on_settled, self._pump), Learner(expect=lambda members: expected_ns)
        engines = [("model_0", engine)]
        self.pool = InstancePool(name, model, engines, self.statistics, owner, loop, learner=learner)

    def _on_settled(self, count: int) -> None:
        self.settled += count

    def _pump(self) -> None:
        while self.waiting and (slot := self.pool.reserve()) is not None:
            self.pool.run(slot, [self.waiting.pop(0)], "full")

    def add(self, *members: Inflight) -> None:
        self.statistics.pending += len(members)
        self.waiting += members
        self._pump()

    def places(self) -> int:
        slots = []
        while (slot := self.pool.reserve()) is not None:
            slots.append(slot)
        for slot in slots:
            self.pool.release(slot)
        return len(slots)


def on_a_thread(backend: PuppetBackend, **attributes: bool) -> Any:
    engine = backend.open(SOURCE).instance(instance_spec(CONFIG))
    for name, value in ({"takes_early": True} | attributes).items():
        setattr(engine, name, value)
    return engine


@pytest.fixture
async def backend() -> PuppetBackend:
    return PuppetBackend()


@pytest.fixture
async def bench(backend: PuppetBackend) -> AsyncIterator[Bench]:
    made = Bench(on_a_thread(backend))
    yield made
    assert made.places() == 1  # no place is lost, and none is made
    made.pool.close()


async def test_the_next_job_lies_ready_when_the_one_under_way_ends(bench: Bench, backend: PuppetBackend) -> None:
    one, two, three = map(member, (1, 2, 3))
    bench.add(one, two, three)
    first = backend.next_execution()
    [(delay, _)] = bench.timers.set
    assert delay == pytest.approx(0.015)  # a quarter of the time that it is expected to take
    assert len(bench.waiting) == 2
    bench.timers.ring()
    assert len(bench.waiting) == 1
    assert bench.places() == 0
    first.finish(copied(first))
    second = backend.next_execution()  # although the event loop has not had a turn since
    assert second.inputs["INPUT0"].tolist() == [[2] * 4]
    assert bench.timers.set == []  # the time of the second counts from the end of the first
    await until(lambda: bench.settled == 1)
    assert (len(bench.waiting), len(bench.timers.set)) == (1, 1)
    second.finish(copied(second))
    await until(lambda: bench.settled == 2)
    last = backend.next_execution()
    last.finish(copied(last))
    await until(lambda: bench.settled == 3)
    assert [answer(each) for each in (one, two, three)] == [[[1] * 4], [[2] * 4], [[3] * 4]]


async def test_no_place_is_given_out_when_nobody_waits(bench: Bench, backend: PuppetBackend) -> None:
    one, two = member(1), member(2)
    bench.add(one)
    execution = backend.next_execution()
    bench.timers.ring()
    assert bench.places() == 0
    bench.add(two)  # who comes a moment later may still have others with it
    assert bench.waiting == [two]
    execution.finish(copied(execution))
    await until(lambda: bench.settled == 1)
    execution = backend.next_execution()
    execution.finish(copied(execution))
    await until(lambda: bench.settled == 2)


async def test_a_timer_that_rings_too_late_changes_nothing(bench: Bench, backend: PuppetBackend) -> None:
    bench.add(member(1), member(2))
    for number in (1, 2):
        execution = backend.next_execution()
        execution.finish(copied(execution))
        await until(lambda number=number: bench.settled == number)  # type: ignore[misc]
    bench.add(member(3), member(4))
    execution = backend.next_execution()
    bench.timers.ring()
    bench.timers.ring()
    assert len(bench.waiting) == 1
    for number in (3, 4):
        execution.finish(copied(execution))
        await until(lambda number=number: bench.settled == number)  # type: ignore[misc]
        if number == 3:
            execution = backend.next_execution()


async def test_members_of_a_refused_batch_run_behind_the_job_that_lies_ready(
    bench: Bench, backend: PuppetBackend
) -> None:
    one, two, three = map(member, (1, 2, 3))
    bench.statistics.pending += 3
    slot = bench.pool.reserve()
    assert slot is not None
    bench.pool.run(slot, [one, two], "full")
    bench.waiting.append(three)
    bench.timers.ring()
    assert bench.waiting == []
    backend.next_execution().fail(invalid("not as one"))
    order = []
    for _ in range(3):
        execution = backend.next_execution()
        order.append(int(execution.inputs["INPUT0"][0][0]))
        execution.finish(copied(execution))
        await until(lambda: bench.settled == len(order))
    assert order == [3, 1, 2]
    assert [answer(each) for each in (one, two, three)] == [[[1] * 4], [[2] * 4], [[3] * 4]]


async def test_an_instance_that_is_lost_gives_nothing_out(backend: PuppetBackend) -> None:
    bench = Bench(on_a_thread(backend))
    one, two = member(1), member(2)
    bench.add(one)
    backend.next_execution().fail(InstanceLostError("gone"))
    await until(lambda: bench.settled == 1)
    bench.waiting.append(two)
    bench.timers.ring()
    assert bench.waiting == [two]
    assert refused(one)[0] is Code.UNAVAILABLE
    assert bench.places() == 0
    bench.pool.close()


async def test_streams_get_what_they_begin_with_next() -> None:
    engine = Streams(2)
    bench = Bench(engine)
    members = [member(number) for number in range(4)]
    bench.add(*members)
    assert (len(engine.started), len(bench.waiting), len(bench.timers.set)) == (2, 2, 2)
    bench.timers.ring()
    assert (len(engine.started), bench.places()) == (3, 0)
    first, third = members[0].timing, members[2].timing
    assert first is not None
    assert third is not None
    engine.started[0]()
    assert third.compute_start_ns == first.compute_end_ns  # what it waited inside the engine is not counted
    assert (bench.settled, len(engine.started), len(bench.timers.set)) == (1, 3, 2)
    engine.started[1]()
    assert len(engine.started) == 4
    engine.started[2]()
    engine.started[3]()
    assert (bench.settled, bench.places()) == (4, 2)
    bench.pool.close()


SEQUENCE = replace(CONFIG, sequence_batching=SequenceBatching())


@pytest.mark.parametrize(
    ("model", "attributes", "expected_ns"),
    [
        (SEQUENCE, {}, 20 * MS),
        (replace(CONFIG, decoupled=True), {}, 20 * MS),
        (CONFIG, {"takes_early": False}, 20 * MS),
        (CONFIG, {}, MS),
        (CONFIG, {}, 0),
    ],
    ids=["sequences", "several responses", "the engine does not", "short", "unknown"],
)
async def test_who_gets_no_job_early(
    backend: PuppetBackend, model: ModelConfig, attributes: dict[str, bool], expected_ns: int
) -> None:
    bench = Bench(on_a_thread(backend, **attributes), model, expected_ns)
    bench.add(member(1))
    execution = backend.next_execution()
    assert bench.timers.set == []
    execution.finish(copied(execution))
    await until(lambda: bench.settled == 1)
    bench.pool.close()
