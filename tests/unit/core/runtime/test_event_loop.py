"""The event loop of a server's process ends though a thread reads for ever."""

import asyncio
import threading

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
