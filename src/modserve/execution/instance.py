"""Interface between a pool and its instances, and the instance with its own thread."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from modserve.backends.api import BackendInstance, Executor, InstanceLostError, RequestInstance, reuses_outputs
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.version import ModelId

from .inline import InlineRule
from .job import Job, Work
from .running import Deliver, RequestProgress, RequestReport, Stamp

_log = logging.getLogger(__name__)

_SHORT_NS = 1_000_000
"""Limit of the typical duration for queueing further jobs inside the engine, where no other instance can take them."""


class Instance(ABC):
    """Executes jobs in order, up to `max_in_flight` concurrently, and reports each to the pool.

    All methods except `close` must be called on the event loop's thread.
    """

    name: str
    number: int
    """Index among the instances of the pool."""
    max_in_flight: int = 1
    max_ahead: int = 0
    """Number of further jobs queued inside the engine while executions are short."""
    places: int = 1
    """Current number of places for jobs. Managed by the pool."""
    accepts_prefetch: bool = False
    """True if it accepts a job beyond its places before the current one ends."""
    prefetched: int = 0
    """Number of places lent before their executions ended. Managed by the pool."""
    ahead: deque[Job]
    """Jobs in prefetched places that have not begun, if it `accepts_prefetch`. Managed by the pool."""
    inline_rule: InlineRule | None = None
    """Rule for running batches on the event loop's thread; None for never."""
    job: Job | None = None
    """Latest job in execution or about to start. Managed by the pool."""
    gone: bool = False
    """True if it takes no jobs because it is new, leaving or lost. Managed by the pool."""
    open: dict[RequestProgress, None]
    """Requests without a final response, for engines that respond to each request separately."""
    heard_ns: int = 0
    """Time of the last response of a decoupled model; 0 for never, and for other models."""
    typical_ns: int = 2_000_000
    """Typical duration of the latest executions. Updated by instances with `max_ahead`."""

    @property
    @abstractmethod
    def engine(self) -> Executor:
        """Backend instance."""

    @abstractmethod
    def give_up(self, error: InstanceLostError) -> bool:
        """Give up the instance as lost with this error because its execution takes too long. Does not wait.

        Returns True if it reports its jobs and its loss to the pool itself. False if it reports nothing more.
        """

    @property
    def awaited(self) -> bool:
        """True if requests wait for it, or it must not be closed yet."""
        return self.job is not None or bool(self.open)

    def silent_ns(self, now_ns: int) -> int | None:
        """Return the age of the oldest execution, or of a decoupled model's last response if later; None if idle.

        An execution lasts until each of its requests has its final response.
        """
        timings = [*self._timings(), *[each.inflight.timing for each in list(self.open)]]
        starts = [timing.compute_start_ns for timing in timings if timing is not None and timing.compute_start_ns]
        return now_ns - max(min(starts), self.heard_ns) if starts else None

    @abstractmethod
    def _timings(self) -> list[ExecutionTiming]:
        """Return the timings of the current executions."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a job, in order. Returns at once."""

    def execute(self, job: Job) -> None:
        """Run a job on the calling thread. Blocks; never raises. Requires an `inline_rule`."""
        raise RuntimeError(f"{self!r} does not block a thread: this is a bug")

    @property
    def most_places(self) -> int:
        """Number of jobs it should take, depending on its latest executions."""
        return self.max_in_flight + (self.max_ahead if self.typical_ns < _SHORT_NS else 0)

    @abstractmethod
    def end(self) -> None:
        """Start no more executions. Does not wait; the backend instance stays open."""

    @abstractmethod
    def close(self) -> None:
        """Finish the current jobs and close the backend instance. Blocks. Called once, on any thread."""


Done: TypeAlias = Callable[["Instance", Job], None]


def most_ahead(config: ModelConfig, engine: Executor) -> int:
    """Return the number of executions that may wait inside the engine; 0 if the scheduler would form larger batches."""
    ahead = config.sequence_batching is None and config.dynamic_batching is None and not reuses_outputs(engine)
    return int(getattr(engine, "max_ahead", 0)) if ahead else 0


def accepts_prefetch(config: ModelConfig, engine: Executor) -> bool:
    """Return True if the instance accepts the next batch early, which requires that batches are independent."""
    return bool(getattr(engine, "takes_early", False)) and config.sequence_batching is None and not config.decoupled


