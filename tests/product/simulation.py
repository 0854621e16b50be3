"""Simulated time and threads: what a server does in minutes happens in milliseconds, and always in the same order.

`SimulatedLoop` is an event loop whose clock stands still while anything can run, and then jumps to the next timer. What
would run on other threads, loads of models and closings of engines, runs on the loop's own, in order, one piece of work
in a turn; `hold_threads` keeps it back for as long as a test likes. While `simulated` lasts, the standard library's
monotonic clock shows the loop's time, so that all of modserve agrees about it.
"""

import asyncio
import gc
import math
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from modserve.core.runtime.periodic import PeriodicTask
from modserve.execution.instance import InstanceThread

_MOST_TURNS = 3_000
"""Of the event loop, at one moment: whoever needs more goes round in circles."""


class ThrownError(Exception):
    """A failure in background work that nobody foresees, because the test wants one there."""


class NumberedTask(asyncio.Task[Any]):
    """A task of which sets, those of the standard library too, have the same order in each run: not by its address."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop without sockets, threads and waiting."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        self.failures: list[str] = []
        """What callbacks and tasks have raised that nobody handles."""
        self._until_ns = self.now_ns
        self._turns = 0
        self._work: deque[Callable[[], None]] = deque()
        self.holds = False
        """Whether the other threads get nothing done."""
        self.throws = 0
        """How many of the next timers find that the clock is broken, or that their work is."""
        self.thrown = 0
        self.last_thrown_ns = 0
        self._rings = False
        self._tasks = 0
        super().__init__(_NoSockets(self._idle))
        self.set_exception_handler(self._note)
        self.set_task_factory(self._task)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> "asyncio.Task[Any]":
        self._tasks += 1
        task = NumberedTask(work, loop=loop, **more)
        task.number = self._tasks
        return task

    def tasks(self) -> "list[asyncio.Task[Any]]":
        """Those that have not ended, the oldest first."""
        return sorted(asyncio.all_tasks(self), key=hash)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context['message']}: {context.get('exception')!r}")

    # Time

    def time(self) -> float:
        return self.now_ns / 1e9

    def run(self, seconds: float = 0.0) -> None:
        """Let so much time pass, with all that happens in it; 0: until nothing can go on without time."""
        self._until_ns = self.now_ns + round(seconds * 1e9)
        self._turns = 0
        self.run_forever()

    def turn(self) -> None:
        """Run what is ready at this moment, once."""
        self.stop()
        self.run_forever()

    def act(self, what: Callable[[], Any]) -> Any:
        """Call something on the event loop's thread, between two turns."""
        asyncio._set_running_loop(self)
        try:
            return what()
        finally:
            asyncio._set_running_loop(None)

    def _idle(self, timeout: float | None) -> None:
        if timeout == 0:
            self._turns += 1
            assert self._turns < _MOST_TURNS, "the event loop goes round in circles"
            return
        due_ns = math.inf if timeout is None else self.now_ns + max(1, math.ceil(timeout * 1e9))
        if due_ns <= self._until_ns:
            self.now_ns, self._turns = int(due_ns), 0
        else:
            self.now_ns = self._until_ns
            self.stop()

    def clock_ns(self) -> int:
        """The time, as modserve sees it."""
        if self._rings:
            self._throw()
        return self.now_ns

    def call_at(  # type: ignore[override]  # as below
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, partial(self._ring, callback), *args, context=context)

    def _ring(self, callback: Callable[..., Any], *args: Any) -> None:
        if not self.throws:
            callback(*args)
            return
        owner = getattr(callback, "__self__", None)
        gc.disable()  # whoever looks at its pauses reads the clock, too
        self._rings = True
        try:
            if isinstance(owner, PeriodicTask):
                with patch.object(owner, "_work", self._throw):
                    callback(*args)
            else:
                callback(*args)
        finally:
            self._rings = False
            gc.enable()

    def _throw(self) -> None:
        if self.throws:
            self.throws -= 1
            self.thrown += 1
            self._rings = False  # once for each timer
            self.last_thrown_ns = self.now_ns
            raise ThrownError("thrown by the test")

    # Without sockets and threads

    def _write_to_self(self) -> None: ...

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]  # as below
        raise NotImplementedError("there is nothing to watch: timers go by the loop's time")

    def run_in_executor(  # type: ignore[override]  # typeshed's has type variables
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(_submit(self, partial(func, *args)), loop=self)

    def on_thread(self, work: Callable[[], None]) -> None:
        """Do something that would run on another thread."""
        self._work.append(work)
        if not self.holds:
            self.call_soon(self._next_work)

    def _next_work(self) -> None:
        if self._work and not self.holds:
            self._work.popleft()()

    def hold_threads(self, on: bool) -> None:
        """Let the other threads get nothing done, or go on."""
        self.holds = on
        if not on:
            for _ in range(len(self._work)):
                self.call_soon(self._next_work)


class _NoSockets(selectors.SelectSelector):
    def __init__(self, idle: Callable[[float | None], None]) -> None:
        super().__init__()
        self._wait = idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._wait(timeout)
        return []


class _InlineExecutor(Executor):
    """In place of a pool of threads."""

    def __init__(self, loop: SimulatedLoop, *_: Any, **__: Any) -> None:
        self._loop = loop
        self._ended = False
        self._futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if self._ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _submit(self._loop, partial(fn, *args, **kwargs))
        self._futures = [each for each in (*self._futures, future) if not each.done()]
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        if cancel_futures:
            for each in self._futures:
                each.cancel()


def _submit(loop: SimulatedLoop, call: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    loop.on_thread(work)
    return future


class _InlineThread:
    """In place of a thread that closes something."""

    def __init__(
        self, loop: SimulatedLoop, *, target: Callable[..., None], args: tuple[Any, ...] = (), **_: Any
    ) -> None:
        self._loop = loop
        self._target: Callable[[], None] | None = partial(target, *args)

    def start(self) -> None:
        self._loop.on_thread(self.join)

    def join(self, timeout: float | None = None) -> None:
        target, self._target = self._target, None
        if target is not None:
            target()


class _NothingYetError(Exception):
    """A thread has to wait for more."""


class _Jobs:
    """In place of the queue from which the thread of an instance takes jobs."""

    def __init__(self) -> None:
        self._jobs: deque[Any] = deque()
        self.on_put: Callable[[], None] = lambda: None

    def put(self, job: Any) -> None:
        self._jobs.append(job)
        self.on_put()

    def get(self) -> Any:
        if not self._jobs:
            raise _NothingYetError
        return self._jobs.popleft()

    def get_nowait(self) -> Any:
        if not self._jobs:
            raise Empty
        return self._jobs.popleft()


def _start_instance(loop: SimulatedLoop, thread: Any) -> None:
    """Begin the thread of an instance: it runs what has been put, and goes on from there with the next."""
    thread._target.__self__._jobs.on_put = lambda: loop.on_thread(partial(_join_instance, thread))


def _join_instance(thread: Any) -> None:
    with suppress(_NothingYetError):
        thread._target()


@contextmanager
def simulated(loop: SimulatedLoop) -> Iterator[None]:
    """Let modserve see the time of `loop`, and run its threads there."""
    threads = SimpleNamespace(**{**vars(threading), "Thread": partial(_InlineThread, loop)})
    with (
        patch.object(time, "monotonic_ns", loop.clock_ns),
        patch.object(time, "monotonic", lambda: loop.clock_ns() / 1e9),
        patch("modserve.core.runtime.failures.failures", {}),
        patch.object(time, "thread_time_ns", lambda: loop.now_ns),
        patch("modserve.execution.instance.SimpleQueue", _Jobs),
        patch.object(InstanceThread, "start", lambda thread: _start_instance(loop, thread)),
        patch.object(InstanceThread, "join", _join_instance),
        patch("modserve.models.serving.closing.threading", threads),
        patch("modserve.models.loading.assembly.threading", threads),
        patch("modserve.process.app.ThreadPoolExecutor", partial(_InlineExecutor, loop)),
    ):
        yield
