"""One step of an ensemble in one wave: a request to the step's model, and the responses to it.

This file knows nothing of limits, other steps or the ensemble's response; `ensemble` does.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from modserve.core.errors import from_exception, unavailable
from modserve.core.requests import request_ids
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.servable import Handle, submit_traced
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.resources.flow import Flow

from . import dataflow
from .dataflow import StepPlan, Value, Wave
from .scheduler import Clock

STUCK_S = 60.0
"""How long a decoupled step waits for those behind it while nothing moves. They may wait for what it holds itself, so
it then waits no more, and its responses are kept."""


class StepOwner(Protocol):
    """The request to the ensemble that a step belongs to: `ensemble.EnsembleRun`."""

    inflight: Inflight
    plan: StepPlan
    clock: Clock

    @property
    def callers(self) -> tuple[ModelId, ...]: ...

    def device_outputs(self, index: int) -> frozenset[str]: ...

    def begun(self, step: "StepExecution") -> None: ...

    def settled(self, step: "StepExecution", outcome: Outcome, final: bool) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class StepExecution:
    """Implements `core.requests.response.ResponseSink` for the request to the step's model.

    It is made, then maybe held until the limit lets it begin, then submitted once. `waited_ns` is how long the steps
    before it have waited, and later also how long it has waited for the limit.
    """

    owner: StepOwner
    index: int
    wave: Wave
    handle: Handle
    inputs: Mapping[str, dataflow.Entry]
    waited_ns: int
    submitted: bool = False
    batch_size: int = 0
    begin_by_ns: int = field(init=False)
    """When it is too late to submit the request; 0 for never."""
    sequence: dataflow.Sequenced = None
    """The sequence parameters of its request, if they come from a step before it."""
    decoupled: bool = field(init=False)
    _inflight: Inflight | None = None
    _cancelled: bool = False
    _held_ns: int = 0
    _responses: int = 0

    def __post_init__(self) -> None:
        self.begin_by_ns = self.owner.inflight.deadline_ns
        self.decoupled = self.handle.servable.config.decoupled
        for entry in self.inputs.values():
            if isinstance(entry, Value) and entry.sequence is not None:
                self.sequence = entry.sequence

    @property
    def first(self) -> tuple[int, ...]:
        """The place of the next response to the ensemble's request that may follow from it."""
        return (*self.wave.order, self._responses) if self.decoupled else self.wave.order

    def parameters(self) -> dict[str, ParameterValue]:
        """Those of the ensemble's request, and the sequence parameters of the steps before."""
        return {**self.owner.inflight.request.parameters, **(self.sequence or {})}

    def next_wave(self) -> Wave:
        if not self.decoupled:
            return self.wave
        wave = Wave(self.owner.plan, self.first)
        self._responses += 1
        return wave

    def hold(self) -> None:
        """It waits for the limit from now on, as long as the request may still wait."""
        self._held_ns = now_ns = self.owner.clock.now_ns()
        timeout_ns = self.owner.inflight.request.timeout_ns
        if timeout_ns:
            limit_ns = now_ns + max(0, timeout_ns - self.waited_ns)
            self.begin_by_ns = min(self.begin_by_ns or limit_ns, limit_ns)

    def waited_until(self, response: InferenceResponse) -> int:
        """How long the steps up to a response of this one have waited. Execution time does not count."""
        inflight, in_queue_ns = self._inflight, 0
        if inflight is not None and inflight.timing is not None and inflight.timing.compute_start_ns:
            in_queue_ns = max(0, inflight.timing.compute_start_ns - inflight.queue_start_ns)
        return self.waited_ns + in_queue_ns + response.waited_ns

    def compute_ns(self) -> tuple[int, int, int]:
        """What it took until now: input, inference and output."""
        timing = None if self._inflight is None else self._inflight.timing
        if timing is None or not timing.compute_start_ns:
            return 0, 0, 0
        now_ns = self.owner.clock.now_ns()
        input_end_ns = timing.compute_input_end_ns or timing.compute_start_ns
        output_start_ns = timing.compute_output_start_ns or now_ns
        end_ns = timing.compute_end_ns or now_ns
        return input_end_ns - timing.compute_start_ns, output_start_ns - input_end_ns, end_ns - output_start_ns

    def submit(self) -> None:
        """Submit the request to the model. It never raises: the owner hears of a failure."""
        self.submitted = True
        now_ns = self.owner.clock.now_ns()
        if self._held_ns:
            self.waited_ns += now_ns - self._held_ns
            self.owner.begun(self)
        try:
            self._inflight = inflight = self._submitted(self._request(now_ns), now_ns)
            inflight.callers = self.owner.callers
            inflight.device_outputs = self.owner.device_outputs(self.index)
            self.batch_size = inflight.batch_size
            if self.decoupled:
                self._pace(inflight)
            if self._cancelled:  # re-entrancy: another failure has ended the ensemble's request meanwhile
                inflight.cancel()
        except Exception as error:
            self.owner.settled(self, from_exception(error, f"step {self.index} failed"), True)
            self.inputs = {}

    def _pace(self, inflight: Inflight) -> None:
        """Let the model wait for those behind it, unless one of them is the same model: it could wait for itself."""
        plan, model = self.owner.plan, self.handle.servable.id.name
        alone = sum(step.model == model for step in plan.steps) == 1
        if plan.most_inflight and alone and not inflight.ordered and not inflight.settled:
            inflight.flow = Flow(lambda waiting: None, STUCK_S, threading.TIMEOUT_MAX, most=plan.most_inflight)

    def passed_on(self) -> None:
        """One of its responses has reached the steps behind it."""
        if self._inflight is not None:
            self._inflight.sent()

    def cancel(self) -> None:
        """Nobody wants its responses any more."""
        self._cancelled = True
        if self._inflight is not None:
            self._inflight.cancel()

    def settle(self, outcome: Outcome, final: bool) -> None:
        self.owner.settled(self, outcome, final)
        if final:
            self.inputs = {}
            self._inflight = None  # which points back to here

    def _submitted(self, request: InferenceRequest, now_ns: int) -> Inflight:
        servable, trace = self.handle.servable, self.owner.inflight.trace
        if trace is None:
            return servable.submit(request, self, now_ns)
        return submit_traced(trace.child(servable.id), servable, request, self, now_ns)

    def _request(self, now_ns: int) -> InferenceRequest:
        """The request to the step's model: the ensemble's, with what is left of its time."""
        plan, whole, config = self.owner.plan, self.owner.inflight.request, self.handle.servable.config
        if self.begin_by_ns and now_ns >= self.begin_by_ns:
            raise unavailable("Request timeout expired")
        tensors: dict[str, Tensor] = {}
        for name, entry in self.inputs.items():
            if isinstance(entry, Value):
                tensors[name] = entry.tensor
                if (spec := config.inputs_by_name.get(name)) is not None:
                    tensors[name] = dataflow.fitted(entry.tensor, entry.batch_size, spec.dims, config.batching)
        step = plan.steps[self.index]
        return InferenceRequest(
            step.model,
            tensors,
            plan.requested[self.index],
            step.version,
            whole.id,
            self.parameters() if self.sequence else whole.parameters,
            self.owner.inflight.deadline_ns,
            whole.timeout_ns and max(1, whole.timeout_ns - self.waited_ns),
            request_id=request_ids.of(whole),
            tenant=whole.tenant,
        )


class StepLimit:
    """How many requests a step has under way, and who waits for it, of all requests to the ensemble."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: OrderedDict[StepExecution, None] = OrderedDict()
        self._giving = False

    def take(self, step: StepExecution) -> bool:
        """Whether a step may begin at once; if not, it is submitted when it may."""
        if self._free:
            self._free -= 1
            return True
        self._waiting[step] = None
        return False

    def leave(self, step: StepExecution) -> None:
        """A step waits no longer, if it did."""
        self._waiting.pop(step, None)

    def clear(self) -> None:
        self._waiting.clear()

    def give(self) -> None:
        self._free += 1
        if self._giving:
            return  # re-entrancy: what was submitted below failed at once
        self._giving = True
        while self._free and self._waiting:
            step, _ = self._waiting.popitem(last=False)
            self._free -= 1
            step.submit()
        self._giving = False
