"""Tasks that outlive the call that began them."""

import asyncio

import pytest

from modserve.core.errors import invalid
from modserve.repository.background import Background


async def fails(error: Exception) -> None:
    raise error


async def test_they_are_waited_for_also_those_that_they_begin() -> None:
    background = Background()
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
    background = Background()
    task = background.start(asyncio.sleep(30))
    waiting = asyncio.create_task(background.settle())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert (waiting.cancelled(), task.cancelled()) == (True, True)


async def test_a_failure_of_one_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    tasks = [background.start(fails(error)) for error in (RuntimeError("odd"), invalid("the caller hears it"))]
    tasks.append(background.start(asyncio.sleep(0)))
    await background.settle()
    assert [task.exception() is None for task in tasks] == [False, False, True]
    assert caplog.messages == ["a background task failed unexpectedly"]
