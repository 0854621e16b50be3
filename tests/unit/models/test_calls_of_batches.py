"""Calls that an engine makes on behalf of several requests at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calling_bench import CALLER, ENSEMBLE, ONES, PUPPET, Bench, asking

from modserve import Code, EngineRequest, ModelCaller, ModserveError, Tensor
from modserve.testing import PuppetBackend

PAIRS = CALLER + "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.stack:
        yield made


def one_call(models: ModelCaller, requests: Sequence[EngineRequest]) -> None:
    """The batch's rows in one call, and the response's rows back to each."""
    rows = np.concatenate([each.inputs["INPUT"] for each in requests])
    call = replace(asking("slow"), inputs={"INPUT": Tensor.from_array(rows)})
    try:
        output = models.infer(call, parent=requests).result().outputs["OUTPUT"].array
    except ModserveError as error:
        for each in requests:
            each.fail(error)
        return
    for each, row in zip(requests, output, strict=True):
        each.respond({"OUTPUT": row[None]})


async def test_a_call_for_a_batch_has_the_time_of_the_request_that_waits_longest(bench: Bench) -> None:
    bench.puppet = PuppetBackend(by_request=True)
    await bench.start({"caller": PAIRS, "slow": PUPPET})

    async def deadline(*timeouts: float | None) -> tuple[int, int]:
        """That of the call, and the latest one of the requests of the batch."""
        seen: list[int] = []

        def work(models: ModelCaller, requests: Sequence[EngineRequest]) -> None:
            seen.extend(each.deadline_ns for each in requests)
            one_call(models, requests)

        bench.caller.work_at_once = work
        pair = [asyncio.create_task(bench.infer(timeout=timeout)) for timeout in timeouts]
        execution = await bench.execution()
        [request] = execution.requests
        request.respond({"OUTPUT": request.inputs["INPUT"]})
        execution.finish()
        assert await asyncio.gather(*pair) == 2 * [ONES.tolist()]
        return request.deadline_ns, max(seen) if all(seen) else 0

    of_call, latest = await deadline(50, 100)
    assert of_call == latest > 0
    assert await deadline(50, None) == (0, 0)


async def test_a_call_for_a_batch_is_cancelled_with_the_last_of_it(bench: Bench) -> None:
    await bench.start({"caller": PAIRS, "slow": PUPPET})
    over = threading.Event()
    codes: list[Code] = []

    def work(models: ModelCaller, requests: Sequence[EngineRequest]) -> None:
        try:
            models.infer(asking("slow"), parent=requests).result()
        except ModserveError as error:
            codes.append(error.code)
        for each in requests:
            each.complete()
        over.set()

    bench.caller.work_at_once = work
    first, second = pair = [asyncio.create_task(bench.infer()) for _ in range(2)]
    execution = await bench.execution()
    first.cancel()
    await asyncio.wait([first])
    assert not over.is_set()
    assert codes == []
    second.cancel()
    await asyncio.wait(pair)
    assert await asyncio.to_thread(over.wait, 30)
    assert codes == [Code.CANCELLED]
    execution.finish({"OUTPUT": ONES})


async def test_a_call_for_a_batch_goes_on_while_somebody_waits(bench: Bench) -> None:
    await bench.start({"caller": PAIRS, "slow": PUPPET})
    bench.caller.work_at_once = one_call
    first, second = (asyncio.create_task(bench.infer()) for _ in range(2))
    execution = await bench.execution()
    first.cancel()
    await asyncio.wait([first])
    execution.finish({"OUTPUT": np.concatenate([ONES, ONES])})
    assert await second == ONES.tolist()


async def test_a_list_of_one_is_as_that_one(bench: Bench) -> None:
    bench.puppet = PuppetBackend(by_request=True)
    await bench.start({"caller": CALLER, "slow": PUPPET + "sequence_batching { }"})
    bench.caller.work_at_once = one_call
    sequence = {"sequence_id": 5, "sequence_start": True, "sequence_end": True}
    waiting = asyncio.create_task(bench.infer(parameters=sequence))
    execution = await bench.execution()
    [request] = execution.requests
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (5, True, True)
    request.respond({"OUTPUT": ONES})
    execution.finish()
    assert await waiting == ONES.tolist()


async def test_a_ring_through_one_of_the_batch(bench: Bench) -> None:
    await bench.start({"caller": PAIRS, "round": ENSEMBLE})

    def work(models: ModelCaller, requests: Sequence[EngineRequest]) -> None:
        try:
            models.infer(asking("round"), parent=requests).result()
        except ModserveError as error:
            for each in requests:
                each.fail(error)

    bench.caller.work_at_once = work
    outcomes = await asyncio.gather(bench.infer("round"), bench.infer(), return_exceptions=True)
    assert [type(each) for each in outcomes] == [ModserveError, ModserveError]
    assert all("'round' version 1 → 'caller' version 1 → 'round' version 1" in str(each) for each in outcomes)
