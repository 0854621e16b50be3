"""Fakes controlled by a test: an instance pool and an engine. The test ends each execution."""

import queue
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from modserve.backends.api import EngineRequest, Executor, InstanceSpec, ModelSource, Placement
from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.tensor import Array
from modserve.scheduling.scheduler import Scheduler
from modserve.scheduling.sequence import SequenceScheduler

_PATIENCE = 30.0
"""Seconds after which a forgotten execution fails, so that a broken test ends."""


class PuppetRunner:
    """Implements `scheduling.scheduler.PinnedRunner`: holds batches until the test ends them."""

    def __init__(self, slots: int = 1) -> None:
        self.count = slots
        self.batches: list[list[Inflight]] = []
        """Every batch, in order of dispatch."""
        self.reasons: list[str] = []
        """Close reasons, one for each batch."""
        self.rows: list[list[Inflight]] = []
        """Input of the model: each batch with its padding rows."""
        self.slots: list[int] = []
        """The slot of each batch."""
        self.running: dict[int, list[Inflight]] = {}
        self._free = deque(range(slots))
        self._scheduler: Scheduler | None = None

    def serve(self, scheduler: Scheduler) -> None:
        """Notify this scheduler of free slots, as its model would."""
        self._scheduler = scheduler

    def reserve(self) -> int | None:
        return self._free.popleft() if self._free else None

    def reserve_number(self, number: int) -> int | None:
        if number not in self._free:
            return None
        self._free.remove(number)
        return number

    def release(self, slot: int) -> None:
        self._free.appendleft(slot)

    def run(self, slot: int, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        assert batch, "a scheduler never runs an empty batch: this is a bug"
        for inflight in batch:
            inflight.timing = ExecutionTiming()
        self.batches.append(batch)
        self.reasons.append(close_reason)
        self.rows.append(batch if rows is None else rows)
        self.slots.append(slot)
        self.running[slot] = batch

    def finish(self, slot: int | None = None) -> list[Inflight]:
        """End the execution in `slot`, by default the oldest one, and return its unsettled requests."""
        slot = next(iter(self.running)) if slot is None else slot
        batch = self.running.pop(slot)
        self._free.append(slot)
        if isinstance(self._scheduler, SequenceScheduler):
            self._scheduler.batch_done(batch)
        self.dispatch()
        return batch

    def dispatch(self) -> None:
        """Notify the scheduler of a free slot."""
        if self._scheduler is not None:
            self._scheduler.dispatch()

    def again(self, slot: int) -> None:
        """End the execution in `slot`; all of its requests must run again."""
        batch = self.running.pop(slot)
        assert isinstance(self._scheduler, SequenceScheduler), "only requests of sequences run again"
        for inflight in batch:
            self._scheduler.run_again(inflight)
        self._free.append(slot)
        self.dispatch()

    @property
    def sizes(self) -> list[int]:
        """Number of requests in each batch."""
        return [len(batch) for batch in self.batches]


@dataclass
class Execution:
    """Execution of a puppet instance, which blocks its thread until the test ends it.

    With a backend that works by request, `requests` are the instance's requests, and `inputs` and `outputs` are empty.
    """

    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]
    placement: Placement
    requests: Sequence[EngineRequest] = ()
    _ended: threading.Event = field(default_factory=threading.Event)
    _result: Mapping[str, Array] | BaseException | None = None

    def finish(self, outcome: Mapping[str, Array] | BaseException = MappingProxyType({})) -> None:
        self._result = outcome
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        self.finish(error)

    def wait(self) -> Mapping[str, Array]:
        if not self._ended.wait(_PATIENCE):
            raise TimeoutError(f"nobody ended the execution within {_PATIENCE} s")
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None, "ended with a result: this is a bug"
        return self._result


class PuppetBackend:
    """Engine with executions that the test gets from `next_execution` and ends.

    `description`: description of its models. `fail_to_open`: error of every load. With `by_request`, instances get
    single requests, which the test answers before or after it ends the execution.
    """

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = False
    in_place: Collection[str] = ()

    code = ""
    """Description of the code that it runs from the model repository."""

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return self.code

    def __init__(
        self,
        description: ModelDescription | None = None,
        fail_to_open: Exception | None = None,
        *,
        by_request: bool = False,
    ) -> None:
        self.description = description
        self.by_request = by_request
        self.fail_to_open = fail_to_open
        self.sources: list[ModelSource] = []
        self.open_models = 0
        self.open_instances = 0
        self._executions: queue.SimpleQueue[Execution] = queue.SimpleQueue()

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "_PuppetModel":
        if self.fail_to_open is not None:
            raise self.fail_to_open
        self.sources.append(source)
        self.open_models += 1
        return _PuppetModel(self)

    def next_execution(self, timeout: float = _PATIENCE) -> Execution:
        """Return the next execution, once an instance has begun it. Blocks; raises queue.Empty."""
        return self._executions.get(timeout=timeout)

    def begin(self, execution: Execution) -> Mapping[str, Array]:
        self._executions.put(execution)
        return execution.wait()


class _PuppetModel:
    def __init__(self, backend: PuppetBackend) -> None:
        self._backend = backend

    def describe(self) -> ModelDescription | None:
        return self._backend.description

    def instance(self, spec: InstanceSpec) -> Executor:
        self._backend.open_instances += 1
        kind = _RequestPuppetInstance if self._backend.by_request else _PuppetInstance
        return kind(self._backend, spec.placement)

    def close(self) -> None:
        self._backend.open_models -= 1


class _Puppet:
    def __init__(self, backend: PuppetBackend, placement: Placement) -> None:
        self._backend = backend
        self._placement = placement

    def close(self) -> None:
        self._backend.open_instances -= 1


class _PuppetInstance(_Puppet):
    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        return self._backend.begin(Execution(inputs, outputs, self._placement))


class _RequestPuppetInstance(_Puppet):
    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        self._backend.begin(Execution({}, (), self._placement, requests))
