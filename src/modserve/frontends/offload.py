"""Rules for moving work to threads, so that other connections need not wait for it; and the threads themselves.

All front ends use the same rules, by amount of work: the size of a body after decompression, the number of elements
converted one by one, the bytes copied. `LoopLimits` has the thresholds, each about half a millisecond on the event
loop.

A server process has few threads, with a lower priority than the event loop where cores are scarce, so that short work
does not wait for long work. Both contended resources matter: cores, since compressing five long responses would take
as much of them as all small requests together; and the interpreter's lock, which a computing thread may keep for 5 ms.
"""

import asyncio
import concurrent.futures
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import ParamSpec, TypeVar

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, cancelled
from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor, count_ahead, digest_ahead, long_texts
from modserve.frontends.errors import to_client_error
from modserve.protocol import compression
from modserve.protocol.compression import Inflater
from modserve.protocol.response_form import ResponseForm
from modserve.settings import LoopLimits

P = ParamSpec("P")
T = TypeVar("T")

_YIELDING = 10
"""Increase of the threads' nice value. It leaves them a tenth of the event loop's share of a core, and all of an idle
core."""
_LEAST, _MOST = 2, 8
"""Number of threads: one long body must not wait for a much longer one, and the lock lets few compute."""

_executors: list[concurrent.futures.Executor] = []
"""Executors of the servers in this process. The last one is used; without any, the event loop's own threads are."""

_LOOK_S = 1.0
"""Seconds between a waiting thread's checks of whether the event loop still runs."""

_TEXT_BYTES = 64
"""Additional bytes for each BYTES element once an engine reads it."""


@contextmanager
def background_threads(cores: int) -> Iterator[None]:
    """Run work on dedicated low-priority threads, about as many as there are `cores`."""
    count = max(_LEAST, min(cores, _MOST))
    executor = concurrent.futures.ThreadPoolExecutor(count, "front-end", initializer=_step_back)
    _executors.append(executor)
    try:
        yield
    finally:  # servers may end in any order
        _executors.remove(executor)
        executor.shutdown(wait=False)


def _step_back() -> None:
    """Lower this thread's priority on Linux; elsewhere priorities belong to the process.

    Raising it again takes privileges, and threads and processes started by it inherit it.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # sandboxes may forbid it
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _YIELDING)


def in_background(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Begin `work` on a thread, for callers that continue in a callback. Call on the event loop's thread."""
    return asyncio.get_running_loop().run_in_executor(_executors[-1] if _executors else None, work)


async def on_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on a thread; return its result or raise its error. Cancellation takes effect when the work has ended.

    Thus nothing that the thread still uses is released.
    """
    working = in_background(partial(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        if cancelled is not None:
            working.exception()  # retrieved, to avoid asyncio's warning
            raise cancelled
        return working.result()
    finally:  # the traceback refers to this frame, which must not refer to the exception
        del working, cancelled


def outcome_of(work: "asyncio.Future[T]", activity: str) -> T | ModserveError:
    """Return the result or failure of work on a thread. Unforeseen failures are logged with the `activity`.

    The failure is not raised: its traceback would form a reference cycle with `work` in the caller's frame.
    """
    failure = work.exception()
    return work.result() if failure is None else to_client_error(failure, activity)


# Requests


def inflate(encoding: bytes, body: bytes, max_json: int, limits: LoopLimits) -> bytes | Inflater:
    """Return the body without its ``Content-Encoding``, or an inflater for a thread if that takes long.

    Raises as `compression.begin` and `Inflater.read` do.
    """
    inflater = compression.begin(body, encoding.decode("latin-1"), max_json)
    if isinstance(inflater, Inflater) and len(body) <= limits.compressed:
        whole = inflater.read(limits.json)
        return inflater if whole is None else whole
    return inflater


def look_ahead(
    tensors: Iterable[Tensor], config: ModelConfig, limits: LoopLimits, reserve: Callable[[int], None]
) -> None:
    """Do work that would later block the event loop, and reserve the memory that engines use for BYTES."""
    texts = long_texts(tensors, limits.texts)
    if texts:
        reserve(_TEXT_BYTES * sum(min(abs(math.prod(tensor.shape)), tensor.size // 4) for tensor in texts))
        count_ahead(texts)
    if config.cached:
        digest_ahead(tensors, limits.texts)


# Responses


def is_long_response(response: InferenceResponse, response_form: ResponseForm, limits: LoopLimits) -> bool:
    """True if the response should be encoded on a thread. Unconverted tensors cost nothing."""
    elements = 0
    all_binary, classes = response_form.all_binary, response_form.classes
    for name, tensor in response.outputs.items():
        if tensor.datatype is dtypes.BYTES and math.prod(tensor.shape) > limits.elements:
            return True
        if (not all_binary or classes) and (name in classes or not (all_binary or name in response_form.binary)):
            elements += math.prod(tensor.shape)
    return elements > limits.elements


class RequestMemory:
    """Server memory that one request holds besides its body, until it is released."""

    __slots__ = ("_budget", "_loop", "_released", "_size")

    def __init__(self, budget: MemoryBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._loop = loop
        self._size = 0
        self._released = False

    def take(self, size: int) -> None:
        """Hold `size` more bytes. Called on other threads; waits for the event loop.

        Raises `MemoryExhaustedError`, and CANCELLED if the response is no longer wanted or the event loop has ended. An
        embedded server's loop may end at any time, and the process would otherwise wait for this thread at its end.
        """
        outcome: concurrent.futures.Future[ModserveError | None] = concurrent.futures.Future()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take, size, outcome)
        while True:
            try:
                refusal = outcome.result(_LOOK_S)
                break
            except TimeoutError:
                if not self._loop.is_running():
                    raise cancelled() from None
        if refusal is not None:
            try:
                raise refusal
            finally:  # its traceback refers to this frame
                del refusal, outcome

    def force(self, size: int) -> None:
        """Hold `size` more bytes for existing data, on the event loop's thread."""
        self._budget.force(size)
        self._size += size

    def release(self) -> None:
        """Release all memory, on the event loop's thread. Later calls of `take` fail."""
        self._released = True
        size, self._size = self._size, 0
        if size:
            self._budget.give_back(size)

    def _take(self, size: int, outcome: "concurrent.futures.Future[ModserveError | None]") -> None:
        if self._released:
            outcome.set_result(cancelled())
            return
        try:
            self._budget.take(size)
        except MemoryExhaustedError as error:
            outcome.set_result(error.with_traceback(None))
            return
        self._size += size
        outcome.set_result(None)
