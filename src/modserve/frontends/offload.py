"""Rules for the work that goes to a thread, so that other connections do not wait for it, and the threads themselves.

The rule is by the work itself, and it is one for all front ends: the size of a body after it was inflated, the number
of elements that are made or written one by one, the bytes that are copied. `LoopLimits` has the figures. Each stands
for about half a millisecond on the event loop.

The threads of a server of its own process are few, and go after the event loop's where cores are scarce: short work
does not wait for long work. Both forms of waiting are felt: for a core, since each of five long responses that are
compressed would have as large a part of the cores as all tiny requests together; and for the interpreter's lock, which
each thread that computes may keep for 5 ms before the next one has it.
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
"""Addition to the nice value of the threads. Their part of a core is then a tenth of the event loop's, and all of a
core that is otherwise idle."""
_LEAST, _MOST = 2, 8
"""Threads: one long body must not wait for another that is longer by far, and the lock lets few compute."""

_executors: list[concurrent.futures.Executor] = []
"""Executors of the servers in this process. Work goes to the last; without any, to the event loop's own threads."""

_LOOK_S = 1.0
"""Seconds between two looks of a waiting thread at whether the event loop still runs."""

_TEXT_BYTES = 64
"""Bytes that each element of BYTES takes besides its own once an engine reads it."""


@contextmanager
def background_threads(cores: int) -> Iterator[None]:
    """Let work go to threads for this purpose alone, about as many as there are `cores`, with a lower priority."""
    count = max(_LEAST, min(cores, _MOST))
    executor = concurrent.futures.ThreadPoolExecutor(count, "front-end", initializer=_step_back)
    _executors.append(executor)
    try:
        yield
    finally:  # servers may end in any order
        _executors.remove(executor)
        executor.shutdown(wait=False)


def _step_back() -> None:
    """Lower this thread's priority where threads have their own, which is on Linux; elsewhere it is the process's.

    It cannot be raised again without privileges, and what the thread starts inherits it.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # sandboxes may forbid it
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _YIELDING)


def in_background(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Begin `work` on a thread, for callers that go on by a callback. On the event loop's thread."""
    return asyncio.get_running_loop().run_in_executor(_executors[-1] if _executors else None, work)


async def on_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return or raise what `work` does, on a thread. A cancelled caller goes on only when the work has ended.

    So nothing that the thread still uses is released.
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
            working.exception()  # looked at, so that nobody warns of it
            raise cancelled
        return working.result()
    finally:  # the traceback of what is raised has this frame, which must not have the exception
        del working, cancelled


def outcome_of(work: "asyncio.Future[T]", activity: str) -> T | ModserveError:
    """Return the result or the failure of work on a thread; the log of an unforeseen failure names the `activity`.

    A failure is not raised: its traceback would have a frame of the caller, which has `work`, and that has the failure.
    """
    failure = work.exception()
    return work.result() if failure is None else to_client_error(failure, activity)


# Requests


def inflate(encoding: bytes, body: bytes, max_json: int, limits: LoopLimits) -> bytes | Inflater:
    """Return the body as it was before its ``Content-Encoding``, if that is quickly known; a thread does the rest.

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
    """Do what would take long later, on the event loop; and reserve the memory for what an engine makes of BYTES."""
    texts = long_texts(tensors, limits.texts)
    if texts:
        reserve(_TEXT_BYTES * sum(min(abs(math.prod(tensor.shape)), tensor.size // 4) for tensor in texts))
        count_ahead(texts)
    if config.cached:
        digest_ahead(tensors, limits.texts)


# Responses


def is_long_response(response: InferenceResponse, response_form: ResponseForm, limits: LoopLimits) -> bool:
    """True if a thread should write the response. Tensors that stay as they are cost nothing."""
    elements = 0
    all_binary, classes = response_form.all_binary, response_form.classes
    for name, tensor in response.outputs.items():
        if tensor.datatype is dtypes.BYTES and math.prod(tensor.shape) > limits.elements:
            return True
        if (not all_binary or classes) and (name in classes or not (all_binary or name in response_form.binary)):
            elements += math.prod(tensor.shape)
    return elements > limits.elements


class RequestMemory:
    """Memory of the server that one request holds besides its body, until it is released."""

    __slots__ = ("_budget", "_loop", "_released", "_size")

    def __init__(self, budget: MemoryBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._loop = loop
        self._size = 0
        self._released = False

    def take(self, size: int) -> None:
        """Hold `size` more bytes. For other threads than the event loop's, which it waits for.

        Raises `MemoryExhaustedError`, and CANCELLED if the response is no longer wanted, or the event loop has ended,
        which those of embedded servers do as their owners like: the end of the process would wait for this thread.
        """
        outcome: concurrent.futures.Future[ModserveError | None] = concurrent.futures.Future()
        with suppress(RuntimeError):  # it has closed
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
            finally:  # its traceback has this frame
                del refusal, outcome

    def force(self, size: int) -> None:
        """Hold `size` more bytes, on the event loop's thread: what is there already."""
        self._budget.force(size)
        self._size += size

    def release(self) -> None:
        """Give everything back, on the event loop's thread. Later calls of `take` fail."""
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
