"""Closing what may hang, on a thread that nobody waits for."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from modserve.core.errors import ModserveError
from modserve.models.serving.closing import close_aside


def until(event: threading.Event) -> Callable[[], None]:
    def close() -> None:
        event.wait(30)

    return close


async def test_it_is_closed_on_a_thread_of_its_own() -> None:
    threads: list[threading.Thread] = []
    await close_aside(lambda: threads.append(threading.current_thread()), "model 'm'")
    assert (threads[0].daemon, threads[0].name) == (True, "close-model 'm'")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError("stuck"), OSError, "stuck"),
        (TimeoutError("device"), TimeoutError, "device"),
        (SystemExit(3), ModserveError, "SystemExit: 3"),
        (StopIteration(), ModserveError, "StopIteration: "),
    ],
    ids=repr,
)
async def test_a_failure_is_passed_on(error: BaseException, kind: type[Exception], text: str) -> None:
    def close() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await close_aside(close, "model 'm'")
    assert str(caught.value) == text


async def test_after_the_limit_it_is_left_to_itself() -> None:
    go_on = threading.Event()
    with pytest.raises(ModserveError, match=r"model 'm': the engine has not closed within 0\.01 s, and is abandoned"):
        await close_aside(until(go_on), "model 'm'", 0.01)
    go_on.set()


async def test_a_caller_that_is_cancelled_does_not_wait() -> None:
    go_on = threading.Event()
    closing = asyncio.create_task(close_aside(until(go_on), "model 'm'"))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    go_on.set()
