"""Runs the steps of ensembles: a thin loop around `dataflow`, which says what is ready."""

import copy
import heapq
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from modserve.core.ensemble_config import Ensembling
from modserve.core.errors import ModserveError, cancelled, from_exception, invalid, unavailable
from modserve.core.flow import Flow
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.request import InferenceRequest, ParameterValue
from modserve.core.response import InferenceResponse, Outcome
from modserve.core.servable import Borrow, Handle, submit_traced
from modserve.core.tensor import Tensor
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId

from . import dataflow
from .batching import Reason
from .dataflow import Missing, Plan, Value, Wave
from .scheduler import Alarm, Clock

_MOST_PLANS = 64
"""Plans kept for the sets of outputs that clients ask for."""

STUCK_S = 60.0
"""How long a decoupled step waits for those behind it while nothing moves. They may wait for what it holds itself."""

Done = Callable[[Inflight, ExecutionTiming, ModserveError | None], None]
"""Counts a request that is over, before its last answer is given."""


class EnsembleScheduler:
    """Implements `scheduler.Scheduler` for a model that is made of others, which `borrow` lends.

    Nothing waits here: the models' own schedulers queue what the steps ask of them. A request borrows all models that
    it needs from its start to its end. A failed step ends its request, and the other steps under way are cancelled.
    """

    def __init__(self, config: ModelConfig, version: int, borrow: Borrow, clock: Clock, done: Done) -> None:
        assert config.ensemble is not None, "only made for ensembles: this is a bug"
        self.config = config
        self.version = version
        self.ensembling: Ensembling = config.ensemble
        self.borrow = borrow
        self.clock = clock
        self.done = done
        self.runs: set[_Run] = set()
        most = self.ensembling.max_inflight_requests
        self.limits = [_Limit(most) for _ in self.ensembling.steps] if most else []
        self._plans: dict[frozenset[str], Plan] = {}
        self._stopped = False

    def __repr__(self) -> str:
        return f"EnsembleScheduler({self.config.name}, {len(self.runs)} under way)"

    def enqueue(self, inflight: Inflight) -> None:
        if self._stopped:
            raise unavailable(
                f"{inflight.request.label}Server is stopping, scheduler for model has stopped accepting new "
                "inference requests"
            )
        inflight.queue_start_ns = self.clock.now_ns()
        run = _Run(self, inflight)
        self.runs.add(run)
        inflight.on_cancel = run.cancelled
        self.clock.call_soon(run.start)  # what comes of it may be known at once, and must not be told before this ends

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

    def plan(self, outputs: tuple[str, ...]) -> Plan:
        """What is to be done for these outputs."""
        key = frozenset(outputs)
        found = self._plans.get(key)
        if found is None:
            found = Plan(self.ensembling, outputs)
            if len(self._plans) < _MOST_PLANS:
                self._plans[key] = found
        return found


