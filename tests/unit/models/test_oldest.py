"""How long the oldest execution of a model and its oldest waiting request have lasted."""

import asyncio
import time
from collections.abc import Callable

import pytest
import test_sequence_model
from residency_bench import Bench as OnDemandBench
from residency_bench import settle
from test_model import BATCHING, Bench
from test_sequence_model import DIRECT, OLDEST

from modserve.core.configuration.model_config import DynamicBatching, ModelConfig, QueuePolicy
from modserve.core.configuration.sequence_config import SequenceBatching
from modserve.core.servable import Oldest, Servable, oldest
from modserve.core.tenants import Tenant
from modserve.models.serving.wrappers import ModelWrapper
from modserve.repository.succession import in_front
from modserve.testing import RecordingSink, config, request

S = 10**9
LEVELS = DynamicBatching(preferred_batch_sizes=(8,), priority_levels=3, default_priority_level=2)
DELAYED = DynamicBatching((8,), default_policy=QueuePolicy(delay=True, default_timeout_ns=S))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the monotonic clock, to so many seconds after the start."""
    start_ns = time.monotonic_ns()
    now_ns = start_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)

    def set_time(second: int) -> None:
        nonlocal now_ns
        now_ns = start_ns + second * S

    return set_time


def seconds(servable: Servable) -> tuple[float, float]:
    """The oldest of the oldest execution and of the oldest request that waits."""
    found = oldest(servable, time.monotonic_ns())
    assert found is not None
    return found.execution_ns / S, found.waiting_ns / S


@pytest.mark.parametrize(
    "given",
    [config(), config(dynamic_batching=BATCHING), config(dynamic_batching=LEVELS), config(dynamic_batching=DELAYED)],
    ids=["unbatched", "batched", "levels", "delayed"],
)
@pytest.mark.parametrize("tenant", [None, Tenant("a")])
async def test_of_a_model(given: ModelConfig, tenant: Tenant | None, at: Callable[[int], None]) -> None:
    bench = Bench(given)
    model = ModelWrapper(bench.model)
    assert seconds(model) == (0, 0)
    bench.submit(1, tenant=tenant)
    execution = await bench.execution()
    at(2)
    first = bench.submit(2, tenant=tenant, parameters={"priority": 3})
    at(3)
    bench.submit(3, tenant=tenant, parameters={"priority": 1})
    await asyncio.sleep(0)
    at(7)
    assert seconds(model) == (7, 5)
    first[0].cancel()
    assert seconds(model) == (7, 4)
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    assert await bench.finish() == [3]
    await bench.model.drain()
    assert seconds(model) == (0, 0)
    await bench.model.close()


@pytest.mark.parametrize("batching", [DIRECT, OLDEST], ids=["direct", "oldest"])
async def test_of_a_model_with_sequences(batching: SequenceBatching, at: Callable[[int], None]) -> None:
    bench = test_sequence_model.Bench(batching)
    bench.submit(1, 1, sequence_start=True)
    execution = await asyncio.to_thread(bench.backend.next_execution)
    at(2)
    bench.submit(1, 1, sequence_end=True)
    at(3)
    bench.submit(2, 1, sequence_start=True, sequence_end=True)
    at(7)
    assert seconds(bench.model) == (7, 5)
    successor = test_sequence_model.Bench(batching)
    front = in_front(successor.model, [bench.model])
    assert front is not None
    assert seconds(front) == (7, 5)
    await successor.model.close()
    execution.finish(dict.fromkeys(("OUTPUT0", "SUM_OUT"), execution.inputs["INPUT0"]))
    await bench.model.close()
    assert seconds(bench.model) == (0, 0)


async def test_of_a_model_that_is_not_in_memory() -> None:
    bench = OnDemandBench(100, a=60)
    bench.gates["a"] = asyncio.Event()
    model, clock = bench.models["a"], bench.clock
    model.submit(request(model="a"), RecordingSink(), clock.now_ns())
    await settle()
    clock.advance(5 * S)
    assert oldest(model, clock.now_ns()) == Oldest(0, 5 * S)
    bench.gates["a"].set()
    await settle()
    assert oldest(model, clock.now_ns()) == Oldest(0, 0)
