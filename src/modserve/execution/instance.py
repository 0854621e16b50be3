"""One instance: a thread of its own that executes one batch at a time."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from modserve.backends.api import BackendInstance
from modserve.core.errors import ModserveError, from_exception
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.response import InferenceResponse
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId

from .batch import merge, split, wanted_outputs


class Job:
    """One batch on its way through an instance. `responses` or `error` is set when `done` is called."""

    __slots__ = ("error", "members", "responses", "timing")

    def __init__(self, members: list[Inflight]) -> None:
        self.members = members
        self.timing = ExecutionTiming()
        self.responses: list[InferenceResponse] = []
        self.error: ModserveError | None = None


class Instance:
    """Executes jobs in order on its thread, and tells `done` (on that thread) of each."""

    def __init__(
        self,
        model: ModelId,
        name: str,
        config: ModelConfig,
        engine: BackendInstance,
        done: Callable[["Instance", Job], None],
    ) -> None:
        self.name = name
        self._model = model
        self._config = config
        self._engine = engine
        self._done = done
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
        timing, members = job.timing, job.members
        now_ns = time.monotonic_ns
        timing.compute_start_ns = now_ns()
        try:
            inputs = merge(members)
            timing.compute_input_end_ns = now_ns()
            outputs = self._engine.execute(inputs, wanted_outputs(members))
            timing.compute_output_start_ns = now_ns()
            job.responses = split(outputs, members, self._config, self._model.version)
        except BaseException as error:  # whatever an engine raises ends here, as its requests' failure
            job.error = from_exception(error, f"model '{self._model.name}', instance '{self.name}'")
            job.error.__cause__ = error if error is not job.error else None
        timing.compute_end_ns = now_ns()
