"""The scheduler of an ensemble. Each request starts the steps of the ensemble as their inputs arrive.

A `StepExecution` is one step in one wave: a request to the step's model, and the responses to it. It knows nothing of
limits, other steps or the ensemble's response: its `EnsembleRun` does, which it calls back. `dataflow` has the pure
rules that decide which steps are ready.
"""

import copy
import heapq
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Protocol, TypeAlias

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, cancelled, from_exception, internal, invalid, unavailable
from modserve.core.requests import request_ids
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.runtime.clock import Alarm, Clock
from modserve.core.servable import Borrow, Handle, submit_traced
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import STOPPING, ModelId
from modserve.resources.flow import Flow

from . import dataflow
from .batching import Reason
from .dataflow import MissingReason, StepPlan, Value, Wave

STUCK_S = 60.0
"""Time that a decoupled step waits for those behind it while nothing moves. They may wait for what it holds itself, so
it then waits no more, and its responses are kept."""


class StepOwner(Protocol):
    """The request to the ensemble that a step belongs to: `EnsembleRun`."""

    inflight: Inflight
    plan: StepPlan
    clock: Clock

    @property
    def callers(self) -> tuple[ModelId, ...]: ...

    def device_outputs(self, index: int) -> frozenset[str]: ...

    def on_begin(self, step: "StepExecution") -> None: ...

    def on_settle(self, step: "StepExecution", outcome: Outcome, final: bool) -> None: ...


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
    """Time from which it is too late to submit the request; 0 for never."""
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
        """Return the parameters of the ensemble's request, and the sequence parameters of the steps before."""
        return {**self.owner.inflight.request.parameters, **(self.sequence or {})}

    def next_wave(self) -> Wave:
        if not self.decoupled:
            return self.wave
        wave = Wave(self.owner.plan, self.first)
        self._responses += 1
        return wave

    def hold(self) -> None:
        """Hold the step until the limit lets it begin, for as long as the request may still wait."""
        self._held_ns = now_ns = self.owner.clock.now_ns()
        timeout_ns = self.owner.inflight.request.timeout_ns
        if timeout_ns:
            limit_ns = now_ns + max(0, timeout_ns - self.waited_ns)
            self.begin_by_ns = min(self.begin_by_ns or limit_ns, limit_ns)

    def total_wait_ns(self, response: InferenceResponse) -> int:
        """Return the time that the steps up to a response of this one have waited. Execution time does not count."""
        inflight, in_queue_ns = self._inflight, 0
        if inflight is not None and inflight.timing is not None and inflight.timing.compute_start_ns:
            in_queue_ns = max(0, inflight.timing.compute_start_ns - inflight.queue_start_ns)
        return self.waited_ns + in_queue_ns + response.waited_ns

    def compute_ns(self) -> tuple[int, int, int]:
        """Return the times until now: input, inference and output."""
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
            self.owner.on_begin(self)
        try:
            self._inflight = inflight = self._submit_to_model(self._request(now_ns), now_ns)
            inflight.callers = self.owner.callers
            inflight.device_outputs = self.owner.device_outputs(self.index)
            self.batch_size = inflight.batch_size
            if self.decoupled:
                self._pace(inflight)
            if self._cancelled:  # re-entrancy: another failure has ended the ensemble's request meanwhile
                inflight.cancel()
        except Exception as error:
            self.owner.on_settle(self, from_exception(error, f"step {self.index} failed"), True)
            self.inputs = {}

    def _pace(self, inflight: Inflight) -> None:
        """Let the model wait for those behind it, unless one of them is the same model: it could wait for itself."""
        plan, model = self.owner.plan, self.handle.servable.id.name
        alone = sum(step.model == model for step in plan.steps) == 1
        if plan.most_inflight and alone and not inflight.ordered and not inflight.settled:
            inflight.flow = Flow(lambda waiting: None, STUCK_S, threading.TIMEOUT_MAX, most=plan.most_inflight)

    def on_passed_on(self) -> None:
        """Record that one of its responses has reached the steps behind it."""
        if self._inflight is not None:
            self._inflight.on_sent()

    def cancel(self) -> None:
        """Cancel the step, since its responses are no longer wanted."""
        self._cancelled = True
        if self._inflight is not None:
            self._inflight.cancel()

    def settle(self, outcome: Outcome, final: bool) -> None:
        self.owner.on_settle(self, outcome, final)
        if final:
            self.inputs = {}
            self._inflight = None  # which points back to here

    def _submit_to_model(self, request: InferenceRequest, now_ns: int) -> Inflight:
        servable, trace = self.handle.servable, self.owner.inflight.trace
        if trace is None:
            return servable.submit(request, self, now_ns)
        return submit_traced(trace.child(servable.id), servable, request, self, now_ns)

    def _request(self, now_ns: int) -> InferenceRequest:
        """Return the request to the step's model: the ensemble's, with what is left of its time."""
        plan, whole, config = self.owner.plan, self.owner.inflight.request, self.handle.servable.config
        if self.begin_by_ns and now_ns >= self.begin_by_ns:
            raise unavailable("Request timeout expired")
        tensors: dict[str, Tensor] = {}
        for name, entry in self.inputs.items():
            if isinstance(entry, Value):
                tensors[name] = entry.tensor
                if (spec := config.inputs_by_name.get(name)) is not None:
                    tensors[name] = dataflow.fit(entry.tensor, entry.batch_size, spec.dims, config.batching)
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
    """Requests that a step has under way, and who waits for it, of all requests to the ensemble."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: OrderedDict[StepExecution, None] = OrderedDict()
        self._giving = False

    def take(self, step: StepExecution) -> bool:
        """True if a step may begin at once; otherwise it is submitted when it may."""
        if self._free:
            self._free -= 1
            return True
        self._waiting[step] = None
        return False

    def leave(self, step: StepExecution) -> None:
        """Remove a step that waits, if it did."""
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


_MOST_PLANS = 64
"""Plans kept for the sets of outputs that clients ask for."""

OnDone: TypeAlias = Callable[[Inflight, ExecutionTiming, ModserveError | None], None]
"""Counts a request that is over, before its client gets the last response."""
OnResponse: TypeAlias = Callable[[Inflight, int, int], None]
"""Counts a response of a decoupled ensemble, with the time of the one before it (0 for none) and now."""


class EnsembleScheduler:
    """Runs the requests to a model that is made of others, which `borrow` lends.

    Nothing waits here, but for the limit of requests that a step may have under way: the models' own schedulers queue
    what the steps send them.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        borrow: Borrow,
        clock: Clock,
        on_done: OnDone,
        on_response: OnResponse,
    ) -> None:
        assert config.ensemble is not None, "only made for ensembles: this is a bug"
        most = config.ensemble.max_inflight_requests
        self.limits = [StepLimit(most) for _ in config.ensemble.steps] if most else []
        """Limits by step; none if the ensemble has no limit."""
        self.config = config
        self.id = ModelId(config.name, version)
        self.borrow = borrow
        self.clock = clock
        self.on_response = on_response
        self._on_done = on_done
        self._plan = lru_cache(_MOST_PLANS)(partial(StepPlan, config.ensemble))
        self._stopped = False
        self.runs: dict[EnsembleRun, None] = {}

    def __repr__(self) -> str:
        return f"EnsembleScheduler({self.id.name}, {len(self.runs)} under way)"

    def enqueue(self, inflight: Inflight) -> None:
        if self._stopped:
            raise unavailable(f"{inflight.request.label}{STOPPING}")
        inflight.queue_start_ns = self.clock.now_ns()
        run = EnsembleRun(self, self._plan(inflight.output_names), inflight)
        self.runs[run] = None
        inflight.on_cancel = run.on_cancel
        self.clock.call_soon(run.start)  # a run may end as it starts, and must not before this returns

    def hurry(self) -> None:
        """Stop holding steps back for others."""

    def stop(self) -> None:
        self._stopped = True

    def close(self, error: ModserveError) -> None:
        self._stopped = True
        self.fail_waiting(error)

    def fail_waiting(self, error: ModserveError) -> None:
        for limit in self.limits:
            limit.clear()
        for run in list(self.runs):
            run.end(error)

    def on_end(self, run: "EnsembleRun", timing: ExecutionTiming, error: ModserveError | None) -> None:
        """Record that a request is over. Its client gets the last response afterwards."""
        self.runs.pop(run, None)
        self._on_done(run.inflight, timing, error)


