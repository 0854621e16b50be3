"""Lost instances are made anew, later and later: on a clock that the test turns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from pool_bench import CONFIG, SOURCE, Owner, answer, copied, member, refused, until

from modserve.backends.api import Executor, InstanceLostError
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.execution.revival import LONGEST_WAIT_NS, STEADY_NS, Revival
from modserve.testing import Execution, FakeClock, PuppetBackend, instance_spec

S = 1_000_000_000


class Engine:
    closed = False

    def execute(self, inputs: object, outputs: object) -> dict[str, object]:
        return {}

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.attempts: list[Future[Executor]] = []
        self.closed: list[int] = []
        self.taken: list[int] = []
        self.failures: list[tuple[int, str, int]] = []
        self.refuse: Exception | None = None
        self.revival = Revival(self._make, self.clock, self.clock.call_soon, self._take, self._failed)

    def _make(self, number: int, close: Callable[[], None]) -> "Future[Executor]":
        close()
        self.attempts.append(Future())
        return self.attempts[-1]

    def _take(self, number: int, engine: Executor) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.taken.append(number)

    def _failed(self, number: int, error: ModserveError, wait_ns: int) -> None:
        self.failures.append((number, error.message, wait_ns))

    def lose(self, number: int = 0) -> int:
        return self.revival.revive(number, lambda: self.closed.append(number))

    def outcome(self, outcome: Any) -> None:
        """End the latest attempt."""
        if isinstance(outcome, Exception):
            self.attempts[-1].set_exception(outcome)
        else:
            self.attempts[-1].set_result(outcome)
        self.clock.run()


def test_the_first_attempt_is_a_second_later() -> None:
    bench = Bench()
    assert bench.lose(2) == S
    bench.clock.advance(S - 1)
    assert bench.attempts == []
    bench.clock.advance(1)
    assert bench.closed == [2]
    bench.outcome(Engine())
    assert bench.taken == [2]
    bench.clock.advance(100 * S)
    assert len(bench.attempts) == 1


def test_one_that_is_not_wanted_any_more_is_not_made_anew() -> None:
    bench = Bench()
    bench.lose(1)
    assert bench.revival.forget(1)  # it is still to be closed
    bench.clock.advance(100 * S)
    assert (bench.attempts, bench.closed) == ([], [])


def test_an_attempt_under_way_for_one_that_is_not_wanted_any_more() -> None:
    bench = Bench()
    bench.lose(1)
    bench.clock.advance(S)
    assert not bench.revival.forget(1)
    bench.outcome(invalid("no"))
    bench.clock.advance(100 * S)
    assert (len(bench.attempts), bench.closed) == (1, [1])
    bench = Bench()
    bench.lose(1)
    bench.clock.advance(S)
    bench.revival.forget(1)
    bench.outcome(Engine())
    assert bench.taken == [1]  # whoever takes it closes it


def test_attempts_that_fail_come_later_and_later() -> None:
    bench = Bench()
    bench.lose()
    waits = [1]
    for _ in range(8):
        bench.clock.advance(waits[-1] * S)
        bench.outcome(invalid("no weights"))
        waits.append(bench.failures[-1][2] // S)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert LONGEST_WAIT_NS == 60 * S
    assert bench.closed == [0]
    assert bench.failures[0] == (0, "no weights", 2 * S)


def test_an_instance_that_is_soon_lost_again_waits_longer_and_one_that_has_lived_does_not() -> None:
    bench = Bench()
    assert bench.lose() == S
    bench.clock.advance(S)
    bench.outcome(Engine())
    bench.clock.advance(STEADY_NS - 1)
    assert bench.lose() == 2 * S
    bench.clock.advance(2 * S)
    bench.outcome(Engine())
    bench.clock.advance(STEADY_NS)
    assert bench.lose() == S


def test_instances_wait_each_by_itself() -> None:
    bench = Bench()
    assert [bench.lose(0), bench.lose(1)] == [S, S]


def test_an_engine_that_is_not_taken_is_a_failed_attempt() -> None:
    bench = Bench()
    bench.lose()
    bench.clock.advance(S)
    bench.refuse = OSError("too many open files")
    bench.outcome(Engine())
    assert bench.failures == [(0, "failed to replace a lost instance: too many open files", 2 * S)]
    bench.clock.advance(2 * S)
    assert len(bench.attempts) == 2


def test_nothing_is_made_after_the_end() -> None:
    bench = Bench()
    bench.lose()
    bench.revival.end()
    bench.clock.advance(10 * S)
    bench.revival.close()
    bench.lose()
    bench.clock.advance(10 * S)
    assert bench.attempts == []


def test_what_an_attempt_makes_that_is_under_way_at_the_end_is_closed() -> None:
    bench = Bench()
    bench.lose(0)
    bench.lose(1)
    bench.clock.advance(S)
    engine = Engine()
    bench.revival.end()
    bench.attempts[0].set_exception(OSError())
    bench.outcome(engine)
    bench.revival.close()
    assert engine.closed
    assert bench.taken == []


def test_a_server_without_loading_threads_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def shut_down(number: int, close: Callable[[], None]) -> "Future[Executor]":
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(bench.revival, "_make", shut_down)
    bench.lose()
    bench.clock.advance(100 * S)
    assert bench.failures == []


class PoolBench:
    """A pool of puppets whose instances are made anew at once when the test's clock says so."""

    def __init__(self, instances: int) -> None:
        self.clock = FakeClock()
        self.backend = PuppetBackend()
        self.model = self.backend.open(SOURCE)
        self.statistics = ModelStatistics()
        self.failing: Exception | None = None
        self.troubles: list[str | None] = []
        self.lost: list[tuple[int, bool]] = []
        self.stuck: list[str] = []
        self.changed = asyncio.Event()
        specs = [instance_spec(CONFIG, index=index) for index in range(instances)]
        self.pool = InstancePool(
            ModelId("model", 3),
            CONFIG,
            [(spec.name, self.model.instance(spec)) for spec in specs],
            self.statistics,
            Owner(
                lambda count: self.changed.set(),
                self.changed.set,
                slot_lost=self._on_lost,
                health_changed=self._on_health,
            ),
            asyncio.get_running_loop(),
            make=self._make,
            clock=self.clock,
        )

    def _make(self, number: int, close: Callable[[], None]) -> "Future[Executor]":
        close()
        attempt: Future[Executor] = Future()
        if self.failing is not None:
            attempt.set_exception(self.failing)
        else:
            attempt.set_result(self.model.instance(instance_spec(CONFIG, index=number)))
        return attempt

    def _on_lost(self, number: int, error: ModserveError, in_vain: bool) -> None:
        self.lost.append((number, in_vain))
        if in_vain and self.pool.trouble is not None:
            self.stuck.append(error.message)

    def _on_health(self) -> None:
        self.troubles.append(None if self.pool.trouble is None else self.pool.trouble.message)

    def start(self, value: int) -> tuple[Any, Execution]:
        slot = self.pool.reserve()
        assert slot is not None
        entry = member(value)
        self.statistics.pending += 1
        self.pool.run(slot, [entry], "full")
        return entry, self.backend.next_execution()


