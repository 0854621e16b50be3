"""Work that takes so long that the other connections should not wait for it."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from modserve.core.errors import ModserveError, cancelled
from modserve.core.memory import MemoryBudget, MemoryExhaustedError
from modserve.core.response import InferenceResponse
from modserve.protocol.classification import MANY_ELEMENTS

P = ParamSpec("P")
T = TypeVar("T")


def has_many_elements(response: InferenceResponse) -> bool:
    """Whether it takes long to do something for each element."""
    return response.elements(response.outputs) > MANY_ELEMENTS


async def on_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises. A caller that is cancelled goes on when it has ended.

    So nobody lets go of what the thread still uses.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        if cancelled is not None:
            working.exception()  # looked at, so that nobody warns of it
            raise cancelled
        return working.result()
    finally:  # the traceback of what is raised has this frame, which must not have the exception
        del working, cancelled


class RequestMemory:
    """What one request holds of the server's memory beside its body, until it is released."""

    __slots__ = ("_budget", "_loop", "_released", "_size")

    def __init__(self, budget: MemoryBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._loop = loop
        self._size = 0
        self._released = False

    def take(self, size: int) -> None:
        """Hold `size` more bytes. For other threads than the event loop's, which it waits for.

        Raises `MemoryExhaustedError`, and CANCELLED if nobody wants the answer any more.
        """
        taken: concurrent.futures.Future[ModserveError | None] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._take, size, taken)
        refusal = taken.result()
        if refusal is not None:
            try:
                raise refusal
            finally:  # its traceback has this frame
                del refusal, taken

    def force(self, size: int) -> None:
        """Hold `size` more bytes, on the event loop's thread: what is there already."""
        self._budget.force(size)
        self._size += size

    def release(self) -> None:
        """Give everything back, on the event loop's thread. Nothing can be taken any more."""
        self._released = True
        size, self._size = self._size, 0
        if size:
            self._budget.give_back(size)

    def _take(self, size: int, taken: "concurrent.futures.Future[ModserveError | None]") -> None:
        if self._released:
            taken.set_result(cancelled())
            return
        try:
            self._budget.take(size)
        except MemoryExhaustedError as error:
            taken.set_result(error.with_traceback(None))
            return
        self._size += size
        taken.set_result(None)
