"""The end of a server whose models call each other: each finishes what it has before any of them is closed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling_bench import CALLER, IDENTITY, ONES, PUPPET, Bench, asking, called

from modserve import Code, EngineRequest, ModelCaller, ModserveError
from modserve.core.lifecycle import LifecycleState
from modserve.server import Phase


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.stack:
        yield made


async def leave(bench: Bench) -> "asyncio.Task[bool]":
    """The server is about to end; nothing new is accepted."""
    leaving = asyncio.create_task(bench.server.shut_down())
    while bench.server.phase is not Phase.STOPPING:  # noqa: ASYNC110 - within its first turns
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(ModserveError, match="Server not ready"):
        await bench.infer("slow")
    return leaving


async def test_an_engine_calls_others_after_the_server_has_begun_to_stop(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET, "same": IDENTITY})
    ready: list[bool] = []

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        total = np.zeros_like(ONES)
        for name in ("slow", "slow", "same"):
            total = total + models.infer(asking(name), parent=request).result().outputs["OUTPUT"].array
            ready.append(models.is_ready("slow").result())
        return total

    bench.caller.work = work
    waiting = asyncio.create_task(bench.infer())
    first = await bench.execution()
    leaving = await leave(bench)
    assert not bench.server.model_ready("slow", None)
    assert not await bench.server.check_model_ready("slow", None)
    first.finish({"OUTPUT": 10 * ONES})
    (await bench.execution()).finish({"OUTPUT": 100 * ONES})
    assert await waiting == [[111.0, 111.0]]
    assert await leaving
    assert ready == [True, True, True]
    assert (bench.puppet.open_models, bench.puppet.open_instances) == (0, 0)


async def test_nobody_waits_for_others_to_share_a_batch_while_the_server_stops(bench: Bench) -> None:
    delay = "dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    await bench.start({"caller": CALLER, "slow": PUPPET, "batched": IDENTITY + delay})

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        called("slow")(models, request)
        return called("batched")(models, request)

    bench.caller.work = work
    waiting, alone = asyncio.create_task(bench.infer()), asyncio.create_task(bench.infer("batched"))
    execution = await bench.execution()
    leaving = await leave(bench)
    assert await alone == [[1.0, 1.0]]
    execution.finish({"OUTPUT": ONES})
    assert await waiting == [[1.0, 1.0]]
    assert await leaving


async def test_sequences_that_have_begun_go_on_and_others_do_not_begin(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET, "stateful": IDENTITY + "sequence_batching { }"})
    start, end = {"sequence_id": 7, "sequence_start": True}, {"sequence_id": 7, "sequence_end": True}
    await bench.infer("stateful", parameters=start)
    bench.caller.work = called("slow")
    waiting = asyncio.create_task(bench.infer())
    execution = await bench.execution()
    leaving = await leave(bench)
    for parameters in ({"sequence_id": 8, "sequence_start": True}, start, {}):
        with pytest.raises(ModserveError, match="has stopped accepting new inference requests") as caught:
            await bench.infer("stateful", parameters=parameters)
        assert caught.value.code is Code.UNAVAILABLE
    with pytest.raises(ModserveError, match="must specify the START flag"):
        await bench.infer("stateful", parameters={"sequence_id": 9})
    assert await bench.infer("stateful", parameters={"sequence_id": 7}) == [[1.0, 1.0]]
    # An engine may begin one of its own.
    own = {"sequence_id": 10, "sequence_start": True, "sequence_end": True}
    response = await asyncio.wrap_future(bench.caller.models.infer(asking("stateful", parameters=own)))
    assert response.outputs["OUTPUT"].array.tolist() == [[1.0, 1.0]]
    handle = bench.server.borrow("stateful")
    assert await bench.infer("stateful", parameters=end) == [[1.0, 1.0]]
    execution.finish({"OUTPUT": ONES})
    assert await waiting == [[1.0, 1.0]]
    assert not leaving.done()
    handle.release()
    assert await leaving


PIPELINE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [
  { model_name: "caller" model_version: -1
    input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "between" } },
  { model_name: "slow" model_version: -1
    input_map { key: "INPUT" value: "between" } output_map { key: "OUTPUT" value: "OUTPUT" } } ] }
"""


async def test_models_that_are_unloaded_together_take_each_others_last_calls(bench: Bench) -> None:
    models = {"caller": CALLER, "slow": PUPPET, "pipeline": PIPELINE}
    await bench.start(models, model_control_mode="explicit", load_model=("pipeline",))
    server = bench.server

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        called("slow")(models, request)
        return called("slow", version=1)(models, request)

    bench.caller.work = work
    waiting = asyncio.create_task(bench.infer())
    first = await bench.execution()
    await server.unload_model("pipeline", unload_dependents=True)
    for name in models:
        with pytest.raises(ModserveError, match="no available versions"):
            await bench.infer(name)
    first.finish({"OUTPUT": ONES})
    (await bench.execution()).finish({"OUTPUT": 5 * ONES})
    assert await waiting == [[5.0, 5.0]]
    changed = asyncio.Event()
    with server.changes.listening(changed.set):
        while any(entry.state is not LifecycleState.UNAVAILABLE for entry in server.index()):
            changed.clear()
            await changed.wait()
    assert bench.puppet.open_models == 0
    with pytest.raises(ModserveError, match="no available versions"):
        await asyncio.wrap_future(bench.caller.models.infer(asking("slow")))


async def test_a_model_that_is_unloaded_alone_is_not_waited_for(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET}, model_control_mode="explicit", load_model=("*",))

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        called("slow")(models, request)
        return called("slow")(models, request)

    bench.caller.work = work
    waiting = asyncio.create_task(bench.infer())
    first = await bench.execution()
    await bench.server.unload_model("slow")
    first.finish({"OUTPUT": ONES})
    with pytest.raises(ModserveError, match="no available versions"):
        await waiting


async def test_the_end_does_not_wait_longer_than_it_may(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET}, exit_timeout_secs=0)
    bench.caller.work = called("slow")
    waiting = asyncio.create_task(bench.infer())
    execution = await bench.execution()
    assert not await bench.server.shut_down()
    execution.finish({"OUTPUT": ONES})
    assert await waiting == [[1.0, 1.0]]
