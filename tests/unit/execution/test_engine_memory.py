"""Inputs in memory that the engine allocates, and what is checked of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
from pool_bench import CONFIG, Owner, answer, member, refused, until

from modserve.backends.api import Allocate
from modserve.core.configuration.merging import Padding
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code
from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, Tensor
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.testing import RecordingSink, config, request
from modserve.testing.builders import RecordedInflight


class Engine:
    """Gives its inputs back, and keeps them."""

    def __init__(self, allocate: Allocate) -> None:
        self.allocate = allocate
        self.inputs: list[Mapping[str, Array]] = []

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self.inputs.append(inputs)
        return {"OUTPUT0": inputs["INPUT0"].copy()}

    def close(self) -> None: ...


class Memory:
    """Arrays that it has lent, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Datatype, Shape]] = []
        self.lent: list[Array] = []

    def __call__(self, name: str, datatype: Datatype, shape: Shape) -> Array:
        self.asked.append((name, datatype, shape))
        self.lent.append(np.full(shape, 99, datatype.numpy))
        return self.lent[-1]


class Runs:
    def __init__(self) -> None:
        self.pools: list[InstancePool] = []

    async def __call__(self, engine: Engine, *members: Inflight, model: ModelConfig = CONFIG) -> None:
        settled: list[int] = []
        loop = asyncio.get_running_loop()
        pool = InstancePool(
            ModelId("model", 1), model, [("model_0", engine)], ModelStatistics(), Owner(settled.append), loop
        )
        self.pools.append(pool)
        slot = pool.reserve()
        assert slot is not None
        pool.run(slot, list(members), "full")
        await until(lambda: sum(settled) == len(members))


@pytest.fixture
async def run() -> AsyncIterator[Runs]:
    runs = Runs()
    yield runs
    for pool in runs.pools:
        pool.close()


async def test_a_batch_is_merged_into_it(run: Runs) -> None:
    memory = Memory()
    engine = Engine(memory)
    one, two = member(1), member(2, batch_size=3)
    await run(engine, one, two)
    assert memory.asked == [("INPUT0", dtypes.INT32, (4, 4))]
    assert engine.inputs[0]["INPUT0"] is memory.lent[0]
    assert (answer(one), answer(two)) == ([[1] * 4], [[2] * 4] * 3)


async def test_a_single_request_is_copied_there_too(run: Runs) -> None:
    memory = Memory()
    engine = Engine(memory)
    one = member(1)
    await run(engine, one)
    assert engine.inputs[0]["INPUT0"] is memory.lent[0]
    assert answer(one) == [[1] * 4]


async def test_an_engine_may_leave_an_input_to_the_server(run: Runs) -> None:
    engine = Engine(lambda name, datatype, shape: None)
    one, two = member(1), member(2)
    await run(engine, one, two)
    assert engine.inputs[0]["INPUT0"].tolist() == [[1] * 4, [2] * 4]


def read_only(shape: Shape) -> Array:
    array = np.zeros(shape, np.int32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("lend", "problem"),
    [
        (lambda shape: b"", "it is an object of type bytes, expected an array"),
        (lambda shape: np.zeros(shape, np.float32), "its type is float32, expected int32"),
        (lambda shape: np.zeros((2, 5), np.int32), "its shape is [2,5], expected [2,4]"),
        (read_only, "it is read-only"),
        (lambda shape: np.zeros((4, 2), np.int32).T, "it is not contiguous in row-major order"),
    ],
    ids=["no array", "type", "shape", "read-only", "transposed"],
)
async def test_memory_that_cannot_be_used(run: Runs, lend: Any, problem: str) -> None:
    engine = Engine(lambda name, datatype, shape: lend(shape))
    entry = member(1, batch_size=2)
    await run(engine, entry)
    code, text = refused(entry)
    assert code is Code.INTERNAL
    assert text == f"the memory that the engine of model 'model' allocated for input 'INPUT0' cannot be used: {problem}"


async def test_what_allocate_raises(run: Runs) -> None:
    def full(name: str, datatype: Datatype, shape: Shape) -> Array:
        raise MemoryError("the segment is full")

    entry = member(1)
    await run(Engine(full), entry)
    assert refused(entry) == (Code.INTERNAL, "model 'model', instance 'model_0': the segment is full")


def padded(length: int) -> RecordedInflight:
    tensor = Tensor.from_array(np.arange(1, length + 1, dtype=np.int32).reshape(1, length))
    asked = request({"INPUT0": tensor})
    now_ns = time.monotonic_ns()
    entry = RecordedInflight(asked, RecordingSink(), asked.inputs, ("OUTPUT0",), 1, None, now_ns)
    entry.length = length
    entry.queue_start_ns = now_ns
    return entry


async def test_padded_batches_are_copied_there(run: Runs) -> None:
    memory = Memory()
    engine = Engine(memory)
    spec = (TensorSpec("INPUT0", dtypes.INT32, (-1,)),)
    outputs = (TensorSpec("OUTPUT0", dtypes.INT32, (-1,)),)
    model = config(inputs=spec, outputs=outputs, padding=Padding({"INPUT0": 0}, unpad={"OUTPUT0": 0}))
    await run(engine, padded(2), padded(3), model=model)
    assert engine.inputs[0]["INPUT0"] is memory.lent[0]
    assert memory.lent[0].tolist() == [[1, 2, 0], [1, 2, 3]]


async def test_texts_stay_with_the_server(run: Runs) -> None:
    memory = Memory()
    engine = Engine(memory)
    spec = (TensorSpec("INPUT0", dtypes.BYTES, (1,)),)
    model = config(inputs=spec, outputs=(TensorSpec("OUTPUT0", dtypes.BYTES, (1,)),))
    asked = request({"INPUT0": Tensor.from_array(np.array([[b"a"]], object))})
    entry = RecordedInflight(asked, RecordingSink(), asked.inputs, ("OUTPUT0",), 1, None, 0)
    await run(engine, entry, model=model)
    assert memory.asked == []
    assert answer(entry) == [[b"a"]]


@pytest.mark.parametrize("raw", [bytes(16), bytearray(16), memoryview(bytearray(16))], ids=["bytes", "own", "view"])
def test_arrays_over_the_bytes_of_a_client_are_read_only(raw: Any) -> None:
    array = Tensor.from_raw(dtypes.INT32, (4,), raw).array
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
