"""Timers that ring when they should, and no sooner, on both event loops."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from modserve.core.runtime import failures, timers
from modserve.core.runtime.clock import Alarm, LoopClock
from modserve.core.runtime.timers import exact_timers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(main: Callable[[LoopClock], AsyncIterator[None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as made:
            made.run(_whole(main))

    return run


async def _whole(main: Callable[[LoopClock], AsyncIterator[None]]) -> None:
    async for _ in main(LoopClock(asyncio.get_running_loop())):
        pass


@pytest.mark.parametrize("delay_ns", [0, 50_000, 700_000, 1_500_000, 4_200_000, 4_499_000])
def test_a_wait_takes_two_calls_at_most_and_is_never_short(runner: Callable[..., None], delay_ns: int) -> None:
    async def main(clock: LoopClock) -> AsyncIterator[None]:
        rings: list[int] = []
        rung = asyncio.Event()
        target_ns = clock.now_ns() + delay_ns

        def ring() -> None:
            rings.append(clock.now_ns())
            if rings[-1] < target_ns:
                alarm.at(target_ns)
            else:
                rung.set()

        alarm = Alarm(clock, ring)
        alarm.at(target_ns)
        async with asyncio.timeout(30):
            await rung.wait()
        assert len(rings) <= (1 if delay_ns < 4_000_000 else 2)
        yield

    runner(main)


def test_they_ring_in_order_and_those_that_were_cancelled_never(runner: Callable[..., None]) -> None:
    async def main(clock: LoopClock) -> AsyncIterator[None]:
        told: list[str] = []
        done = asyncio.Event()
        now_ns = clock.now_ns()
        handles = {
            name: clock.call_at(now_ns + after_ns, lambda name=name: told.append(name))  # type: ignore[misc]
            for name, after_ns in (("c", 900_000), ("x", 300_000), ("a", 100_000), ("b", 600_000))
        }
        clock.call_at(now_ns + 1_000_000, done.set)
        handles["x"].cancel()
        async with asyncio.timeout(30):
            await done.wait()
        assert told == ["a", "b", "c"]
        yield

    runner(main)


def test_what_one_raises_is_not_the_others_affair(
    runner: Callable[..., None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "failures", {})

    async def main(clock: LoopClock) -> AsyncIterator[None]:
        done = asyncio.Event()

        def broken() -> None:
            raise RuntimeError("no")

        now_ns = clock.now_ns()
        clock.call_at(now_ns, broken)
        clock.call_at(now_ns, done.set)
        async with asyncio.timeout(30):
            await done.wait()
        yield

    runner(main)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "the background task 'timers' failed unexpectedly, and the server goes on; failure 1: this is a bug"
    ]


def test_one_that_asks_for_another_as_it_rings(runner: Callable[..., None]) -> None:
    async def main(clock: LoopClock) -> AsyncIterator[None]:
        done = asyncio.Event()
        left = 5

        def ring() -> None:
            nonlocal left
            left -= 1
            if left:
                clock.call_at(time.monotonic_ns() + 100_000, ring)
            else:
                done.set()

        clock.call_at(time.monotonic_ns(), ring)
        async with asyncio.timeout(30):
            await done.wait()
        yield

    runner(main)


def test_a_clock_has_one_descriptor_which_ends_with_its_event_loop(runner: Callable[..., None]) -> None:
    descriptors: list[int] = []

    async def main(clock: LoopClock) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop_clock = LoopClock(loop)
        for _ in range(2):
            loop_clock.call_at(loop_clock.now_ns(), lambda: None)
            assert loop_clock._exact is not None
            descriptors.append(loop_clock._exact._descriptor)
        assert descriptors[0] == descriptors[1]
        os.fstat(descriptors[0])
        yield

    runner(main)
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_without_such_timers_it_rings_late_but_rings(
    runner: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise OSError

    monkeypatch.setattr(timers, "_timer", none)

    async def main(clock: LoopClock) -> AsyncIterator[None]:
        done = asyncio.Event()
        target_ns = clock.now_ns() + 500_000
        clock.call_at(target_ns, done.set)
        async with asyncio.timeout(30):
            await done.wait()
        assert clock._exact is None
        assert exact_timers(asyncio.get_running_loop()) is None
        yield

    runner(main)
