"""A model whose requests differ in length: who shares its batches, and what is counted."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sinks import keep, sink_of

from modserve.backends.api import BatchDone, InstanceHandle, ModelSource
from modserve.core.configuration.merging import Padding, PaddingPolicy
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig, TensorSpec
from modserve.core.requests.inflight import Inflight
from modserve.core.runtime.clock import LoopClock
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor
from modserve.core.version import ModelId
from modserve.models.loading.assembly import assemble_model
from modserve.models.serving.opened_model import OpenedModel
from modserve.observability import prometheus
from modserve.observability.families import render
from modserve.protocol.control.statistics import batches_json
from modserve.scheduling.adaptive.costs import FIRST_LESSON
from modserve.testing import PuppetBackend, RecordingSink, config, instance_spec, request

CONFIG = config(
    inputs=(TensorSpec("INPUT0", dtypes.INT32, (-1,)),),
    outputs=(TensorSpec("OUTPUT0", dtypes.INT32, (-1,)),),
    dynamic_batching=DynamicBatching((8,)),
    padding=Padding({"INPUT0": 0}, unpad={"OUTPUT0": 0}, policy=PaddingPolicy.ALWAYS, buckets=2),
)


class Bench:
    def __init__(self, model: ModelConfig = CONFIG, instance: Any = None) -> None:
        self.backend = PuppetBackend()
        engine = self.backend.open(ModelSource(model, 1, Path(), Path()))
        instance = instance or engine.instance(instance_spec(model))
        loop = asyncio.get_running_loop()
        opened = OpenedModel(model, b"", engine, [("m_0", instance)], False)
        self.model = assemble_model(ModelId("model", 1), opened, LoopClock(loop))

    def submit(self, *lengths: int) -> list[Inflight]:
        """One request a length, all in one turn of the event loop."""
        now_ns = time.monotonic_ns()
        arrays = [np.full((1, length), length, np.int32) for length in lengths]
        asked = [request({"INPUT0": Tensor.from_array(array)}) for array in arrays]
        return [keep(self.model.submit(each, sink := RecordingSink(), now_ns), sink) for each in asked]

    async def finish(self) -> tuple[int, ...]:
        """End the next execution, which gives back what it gets; the shape of that."""
        execution = await asyncio.to_thread(self.backend.next_execution)
        execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
        shape: tuple[int, ...] = execution.inputs["INPUT0"].shape
        return shape


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.model.close()


def given_back(entry: Inflight) -> list[list[int]]:
    [response] = sink_of(entry).responses
    found: list[list[int]] = response.outputs["OUTPUT0"].array.tolist()
    return found


async def test_together_and_back(bench: Bench) -> None:
    entries = bench.submit(1, 3, 2)
    assert await bench.finish() == (3, 3)
    await bench.model.drain()
    assert [given_back(entry) for entry in entries] == [[[1]], [[3, 3, 3]], [[2, 2]]]


async def test_what_is_counted(bench: Bench) -> None:
    bench.submit(1, 3, 2)
    await bench.finish()
    await bench.model.drain()
    assert (bench.model.statistics.elements, bench.model.statistics.padding) == (6, 3)
    shown = json.loads(json.dumps(batches_json(bench.model)))
    assert [(batch["elements"], batch["padding"]) for batch in shown["recent"]] == [(6, 3)]
    page = render(prometheus.collectors(lambda: [bench.model])).decode()
    assert 'modserve_batch_elements{kind="useful",model="model",version="1"} 6.0\n' in page
    assert 'modserve_batch_elements{kind="padding",model="model",version="1"} 3.0\n' in page
    assert "# TYPE modserve_batch_elements counter\n" in page


async def test_ranges_of_length_are_learnt(bench: Bench) -> None:
    entries = bench.submit(*[2, 50] * (FIRST_LESSON // 2))
    assert len({entry.shape_key for entry in entries[:-1]}) == 1
    for _ in range(FIRST_LESSON // 8 + 1):  # the last request has its range already
        await bench.finish()
    short, long = bench.submit(2, 50)
    assert short.shape_key != long.shape_key
    shapes = {await bench.finish() for _ in range(2)}
    assert shapes == {(1, 2), (1, 50)}
    await bench.model.drain()


async def test_choices_are_shown() -> None:
    bench = Bench(replace(CONFIG, padding=Padding({"INPUT0": 0}, unpad={"OUTPUT0": 0})))
    bench.submit(1, 3, 2)
    await bench.finish()
    await bench.finish()
    bench.submit(5)
    await bench.finish()
    await bench.model.drain()
    choice = json.loads(json.dumps(batches_json(bench.model)))["choice"]
    assert choice["batches"] == {"alone": 2, "equal": 0, "padded": 1}, "one by one until a run time is known"
    assert (choice["trials"], choice["trials_share"], choice["utilisation"]) == (0, 0, 1)
    assert [(cost["rows"], cost["length"]) for cost in choice["costs"]][-1] == (2, 5)
    page = render(prometheus.collectors(lambda: [bench.model])).decode()
    assert 'modserve_batches_chosen{kind="padded",model="model",version="1"} 1.0\n' in page
    await bench.model.close()


class TwoStreams:
    """Implements `backends.api.AsyncInstance`: two executions at a time, of 10 ms each."""

    max_in_flight = 2

    def attach(self, handle: InstanceHandle) -> None:
        self.loop = handle.loop

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        self.loop.call_later(0.01, done, {"OUTPUT0": inputs["INPUT0"]})

    def detach(self) -> None: ...

    def close(self) -> None: ...


async def test_one_request_after_the_other_keeps_one_of_two_streams_busy() -> None:
    bench = Bench(replace(CONFIG, padding=Padding({"INPUT0": 0}, unpad={"OUTPUT0": 0})), TwoStreams())
    for _ in range(40):
        [entry] = bench.submit(1)
        while not sink_of(entry).responses:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    choice = bench.model.statistics.choice
    assert choice is not None
    assert 0.1 < choice.utilisation <= 0.5
    await bench.model.close()


async def test_only_equal_lengths_share_a_batch_if_nothing_is_padded() -> None:
    padding = Padding({"INPUT0": 0}, unpad={"OUTPUT0": 0}, policy=PaddingPolicy.NEVER, multiple_of=4)
    bench = Bench(replace(CONFIG, padding=padding))
    bench.submit(1, 3, 7, 2)
    assert {await bench.finish() for _ in range(2)} == {(3, 4), (1, 8)}
    await bench.model.drain()
    await bench.model.close()


def test_other_models_tell_nothing_of_elements() -> None:
    plain = replace(CONFIG, padding=None)
    assert not plain.fills_up
    assert replace(plain, dynamic_batching=DynamicBatching(batch_sizes=(8,))).fills_up
