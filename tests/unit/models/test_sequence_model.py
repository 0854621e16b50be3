"""A model with sequences: from requests to executions and back, and how it drains."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sinks import keep, sink_of

from modserve.backends.api import InstanceLostError, ModelSource
from modserve.core.configuration.sequence_config import (
    Control,
    ControlKind,
    OldestStrategy,
    SequenceBatching,
    SequenceState,
)
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import timeout_ns
from modserve.core.requests.response import Outcome
from modserve.core.runtime.clock import LoopClock
from modserve.core.servable import SequenceKeeper
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.models.loading.assembly import assemble_model
from modserve.models.serving.opened_model import OpenedModel
from modserve.models.serving.sequence_model import SequenceModel
from modserve.testing import PuppetBackend, RecordingSink, config, instance_spec, request, tensor

CONTROLS = (Control("READY", ControlKind.READY, dtypes.INT32), Control("START", ControlKind.START, dtypes.INT32))
STATES = (SequenceState("SUM", "SUM_OUT", dtypes.INT32, (4,)),)
HOUR = 3_600 * 10**9
"""No sequence is idle for as long, however slow the test is."""
DIRECT = SequenceBatching(controls=CONTROLS, states=STATES, max_idle_ns=HOUR)
OLDEST = SequenceBatching(OldestStrategy(preferred_batch_sizes=(8,)), CONTROLS, STATES, max_idle_ns=HOUR)


class Bench:
    """A model whose engine adds its input to its state."""

    def __init__(self, batching: SequenceBatching, *, max_batch_size: int = 8, by_request: bool = False) -> None:
        given = config(sequence_batching=batching, max_batch_size=max_batch_size)
        self.backend = PuppetBackend(by_request=by_request)
        engine = self.backend.open(ModelSource(given, 1, Path(), Path()))
        made = [("model_0", engine.instance(instance_spec(given)))]
        first = {"SUM": Tensor.from_array(np.full(4, 100, np.int32))}
        # An instance that is lost waits for another one to be made.
        opened = OpenedModel(given, b"", engine, made, False, initial_states=first, make=lambda number, close: Future())
        made_model = assemble_model(ModelId("model", 1), opened, LoopClock(asyncio.get_running_loop()))
        assert isinstance(made_model, SequenceModel)
        self.model = made_model

    def submit(self, id: int, value: int, *, sink: RecordingSink | None = None, **parameters: Any) -> Inflight:
        parameters["sequence_id"] = id
        given = {"INPUT0": tensor(dtypes.INT32, (1, 4), value)}
        asked = request(given, parameters=parameters, timeout_ns=timeout_ns(parameters))
        sink = sink or RecordingSink()
        return keep(self.model.submit(asked, sink, time.monotonic_ns()), sink)

    async def execute(self) -> dict[str, list[int]]:
        """The next execution: what its first elements were."""
        execution = await asyncio.to_thread(self.backend.next_execution)
        total = execution.inputs["INPUT0"] + execution.inputs["SUM"]
        given = {name: array[:, 0].tolist() for name, array in execution.inputs.items()}
        execution.finish({"OUTPUT0": total, "SUM_OUT": total})
        return given


class Settled(RecordingSink):
    """`event` is set when the request has its outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def settle(self, outcome: Outcome, final: bool) -> None:
        super().settle(outcome, final)
        self.event.set()