class _Limit:
    """How many requests a step has under way, and who waits for it, of all requests to the ensemble."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: OrderedDict[_Execution, None] = OrderedDict()
        self._giving = False

    def take(self, execution: "_Execution") -> bool:
        """Whether it may go on at once; if not, it is submitted when it may."""
        if self._free:
            self._free -= 1
            return True
        self._waiting[execution] = None
        return False

    def leave(self, execution: "_Execution") -> None:
        """It waits no longer, if it did."""
        self._waiting.pop(execution, None)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()

    def give(self) -> None:
        self._free += 1
        if self._giving:
            return  # what was submitted here failed at once
        self._giving = True
        while self._free and self._waiting:
            execution, _ = self._waiting.popitem(last=False)
            self._free -= 1
            execution.submit()
        self._giving = False


class _Run:
    """One request to the ensemble."""

    def __init__(self, scheduler: EnsembleScheduler, inflight: Inflight) -> None:
        self.scheduler = scheduler
        self.inflight = inflight
        self.plan = scheduler.plan(inflight.output_names)
        self.executions: set[_Execution] = set()
        """Steps under way, and those that wait for the limit."""
        self.over = False
        self.compute_ns = [0, 0, 0]
        """Input, inference and output, of all steps."""
        self._handles: dict[tuple[str, int | None], Handle] = {}
        self._complete: list[tuple[tuple[int, ...], InferenceResponse]] = []
        """A heap of responses by their place among all of them."""
        self._order: list[tuple[tuple[int, ...], int, _Execution]] = []
        """A heap of the executions by the place of the next response that may follow from them, or an earlier one."""
        self._producers: dict[Wave, _Execution] = {}
        """Of waves in which a step waits for the limit: the decoupled step whose response they come from."""
        self._held: list[tuple[int, int, _Execution]] = []
        """A heap of those that had to wait for the limit, by when they have waited too long."""
        self._count = itertools.count()
        self._start_ns = 0
        self._alarm = Alarm(scheduler.clock, self._look)

    def start(self) -> None:
        if self.over:
            return
        self._start_ns = self.scheduler.clock.now_ns()
        try:
            for name, version in self.plan.needs:
                self._handles[name, version] = self.scheduler.borrow(name, version)
            inflight = self.inflight
            entries = {
                spec.name: Value(inflight.inputs[spec.name], inflight.batch_size)
                if spec.name in inflight.inputs
                else Missing.ABSENT
                for spec in self.scheduler.config.inputs
            }
            wave = Wave(self.plan)
            self._advance(wave, wave.settle(entries))
        except ModserveError as error:
            self.fail(error)
            return
        self._flush()

    def cancelled(self, inflight: Inflight) -> None:
        """Nobody waits for it any more; who cancelled it tells the client."""
        self._finish(cancelled())

    def fail(self, error: ModserveError) -> None:
        """End it because of an error, which is told with the ensemble's name."""
        named = copy.copy(error)
        named.message = f"in ensemble '{self.scheduler.config.name}', {error.message}"
        named.args = (named.message,)
        self.end(named)

    def end(self, error: ModserveError) -> None:
        if not self.over:
            self._finish(error)
            self.inflight.settle(error)

    def answer(self, execution: "_Execution", response: InferenceResponse, final: bool) -> None:
        """A step has given a response, maybe not the only one."""
        if self.over:
            return
        try:
            wave = execution.next_wave()
            sequence = execution.sequence
            if not response.parameters.keys().isdisjoint(dataflow.SEQUENCE_PARAMETERS):
                sequence = dataflow.sequence_parameters(response.parameters, execution.parameters())
            entries = dataflow.follow_up(
                self.plan.steps[execution.index],
                response,
                self.plan.asked[execution.index],
                execution.batch_size,
                sequence,
            )
            self._advance(wave, wave.settle(entries, execution.waited_until(response)))
        except ModserveError as error:
            self.fail(error)
            return
        if execution.decoupled:
            if wave.held and not self.over:
                self._producers[wave] = execution
            else:
                execution.passed_on()
        if final:
            self.executions.discard(execution)
        self._flush()

    def begun(self, wave: Wave) -> None:
        """A step that had to wait for the limit begins."""
        wave.held -= 1
        if not wave.held and (producer := self._producers.pop(wave, None)) is not None:
            producer.passed_on()

    def complete(self, execution: "_Execution") -> None:
        """A step will give no more responses."""
        if not self.over:
            self.executions.discard(execution)
            self._flush()

    def _wait(self, execution: "_Execution", wave: Wave) -> None:
        """A step waits for the limit, and must not wait for ever."""
        wave.held += 1
        execution.hold(self.scheduler.clock.now_ns())
        if execution.begin_by_ns:
            heapq.heappush(self._held, (execution.begin_by_ns, next(self._count), execution))
            self._alarm.at(self._first_held_ns())

    def _first_held_ns(self) -> int:
        """When the first of those that wait for the limit has waited too long; 0 for never."""
        held = self._held
        while held and held[0][2].submitted:
            heapq.heappop(held)
        return held[0][0] if held else 0

    def _look(self) -> None:
        when_ns = self._first_held_ns()
        if when_ns and when_ns <= self.scheduler.clock.now_ns():
            self.fail(unavailable("Request timeout expired"))
        else:
            self._alarm.at(when_ns)

    def _advance(self, wave: Wave, ready: list[int]) -> None:
        """Begin what is ready in a wave, or skip it, which may make more ready."""
        plan, pending = self.plan, deque(ready)
        while pending and not self.over:
            index = pending.popleft()
            step = plan.steps[index]
            inputs, condition = wave.take(index)
            waited_ns = wave.waited_ns(step.needs)
            handle = self._handles[step.model, step.version]
            config = handle.servable.config
            if not dataflow.runs(step, inputs, condition, config.optional_inputs):
                skipped = {step.outputs[name]: Missing.SKIPPED for name in plan.asked[index]}
                pending.extend(wave.settle(skipped, waited_ns))
                continue
            execution = _Execution(self, index, wave, handle, inputs, waited_ns)
            self.executions.add(execution)
            if self.scheduler.config.decoupled:
                heapq.heappush(self._order, (execution.first, next(self._count), execution))
            limits = self.scheduler.limits
            if not limits or limits[index].take(execution):
                execution.submit()
            else:
                self._wait(execution, wave)
        if not self.over and wave.complete:
            self._collect(wave)

    def _collect(self, wave: Wave) -> None:
        """A response of the ensemble is there. What was not produced is left out."""
        config, inflight = self.scheduler.config, self.inflight
        entries = wave.outputs(inflight.output_names)
        if config.decoupled and all(entry is Missing.SKIPPED for entry in entries.values()):
            return
        outputs: dict[str, Tensor] = {}
        parameters: Mapping[str, ParameterValue] = {}
        for name, entry in entries.items():
            if isinstance(entry, Value):
                outputs[name] = dataflow.answered(config.outputs_by_name[name], entry, inflight.batch_size > 0)
                parameters = entry.sequence or parameters
        response = InferenceResponse(
            config.name,
            self.scheduler.version,
            outputs,
            inflight.request.id,
            parameters,
            frozenset([name for name, entry in entries.items() if entry is Missing.SKIPPED]),
            wave.waited_ns(entries),
        )
        heapq.heappush(self._complete, (wave.order, response))

    def _flush(self) -> None:
        """Give the answers whose turn it is: before them no other can come any more."""
        if self.over:
            return
        complete = self._complete
        if not self.scheduler.config.decoupled:
            if complete:
                self._finish(None)
                self.inflight.settle(complete[0][1])
            elif not self.executions:
                self.fail(_deadlock(self.inflight.request))
            return
        first = self._first() if complete else None
        while complete and not self._is_over() and (first is None or complete[0][0] <= first):
            _, response = heapq.heappop(complete)
            if not complete and not self.executions:
                self._finish(None)
                self.inflight.settle(response)
            else:
                self.inflight.settle(response, final=False)
        if not self._is_over() and not self.executions:
            self._finish(None)
            self.inflight.settle(None)

    def _first(self) -> tuple[int, ...] | None:
        """The place of the first response that may still come."""
        order = self._order
        while order:
            first, number, execution = order[0]
            if execution not in self.executions:
                heapq.heappop(order)
            elif execution.first != first:
                heapq.heapreplace(order, (execution.first, number, execution))
            else:
                return first
        return None

    def _is_over(self) -> bool:
        """Asked again after a client was told something, who may have cancelled the request."""
        return self.over

    def _finish(self, error: ModserveError | None) -> None:
        """It is over: everything borrowed is given back, and nothing of it goes on."""
        self.over = True
        self.inflight.on_cancel = None
        self.scheduler.runs.discard(self)
        self._alarm.end()
        ended = list(self.executions)
        for execution in ended:
            execution.leave()  # or they would be asked, one after the other, as the others are cancelled
        for execution in ended:
            execution.cancel()
        self.executions.clear()
        self._held.clear()
        self._order.clear()
        self._producers.clear()
        for handle in self._handles.values():
            handle.release()
        self.inflight.timing = timing = self._timing()
        self.scheduler.done(self.inflight, timing, error)

    def _timing(self) -> ExecutionTiming:
        """As Triton counts an ensemble: what its steps took, as if they had run one after the other."""
        timing = ExecutionTiming(self.inflight.batch_size or 1, Reason.SINGLE.value)
        input_ns, infer_ns, output_ns = self.compute_ns
        timing.compute_start_ns = self._start_ns or self.inflight.queue_start_ns
        timing.compute_input_end_ns = timing.compute_start_ns + input_ns
        timing.compute_output_start_ns = timing.compute_input_end_ns + infer_ns
        timing.compute_end_ns = timing.compute_output_start_ns + output_ns
        return timing


