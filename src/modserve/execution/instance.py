"""One instance: a thread of its own that executes one batch at a time."""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from modserve.backends.api import BackendInstance, Executor, RequestInstance
from modserve.core.errors import ModserveError, from_exception
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.response import InferenceResponse
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId

from .batch import merge, split, wanted_outputs
from .running import Running, RunningRequest, Tell


class Job:
    """One batch on its way through an instance.

    When `done` is called, `error` or one of the others is set: `responses` in the order of `members`, or `running` for
    engines that answer each request by itself.
    """

    __slots__ = ("error", "members", "responses", "running", "timing")

    def __init__(self, members: list[Inflight], close_reason: str = "") -> None:
        self.members = members
        self.timing = ExecutionTiming(sum([inflight.batch_size or 1 for inflight in members]), close_reason)
        self.running: list[Running] = []
        self.responses: list[InferenceResponse] = []
        self.error: ModserveError | None = None


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
    ) -> None:
        self.name = name
        self._model = model
        self._config = config
        self._engine = engine
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

    def close(self) -> None:
        """Finish the jobs at hand, end the thread and close the engine's instance. Blocks until that is done."""
        self._jobs.put(None)
        self._thread.join()
        self._engine.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.execute(job)
            self._done(self, job)
            del job  # or the last batch's tensors would live until the next one

    def execute(self, job: Job) -> None:
        """Run a job on the calling thread, which blocks; never raises."""
        timing = job.timing
        timing.compute_start_ns = time.monotonic_ns()
        try:
            self._run(job)
        except BaseException as error:  # whatever an engine raises ends here, as its requests' failure
            job.error = from_exception(error, f"model '{self._model.name}', instance '{self.name}'")
            job.error.__cause__ = error if error is not job.error else None
        timing.compute_end_ns = time.monotonic_ns()

    def _run_batch(self, engine: BackendInstance, job: Job) -> None:
        timing, members = job.timing, job.members
        inputs = merge(members)
        timing.compute_input_end_ns = time.monotonic_ns()
        outputs = engine.execute(inputs, wanted_outputs(members))
        timing.compute_output_start_ns = time.monotonic_ns()
        job.responses = split(outputs, members, self._config, self._model.version)

    def _run_requests(self, engine: RequestInstance, job: Job) -> None:
        timing = job.timing
        job.running = [Running(inflight) for inflight in job.members]
        requests = [RunningRequest(running, self._config, self._model.version, self._tell) for running in job.running]
        timing.compute_input_end_ns = time.monotonic_ns()
        engine.execute_requests(requests)
        timing.compute_output_start_ns = time.monotonic_ns()
