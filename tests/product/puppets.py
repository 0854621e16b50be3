"""Engines of the product test: their executions begin when the server says so, and end when the test does.

All of them respond to a request with the number that came with it, so that a response shows whose it is.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from modserve.backends.api import (
    INSTANCES,
    EngineRequest,
    Executor,
    InstanceHandle,
    InstanceLostError,
    InstanceSpec,
    ModelSource,
)
from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
from modserve.core.errors import ModserveError, from_exception, internal
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor

from .models import GENERATION, MODELS
from .simulation import ThrownError

MEGABYTE = 10**6

WEIGHTS = "weights"
"""The file of a version: a number, one more for each time that it was written."""

CALLS = ("start", "execute", "attach", "detach", "close", "close model", "instance", "describe", "kill")
"""What the server calls of an engine."""


@dataclass(eq=False)
class Execution:
    """One execution under way: of a merged batch, or of requests that are responded to one by one."""

    instance: "PuppetInstance"
    done: Callable[[Any], None]
    inputs: Mapping[str, Array] = field(default_factory=dict)
    requests: Sequence[EngineRequest] = ()
    open: list[EngineRequest] = field(default_factory=list)
    """Those of `requests` without a final response."""

    @property
    def model(self) -> str:
        return self.instance.model

    def finish(self, error: BaseException | None = None) -> None:
        """End it: every request gets its number back, or the whole fails."""
        self.instance.engines.leave(self)
        if error is not None:
            self.done(error)
        elif not self.requests:
            rows = self.instance.stamped(*self.inputs.values())
            # A row of such a model is as wide as its batch is long: right alone, and wrong with others.
            self.done({"OUT": np.repeat(rows, len(rows), axis=1) if MODELS[self.model].unasked else rows})
        else:
            for request in self.open:
                request.respond(self._number_of(request), final=True, wait=False)
            self.open.clear()
            self.done(None)

    def respond(self) -> None:
        """One more response to the first open request, if its client has room for it."""
        if self.open:
            request = self.open[0]
            request.on_room(lambda: self._respond(request))

    def _respond(self, request: EngineRequest) -> None:
        if request in self.open:
            request.respond(self._number_of(request), final=False, wait=False)

    def complete(self) -> None:
        """The first open request has had all of its responses."""
        if self.open:
            self.open.pop(0).complete()

    def _number_of(self, request: EngineRequest) -> dict[str, Array]:
        return {"OUT": self.instance.stamped(request.inputs["IN"])}


class Engines:
    """What all puppets have in common: the executions under way, and what there is open of them."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.executions: list[Execution] = []
        self.instances: list[PuppetInstance] = []
        """Those that are attached."""
        self.models: list[PuppetModel] = []
        self.made = 0
        """Instances that are not closed."""
        self.broken: set[str] = set()
        """The models that cannot be opened, and of which no instance can be made."""
        self.ever_made: Counter[str] = Counter()
        """Instances by model, with those that are closed."""
        self.remade: set[str] = set()
        """The models of which instances were made for other reasons than changes."""
        self.process_bytes = 500 * MEGABYTE
        self.runs_by_itself = False
        self.call_soon = call_soon
        self.throws = ""
        """The call of an engine, among `CALLS`, that throws the next time."""

    def called(self, call: str, model: str) -> None:
        if call == self.throws:
            self.throws = ""
            self.remade.add(model)
            raise ThrownError(f"{call} has thrown")

    def begin(self, execution: Execution) -> None:
        self.executions.append(execution)
        if self.runs_by_itself:
            self.call_soon(lambda: self._end(execution))

    def _end(self, execution: Execution) -> None:
        if execution in self.executions:
            execution.finish()

    def leave(self, execution: Execution) -> None:
        if execution in self.executions:
            self.executions.remove(execution)

    def run_by_themselves(self) -> None:
        """From now on every execution ends soon after it has begun."""
        self.runs_by_itself = True
        for execution in list(self.executions):
            execution.finish()


class PuppetBackend:
    """`kind` makes the instances of its models."""

    default_model_filename = ""
    default_cpu_instances = 1
    in_place = INSTANCES

    def __init__(self, engines: Engines, kind: "type[PuppetInstance]") -> None:
        self._engines = engines
        self._kind = kind
        self.any_thread = kind is BlockingInstance

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return ""

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "PuppetModel":
        if source.config.name in self._engines.broken:
            raise internal("the file is broken")
        return PuppetModel(self._engines, self._kind, source)