class _Execution:
    """Implements `core.response.ResponseSink`: a step in one wave of a request.

    `waited_ns` is how long the steps before it have waited, and later also how long it has waited for the limit.
    """

    def __init__(
        self,
        run: _Run,
        index: int,
        wave: Wave,
        handle: Handle,
        inputs: Mapping[str, dataflow.Entry],
        waited_ns: int,
    ) -> None:
        self.run = run
        self.index = index
        self.submitted = False
        self.waited_ns = waited_ns
        self.begin_by_ns = run.inflight.deadline_ns
        """When it is too late to ask the model; 0 for never."""
        self.batch_size = 0
        self.sequence: dataflow.Sequenced = None
        """The sequence parameters of its request, if they come from a step before it."""
        self._wave = wave
        self._handle = handle
        self._inputs = inputs
        self._inflight: Inflight | None = None
        self._held_ns = 0
        self._responses = 0
        self.decoupled = handle.servable.config.decoupled
        for entry in inputs.values():
            if isinstance(entry, Value) and entry.sequence is not None:
                self.sequence = entry.sequence

    @property
    def first(self) -> tuple[int, ...]:
        """The place of the next response to the ensemble's request that may follow from it."""
        return (*self._wave.order, self._responses) if self.decoupled else self._wave.order

    def parameters(self) -> dict[str, ParameterValue]:
        """Those of the ensemble's request, and the sequence parameters of the steps before."""
        return {**self.run.inflight.request.parameters, **(self.sequence or {})}

    def next_wave(self) -> Wave:
        """What the next response belongs to."""
        if not self.decoupled:
            return self._wave
        wave = Wave(self.run.plan, self.first)
        self._responses += 1
        return wave

    def hold(self, now_ns: int) -> None:
        """It waits for the limit from now on, as long as the request may still wait."""
        self._held_ns = now_ns
        timeout_ns = self.run.inflight.request.timeout_ns
        if timeout_ns:
            limit_ns = now_ns + max(0, timeout_ns - self.waited_ns)
            self.begin_by_ns = min(self.begin_by_ns or limit_ns, limit_ns)

    def waited_until(self, response: InferenceResponse) -> int:
        """How long the steps up to a response of this one have waited; executing is no waiting."""
        inflight, in_queue_ns = self._inflight, 0
        if inflight is not None and inflight.timing is not None and inflight.timing.compute_start_ns:
            in_queue_ns = max(0, inflight.timing.compute_start_ns - inflight.queue_start_ns)
        return self.waited_ns + in_queue_ns + response.waited_ns

    def submit(self) -> None:
        """Ask the model. A failure ends the run; it never raises."""
        self.submitted = True
        now_ns = self.run.scheduler.clock.now_ns()
        if self._held_ns:
            self.waited_ns += now_ns - self._held_ns
            self.run.begun(self._wave)
        try:
            request = self._request(now_ns)
            servable, trace = self._handle.servable, self.run.inflight.trace
            if trace is None:
                self._inflight = servable.submit(request, self, now_ns)
            else:
                self._inflight = submit_traced(trace.child(servable.id), servable, request, self, now_ns)
            ensemble = self.run.scheduler
            self._inflight.callers = (
                *self.run.inflight.callers,
                ModelId(ensemble.config.name, ensemble.version),
            )
            self.batch_size = self._inflight.batch_size
            if self.decoupled:
                self._pace(self._inflight)
            if self.run.over:
                self._inflight.cancel()  # by somebody who was told of another failure meanwhile
        except Exception as error:
            self._give()
            self.run.executions.discard(self)
            self.run.fail(from_exception(error, f"step {self.index} failed"))

    def _pace(self, inflight: Inflight) -> None:
        """Let the model wait while the steps behind it have no room for its responses.

        Not where one of them is the same model, which could wait for itself.
        """
        most = self.run.scheduler.ensembling.max_inflight_requests
        model = self._handle.servable.id.name
        alone = sum(step.model == model for step in self.run.plan.steps) == 1
        if most and alone and not inflight.ordered and not inflight.settled:
            inflight.flow = Flow(_goes_on, STUCK_S, threading.TIMEOUT_MAX, most=most)

    def passed_on(self) -> None:
        """Of its responses, one has reached the steps behind it."""
        if self._inflight is not None:
            self._inflight.sent()

    def leave(self) -> None:
        """It does not wait for the limit any more, if it did."""
        if not self.submitted and self.run.scheduler.limits:
            self.run.scheduler.limits[self.index].leave(self)

    def cancel(self) -> None:
        """The run is over."""
        if self._inflight is not None:
            self._inflight.cancel()

    def settle(self, outcome: Outcome, final: bool) -> None:
        if final:
            self._ended()
        if isinstance(outcome, InferenceResponse):
            self.run.answer(self, outcome, final)
        elif outcome is None:
            self.run.complete(self)
        else:
            if final:
                self.run.executions.discard(self)
            if not self.run.over:
                self.run.fail(outcome)
        if final:
            self._inflight = None  # which points back to here

    def _request(self, now_ns: int) -> InferenceRequest:
        """The ensemble's request, made into that of the step: with what is left of its time."""
        run, config = self.run, self._handle.servable.config
        asked, step = run.inflight.request, run.plan.steps[self.index]
        if self.begin_by_ns and now_ns >= self.begin_by_ns:
            raise unavailable("Request timeout expired")
        tensors: dict[str, Tensor] = {}
        for name, entry in self._inputs.items():
            if isinstance(entry, Value):
                spec = config.inputs_by_name.get(name)
                tensors[name] = (
                    entry.tensor
                    if spec is None
                    else dataflow.fitted(entry.tensor, entry.batch_size, spec.dims, config.batching)
                )
        self._inputs = {}
        timeout_ns = asked.timeout_ns
        if timeout_ns:
            timeout_ns = max(1, timeout_ns - self.waited_ns)
        return InferenceRequest(
            step.model,
            tensors,
            run.plan.asked[self.index],
            step.version,
            asked.id,
            self.parameters() if self.sequence else asked.parameters,
            run.inflight.deadline_ns,
            timeout_ns,
        )

    def _ended(self) -> None:
        """The model has given its last answer: count what it took, and let the next request go on."""
        timing = None if self._inflight is None else self._inflight.timing
        if timing is not None and timing.compute_start_ns:
            now_ns = self.run.scheduler.clock.now_ns()
            start_ns = timing.compute_start_ns
            input_end_ns = timing.compute_input_end_ns or start_ns
            output_start_ns = timing.compute_output_start_ns or now_ns
            end_ns = timing.compute_end_ns or now_ns
            compute_ns = self.run.compute_ns
            compute_ns[0] += input_end_ns - start_ns
            compute_ns[1] += output_start_ns - input_end_ns
            compute_ns[2] += end_ns - output_start_ns
        self._give()

    def _give(self) -> None:
        limits = self.run.scheduler.limits
        if limits:
            limits[self.index].give()


def _goes_on(waiting: int) -> None:
    """Nothing behind a model has moved for `STUCK_S`: it waits no more, and what it gives is kept."""


def _deadlock(request: InferenceRequest) -> ModserveError:
    return invalid(
        f"{request.label}unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
    )
