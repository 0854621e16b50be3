"""Tasks that outlive the call that began them."""

import asyncio

import pytest

from modserve.core.errors import invalid
from modserve.core.runtime import failures as failure_counts
from modserve.core.runtime.background import Background


@pytest.fixture(autouse=True)
def failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_counts, "failures", {})


async def fails(error: Exception) -> None:
    raise error


async def test_they_are_waited_for_also_those_that_they_begin() -> None:
    background = Background("background")
    ended: list[str] = []

    async def outer() -> None:
        await asyncio.sleep(0)
        background.start(inner())
        ended.append("outer")

    async def inner() -> None:
        await asyncio.sleep(0)
        ended.append("inner")

    background.start(outer())
    await background.settle()
    assert ended == ["outer", "inner"]


async def test_a_call_that_is_cancelled_while_it_waits_cancels_them() -> None:
    background = Background("background")
    task = background.start(asyncio.sleep(30))
    waiting = asyncio.create_task(background.settle())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert (waiting.cancelled(), task.cancelled()) == (True, True)


async def test_a_failure_of_one_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    background = Background("background")
    tasks = [background.start(fails(error)) for error in (RuntimeError("odd"), invalid("the caller hears it"))]
    tasks.append(background.start(asyncio.sleep(0)))
    await background.settle()
    assert [task.exception() is None for task in tasks] == [False, False, True]
    assert caplog.messages == [
        "the background task 'background' failed unexpectedly, and the server goes on; failure 1: this is a bug"
    ]
    assert failure_counts.failures["background"] == 1
