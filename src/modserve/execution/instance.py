"""One instance: a thread of its own that executes one batch at a time."""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from modserve.backends.api import BackendInstance, Executor, RequestInstance, data_dependent, reuses_outputs
from modserve.core.errors import Code, ModserveError, from_exception
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.response import InferenceResponse
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId

from .batch import checked, copied, merge, split, wanted_outputs
from .layout import layout_of
from .quick import QuickRule
from .running import Running, RunningRequest, Tell
from .states import keep_states

_OF_THE_WHOLE = frozenset({Code.INVALID_ARG, Code.INTERNAL})
"""Failures of a batch that may be the fault of some of its requests."""


class Job:
    """One batch on its way through an instance.

    When `done` is called, `error` or one of the others is set: `responses` in the order of `members`, or `running` for
    engines that answer each request by itself. `rows` are the members with the fillers that keep them in their rows.
    `again`: its one member runs for the second time, after a batch that the engine refused; `more` such jobs follow.
    """

    __slots__ = (
        "again",
        "cpu_ns",
        "error",
        "late",
        "members",
        "more",
        "refused",
        "responses",
        "rows",
        "running",
        "timing",
    )

    def __init__(self, members: list[Inflight], close_reason: str = "", rows: list[Inflight] | None = None) -> None:
        self.members = members
        self.again = False
        self.more = False
        self.cpu_ns = 0
        """The processor's time that it took on the instance's thread; 0 if nobody asks."""
        self.refused = False
        """The engine did not take the whole, and may take the members one by one."""
        self.rows = members if rows is None else rows
        self.timing = ExecutionTiming(sum([inflight.batch_size or 1 for inflight in self.rows]), close_reason)
        self.running: list[Running] = []
        self.responses: list[InferenceResponse] = []
        self.late: list[Inflight] = []
        """Those that were to be members, and whose deadline or queue limit had passed when the execution began."""
        self.error: ModserveError | None = None

    def drop_late(self, now_ns: int) -> None:
        """What is too late is not worth an execution. Not for jobs whose rows are kept."""
        late = [
            inflight
            for inflight in self.members
            if 0 < inflight.deadline_ns <= now_ns or 0 < inflight.queue_limit_ns <= now_ns
        ]
        if late:
            self.late = late
            gone = set(late)
            self.rows = self.members = [inflight for inflight in self.members if inflight not in gone]
            self.timing.batch_size -= sum([inflight.batch_size or 1 for inflight in late])


class Instance:
    """Executes jobs in order on its thread, and tells `done` (on that thread) of each."""

    def __init__(
        self,
        model: ModelId,
        name: str,
        config: ModelConfig,
        engine: Executor,
        done: Callable[["Instance", Job], None],
        tell: Tell,
        *,
        may_be_quick: bool = False,
    ) -> None:
        self.name = name
        by_request = isinstance(engine, RequestInstance)
        self.quick = QuickRule() if may_be_quick and not by_request and not data_dependent(engine) else None
        """Whether batches may run on the event loop's thread; None for never."""
        self.job: Job | None = None
        """What it executes, or is about to; kept by the pool."""
        self._drops_late = config.sequence_batching is None  # or the model would miss a part of a sequence
        self._model = model
        self._config = config
        self._engine = engine
        self._layout = layout_of(config)
        self._one_by_one = config.sequence_batching is None  # or an execution that failed may have changed states
        self._reuses_outputs = reuses_outputs(engine)
        self._run: Callable[[Job], None]
        if isinstance(engine, RequestInstance):
            self._run = partial(self._run_requests, engine)
        else:
            self._run = partial(self._run_batch, engine)
        self._done = done
        self._tell = tell
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A daemon: an engine stuck in a call must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"instance-{name}", daemon=True)
        self._thread.start()

    def start(self, job: Job) -> None:
        self._jobs.put(job)

    def end(self) -> None:
        """Let the thread end after the jobs at hand. Does not wait for it."""
        self._jobs.put(None)

    def close(self) -> None:
        """Finish the jobs at hand, end the thread and close the engine's instance. Blocks until that is done."""
        self.end()
        self._thread.join()
        self._engine.close()

    def _work(self) -> None:
        rule = self.quick
        while (job := self._jobs.get()) is not None:
            if rule is None:
                self.execute(job)
            else:
                begin_ns = time.thread_time_ns()
                self.execute(job)
                job.cpu_ns = time.thread_time_ns() - begin_ns
            self._done(self, job)
            del job  # or the last batch's tensors would live until the next one

    def execute(self, job: Job) -> None:
        """Run a job on the calling thread, which blocks; never raises."""
        timing = job.timing
        timing.compute_start_ns = time.monotonic_ns()
        if self._drops_late and job.rows is job.members:
            job.drop_late(timing.compute_start_ns)
        try:
            if job.members and not (job.again and job.members[0].settled):
                self._run(job)
        except BaseException as error:  # whatever an engine raises ends here, as its requests' failure
            job.error = from_exception(error, f"model '{self._model.name}', instance '{self.name}'")
            if error is not job.error:
                job.error.__cause__ = error
            # Before there are outputs, it is the engine that refuses, or memory that does not suffice for all.
            job.refused = (
                not timing.compute_output_start_ns
                and len(job.members) > 1
                and self._one_by_one
                and not job.running
                and job.error.code in _OF_THE_WHOLE
            )
        timing.compute_end_ns = time.monotonic_ns()

    def _run_batch(self, engine: BackendInstance, job: Job) -> None:
        timing, rows, config = job.timing, job.rows, self._config
        layout = self._layout
        inputs = merge(rows) if layout is None else layout.merge(rows, timing)
        timing.compute_input_end_ns = time.monotonic_ns()
        wanted = wanted_outputs(rows)
        if config.state_outputs:
            wanted = tuple(dict.fromkeys((*wanted, *config.state_outputs)))
        outputs = engine.execute(inputs, wanted)
        timing.compute_output_start_ns = time.monotonic_ns()
        if type(outputs) is not dict or self._reuses_outputs:
            outputs = (copied if self._reuses_outputs else checked)(outputs, config)
        if layout is None:
            responses = split(outputs, rows, config, self._model.version)
        else:
            responses = layout.split(outputs, rows, self._model.version)
        if config.state_outputs:
            keep_states(outputs, rows, config)
        if rows is not job.members:
            members = set(job.members)
            responses = [each for row, each in zip(rows, responses, strict=True) if row in members]
        job.responses = responses

    def _run_requests(self, engine: RequestInstance, job: Job) -> None:
        timing = job.timing
        job.running = [Running(inflight) for inflight in job.rows]
        if job.rows is not job.members:
            members = set(job.members)
            for running in job.running:
                running.filler = running.ended = running.inflight not in members
        version, reuses = self._model.version, self._reuses_outputs
        requests = [RunningRequest(running, self._config, version, self._tell, reuses) for running in job.running]
        timing.compute_input_end_ns = time.monotonic_ns()
        engine.execute_requests(requests)
        timing.compute_output_start_ns = time.monotonic_ns()