class Told(RecordingSink):
    """Can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = asyncio.Event()

    def settle(self, outcome: Outcome, final: bool) -> None:
        super().settle(outcome, final)
        if isinstance(outcome, ModserveError):
            self.failed.set()


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    made = Bench(getattr(request, "param", DIRECT))
    yield made
    await made.model.close()
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


both = pytest.mark.parametrize("bench", [DIRECT, OLDEST], indirect=True, ids=["direct", "oldest"])


def outcome(entry: Inflight) -> int | str:
    sink = sink_of(entry)
    assert sink.settled == 1
    if sink.errors:
        return sink.errors[0].message
    value: int = sink.responses[0].outputs["OUTPUT0"].array[0, 0]
    return value


@both
async def test_a_sequence_from_its_start_to_its_end(bench: Bench) -> None:
    entries = [
        bench.submit(1, 1, sequence_start=True),
        bench.submit(2, 10, sequence_start=True),
        bench.submit(1, 2),
        bench.submit(1, 3, sequence_end=True),
    ]
    assert bench.model.open_sequences == 2
    for expected in (2, 1, 1):
        assert len((await bench.execute())["READY"]) == expected
    entries.append(bench.submit(2, 20, sequence_end=True))
    await bench.execute()
    await bench.model.drain()
    assert [outcome(entry) for entry in entries] == [101, 110, 103, 106, 130]
    statistics = bench.model.statistics
    assert (statistics.inference_count, statistics.execution_count, statistics.pending) == (5, 4, 0)


@both
async def test_a_request_that_belongs_to_no_sequence_is_refused_and_not_counted(bench: Bench) -> None:
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.submit(1, 1)
    assert (bench.model.statistics.fail.count, bench.model.statistics.pending) == (0, 0)


@both
async def test_a_model_is_busy_with_requests_and_with_open_sequences(bench: Bench) -> None:
    assert not bench.model.busy
    first, last = Settled(), Settled()
    bench.submit(1, 1, sink=first, sequence_start=True)
    assert bench.model.busy
    await bench.execute()
    await first.event.wait()
    assert bench.model.outstanding == 0
    assert bench.model.busy  # the sequence is open
    bench.submit(1, 1, sink=last, sequence_end=True)
    await bench.execute()
    await last.event.wait()
    assert not bench.model.busy


@both
async def test_a_model_that_drains_waits_for_its_sequences(bench: Bench) -> None:
    bench.submit(1, 1, sequence_start=True)
    await bench.execute()
    draining = asyncio.create_task(bench.model.drain())
    await asyncio.sleep(0)
    with pytest.raises(ModserveError) as caught:
        bench.submit(2, 1, sequence_start=True)
    assert (caught.value.code, caught.value.message) == (
        Code.UNAVAILABLE,
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
    )
    middle = bench.submit(1, 1)
    await bench.execute()
    assert not draining.done()
    end = bench.submit(1, 1, sequence_end=True)
    await bench.execute()
    await draining
    assert (outcome(middle), outcome(end), bench.model.open_sequences) == (102, 103, 0)


async def test_a_silent_sequence_does_not_keep_a_model_from_draining() -> None:
    bench = Bench(replace(DIRECT, max_idle_ns=1_000_000))
    bench.submit(1, 1, sequence_start=True)
    await bench.execute()
    async with asyncio.timeout(30):
        await bench.model.drain()
    await bench.model.close()


async def test_the_timeout_of_a_request_bounds_the_wait_for_a_place() -> None:
    bench = Bench(DIRECT, max_batch_size=1)
    bench.submit(1, 1, sequence_start=True)
    told = Told()
    late = bench.submit(2, 1, sink=told, sequence_start=True, timeout=1000)
    await asyncio.wait_for(told.failed.wait(), 30)
    assert outcome(late) == "timeout of the corresponding sequence has been expired"
    assert bench.model.open_sequences == 1
    await bench.execute()
    await bench.model.close()


async def test_a_request_that_runs_again_meets_what_came_meanwhile() -> None:
    bench = Bench(replace(DIRECT, iterative=True), by_request=True)
    first = bench.submit(0, 1)
    for step in range(2):
        execution = await asyncio.to_thread(bench.backend.next_execution)
        requests = execution.requests
        assert [each.inputs["START"].tolist() for each in requests] == [[[1]], [[0]]][step : step + 1] + [[[1]]] * step
        if not step:
            second = bench.submit(0, 10)
            requests[0].reschedule()
        else:
            for each in requests:
                total = each.inputs["INPUT0"] + each.inputs["SUM"]
                each.respond({"OUTPUT0": total, "SUM_OUT": total})
        execution.finish()
    await bench.model.drain()
    assert [outcome(first), outcome(second)] == [101, 110]
    assert (bench.model.statistics.success.count, bench.model.statistics.execution_count) == (2, 2)
    assert (bench.model.statistics.pending, bench.model.open_sequences) == (0, 0)
    await bench.model.close()


async def test_it_says_that_it_keeps_sequences(bench: Bench) -> None:
    assert isinstance(bench.model, SequenceKeeper)


async def test_sequences_of_a_lost_instance_end_unless_the_server_keeps_their_states() -> None:
    without = Bench(replace(DIRECT, states=()))
    with_states = Bench(DIRECT)
    for bench in (without, with_states):
        begins = Told()
        bench.submit(7, 1, sink=begins, sequence_start=True)
        waits = Told()
        bench.submit(7, 2, sink=waits)
        execution = await asyncio.to_thread(bench.backend.next_execution)
        execution.fail(InstanceLostError("killed"))
        await begins.failed.wait()
        assert begins.errors[0].code is Code.UNAVAILABLE
        assert bench.model.has_sequence(7) is (bench is with_states)
        assert bool(waits.errors) is (bench is without)
        with pytest.raises(ModserveError, match="was lost: killed"):
            bench.submit(8, 1, sequence_start=True)
        assert bench.model.unready_reason == ("Unavailable: model 'model', instance 'model_0' was lost: killed")
        await bench.model.close()