async def test_the_neighbours_of_a_lost_instance_go_on(caplog: pytest.LogCaptureFixture) -> None:
    bench = PoolBench(2)
    one, dying = bench.start(1)
    two, living = bench.start(2)
    dying.fail(InstanceLostError("out of memory"))
    await until(lambda: one.settled)
    text = "model 'model', instance 'model_0' was lost: out of memory"
    assert refused(one) == (Code.UNAVAILABLE, text)
    living.finish(copied(living))
    await until(lambda: two.settled)
    assert answer(two) == [[2] * 4]
    assert bench.pool.trouble is None
    assert bench.lost == [(0, False)]
    assert (bench.statistics.instances, bench.statistics.instances_lost) == (2, 1)
    assert bench.pool.reserve() is not None
    assert bench.pool.reserve() is None
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"{text}; a new one will be made in 1 s"
    ]
    bench.clock.advance(S)
    await until(lambda: bench.statistics.instance_restarts == 1)
    assert bench.statistics.instances_lost == 0
    assert (bench.pool.reserve_number(0), bench.backend.open_instances) != (None, 1)
    bench.pool.close()
    assert bench.backend.open_instances == 0


async def test_with_no_instance_left_there_is_trouble_until_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """The log has all that is known, and those who wait the first paragraph."""
    bench = PoolBench(1)
    one, dying = bench.start(1)
    dying.fail(InstanceLostError("killed"))
    await until(lambda: one.settled)
    text = "model 'model', instance 'model_0' was lost: killed"
    assert bench.troubles == [text]
    assert bench.stuck == []  # who waits may wait for the first attempt
    bench.failing = invalid("no such device\n\nAt:\n  /models/model.py(3): initialize")
    bench.clock.advance(S)
    await until(lambda: len(bench.troubles) == 2)
    text = "model 'model', instance 'model_0' was lost and cannot be replaced: no such device"
    assert f"{text}\n\nAt:\n  /models/model.py(3): initialize; the next attempt is in 2 s" in caplog.messages
    assert bench.stuck == bench.troubles[1:] == [text]
    assert bench.lost == [(0, False), (0, True)]
    bench.failing = None
    bench.clock.advance(2 * S)
    await until(lambda: len(bench.troubles) == 3)
    assert bench.troubles[2] is None
    two, execution = bench.start(2)
    execution.finish(copied(execution))
    await until(lambda: two.settled)
    assert answer(two) == [[2] * 4]
    bench.pool.close()
    assert bench.backend.open_instances == 0


async def test_a_lost_instance_is_closed_once() -> None:
    bench = PoolBench(1)
    one, dying = bench.start(1)
    dying.fail(InstanceLostError("killed"))
    await until(lambda: one.settled)
    bench.failing = invalid("no such device")
    bench.clock.advance(S)
    await until(lambda: bench.stuck)
    assert bench.backend.open_instances == 0
    bench.pool.close()
    assert bench.backend.open_instances == 0


async def test_closing_while_an_instance_is_lost() -> None:
    bench = PoolBench(2)
    one, dying = bench.start(1)
    dying.fail(InstanceLostError("killed"))
    await until(lambda: one.settled)
    bench.pool.close()
    assert bench.backend.open_instances == 0
    bench.clock.advance(100 * S)
    assert bench.backend.open_instances == 0
