"""The event loop of a server's process: it ends though a thread reads for ever, and counts what nothing handles."""

import asyncio
import logging
import threading

import pytest

from modserve.core.runtime import failures
from modserve.core.runtime.event_loop import process_event_loop


def test_the_end_of_the_loop_waits_for_no_thread() -> None:
    stuck, over = threading.Event(), threading.Event()

    async def serve() -> None:
        asyncio.get_running_loop().run_in_executor(None, over.wait)
        asyncio.get_running_loop().run_in_executor(None, stuck.set)
        while not stuck.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)

    def process() -> None:
        with asyncio.Runner(loop_factory=process_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=process, daemon=True)
    thread.start()
    thread.join(30)
    ended = not thread.is_alive()
    over.set()
    assert ended


def fail() -> None:
    raise ZeroDivisionError("nobody handles it")


def test_failures_that_nothing_handles_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    monkeypatch.setattr(failures, "failures", {})
    loop = process_event_loop()
    assert failures.failures == {"event_loop": 0, "threads": 0}
    loop.call_soon(fail)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert failures.failures == {"event_loop": 1, "threads": 1}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert [str(args.exc_value) for args in shown] == ["nobody handles it"]