class EnsembleRun:
    """Run of one request to an ensemble: owns its steps, which call `on_begin` and `on_settle`; these never raise.

    It borrows all models that it needs from `start` to its end. A failed step ends it, and then the other steps under
    way are cancelled. Only `_finish` sets `over`, once; after that no step begins, and the client receives nothing
    more.
    """

    def __init__(self, ensemble: EnsembleScheduler, plan: StepPlan, inflight: Inflight) -> None:
        self.inflight = inflight
        self.plan = plan
        self.clock = ensemble.clock
        self.over = False
        self._ensemble = ensemble
        self._config = ensemble.config
        self._limits = ensemble.limits
        self._steps: dict[StepExecution, None] = {}
        """Runs under way, and runs that wait for the limit, in the order in which they began."""
        self._compute_ns = [0, 0, 0]
        """Input, inference and output, of all steps."""
        self._handles: dict[tuple[str, int | None], Handle] = {}
        self._complete: list[tuple[tuple[int, ...], InferenceResponse]] = []
        """A heap of responses by their place among all of them."""
        self._order: list[tuple[tuple[int, ...], int, StepExecution]] = []
        """A heap of the steps by the place of the next response that may follow from them, or an earlier one."""
        self._producers: dict[Wave, StepExecution] = {}
        """Decoupled steps behind the waves in which a step waits for the limit, by wave."""
        self._held: list[tuple[int, int, StepExecution]] = []
        """Heap of the steps held by the limit, by the time at which they have waited too long."""
        self._count = itertools.count()
        self._reads_inputs = False
        self._start_ns = 0
        self._response_ns = 0
        """Time of a decoupled ensemble's latest response; 0 before the first."""
        self._alarm = Alarm(self.clock, self._look)

    def device_outputs(self, index: int) -> frozenset[str]:
        """Return the outputs of a step that may stay on a device: for other steps, and for receivers on devices.

        None, where a model keeps its responses: it reads what it gets, on this thread.
        """
        if self._reads_inputs:
            return frozenset()
        between, wanted_there = self.plan.between[index], self.inflight.device_outputs
        if not wanted_there:
            return between
        outputs = self.plan.steps[index].outputs
        return between.union(name for name in self.plan.requested[index] if outputs[name] in wanted_there)

    @property
    def callers(self) -> tuple[ModelId, ...]:
        """The ensemble, behind the models that wait for its response."""
        return (*self.inflight.callers, self._ensemble.id)

    def start(self) -> None:
        if self.over:
            return
        self._start_ns = self.clock.now_ns()
        try:
            for name, version in self.plan.needs:
                self._handles[name, version] = self._ensemble.borrow(name, version)
            self._reads_inputs = any(handle.servable.config.cached for handle in self._handles.values())
            inflight = self.inflight
            entries: dict[str, dataflow.Entry] = {spec.name: MissingReason.ABSENT for spec in self._config.inputs}
            entries |= {name: Value(tensor, inflight.batch_size) for name, tensor in inflight.inputs.items()}
            wave = Wave(self.plan)
            self._advance(wave, wave.settle(entries))
        except ModserveError as error:
            self.fail(error)
            return
        self._flush()

    def on_cancel(self, inflight: Inflight) -> None:
        """Finish the run, since the client has cancelled the request, and knows."""
        self._finish(cancelled())

    def fail(self, error: ModserveError) -> None:
        """End it because of an error. The client gets it with the name of the ensemble."""
        named = copy.copy(error)
        named.message = f"in ensemble '{self._config.name}', {error.message}"
        named.args = (named.message,)
        self.end(named)

    def end(self, error: ModserveError) -> None:
        if not self.over:
            self._finish(error)
            self.inflight.settle(error)

    # What steps tell

    def on_begin(self, step: StepExecution) -> None:
        """Record that a step begins that had to wait for the limit."""
        wave = step.wave
        wave.held -= 1
        if not wave.held and (producer := self._producers.pop(wave, None)) is not None:
            producer.on_passed_on()

    def on_settle(self, step: StepExecution, outcome: Outcome, final: bool) -> None:
        """Take an outcome of a step's model, the last one if `final`; or the failure to submit the step."""
        if final:
            self._steps.pop(step, None)
            for index, ns in enumerate(step.compute_ns()):
                self._compute_ns[index] += ns
            if self._limits:
                self._limits[step.index].give()
        if self.over:
            return
        if isinstance(outcome, ModserveError):
            self.fail(self._cause(step, outcome))
            return
        if outcome is not None:
            try:
                self._follow(step, outcome)
            except ModserveError as error:
                self.fail(error)
                return
        self._flush()

    def _cause(self, step: StepExecution, error: ModserveError) -> ModserveError:
        """Return the error of a step, or of an earlier step with an output that contradicts its configuration."""
        if error.code is not Code.INVALID_ARG:
            return error
        text = dataflow.wrong_input(self.plan, step.index, step.inputs, self._config_of)
        return internal(text) if text else error

    def _config_of(self, index: int) -> ModelConfig:
        step = self.plan.steps[index]
        return self._handles[step.model, step.version].servable.config

    # Steps

    def _follow(self, step: StepExecution, response: InferenceResponse) -> None:
        """Go on with what a response of a step makes ready."""
        wave, sequence, index = step.next_wave(), step.sequence, step.index
        if not response.parameters.keys().isdisjoint(dataflow.SEQUENCE_PARAMETERS):
            sequence = dataflow.sequence_parameters(response.parameters, step.parameters())
        outputs = self.plan.requested[index]
        entries = dataflow.follow_up(self.plan.steps[index], response, outputs, step.batch_size, sequence)
        self._advance(wave, wave.settle(entries, step.total_wait_ns(response)))
        if not step.decoupled:
            return
        if wave.held and not self.over:
            self._producers[wave] = step
        else:
            step.on_passed_on()

    def _advance(self, wave: Wave, ready: list[int]) -> None:
        """Begin what is ready in a wave, or skip it, which may make more ready."""
        plan, pending = self.plan, deque(ready)
        while pending and not self.over:
            index = pending.popleft()
            step = plan.steps[index]
            inputs, condition = wave.take(index)
            waited_ns = wave.longest_wait_ns(step.needs)
            handle = self._handles[step.model, step.version]
            if not dataflow.runs(step, inputs, condition, handle.servable.config.optional_inputs):
                skipped = {step.outputs[name]: MissingReason.SKIPPED for name in plan.requested[index]}
                pending.extend(wave.settle(skipped, waited_ns))
                continue
            execution = StepExecution(self, index, wave, handle, inputs, waited_ns)
            self._steps[execution] = None
            if self._config.decoupled:
                heapq.heappush(self._order, (execution.first, next(self._count), execution))
            if not self._limits or self._limits[index].take(execution):
                execution.submit()
            else:
                self._hold(execution)
        if not self.over and wave.complete:
            self._collect(wave)

    def _hold(self, step: StepExecution) -> None:
        """Hold a step that waits for the limit, but not for ever."""
        step.wave.held += 1
        step.hold()
        if step.begin_by_ns:
            heapq.heappush(self._held, (step.begin_by_ns, next(self._count), step))
            self._alarm.at(self._first_held_ns())

    def _first_held_ns(self) -> int:
        """Return the time at which the first step held by the limit has waited too long; 0 for never."""
        held = self._held
        while held and held[0][2].submitted:
            heapq.heappop(held)
        return held[0][0] if held else 0

    def _look(self) -> None:
        when_ns = self._first_held_ns()
        if when_ns and when_ns <= self.clock.now_ns():
            self.fail(unavailable("Request timeout expired"))
        else:
            self._alarm.at(when_ns)

    # Responses

    def _collect(self, wave: Wave) -> None:
        """Collect a complete response of the ensemble, without outputs that were not produced."""
        config, inflight = self._config, self.inflight
        entries = wave.outputs(inflight.output_names)
        if config.decoupled and all(entry is MissingReason.SKIPPED for entry in entries.values()):
            return
        outputs: dict[str, Tensor] = {}
        parameters: Mapping[str, ParameterValue] = {}
        for name, entry in entries.items():
            if isinstance(entry, Value):
                outputs[name] = dataflow.as_output(config.outputs_by_name[name], entry, inflight.batch_size > 0)
                parameters = entry.sequence or parameters
        skipped = frozenset([name for name, entry in entries.items() if entry is MissingReason.SKIPPED])
        version, id, waited_ns = self._ensemble.id.version, inflight.request.id, wave.longest_wait_ns(entries)
        response = InferenceResponse(config.name, version, outputs, id, parameters, skipped, waited_ns)
        heapq.heappush(self._complete, (wave.order, response))

    def _flush(self) -> None:
        """Give the client its next responses in order. Re-entrancy: it may then cancel the request."""
        while (response := self._due()) is not None:
            last = not self._config.decoupled or not (self._complete or self._steps)
            if self._config.decoupled:
                since_ns, self._response_ns = self._response_ns, self.clock.now_ns()
                self._ensemble.on_response(self.inflight, since_ns, self._response_ns)
            if last:
                self._finish(None)
            self.inflight.settle(response, last)
        if self.over or self._steps:
            return
        if self._config.decoupled:
            self._finish(None)
            self.inflight.settle(None)
        else:
            reason = "at least one output is not set while no more ensemble steps can be made"
            self.fail(invalid(f"{self.inflight.request.label}unexpected deadlock, {reason}"))

    def _due(self) -> InferenceResponse | None:
        """Return the next response, if no other can come before it any more."""
        if self.over or not self._complete:
            return None
        first = self._first()
        blocked = first is not None and self._complete[0][0] > first
        return None if blocked else heapq.heappop(self._complete)[1]

    def _first(self) -> tuple[int, ...] | None:
        """Return the place of the first response that may still come."""
        order = self._order
        while order:
            first, number, step = order[0]
            if step not in self._steps:
                heapq.heappop(order)
            elif step.first != first:
                heapq.heapreplace(order, (step.first, number, step))
            else:
                return first
        return None

    # The end

    def _finish(self, error: ModserveError | None) -> None:
        """End the run: return all models, and let no step go on."""
        self.over = True
        self.inflight.on_cancel = None
        self._alarm.end()
        ended = list(self._steps)
        for step in ended:  # before the first is cancelled, or the limit would let the others begin one by one
            if not step.submitted and self._limits:
                self._limits[step.index].leave(step)
        for step in ended:
            step.cancel()
        for kept in (self._steps, self._held, self._order, self._producers, self._complete):
            kept.clear()
        for handle in self._handles.values():
            handle.release()
        self.inflight.timing = timing = self._timing()
        self._ensemble.on_end(self, timing, error)

    def _timing(self) -> ExecutionTiming:
        """Return the timing as Triton counts an ensemble: its steps as if they had run one after the other."""
        timing = ExecutionTiming(self.inflight.batch_size or 1, Reason.SINGLE.value)
        input_ns, infer_ns, output_ns = self._compute_ns
        timing.compute_start_ns = self._start_ns or self.inflight.queue_start_ns
        timing.compute_input_end_ns = timing.compute_start_ns + input_ns
        timing.compute_output_start_ns = timing.compute_input_end_ns + infer_ns
        timing.compute_end_ns = timing.compute_output_start_ns + output_ns
        return timing