class ThreadInstance(Instance):
    """Executes jobs one by one on its thread, and calls `done` on that thread for each."""

    def __init__(
        self,
        model: ModelId,
        name: str,
        config: ModelConfig,
        engine: BackendInstance | RequestInstance,
        done: Done,
        deliver: Deliver,
        number: int,
        may_inline: bool,
    ) -> None:
        self.name = name
        self.number = number
        self._closed = False
        self._given_up = False
        self._engine = engine
        self._batch_work = Work(model, name, config, engine)
        self.open = self._batch_work.open
        self.ahead = deque()
        self.max_ahead = most_ahead(config, engine)
        self.accepts_prefetch = not self.max_ahead and accepts_prefetch(config, engine)
        self._run: Callable[[Job], None]
        if isinstance(engine, RequestInstance):
            self._run = partial(self._run_requests, engine)
        else:
            self._run = partial(self._run_batch, engine)
            if may_inline and not getattr(engine, "data_dependent", True):
                self.inline_rule = InlineRule()
        self._done = done
        self._deliver = self._on_report if config.decoupled else deliver
        self._deliver_on_loop = deliver
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._runner = InstanceThread(self._work, name)
        self._runner.start()

    @property
    def engine(self) -> Executor:
        return self._engine

    def _timings(self) -> list[ExecutionTiming]:
        job = self._runner.job
        return [] if job is None or self._given_up else [job.timing]

    def _on_report(self, running: RequestProgress, report: RequestReport | Stamp) -> None:
        self.heard_ns = time.monotonic_ns()
        self._deliver_on_loop(running, report)

    def start(self, job: Job) -> None:
        self._jobs.put(job)

    def end(self) -> None:
        self._jobs.put(None)

    def give_up(self, error: InstanceLostError) -> bool:
        """Give up the thread, which Python cannot end. It closes the engine if its call ever returns."""
        self._given_up = True
        try:
            while True:
                self._jobs.get_nowait()
        except Empty:
            self.end()
        return False

    def close(self) -> None:
        if not self._closed and not self._given_up:
            self._closed = True
            self.end()
            self._runner.join()
            self._engine.close()

    def _work(self) -> None:
        rule, thread = self.inline_rule, self._runner
        while (job := self._jobs.get()) is not None:
            thread.job = job
            if rule is None:
                self.execute(job)
            else:
                begin_ns = time.thread_time_ns()
                self.execute(job)
                job.cpu_ns = time.thread_time_ns() - begin_ns
            thread.job = None
            if not self._given_up:
                self._done(self, job)
            del job  # releases the batch's tensors before the wait for the next one
        if self._given_up:
            self._close_late()

    def _close_late(self) -> None:
        try:
            self._engine.close()
        except Exception:
            _log.exception("instance '%s': its execution ended after it was given up, and closing it failed", self.name)
        else:
            _log.info("instance '%s': its execution ended after it was given up, and it is closed", self.name)

    def execute(self, job: Job) -> None:
        try:
            if self._batch_work.begin(job):
                self._run(job)
        except BaseException as error:
            self._batch_work.fail(job, error)
        timing = job.timing
        timing.compute_end_ns = time.monotonic_ns()
        if self.max_ahead:
            self.typical_ns += (timing.compute_end_ns - timing.compute_start_ns - self.typical_ns) // 8

    def _run_batch(self, engine: BackendInstance, job: Job) -> None:
        outputs = engine.execute(*self._batch_work.inputs(job))
        job.timing.compute_output_start_ns = time.monotonic_ns()
        self._batch_work.outputs(job, outputs)

    def _run_requests(self, engine: RequestInstance, job: Job) -> None:
        finals = engine.execute_requests(self._batch_work.requests(job, self._deliver))
        job.timing.compute_output_start_ns = time.monotonic_ns()
        if finals is not None:
            self._batch_work.respond(job, finals)


class InstanceThread(threading.Thread):
    """Thread of an instance. A daemon, as a hanging engine must not keep the process from exiting."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=f"instance-{name}", daemon=True)
        self.job: Job | None = None
        """Current job. Calls to other models without a parent belong to it."""
