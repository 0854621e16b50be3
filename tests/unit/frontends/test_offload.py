"""Long work is done on a thread, and nobody lets go of what it uses."""

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.frontends import offload
from modserve.frontends.errors import to_client_error
from modserve.frontends.offload import RequestMemory, background_threads, in_background, is_long_response, on_thread
from modserve.protocol.response_form import BINARY, ResponseForm
from modserve.settings.limits import LoopLimits
from modserve.testing import tensor


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


def who() -> tuple[str, int]:
    """The thread's name, and its nice value where it has one of its own."""
    return threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, 0) if sys.platform == "linux" else 0


async def test_a_server_of_its_own_has_threads_that_go_after_the_event_loop() -> None:
    _, nice = who()
    with background_threads(1):
        names = {(await on_thread(who))[0], (await in_background(who))[0]}
        assert all(name.startswith("front-end") for name in names)
        assert (await on_thread(who))[1] == (min(19, nice + 10) if sys.platform == "linux" else 0)
    name, own = await on_thread(who)
    assert not name.startswith("front-end")
    assert own == nice


async def test_servers_of_one_process_end_in_any_order() -> None:
    first, second = background_threads(1), background_threads(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (await on_thread(who))[0].startswith("front-end")
    second.__exit__(None, None, None)
    assert not (await on_thread(who))[0].startswith("front-end")


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
def test_a_thread_does_not_wait_for_an_event_loop_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    monkeypatch.setattr(offload, "_LOOK_S", 0.01)
    loop = asyncio.new_event_loop()
    memory = RequestMemory(MemoryBudget(), loop)
    if closed:
        loop.close()
    with ThreadPoolExecutor(1) as threads:
        taking = threads.submit(memory.take, 1)
        try:
            error = taking.exception(30)
        finally:  # or the test would wait for ever, too
            if not taking.done():
                loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert isinstance(error, ModserveError)
    assert error.code is Code.CANCELLED


async def test_a_thread_waits_for_an_event_loop_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_LOOK_S", 0.001)
    budget = MemoryBudget()
    memory = RequestMemory(budget, asyncio.get_running_loop())
    with ThreadPoolExecutor(1) as threads:
        taking = threads.submit(memory.take, 5)
        threading.Event().wait(0.05)  # the event loop computes
        await asyncio.wrap_future(taking)
    assert budget.held == 5
    memory.release()
    assert budget.held == 0


@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (2, 2), (3, 3), (64, 8)])
async def test_as_many_threads_as_cores_with_limits(cores: int, expected: int) -> None:
    busy, go, loop = asyncio.Queue[int](), threading.Event(), asyncio.get_running_loop()

    def work(number: int) -> None:
        loop.call_soon_threadsafe(busy.put_nowait, number)
        assert go.wait(30)

    with background_threads(cores):
        jobs = [asyncio.ensure_future(on_thread(work, number)) for number in range(expected + 3)]
        assert {await busy.get() for _ in range(expected)} == set(range(expected))
        await asyncio.sleep(0.01)
        assert busy.empty()
        go.set()
        await asyncio.gather(*jobs)


NUMBERS, TEXTS = tensor(dtypes.INT32, (2, 3)), Tensor.from_raw(dtypes.BYTES, (5,), b"\0\0\0\0" * 5)


@pytest.mark.parametrize(
    ("response_form", "limits", "expected"),
    [
        (ResponseForm(), LoopLimits(elements=11), False),
        (ResponseForm(), LoopLimits(elements=10), True),
        (ResponseForm(binary=frozenset({"A"})), LoopLimits(elements=5), False),
        (ResponseForm(binary=frozenset({"T"})), LoopLimits(elements=5), True),
        (BINARY, LoopLimits(elements=5), False),
        (BINARY, LoopLimits(elements=4), True),
        (replace(BINARY, classes={"A": 1}), LoopLimits(elements=5), True),
    ],
    ids=[
        "JSON",
        "much JSON",
        "one as JSON",
        "the other as JSON",
        "binary",
        "many texts",
        "ranked",
    ],
)
def test_which_responses_take_long(response_form: ResponseForm, limits: LoopLimits, expected: bool) -> None:
    response = InferenceResponse("m", 1, {"A": NUMBERS, "T": TEXTS})
    assert is_long_response(response, response_form, limits) is expected


def test_errors_that_are_not_ours_become_internal(caplog: pytest.LogCaptureFixture) -> None:
    ours = invalid("no")
    assert to_client_error(ours, "a call") is ours
    assert not caplog.records
    error = to_client_error(ValueError("oops"), "a call")
    assert (error.code, error.message) == (Code.INTERNAL, "unexpected ValueError: oops")
    assert [record.getMessage() for record in caplog.records] == ["a call failed unexpectedly"]
