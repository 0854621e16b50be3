"""Long work is done on a thread, and nobody lets go of what it uses."""

import asyncio
import threading

import pytest

from modserve.core.errors import invalid
from modserve.frontends.offload import on_thread


async def test_what_the_work_returns_or_raises() -> None:
    def work(number: int, *, add: int) -> tuple[int, threading.Thread]:
        if not number:
            raise invalid("none")
        return number + add, threading.current_thread()

    found, thread = await on_thread(work, 1, add=2)
    assert found == 3
    assert thread is not threading.main_thread()
    with pytest.raises(type(invalid("")), match="none"):
        await on_thread(work, 0, add=2)


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
async def test_who_is_cancelled_waits_for_the_thread(fails: bool) -> None:
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(30)
        if fails:
            raise invalid("nobody hears of this")

    waiting = asyncio.ensure_future(on_thread(work))
    await begun.wait()
    for _ in range(2):  # however often it is asked
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
