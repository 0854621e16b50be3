"""The interface between a pool and its instances, and the kind of instance that has a thread of its own."""

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
"""An execution that takes less may keep others waiting inside the engine, where no other instance can take them."""


class Instance(ABC):
    """Executes jobs in order, as many at a time as `max_in_flight` says, and tells the pool of each.

    All methods but `close` are for the event loop's thread.
    """

    name: str
    number: int
    """Index among the instances of the pool."""
    max_in_flight: int = 1
    max_ahead: int = 0
    """Number of further jobs that may wait inside the engine while executions are short."""
    places: int = 1
    """Number of jobs it takes now. Kept by the pool."""
    takes_early: bool = False
    """True if it may get a job, beyond its places, before the one under way is over."""
    prefetched: int = 0
    """Number of places lent before their executions were over. Kept by the pool."""
    ahead: deque[Job]
    """The jobs in those places that have not begun, if it `takes_early`. Kept by the pool."""
    inline_rule: InlineRule | None = None
    """Rule that lets batches run on the event loop's thread; None for never."""
    job: Job | None = None
    """Job in execution or about to be: the latest, if there are several. Kept by the pool."""
    gone: bool = False
    """True if it takes no jobs: it is new, leaves, or was lost. Kept by the pool."""
    open: dict[RequestProgress, None]
    """The requests without a final response, of an engine that responds to each by itself."""
    heard_ns: int = 0
    """Time at which the engine of a decoupled model last responded; 0 for never, and for other models."""
    typical_ns: int = 2_000_000
    """Typical duration of the latest executions. Kept by instances with `max_ahead`."""

    @property
    @abstractmethod
    def engine(self) -> Executor:
        """The engine's instance."""

    @abstractmethod
    def give_up(self, error: InstanceLostError) -> bool:
        """Give the instance up as lost, by this error, because its execution takes too long. Returns at once.

        True if it tells the pool of its jobs and its loss itself, now or soon. False if it is silent from now on.
        """

    @property
    def awaited(self) -> bool:
        """True if requests wait for its work, or it must not be closed before that is done."""
        return self.job is not None or bool(self.open)

    def silent_ns(self, now_ns: int) -> int | None:
        """Return how long the oldest execution has run, or has sent no response if decoupled. None if it is idle.

        An execution lasts until each of its requests has its final response.
        """
        timings = [*self._timings(), *[each.inflight.timing for each in list(self.open)]]
        starts = [timing.compute_start_ns for timing in timings if timing is not None and timing.compute_start_ns]
        return now_ns - max(min(starts), self.heard_ns) if starts else None

    @abstractmethod
    def _timings(self) -> list[ExecutionTiming]:
        """Return the timings of the executions that the engine is at."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Run a job, after those that were started before. Returns at once."""

    def execute(self, job: Job) -> None:
        """Run a job on the calling thread, which blocks; never raises. Only where there is an `inline_rule`."""
        raise RuntimeError(f"{self!r} does not block a thread: this is a bug")

    @property
    def most_places(self) -> int:
        """Number of jobs it should take, going by its latest executions."""
        return self.max_in_flight + (self.max_ahead if self.typical_ns < _SHORT_NS else 0)

    @abstractmethod
    def end(self) -> None:
        """Start no more executions. Does not wait; the engine's instance stays open."""

    @abstractmethod
    def close(self) -> None:
        """Finish the jobs at hand and close the engine's instance. Blocks until that is done; once, on any thread."""


Done: TypeAlias = Callable[["Instance", Job], None]


def most_ahead(config: ModelConfig, engine: Executor) -> int:
    """Return how many executions may wait inside the engine: 0 where the scheduler would form larger batches."""
    ahead = config.sequence_batching is None and config.dynamic_batching is None and not reuses_outputs(engine)
    return int(getattr(engine, "max_ahead", 0)) if ahead else 0


def takes_early(config: ModelConfig, engine: Executor) -> bool:
    """True if the next batch may already be at the instance: not where a batch depends on the one before it."""
    return bool(getattr(engine, "takes_early", False)) and config.sequence_batching is None and not config.decoupled


class ThreadInstance(Instance):
    """Executes jobs one by one on its thread, and tells `done` (on that thread) of each."""

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
        self.takes_early = not self.max_ahead and takes_early(config, engine)
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
        """Give up the thread, which Python cannot end. It closes the engine if it ever comes back."""
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
            del job  # or the last batch's tensors would live until the next one
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
    """The thread of an instance. A daemon: an engine stuck in a call must not keep the process from ending."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=f"instance-{name}", daemon=True)
        self.job: Job | None = None
        """Job that runs on it; calls to other models without a parent belong to that job."""
