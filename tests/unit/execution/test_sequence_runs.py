"""What sequences need of a pool: particular instances, fillers, states, and requests that run again."""

import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pool_bench import Bench, answer, copied, member, refused, sink

from modserve.core.configuration.sequence_config import SequenceBatching, SequenceState
from modserve.core.errors import Code
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.sequence import StateTable
from modserve.core.tensors import dtypes
from modserve.testing import Execution, config

STATE = SequenceState("STATE", "STATE_OUT", dtypes.INT32, (1,))
MODEL = config(sequence_batching=SequenceBatching(states=(STATE,), iterative=True))
TABLE = StateTable((STATE,), True, {})


class SequenceBench(Bench):
    """Tells of what is done, and of what is to run again."""

    def __init__(self, instances: int = 1, **more: Any) -> None:
        super().__init__(instances, more.pop("model", MODEL), **more)
        self.done: list[Inflight] = []
        self.again: list[Inflight] = []
        self.order: list[str] = []
        self.owner.batch_done = self._on_done
        self.owner.run_again = self._on_again
        self._set_free = self.owner.slot_free
        self.owner.slot_free = self._on_free

    def _on_done(self, members: list[Inflight]) -> None:
        self.order.append("done")
        self.done += members

    def _on_free(self) -> None:
        self.order.append("free")
        self._set_free()

    def _on_again(self, inflight: Inflight) -> None:
        self.order.append("again")
        self.again.append(inflight)

    def run_rows(self, *rows: Inflight) -> Execution:
        """Rows that are settled from the start are fillers."""
        slot = self.pool.reserve()
        assert slot is not None
        batch = [row for row in rows if not row.settled]
        self.statistics.pending += len(batch)
        self.pool.run(slot, batch, "full", list(rows))
        return self.backend.next_execution()


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[SequenceBench]:
    made = SequenceBench(**getattr(request, "param", {}))
    yield made
    made.pool.close()


by_request = pytest.mark.parametrize("bench", [{"by_request": True}], indirect=True, ids=["by request"])


def filler() -> Inflight:
    entry = member(0)
    entry.settled = True
    return entry


def with_states(entry: Inflight) -> Inflight:
    entry.states = TABLE.fresh()
    return entry


@pytest.mark.parametrize("bench", [{"instances": 3}], indirect=True, ids=["three"])
async def test_an_instance_of_ones_choice(bench: SequenceBench) -> None:
    assert bench.pool.count == 3
    slots = [bench.pool.reserve_number(number) for number in (1, 2, 1)]
    assert [slot is not None and slot.name for slot in slots] == ["model_1", "model_2", False]
    assert slots[0] is not None
    bench.pool.release(slots[0])
    assert bench.pool.reserve_number(1) is slots[0]


async def test_fillers_keep_the_rows_and_count_as_executed_only(bench: SequenceBench) -> None:
    first, last = with_states(member(1)), with_states(member(3))
    execution = bench.run_rows(filler(), first, filler(), last)
    assert execution.inputs["INPUT0"][:, 0].tolist() == [0, 1, 0, 3]
    assert execution.outputs == ("OUTPUT0", "STATE_OUT")
    execution.finish({**copied(execution), "STATE_OUT": np.array([[10], [11], [12], [13]], np.int32)})
    await bench.until_settled(1)
    assert [answer(entry) for entry in (first, last)] == [[[1] * 4], [[3] * 4]]
    assert [entry.states.inputs["STATE"].array.tolist() for entry in (first, last) if entry.states] == [[[11]], [[13]]]
    statistics = bench.statistics
    assert (statistics.inference_count, statistics.execution_count, statistics.success.count) == (2, 1, 2)
    assert (list(statistics.batches), statistics.pending, bench.settled) == ([4], 0, [2])
    # Whoever gets the free instance knows already what has become possible.
    assert (bench.done, bench.order) == ([first, last], ["done", "free"])


async def test_a_model_that_gives_no_state_fails_its_requests(bench: SequenceBench) -> None:
    entry = with_states(member(1))
    execution = bench.run(entry)
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert refused(entry) == (Code.INTERNAL, "model 'model' returned no state 'STATE_OUT'")
    assert bench.done == [entry]


@by_request
async def test_engines_by_request_get_fillers_whose_answers_nobody_hears(bench: SequenceBench) -> None:
    entry = with_states(member(1))
    execution = bench.run_rows(filler(), entry)
    for request in execution.requests:
        assert request.outputs == ("OUTPUT0", "STATE_OUT")
        request.respond({"OUTPUT0": request.inputs["INPUT0"], "STATE_OUT": np.array([[5]], np.int32)})
    execution.finish()
    await bench.until_settled(1)
    assert answer(entry) == [[1] * 4]
    assert entry.states is not None
    assert entry.states.inputs["STATE"].array.tolist() == [[5]]
    assert (bench.statistics.success.count, list(bench.statistics.batches), bench.settled) == (1, [2], [1])
    assert bench.order == ["done", "free"]


@by_request
async def test_a_request_that_runs_again_is_neither_answered_nor_counted(bench: SequenceBench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    [request] = execution.requests
    request.reschedule()
    with pytest.raises(RuntimeError, match="already has its final response"):
        request.reschedule()
    execution.finish()
    await bench.until_free()
    assert (bench.again, bench.order, sink(entry).settled, bench.settled) == ([entry], ["again", "free"], 0, [])
    assert (bench.statistics.pending, bench.statistics.success.count) == (1, 0)
    bench.statistics.pending -= 1

    entry.queue_start_ns = time.monotonic_ns()
    execution = bench.run(entry)
    execution.requests[0].respond({"OUTPUT0": entry.inputs["INPUT0"].array})
    execution.finish()
    await bench.until_settled(1)
    assert (bench.statistics.execution_count, bench.statistics.success.count) == (2, 1)


@by_request
async def test_a_cancelled_request_does_not_run_again(bench: SequenceBench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    entry.cancel()
    execution.requests[0].reschedule()
    execution.finish()
    await bench.until_settled(1)
    assert (bench.again, bench.done) == ([], [entry])
    assert bench.statistics.fail.count == 1


@pytest.mark.parametrize(
    "bench", [{"by_request": True, "model": config()}], indirect=True, ids=["no iterative sequences"]
)
async def test_only_iterative_models_may_run_requests_again(bench: SequenceBench) -> None:
    execution = bench.run(member(1))
    with pytest.raises(RuntimeError, match=r"that needs sequence_batching { iterative_sequence: true }"):
        execution.requests[0].reschedule()
    execution.requests[0].complete()
    execution.finish()
    await bench.until_settled(1)
