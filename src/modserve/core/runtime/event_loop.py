"""The event loop that servers and their clients run on.

`yield_now` is called by long loops, so that other threads run.

Between any two instructions, the interpreter hands its lock to a thread that waits for it. Compiled code does so only
where it calls interpreted code, and would otherwise block the event loop until its loop ends.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .failures import count_unforeseen


def yield_now() -> None:
    """Let other threads run, if one has waited for some milliseconds. This only works in an interpreted module.

    For loops over any number of elements that a client sends: every few milliseconds, or about 32 K elements.
    """


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, of uvloop if installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory()


def process_event_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of a server's process. Closing it does not wait for threads that are stuck in a read.

    What nothing in the process handles is counted from now on.
    """
    loop = new_event_loop()
    count_unforeseen(loop)
    loop.set_default_executor(_AbandoningExecutor(thread_name_prefix="asyncio"))
    return loop


class _AbandoningExecutor(ThreadPoolExecutor):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return at once. `asyncio.Runner` asks to wait, in Python 3.11 without a limit."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
