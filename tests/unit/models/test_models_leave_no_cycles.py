"""No request leaves a reference cycle behind, whatever becomes of it: its tensors would stay until a collection."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from garbage import garbage_left
from modserve.backends.api import (
    BatchDone,
    EngineRequest,
    Executor,
    InstanceHandle,
    InstanceSpec,
    ModelSource,
    RequestsDone,
)
from modserve.core.configuration.ensemble_config import EnsembleConfig, Step
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig, ModelDescription, QueuePolicy
from modserve.core.configuration.sequence_config import (
    Control,
    ControlKind,
    DirectStrategy,
    OldestStrategy,
    SequenceBatching,
    SequenceState,
)
from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.response import Outcome, ResponseSink
from modserve.core.runtime.clock import LoopClock
from modserve.core.servable import Servable
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor
from modserve.core.version import ModelId
from modserve.models.loading.assembly import assemble_model
from modserve.models.serving.cached import CachedModel
from modserve.models.serving.ensemble import EnsembleModel
from modserve.models.serving.model import Model
from modserve.models.serving.opened_model import OpenedModel
from modserve.resources.flow import pace
from modserve.resources.response_cache import ResponseCache
from modserve.testing import config, instance_spec, request, tensor


class Sink:
    """Forgets what it is told, and says when that is all. It points to nothing."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.kinds: list[str] = []

    def settle(self, outcome: Outcome, final: bool) -> None:
        if isinstance(outcome, ModserveError):
            self.kinds.append(outcome.code.name)
        else:
            self.kinds.append("end" if outcome is None else "response")
        if final:
            self.ended.set()


class Engine:
    """Doubles what it gets. 99 is refused, -1 raises in a deep place."""

    data_dependent = False

    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> Executor:
        return self

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        array = inputs["INPUT0"]
        if (array == 99).any():
            raise invalid("index 99 is out of range")
        if (array == -1).any():
            try:
                _deep(array)
            except ValueError as error:
                kept = error  # a cycle of the engine's own making
                raise RuntimeError("again") from kept
        return {"OUTPUT0": array * 2, "SUM_OUT": inputs.get("SUM", array) + array}

    def close(self) -> None:
        pass


def _deep(array: Array) -> None:
    raise ValueError(f"no {array[0, 0]}")


class ByRequest(Engine):
    """Answers one request after the other, in several responses if `decoupled`."""

    execute = None  # type: ignore[assignment]

    def __init__(self, *, decoupled: bool = False, steps: int = 0) -> None:
        self._decoupled = decoupled
        self._steps = steps

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        for each in requests:
            value = int(each.inputs["INPUT0"].flat[0])
            given = {"OUTPUT0": each.inputs["INPUT0"]}
            if value == -1:
                raise RuntimeError("no")
            if value == 98:
                each.respond({"OUTPUT0": np.zeros((1, 4), np.int64)})
            elif value == 99:
                each.fail(invalid("no 99"))
            elif self._steps and int(each.inputs["SUM"].flat[0]) < 3:
                each.respond({"OUTPUT0": given["OUTPUT0"], "SUM_OUT": each.inputs["SUM"] + 1})
                each.reschedule()
            elif self._decoupled:
                for _ in range(3):
                    each.respond(given)
                each.complete()
            else:
                each.respond(given)


class OnLoop(Engine):
    """The same on the event loop, a turn later."""

    execute = None  # type: ignore[assignment]

    def attach(self, handle: InstanceHandle) -> None:
        self.loop = handle.loop

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        def end() -> None:
            try:
                outcome: Any = Engine.execute(self, inputs, outputs)
            except Exception as error:
                outcome = error
            done(outcome)
            del outcome

        self.loop.call_soon(end)

    def detach(self) -> None: ...


class OnLoopByRequest(Engine):
    execute = None  # type: ignore[assignment]

    def attach(self, handle: InstanceHandle) -> None:
        self.loop = handle.loop

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        def end() -> None:
            for each in requests:
                each.on_cancel(lambda: None)
                each.respond({"OUTPUT0": each.inputs["INPUT0"] * 2}, wait=False)
            done(None)

        self.loop.call_soon(end)

    def detach(self) -> None: ...


def model(given: ModelConfig, engine: Any = None) -> Servable:
    made = engine or Engine()
    made_of = ModelSource(given, 1, Path(), Path())
    instances = [("model_0", made.instance(instance_spec(made_of.config)))]
    loop = asyncio.get_running_loop()
    states = {"SUM": Tensor.from_array(np.zeros(4, np.int32))}
    opened = OpenedModel(given, b"", made, instances, True, initial_states=states)
    return assemble_model(ModelId(given.name, 1), opened, LoopClock(loop))


def submit(servable: Servable, value: int, sink: ResponseSink, **more: Any) -> Inflight:
    given = {"INPUT0": tensor(dtypes.INT32, (1, 4), value)}
    return servable.submit(request(given, model=servable.id.name, **more), sink, time.monotonic_ns())


@contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing of ours is left to the collector by what happens inside."""
    with garbage_left() as found:
        yield
    ours = [each for each in found if type(each).__module__.startswith("modserve") or _is_large(each)]
    assert sorted({type(each).__name__ for each in ours}) == []


def _is_large(each: object) -> bool:
    return isinstance(each, np.ndarray | Tensor)


Drive = Callable[[Servable], Awaitable[list[str]]]


async def outcomes(*sinks: Sink) -> list[str]:
    async with asyncio.timeout(30):
        for sink in sinks:
            await sink.ended.wait()
    return [kind for sink in sinks for kind in sink.kinds]


def asks(*values: int, **more: Any) -> Drive:
    """Requests of one turn of the event loop."""

    async def drive(servable: Servable) -> list[str]:
        sinks = [Sink() for _ in values]
        for value, sink in zip(values, sinks, strict=True):
            submit(servable, value, sink, **more)
        return await outcomes(*sinks)

    return drive


def sequences(*values: int, last: int = 2) -> Drive:
    """Two sequences with these values each, the second of which is cancelled, or goes on until it ends."""

    async def drive(servable: Servable) -> list[str]:
        found: list[str] = []
        for number, value in enumerate(values):
            sinks = [Sink(), Sink()]
            for id, sink in enumerate(sinks, start=1):
                flags = {"sequence_start": number == 0, "sequence_end": number == len(values) - 1}
                submit(servable, value, sink, parameters={"sequence_id": id, **flags})
            found += await outcomes(*sinks)
        return found

    return drive


async def cancels(servable: Servable) -> list[str]:
    sinks = [Sink(), Sink(), Sink()]
    first, second, _ = [submit(servable, 1, sink) for sink in sinks]
    first.cancel()
    await asyncio.sleep(0)
    second.cancel()
    del first, second, _
    return await outcomes(*sinks)


async def cancels_a_sequence(servable: Servable) -> list[str]:
    sinks = [Sink(), Sink()]
    one = submit(servable, 1, sinks[0], parameters={"sequence_id": 1, "sequence_start": True})
    two = submit(servable, 1, sinks[1], parameters={"sequence_id": 1})
    two.cancel()
    one.cancel()
    del one, two
    return await outcomes(*sinks)


async def rejected(servable: Servable) -> list[str]:
    sinks = [Sink(), Sink(), Sink()]
    for sink in sinks:
        with suppress(ModserveError):
            submit(servable, 1, sink)
    return await outcomes(*sinks[:1])


async def wrong(servable: Servable) -> list[str]:
    with suppress(ModserveError):
        submit(servable, 1, Sink(), outputs=("NOPE",))
    with suppress(ModserveError):
        submit(servable, 1, Sink(), parameters={"sequence_id": 7})
    return []


DYNAMIC = config(dynamic_batching=DynamicBatching((8,)))
DELAYED = config(dynamic_batching=DynamicBatching((8,), 1_000_000))
ORDERED = config(dynamic_batching=DynamicBatching((8,), preserve_ordering=True))
FULL = config(dynamic_batching=DynamicBatching((8,), default_policy=QueuePolicy(max_queue_size=1)))
TIMED = config(dynamic_batching=DynamicBatching((8,), default_policy=QueuePolicy(default_timeout_ns=1)))
CONTROLS = (Control("START", ControlKind.START, dtypes.INT32),)
STATES = (SequenceState("SUM", "SUM_OUT", dtypes.INT32, (4,)),)
HOUR = 3_600 * 10**9
DIRECT = config(sequence_batching=SequenceBatching(DirectStrategy(), CONTROLS, max_idle_ns=HOUR))
OLDEST = config(sequence_batching=SequenceBatching(OldestStrategy(), CONTROLS, max_idle_ns=HOUR))
STATEFUL = config(sequence_batching=SequenceBatching(DirectStrategy(), CONTROLS, STATES, max_idle_ns=HOUR))
ITERATIVE = config(
    decoupled=True,
    sequence_batching=SequenceBatching(OldestStrategy(), CONTROLS, STATES, max_idle_ns=HOUR, iterative=True),
)
DECOUPLED = config(decoupled=True)

R, INVALID, INTERNAL, CANCELLED, LATE = "response", "INVALID_ARG", "INTERNAL", "CANCELLED", "UNAVAILABLE"


@pytest.mark.parametrize(
    ("given", "engine", "drive", "expected"),
    [
        (config(), Engine(), asks(1, 2), [R, R]),
        (config(), Engine(), asks(99, -1), [INVALID, INTERNAL]),
        (config(), Engine(), cancels, [CANCELLED, CANCELLED, R]),
        (config(), Engine(), asks(1, deadline_ns=1), [LATE]),
        (config(), Engine(), wrong, []),
        (DYNAMIC, Engine(), asks(1, 2), [R, R]),
        (DYNAMIC, Engine(), asks(1, 99, -1), [R, INVALID, INTERNAL]),
        (DYNAMIC, Engine(), cancels, [CANCELLED, CANCELLED, R]),
        (DYNAMIC, Engine(), asks(1, 2, deadline_ns=1), [LATE, LATE]),
        (DELAYED, Engine(), asks(1, 2), [R, R]),
        (TIMED, Engine(), asks(1, 2), [LATE, LATE]),
        (FULL, Engine(), rejected, [R]),
        (ORDERED, Engine(), asks(1, 99, 2), [R, INVALID, R]),
        (ORDERED, Engine(), cancels, [CANCELLED, CANCELLED, R]),
        (DIRECT, Engine(), sequences(1, 2, 3), [R] * 6),
        (DIRECT, Engine(), sequences(1, -1), [R, R, INTERNAL, INTERNAL]),
        (DIRECT, Engine(), cancels_a_sequence, [CANCELLED, CANCELLED]),
        (DIRECT, Engine(), wrong, []),
        (OLDEST, Engine(), sequences(1, 2, 3), [R] * 6),
        (OLDEST, Engine(), cancels_a_sequence, [CANCELLED, CANCELLED]),
        (STATEFUL, Engine(), sequences(1, 2, 3), [R] * 6),
        (STATEFUL, Engine(), sequences(1, 99), [R, R, INVALID, INVALID]),
        (config(), ByRequest(), asks(1, 98, 99, -1), [R, INTERNAL, INVALID, INTERNAL]),
        (DECOUPLED, ByRequest(decoupled=True), asks(1, 99), [R, R, R, "end", INVALID]),
        (DECOUPLED, ByRequest(decoupled=True), asks(-1), [INTERNAL]),
        (ITERATIVE, ByRequest(decoupled=True, steps=3), asks(1, 2), [R] * 6 + ["end"] + [R] * 6 + ["end"]),
        (config(), OnLoop(), asks(1, 2), [R, R]),
        (config(), OnLoop(), asks(99, -1), [INVALID, INTERNAL]),
        (DYNAMIC, OnLoop(), asks(1, 99, -1), [R, INVALID, INTERNAL]),
        (config(), OnLoop(), cancels, [CANCELLED, CANCELLED, R]),
        (config(), OnLoopByRequest(), asks(1, 2), [R, R]),
        (config(), OnLoopByRequest(), cancels, [CANCELLED, CANCELLED, R]),
    ],
    ids=lambda value: "",
)
async def test_a_model(given: ModelConfig, engine: Engine, drive: Drive, expected: list[str]) -> None:
    made = model(given, engine)
    await drive(made)  # what is made once is there then
    with no_garbage():
        assert await drive(made) == expected
        await asyncio.sleep(0.001)  # the instance's thread lets go of the batch
    await made.close()


async def test_a_paced_request_of_a_decoupled_model() -> None:
    made = model(DECOUPLED, ByRequest(decoupled=True))

    async def drive() -> list[str]:
        sink = Sink()
        pace(submit(made, 1, sink), MemoryBudget(), asyncio.get_running_loop())
        return await outcomes(sink)

    await drive()
    with no_garbage():
        assert await drive() == [R, R, R, "end"]
        await asyncio.sleep(0.001)
    await made.close()


@pytest.mark.parametrize("given", [config(), ORDERED], ids=["plain", "ordered"])
async def test_a_cached_model(given: ModelConfig) -> None:
    cached = CachedModel(model(given), ResponseCache(1 << 16), LoopClock(asyncio.get_running_loop()))
    await asks(1)(cached)
    with no_garbage():
        assert await asks(1, 2, 99)(cached) == [R, R, INVALID]
        assert await asks(2)(cached) == [R]
        await asyncio.sleep(0.001)
    await cached.close()


class Lent:
    """Implements `core.servable.Handle`."""

    def __init__(self, servable: Servable) -> None:
        self.servable = servable

    def release(self) -> None:
        pass


@pytest.mark.parametrize("most", [0, 1], ids=["", "limited"])
@pytest.mark.parametrize(
    ("drive", "expected"),
    [
        (asks(1, 2), [R, R]),
        (asks(1, 99), [R, INVALID]),
        (asks(-1), [INTERNAL]),
        (asks(1, deadline_ns=1), [LATE]),
        (cancels, [CANCELLED, CANCELLED, R]),
    ],
    ids=["two", "failing", "failing deep", "late", "cancelled"],
)
async def test_an_ensemble(drive: Drive, expected: list[str], most: int) -> None:
    inner = model(DYNAMIC)
    steps = (
        Step("model", None, {"INPUT0": "INPUT0"}, {"OUTPUT0": "half"}),
        Step("model", None, {"INPUT0": "half"}, {"OUTPUT0": "OUTPUT0"}),
    )
    given = config("both", ensemble=EnsembleConfig(steps, most))
    loop = asyncio.get_running_loop()
    ensemble = EnsembleModel(ModelId("both", 1), given, b"", lambda name, version: Lent(inner), LoopClock(loop))
    await drive(ensemble)
    await ensemble_is_idle(inner)
    with no_garbage():
        assert await drive(ensemble) == expected
        await ensemble_is_idle(inner)
        await asyncio.sleep(0.001)
    await inner.close()


async def ensemble_is_idle(inner: Servable) -> None:
    assert isinstance(inner, Model)
    async with asyncio.timeout(30):
        while inner.outstanding:
            inner._all_settled.clear()
            await inner._all_settled.wait()
