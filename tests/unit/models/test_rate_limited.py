"""Models whose instances need resources that they share."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.backends.api import InstanceLostError, ModelSource
from modserve.core.configuration.model_config import DynamicBatching, InstanceGroup, InstanceKind, ModelConfig, Resource
from modserve.core.configuration.sequence_config import OldestStrategy, SequenceBatching
from modserve.core.errors import ModserveError
from modserve.core.runtime.clock import LoopClock
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.execution.rate_limit import RateLimiter
from modserve.models.loading.assembly import bare_model
from modserve.models.serving.model import Model
from modserve.models.serving.opened_model import OpenedModel
from modserve.testing import Execution, PuppetBackend, RecordingSink, config, instance_spec, request, tensor

R = Resource("R", 1)


class Bench:
    """Models of puppets. The test ends their executions."""

    def __init__(self) -> None:
        self.limiter = RateLimiter({})
        self.models: list[Model] = []
        self.engines: list[PuppetBackend] = []

    def load(self, *resources: Resource, limiter: RateLimiter | None = None, count: int = 1, **more: Any) -> None:
        group = InstanceGroup("g", InstanceKind.CPU, count, (), resources)
        made: ModelConfig = config(instance_groups=(group,), **more)
        backend = PuppetBackend()
        engine = backend.open(ModelSource(made, 1, Path(), Path()))
        instances = [(f"g_{number}", engine.instance(instance_spec(made))) for number in range(count)]
        opened = OpenedModel(made, b"", engine, instances, False)
        clock = LoopClock(asyncio.get_running_loop())
        self.models.append(bare_model(ModelId("m", 1), opened, clock, limiter or self.limiter))
        self.engines.append(backend)

    def ask(self, model: int) -> RecordingSink:
        sink = RecordingSink()
        self.models[model].submit(request({"INPUT0": tensor(dtypes.INT32, (1, 4), 1)}), sink, time.monotonic_ns())
        return sink

    async def execution(self, model: int) -> Execution:
        return await asyncio.to_thread(self.engines[model].next_execution)

    async def rests(self, model: int) -> bool:
        """Whether it has begun nothing, by now."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.engines[model]._executions.empty()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    for model in bench.models:
        await model.close()


def end(execution: Execution) -> None:
    execution.finish({"OUTPUT0": np.ones((1, 4), np.int32)})


async def settled(*sinks: RecordingSink) -> None:
    deadline = time.monotonic() + 10
    for sink in sinks:
        while not sink.ended:
            assert time.monotonic() < deadline
            await asyncio.to_thread(time.sleep, 0.001)


async def test_one_at_a_time(bench: Bench) -> None:
    for _ in range(2):
        bench.load(R, dynamic_batching=DynamicBatching())
    first, second = bench.ask(0), bench.ask(1)
    running = await bench.execution(0)
    assert await bench.rests(1)
    end(running)
    end(await bench.execution(1))
    await settled(first, second)
    assert [len(sink.responses) for sink in (first, second)] == [1, 1]


async def test_those_that_want_more_take_turns(bench: Bench) -> None:
    for _ in range(2):
        bench.load(R)
    sinks = [bench.ask(model) for _ in range(4) for model in range(2)]
    order = []
    for turn in range(8):
        model = turn % 2
        end(await bench.execution(model))
        order.append(model)
    await settled(*sinks)
    assert all(sink.responses for sink in sinks)


async def test_instances_of_one_model(bench: Bench) -> None:
    bench.load(R, count=3)
    sinks = [bench.ask(0) for _ in range(3)]
    for _ in range(3):
        running = await bench.execution(0)
        assert await bench.rests(0)
        end(running)
    await settled(*sinks)


async def test_a_failure_gives_it_back(bench: Bench) -> None:
    for _ in range(2):
        bench.load(R)
    first, second = bench.ask(0), bench.ask(1)
    (await bench.execution(0)).fail(ValueError("odd"))
    end(await bench.execution(1))
    await settled(first, second)
    assert (len(first.errors), len(second.responses)) == (1, 1)


async def test_a_lost_instance_gives_it_back(bench: Bench) -> None:
    for _ in range(2):
        bench.load(R)
    first, second = bench.ask(0), bench.ask(1)
    (await bench.execution(0)).fail(InstanceLostError("gone"))
    end(await bench.execution(1))
    await settled(first, second)
    assert (len(first.errors), len(second.responses)) == (1, 1)


async def test_sequences(bench: Bench) -> None:
    bench.load(R)
    bench.load(R, sequence_batching=SequenceBatching(OldestStrategy()))
    first = bench.ask(0)
    running = await bench.execution(0)
    sink = RecordingSink()
    parameters = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    asked = request({"INPUT0": tensor(dtypes.INT32, (1, 4), 1)}, parameters=parameters)
    bench.models[1].submit(asked, sink, time.monotonic_ns())
    assert await bench.rests(1)
    end(running)
    end(await bench.execution(1))
    await settled(first, sink)
    assert len(sink.responses) == 1


async def test_a_model_that_goes_while_it_waits(bench: Bench) -> None:
    for _ in range(3):
        bench.load(R)
    first = bench.ask(0)
    running = await bench.execution(0)
    waits, last = bench.ask(1), bench.ask(2)
    await bench.models[1].close()
    end(running)
    end(await bench.execution(2))
    await settled(first, waits, last)
    assert (len(waits.errors), len(last.responses)) == (1, 1)


async def test_a_model_that_needs_more_than_there_is(bench: Bench) -> None:
    with pytest.raises(ModserveError, match='Resource count for "R" is limited to 0'):
        bench.load(R, limiter=RateLimiter({("S", None): 1}))


async def test_without_a_limiter(caplog: pytest.LogCaptureFixture) -> None:
    made = config(instance_groups=(InstanceGroup("g", InstanceKind.CPU, 1, (), (R,)),))
    engine = PuppetBackend().open(ModelSource(made, 1, Path(), Path()))
    opened = OpenedModel(made, b"", engine, [("g_0", engine.instance(instance_spec(made)))], False)
    with caplog.at_level(logging.WARNING):
        model = bare_model(ModelId("m", 1), opened, LoopClock(asyncio.get_running_loop()))
    assert "Start the server with --rate-limit=execution_count" in caplog.text
    await model.close()


async def test_instances_whose_batch_waits_for_more_are_not_granted_in_turns(bench: Bench) -> None:
    bench.load(R)
    bench.load(R, count=2, dynamic_batching=DynamicBatching(max_queue_delay_ns=600_000_000_000))
    first = bench.ask(0)
    running = await bench.execution(0)
    waiting = bench.ask(1)
    assert await bench.rests(1)  # both of its instances wait for their turns
    end(running)
    await settled(first)
    assert await bench.rests(1)
    clocks = [turn.clock for turn in bench.limiter._turns]
    assert await bench.rests(1)
    assert [turn.clock for turn in bench.limiter._turns] == clocks  # nobody takes turns
    assert not waiting.ended
