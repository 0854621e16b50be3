"""Work that is done again and again, and goes on whatever happens in it."""

import asyncio
from collections.abc import Callable

import pytest

from modserve.core.runtime import failures as failure_counts
from modserve.core.runtime.failures import count_failure
from modserve.core.runtime.periodic import PeriodicTask


@pytest.fixture(autouse=True)
def failures(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts: dict[str, int] = {}
    monkeypatch.setattr(failure_counts, "failures", counts)
    return counts


async def run(work: Callable[[], None], over: asyncio.Event, *, coroutine: bool) -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        work()

    task = PeriodicTask("work", 0.001, later if coroutine else work)
    task.start()
    await over.wait()
    task.stop()
    task.stop()


@pytest.mark.parametrize("coroutine", [False, True])
async def test_a_failure_is_logged_counted_and_tried_again(
    coroutine: bool, failures: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    over = asyncio.Event()
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) <= 5:
            raise ZeroDivisionError("here")
        over.set()

    await asyncio.wait_for(run(work, over, coroutine=coroutine), 30)
    assert len(runs) >= 6
    assert failures == {"work": 5}
    assert [record.getMessage().split("; ")[1] for record in caplog.records] == [
        f"failure {count}: this is a bug" for count in (1, 2, 4)
    ]
    assert "ZeroDivisionError: here" in caplog.text


async def test_a_task_that_is_stopped_ends_what_is_under_way() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    task = PeriodicTask("work", 0, work)
    task.start()
    await began.wait()
    task.stop()
    await ended.wait()
    assert failure_counts.failures == {"work": 0}


async def test_work_may_say_when_it_is_due_next() -> None:
    pauses = iter([0.0, 0.0, 1000.0])
    done = asyncio.Event()

    def work() -> float:
        pause = next(pauses)
        if pause:
            done.set()
        return pause

    task = PeriodicTask("work", 0, work)
    task.start()
    await done.wait()
    await asyncio.sleep(0)
    task.stop()


def test_a_failure_that_is_logged_elsewhere_is_only_counted(
    failures: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    count_failure("other")
    assert (failures, caplog.records) == ({"other": 1}, [])
