"""Instances on the event loop, for engines that start an execution and report its end later.

Jobs wait in `_waiting`. Between `start` and `on_done` an execution is in `_executions`. It leaves exactly once, on the
event loop's thread: by the engine's `done`, or by the loss or the end of the instance. Later calls for it are ignored.
`_posted` ensures that the engine's calls reach the pool in order, on the event loop's thread, and never within `start`,
when the pool is not ready for them.

Large inputs are merged and large outputs processed on a thread, so that they do not block the event loop.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

from modserve.backends.api import (
    AsyncInstance,
    AsyncRequestInstance,
    Executor,
    FinalResponse,
    InstanceLostError,
    Values,
    reuses_outputs,
)
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import unavailable
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId

from .instance import Done, Instance, accepts_prefetch, most_ahead
from .job import Job, Work
from .running import Deliver, RequestProgress, RequestReport, Stamp

_log = logging.getLogger(__name__)

LARGE_BYTES = 256 * 1024
"""Size above which inputs and outputs are processed on a thread, as copying would block the event loop."""
_LONGEST_DETACH_S = 10.0

OnLost: TypeAlias = Callable[[Instance, InstanceLostError], None]
Outcome: TypeAlias = Values | Sequence[FinalResponse] | BaseException | None
"""Outputs, final responses or error of an execution."""


class LoopInstance(Instance):
    """Implements `instance.Instance` and `backends.api.InstanceHandle`.

    It is created on the event loop's thread, and `done`, `deliver` and `on_lost` are called there. Raises the
    exceptions of the engine's `attach`.
    """

    def __init__(
        self,
        model: ModelId,
        name: str,
        config: ModelConfig,
        engine: AsyncInstance | AsyncRequestInstance,
        done: Done,
        deliver: Deliver,
        on_lost: OnLost,
        loop: asyncio.AbstractEventLoop,
        number: int,
    ) -> None:
        self.name = name
        self.number = number
        self.loop = loop
        if config.sequence_batching is None and not reuses_outputs(engine):
            self.max_in_flight = max(1, int(getattr(engine, "max_in_flight", 1)))
        self.max_ahead = most_ahead(config, engine)
        self.ahead = deque()
        self.accepts_prefetch = not (self.max_ahead or reuses_outputs(engine)) and accepts_prefetch(config, engine)
        self._engine = engine
        # Checked once: isinstance with a protocol can take longer than an execution.
        self._merges = isinstance(engine, AsyncInstance)
        self._decoupled = config.decoupled
        self._work = Work(model, name, config, engine)
        self.open = self._work.open
        self._done = done
        self._deliver_on_loop = deliver
        self._on_lost = on_lost
        self._loop_thread = threading.get_ident()
        self._starting = False
        self._attached = False
        self._closed = False
        self._given_up = False
        self._executions: dict[_Execution, None] = {}
        self._waiting: deque[Job] = deque()
        self._posted: deque[Callable[[], None]] = deque()
        engine.attach(self)
        self._attached = True

    def __repr__(self) -> str:
        return f"LoopInstance({self.name}, {len(self._executions)} under way, {len(self._waiting)} waiting)"

    @property
    def engine(self) -> Executor:
        return self._engine

    @property
    def awaited(self) -> bool:
        jobs = [*[execution.job for execution in self._executions], *self._waiting]
        inflights = [*[inflight for job in jobs for inflight in job.members], *[each.inflight for each in self.open]]
        return not all(inflight.settled for inflight in inflights)

    def _timings(self) -> list[ExecutionTiming]:
        return [execution.job.timing for execution in self._executions]

    def start(self, job: Job) -> None:
        self._waiting.append(job)
        self._start_waiting()

    def end(self) -> None:
        self._end(unavailable(f"instance '{self.name}' was closed before the execution ended"))

    def give_up(self, error: InstanceLostError) -> bool:
        kill = getattr(self._engine, "kill_because", None)
        if kill is not None:
            kill(error.message)  # the end of the process reports the loss
        else:
            self._given_up = True
            self._post(partial(self._lose, error))
        return True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._given_up:  # the engine may hang, so it is closed without waiting
            threading.Thread(target=self._engine.close, name=f"close-{self.name}", daemon=True).start()
            return
        if threading.get_ident() == self._loop_thread:
            self.end()
        else:
            ended = threading.Event()
            try:
                self.loop.call_soon_threadsafe(self.end)
                self.loop.call_soon_threadsafe(ended.set)
                ended.wait(_LONGEST_DETACH_S)
            except RuntimeError:
                pass  # the event loop has closed
        self._engine.close()

    # Executions

    def _start_waiting(self) -> None:
        while self._waiting and len(self._executions) < self.max_in_flight + self.max_ahead + self.prefetched:
            execution = _Execution(self, self._waiting.popleft())
            self._executions[execution] = None
            self._begin(execution)

    def _begin(self, execution: "_Execution") -> None:
        job, work, engine = execution.job, self._work, self._engine
        if not self._attached:
            self._later(partial(self._on_failure, execution, unavailable(f"instance '{self.name}' has been closed")))
        elif not work.begin(job):
            self._later(partial(self._over, execution))
        elif not self._merges:
            requests = work.requests(job, self._deliver)
            self._call(execution, partial(cast(AsyncRequestInstance, engine).start_requests, requests, execution))
        elif self._is_large(job):
            merging = self.loop.run_in_executor(None, work.inputs, job)
            merging.add_done_callback(partial(self._on_merged, execution))
        else:
            try:
                inputs, names = work.inputs(job)
            except BaseException as error:
                self._later(partial(self._on_failure, execution, error))
                return
            self._call(execution, partial(cast(AsyncInstance, engine).start, inputs, names, execution))

    def _on_merged(
        self, execution: "_Execution", merging: "asyncio.Future[tuple[dict[str, Array], tuple[str, ...]]]"
    ) -> None:
        if execution not in self._executions or merging.cancelled():
            return
        if (error := merging.exception()) is not None:
            self._on_failure(execution, error)
            return
        self._call(execution, partial(cast(AsyncInstance, self._engine).start, *merging.result(), execution))

    def _call(self, execution: "_Execution", start: Callable[[], None]) -> None:
        self._starting = True
        try:
            start()
        except BaseException as error:
            execution(error)
        finally:
            self._starting = False

    def on_done(self, execution: "_Execution", outcome: "Outcome") -> None:
        """Report that the engine has ended an execution. Any thread."""
        self._post(partial(self._on_end, execution, outcome, time.monotonic_ns()))

    def _on_end(self, execution: "_Execution", outcome: "Outcome", now_ns: int) -> None:
        if execution not in self._executions:
            return
        job = execution.job
        if isinstance(outcome, BaseException):
            self._on_failure(execution, outcome)
            return
        job.timing.compute_output_start_ns = now_ns
        if not self._merges:
            if outcome is not None:
                try:
                    self._work.respond(job, cast(Sequence[FinalResponse], outcome))
                except Exception as error:
                    self._work.fail(job, error)
            self._over(execution)
        elif isinstance(outcome, Mapping) and _size(outcome) > LARGE_BYTES:
            taking = self.loop.run_in_executor(None, self._take, job, outcome)
            taking.add_done_callback(lambda _: self._over(execution))
        else:
            self._take(job, cast(Values, outcome))
            self._over(execution)

    def _take(self, job: Job, outputs: Values | None) -> None:
        try:
            self._work.outputs(job, outputs)
        except Exception as error:
            self._work.fail(job, error)

    def _on_failure(self, execution: "_Execution", error: BaseException) -> None:
        if execution in self._executions:
            self._work.fail(execution.job, error)
            self._over(execution)

    def _over(self, execution: "_Execution") -> None:
        """Remove an execution if it is still present."""
        if execution not in self._executions:
            return
        del self._executions[execution]
        job = execution.job
        now_ns = job.timing.compute_end_ns = time.monotonic_ns()
        if self.max_ahead:
            self.typical_ns += (now_ns - job.timing.compute_start_ns - self.typical_ns) // 8
            if self._executions:  # the engine now begins the next queued execution
                timing = next(iter(self._executions)).job.timing
                timing.compute_start_ns = timing.compute_input_end_ns = now_ns
        if self.ahead:
            timing = self.ahead[0].timing
            timing.compute_start_ns = timing.compute_input_end_ns = now_ns
        if isinstance(job.error, InstanceLostError):
            self._lose(job.error)
        self._done(self, job)
        self._start_waiting()

    def _is_large(self, job: Job) -> bool:
        """Return True if merging takes long. A single request is copied only if the engine allocates inputs."""
        if len(job.rows) == 1 and not hasattr(self._engine, "allocate"):
            return False
        return sum([tensor.size for inflight in job.rows for tensor in inflight.inputs.values()]) > LARGE_BYTES

    # The end

    def lost(self, error: InstanceLostError) -> None:
        self._post(partial(self._lose, error))

    def _lose(self, error: InstanceLostError) -> None:
        if self._attached:
            error = self._work.name_instance(error)
            self._on_lost(self, error)
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """Fail current executions and detach from the event loop. May be called again."""
        attached, self._attached = self._attached, False
        while self._executions or self._waiting:
            for job in self._waiting:
                self._executions[_Execution(self, job)] = None
            self._waiting.clear()
            for execution in list(self._executions):
                self._on_failure(execution, error)
        if attached:
            try:
                self._engine.detach()
            except Exception:
                _log.exception("instance '%s': detaching from the event loop failed", self.name)

    # Ordering

    def _deliver(self, running: RequestProgress, report: RequestReport | Stamp) -> None:
        if self._decoupled:
            self.heard_ns = time.monotonic_ns()
        self._post(partial(self._deliver_on_loop, running, report))

    def _post(self, callback: Callable[[], None]) -> None:
        """Call back on the event loop's thread, immediately if that keeps the order."""
        if threading.get_ident() != self._loop_thread:
            self._posted.append(callback)
            try:
                self.loop.call_soon_threadsafe(self._call_posted)
            except RuntimeError:
                _log.debug("instance '%s': an engine called back after the server had stopped", self.name)
        elif self._starting or self._posted:
            self._later(callback)
        else:
            callback()

    def _later(self, callback: Callable[[], None]) -> None:
        self._posted.append(callback)
        self.loop.call_soon(self._call_posted)

    def _call_posted(self) -> None:
        self._posted.popleft()()


class _Execution:
    """Execution of one job, and the engine's callback for its end."""

    __slots__ = ("instance", "job")

    def __init__(self, instance: LoopInstance, job: Job) -> None:
        self.instance = instance
        self.job = job

    def __call__(self, outcome: "Outcome" = None) -> None:
        self.instance.on_done(self, outcome)


def _size(outputs: Values) -> int:
    """Return the size of the outputs in bytes. BYTES outputs count by the size of their pointers."""
    return sum([getattr(output, "nbytes", 0) for output in outputs.values()])
