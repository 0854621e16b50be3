"""The event loop that servers and their clients run on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def new_event_loop() -> asyncio.AbstractEventLoop:
    """With uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory()


def process_event_loop() -> asyncio.AbstractEventLoop:
    """The same for a process that ends with its loop: it does not wait for a thread that reads for ever, from a file
    system that does not answer for instance."""
    loop = new_event_loop()
    loop.set_default_executor(_LeavingExecutor(thread_name_prefix="asyncio"))
    return loop


class _LeavingExecutor(ThreadPoolExecutor):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As if nobody waited: asyncio's runner does so without a limit in Python 3.11."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
