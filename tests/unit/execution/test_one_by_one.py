"""A batch that the engine refuses runs once more, each request by itself: only those fail that are to blame."""

import asyncio
import logging
import queue
import time
from collections.abc import AsyncIterator

import pytest
from pool_bench import Bench, answer, copied, member, refused

from modserve.core.configuration.sequence_config import OldestStrategy, SequenceBatching
from modserve.core.errors import Code, ModserveError, invalid, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.model_statistics import FailureReason
from modserve.testing import Execution, config


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(instances=1)
    yield made
    await asyncio.to_thread(made.pool.close)


async def following(bench: Bench) -> Execution:
    """The next execution, which begins when the event loop has had its turn."""
    return await asyncio.to_thread(bench.backend.next_execution)


async def settled(bench: Bench, count: int) -> None:
    async with asyncio.timeout(30):
        while sum(bench.settled) < count:
            bench._changed.clear()
            await bench._changed.wait()


REFUSALS = pytest.mark.parametrize(
    "error",
    [invalid("index 99 is out of range"), ValueError("99"), MemoryError()],
    ids=["invalid", "foreign", "memory"],
)


@REFUSALS
async def test_only_the_guilty_get_the_error(bench: Bench, error: Exception) -> None:
    good, bad, last = member(1), member(99), member(3)
    bench.run(good, bad, last).fail(error)
    for entry in (good, bad, last):
        execution = await following(bench)
        assert execution.inputs["INPUT0"].tolist() == entry.inputs["INPUT0"].array.tolist()
        if entry is bad:
            execution.fail(error)
        else:
            execution.finish(copied(execution))
    await settled(bench, 3)
    assert (answer(good), answer(last)) == ([[1] * 4], [[3] * 4])
    assert refused(bad)[0] is (error.code if isinstance(error, ModserveError) else Code.INTERNAL)
    await bench.until_free()


async def test_the_executions_that_succeed_are_counted(bench: Bench) -> None:
    good, bad = member(1), member(99)
    bench.run(good, bad).fail(invalid("99"))
    execution = await following(bench)
    execution.finish(copied(execution))
    (await following(bench)).fail(invalid("99"))
    await settled(bench, 2)
    statistics = bench.statistics
    assert (statistics.execution_count, statistics.inference_count, list(statistics.batches)) == (1, 1, [1])
    assert (statistics.success.count, statistics.fail.count, statistics.pending) == (1, 1, 0)
    assert statistics.failures[FailureReason.BACKEND] == 1
    assert statistics.close_reasons == {"refused": 1}
    assert good.timing is not None
    assert statistics.queue.ns == good.timing.compute_start_ns - good.queue_start_ns, "what it waited for in all"


async def test_the_slot_stays_taken_until_the_last_has_run(bench: Bench) -> None:
    bench.run(member(1), member(2), member(3)).fail(invalid("no"))
    for _ in range(3):
        execution = await following(bench)
        assert bench.pool.reserve() is None
        execution.finish(copied(execution))
    await bench.until_free()
    assert bench.pool.remaining_ns(0, lambda size: 100) == [0]


async def test_each_is_answered_as_soon_as_it_has_run(bench: Bench) -> None:
    first, second = member(1), member(2)
    bench.run(first, second).fail(invalid("no"))
    execution = await following(bench)
    execution.finish(copied(execution))
    await settled(bench, 1)
    assert (answer(first), second.settled) == ([[1] * 4], False)
    execution = await following(bench)
    execution.finish(copied(execution))
    await settled(bench, 2)


async def test_whoever_does_not_wait_any_more_does_not_run_again(bench: Bench) -> None:
    gone, late, good, gone_later = member(1), member(2), member(3), member(4)
    execution = bench.run(gone, late, good, gone_later)
    gone.cancel()
    late.deadline_ns = time.monotonic_ns()
    execution.fail(invalid("no"))
    execution = await following(bench)
    assert execution.inputs["INPUT0"].tolist() == [[3] * 4]
    gone_later.cancel()
    execution.finish(copied(execution))
    await settled(bench, 4)
    assert answer(good) == [[3] * 4]
    assert [refused(entry)[0] for entry in (gone, late, gone_later)] == [
        Code.CANCELLED,
        Code.UNAVAILABLE,
        Code.CANCELLED,
    ]
    await bench.until_free()
    with pytest.raises(queue.Empty):
        bench.backend.next_execution(timeout=0)
    statistics = bench.statistics
    assert statistics.failures[FailureReason.CANCELED] == 2
    assert statistics.failures[FailureReason.REJECTED] == 1
    assert sum(bench.settled) == 4


async def test_when_all_are_gone_the_slot_is_free(bench: Bench) -> None:
    members = [member(1), member(2)]
    execution = bench.run(*members)
    for entry in members:
        entry.cancel()
    execution.fail(invalid("no"))
    await bench.until_free()
    assert sum(bench.settled) == 2
    assert bench.statistics.failures[FailureReason.CANCELED] == 2


async def refusal(bench: Bench, members: list[Inflight], error: Exception) -> None:
    bench.run(*members).fail(error)
    await settled(bench, len(members))
    with pytest.raises(queue.Empty):
        bench.backend.next_execution(timeout=0)
    assert all(entry.settled for entry in members)


async def test_a_request_that_ran_alone_does_not_run_again(bench: Bench) -> None:
    await refusal(bench, [member(1, batch_size=3)], invalid("no"))


async def test_an_engine_that_is_not_there_is_not_asked_again(bench: Bench) -> None:
    await refusal(bench, [member(1), member(2)], unavailable("the engine has died"))


async def test_outputs_that_are_wrong_are_no_refusal(bench: Bench) -> None:
    members = [member(1), member(2)]
    bench.run(*members).finish({})
    await settled(bench, 2)
    assert [refused(entry)[0] for entry in members] == [Code.INTERNAL] * 2


async def test_models_with_state_run_nothing_twice() -> None:
    bench = Bench(instances=1, model=config(sequence_batching=SequenceBatching(strategy=OldestStrategy())))
    await refusal(bench, [member(1), member(2)], invalid("no"))
    await asyncio.to_thread(bench.pool.close)


async def test_it_is_logged_once_that_a_batch_was_refused(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.run(member(1), member(99)).fail(invalid("index 99 is out of range"))
    for _ in range(2):
        execution = await following(bench)
        execution.finish(copied(execution))
    await settled(bench, 2)
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.getMessage() == (
        "model 'model': a batch of 2 requests failed; each runs once more on its own: index 99 is out of range"
    )