class PuppetModel:
    def __init__(self, engines: Engines, kind: "type[PuppetInstance]", source: ModelSource) -> None:
        self._engines = engines
        self._kind = kind
        self._source = source
        self._generation = int((source.model_directory / str(source.version) / WEIGHTS).read_text())
        engines.models.append(self)
        engines.process_bytes += kind.size

    def describe(self) -> ModelDescription | None:
        self._engines.called("describe", self._source.config.name)
        if not MODELS[self._source.config.name].unasked:
            return None
        tensors = [DescribedTensor(name, dtypes.INT64, (-1, size)) for name, size in (("IN", 1), ("OUT", -1))]
        return ModelDescription((tensors[0],), (tensors[1],), default_max_batch_size=4)

    def instance(self, spec: InstanceSpec) -> Executor:
        if spec.index < 0:
            return TrialInstance()
        if self._source.config.name in self._engines.broken:
            raise internal("no instance can be made")
        self._engines.called("instance", self._source.config.name)
        executor: Any = self._kind(self._engines, self._source)
        executor.generation = self._generation
        return executor  # type: ignore[no-any-return]

    def close(self) -> None:
        self._engines.models.remove(self)
        self._engines.process_bytes -= self._kind.size
        self._engines.called("close model", self._source.config.name)


class TrialInstance:
    """What the trial of a load runs, which no test ends: it finds nothing against batches."""

    data_dependent = True

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        return {"OUT": inputs["IN"]}

    def close(self) -> None: ...


class PuppetInstance:
    """Common part of the kinds."""

    size: ClassVar = 60 * MEGABYTE
    """What a model with them takes in memory."""

    def __init__(self, engines: Engines, source: ModelSource) -> None:
        self.engines = engines
        self.model = source.config.name
        self.version = source.version
        self.generation = 0
        """Generation of the model's files, as they were when it was opened."""
        self.models = source.models
        self.handle: InstanceHandle | None = None
        engines.made += 1
        engines.ever_made[self.model] += 1

    def stamped(self, rows: Array) -> Array:
        """The response to `rows`, which shows of which files it comes."""
        kind = MODELS[self.model]
        return rows + GENERATION * self.generation if kind.stamped else np.array(rows)

    def attach(self, handle: InstanceHandle) -> None:
        self.engines.called("attach", self.model)
        self.handle = handle
        self.engines.instances.append(self)

    def detach(self) -> None:
        self.engines.instances.remove(self)
        self.engines.called("detach", self.model)

    def close(self) -> None:
        self.engines.made -= 1
        self.engines.called("close", self.model)

    def kill_because(self, reason: str) -> None:
        """The server ends its process, and hears of it a little later."""
        self.engines.called("kill", self.model)
        self.engines.call_soon(self._killed)

    def _killed(self) -> None:
        if self in self.engines.instances:
            self.lose()

    def lose(self) -> None:
        """Its process has died. What it ran may still be ended, for an engine may be late to say so."""
        assert self.handle is not None
        self.engines.remade.add(self.model)
        self.handle.lost(InstanceLostError("the process of the instance has died"))


class BatchInstance(PuppetInstance):
    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: Callable[[Any], None]) -> None:
        self.engines.called("start", self.model)
        self.engines.begin(Execution(self, done, inputs))


class BlockingInstance(PuppetInstance):
    """Executes on the thread of its instance, or on the event loop's. Implements `BackendInstance`."""

    data_dependent = False

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self.engines.called("execute", self.model)
        return {"OUT": self.stamped(*inputs.values())}


class RequestsInstance(PuppetInstance):
    def start_requests(self, requests: Sequence[EngineRequest], done: Callable[[Any], None]) -> None:
        self.engines.called("start", self.model)
        self.engines.begin(Execution(self, done, requests=requests, open=list(requests)))


class CallingInstance(PuppetInstance):
    """It responds with what another model responds with: the one in the parameter `callee`, else the model `plain`."""

    size: ClassVar = 5 * MEGABYTE  # it has to be in memory beside the other

    def start_requests(self, requests: Sequence[EngineRequest], done: Callable[[Any], None]) -> None:
        for request in requests:
            self._call(request)
        done(None)

    def _call(self, request: EngineRequest) -> None:
        callee = str(request.parameters.get("callee", "plain"))
        inputs = {MODELS[callee].input: Tensor.from_array(np.array(request.inputs["IN"]))}
        outcomes: list[InferenceResponse | ModserveError] = []

        def take(outcome: Outcome, final: bool) -> None:
            if outcome is not None:
                outcomes.append(outcome)
            if not final:
                return
            last = outcomes[-1] if outcomes else internal("no response")
            if isinstance(last, ModserveError):
                request.fail(internal(f"the call of '{callee}' failed: {last.message}"), wait=False)
            else:
                request.respond({"OUT": last.outputs["OUT"].array}, final=True, wait=False)

        try:
            self.models.submit(InferenceRequest(callee, inputs), take, parent=request)
        except Exception as error:
            request.fail(from_exception(error, "calling failed"), wait=False)
