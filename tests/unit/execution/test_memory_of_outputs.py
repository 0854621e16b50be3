"""Whose the memory of outputs is: the server's until nobody reads it any more, or the engine's, which says so."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from pool_bench import Owner, member

from modserve.backends.api import EngineRequest, Executor
from modserve.core.configuration.merging import Padding
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import OldestStrategy, SequenceBatching, SequenceState
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.sequence import StateTable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.testing import RecordingSink, config, request, tensor
from modserve.testing.builders import RecordedInflight

WIDE = (TensorSpec("OUTPUT0", dtypes.INT32, (8192,)),)
"""32 KiB a row: such outputs are not copied to be split."""


class Reusing:
    """Writes all its outputs into one array."""

    reuses_outputs = True

    def __init__(self) -> None:
        self._memory = np.zeros((8, 8192), np.int32)

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        rows = len(inputs["INPUT0"])
        self._memory[:rows] = inputs["INPUT0"][:, :1]
        return {"OUTPUT0": self._memory[:rows]}

    def close(self) -> None:
        pass


class ReusingByRequest:
    """The same, answering each request by itself."""

    reuses_outputs = True

    def __init__(self) -> None:
        self._engine = Reusing()

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        for each in requests:
            each.respond(self._engine.execute(each.inputs, each.outputs))

    def close(self) -> None:
        pass


async def run_all(given: ModelConfig, engine: Executor, members: list[list[Inflight]]) -> None:
    settled = asyncio.Event()
    free = asyncio.Event()
    left = sum(map(len, members))

    def on_settled(count: int) -> None:
        nonlocal left
        left -= count
        if not left:
            settled.set()

    loop = asyncio.get_running_loop()
    owner = Owner(on_settled, free.set)
    pool = InstancePool(ModelId("model", 1), given, [("model_0", engine)], ModelStatistics(), owner, loop)
    async with asyncio.timeout(30):
        for batch in members:
            while (slot := pool.reserve()) is None:
                free.clear()
                await free.wait()
            pool.run(slot, batch, "full")
        await settled.wait()
    await asyncio.to_thread(pool.close)


def values(entry: Inflight) -> set[int]:
    assert isinstance(entry.sink, RecordingSink)
    [response] = entry.sink.responses
    return set(np.unique(response.outputs["OUTPUT0"].array).tolist())


@pytest.mark.parametrize("engine", [Reusing(), ReusingByRequest()], ids=["batches", "requests"])
@pytest.mark.parametrize("size", [1, 3], ids=["alone", "together"])
async def test_what_an_engine_overwrites_was_copied(engine: Executor, size: int) -> None:
    members = [[member(0) for _ in range(size)] for _ in range(20)]
    for number, entry in enumerate(entry for batch in members for entry in batch):
        entry.inputs["INPUT0"].array[:] = number
    await run_all(config(outputs=WIDE), engine, members)
    assert [values(entry) for batch in members for entry in batch] == [{number} for number in range(20 * size)]


async def test_padded_batches_too() -> None:
    given = config(
        inputs=(TensorSpec("INPUT0", dtypes.INT32, (-1,)),),
        outputs=WIDE,
        padding=Padding({"INPUT0": 0}),
        dynamic_batching=DynamicBatching((8,), batch_sizes=(4,)),
    )
    members: list[list[Inflight]] = []
    for number in range(20):
        asked = request({"INPUT0": tensor(dtypes.INT32, (1, 4), number)})
        entry = RecordedInflight(asked, RecordingSink(), asked.inputs, ("OUTPUT0",), 1, None, 0)
        entry.length = 4
        members.append([entry])
    await run_all(given, Reusing(), members)
    assert [values(entry) for [entry] in members] == [{number} for number in range(20)]


async def test_the_outputs_of_other_engines_are_not_copied() -> None:
    """They are the server's own."""
    given: list[Array] = []

    class Giving(Reusing):
        reuses_outputs = False

        def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
            given.append(np.zeros((len(inputs["INPUT0"]), 8192), np.int32))
            return {"OUTPUT0": given[-1]}

    members = [[member(1), member(2)]]
    await run_all(config(outputs=WIDE), Giving(), members)
    for row, entry in enumerate(members[0]):
        assert isinstance(entry.sink, RecordingSink)
        response: InferenceResponse = entry.sink.responses[0]
        assert np.shares_memory(response.outputs["OUTPUT0"].array, given[0][row])


async def test_states_are_always_copied() -> None:
    """Or the next request of a sequence would begin with what another one made of them."""
    state = SequenceState("SUM", "SUM_OUT", dtypes.INT32, (4,))
    given = config(sequence_batching=SequenceBatching(OldestStrategy(), states=(state,)))
    memory = np.zeros((1, 4), np.int32)

    class Stateful(Reusing):
        reuses_outputs = False

        def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
            memory[:] = inputs["INPUT0"]
            return {"OUTPUT0": inputs["INPUT0"], "SUM_OUT": memory}

    kept: list[Any] = []
    members = [[member(number)] for number in range(3)]
    for [entry] in members:
        entry.states = StateTable((state,), True, {}).fresh()
    await run_all(given, Stateful(), members)
    for [entry] in members:
        assert entry.states is not None
        kept.append(entry.states.inputs["SUM"].array[0, 0])
    assert kept == [0, 1, 2]
