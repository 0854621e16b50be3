"""Engines that call other models: what passes on to a call, and what comes back."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling_bench import CALLER, DECOUPLED, ENSEMBLE, IDENTITY, ONES, PUPPET, Bench, asking, called

from modserve import (
    Code,
    EngineRequest,
    InferenceRequest,
    InferenceResponse,
    ModelCaller,
    ModelSource,
    ModserveError,
    Tensor,
)
from modserve.core.requests.response import Outcome
from modserve.core.servable import submit_traced
from modserve.testing import PuppetBackend, RecordingSink


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.stack:
        yield made


async def test_a_call_and_its_response(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "same": IDENTITY})
    bench.caller.work = called("same")
    assert await bench.infer() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (asking("nobody"), Code.NOT_FOUND, "Request for unknown model: 'nobody' is not found"),
        (InferenceRequest("same", {}), Code.INVALID_ARG, "expected 1 inputs but got 0 inputs for model 'same'"),
        (asking("same", version=7), Code.NOT_FOUND, "version 7"),
    ],
    ids=["no model", "no inputs", "no version"],
)
async def test_calls_that_are_refused(bench: Bench, request_: InferenceRequest, code: Code, text: str) -> None:
    await bench.start({"caller": CALLER, "same": IDENTITY})
    bench.caller.work = lambda models, request: models.infer(request_, parent=request).result()
    with pytest.raises(ModserveError, match=text) as caught:
        await bench.infer()
    assert caught.value.code is code


async def test_a_call_has_the_parents_deadline_or_its_own_which_is_earlier(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET})
    bench.caller.work = called("slow")
    waiting = asyncio.create_task(bench.infer(timeout=0.05))
    busy = asyncio.create_task(bench.infer("slow"))
    execution = await bench.execution()
    with pytest.raises(ModserveError, match="Request timeout expired"):
        await waiting
    execution.finish({"OUTPUT": ONES})
    await busy


async def test_cancelling_the_parent_cancels_the_call(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET})
    codes: list[Code] = []

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        try:
            return models.infer(asking("slow"), parent=request).result()
        except ModserveError as error:
            codes.append(error.code)
            raise

    bench.caller.work = work
    waiting = asyncio.create_task(bench.infer())
    execution = await bench.execution()
    waiting.cancel()
    await asyncio.wait([waiting])
    execution.finish({"OUTPUT": ONES})
    bench.caller.work = called("slow")
    again = asyncio.create_task(bench.infer())  # the caller's thread is free: the cancelled call has ended
    (await bench.execution()).finish({"OUTPUT": ONES})
    assert await again == [[1.0, 1.0]]
    assert codes == [Code.CANCELLED]


async def test_a_model_that_calls_itself(bench: Bench) -> None:
    await bench.start({"caller": CALLER})
    bench.caller.work = called("caller")
    with pytest.raises(ModserveError) as caught:
        await bench.infer()
    assert caught.value.code is Code.UNSUPPORTED
    assert caught.value.message == "a model would wait for itself: 'caller' version 1 → 'caller' version 1"


@pytest.mark.parametrize("parent", [True, False], ids=["with a parent", "without"])
async def test_a_ring_of_models(bench: Bench, parent: bool) -> None:
    await bench.start({"caller": CALLER, "round": ENSEMBLE})
    bench.caller.work = lambda models, request: (
        models.infer(asking("round"), parent=request if parent else None).result().outputs["OUTPUT"]
    )
    with pytest.raises(ModserveError, match=r"'round' version 1 → 'caller' version 1 → 'round' version 1"):
        await bench.infer("round")


async def test_the_sequence_of_the_parent_goes_to_models_with_sequences(bench: Bench) -> None:
    bench.puppet = PuppetBackend(by_request=True)
    await bench.start({"caller": CALLER, "stateful": PUPPET + "sequence_batching { }", "plain": PUPPET})

    async def seen(name: str, **more: Any) -> tuple[object, ...]:
        [model] = [each for each in bench.server.ready_models() if each.id.name == name]
        before = model.statistics.execution_count
        bench.caller.work = called(name, **more)
        waiting = asyncio.create_task(
            bench.infer(parameters={"sequence_id": 5, "sequence_start": True, "sequence_end": True})
        )
        execution = await bench.execution()
        [request] = execution.requests
        request.respond({"OUTPUT": ONES})
        execution.finish()
        await waiting
        # The instance's thread may say later that the execution is over: until then the sequence has its place.
        async with asyncio.timeout(30):
            while model.statistics.execution_count == before:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        return request.correlation_id, request.sequence_start, request.sequence_end

    assert await seen("stateful") == (5, True, True)
    assert await seen("plain") == (0, False, False)
    own = {"sequence_id": 6, "sequence_start": True, "sequence_end": True}
    assert await seen("stateful", parameters=own) == (6, True, True)


async def test_responses_of_a_decoupled_model(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "repeat": 'backend: "repeat"' + DECOUPLED})
    count = 30

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        inputs = {
            "IN": Tensor.from_array(np.arange(count, dtype=np.float32)),
            "DELAY": Tensor.from_array(np.zeros(count, np.uint32)),
            "WAIT": Tensor.from_array(np.zeros(1, np.uint32)),
        }
        asked = InferenceRequest("repeat", inputs)
        total = sum(each.outputs["OUT"].array[0] for each in models.stream(asked, parent=request))
        first = next(models.stream(asked, parent=request)).outputs["OUT"].array[0]
        with pytest.raises(ModserveError, match="model 'repeat' responded more than once; use 'stream'"):
            models.infer(asked, parent=request).result()
        return np.array([[total, first]], np.float32)

    bench.caller.work = work
    assert await bench.infer() == [[435.0, 0.0]]


async def test_calls_from_the_event_loop(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "same": IDENTITY})
    outcomes: list[tuple[Outcome, bool]] = []
    models = bench.caller.models
    models.submit(asking("same"), lambda outcome, final: outcomes.append((outcome, final)))
    assert outcomes == []
    models.submit(asking("nobody"), lambda outcome, final: outcomes.append((outcome, final)))
    assert outcomes == []
    future = models.infer(asking("same"))
    with pytest.raises(RuntimeError, match="cannot be awaited on the event loop's thread"):
        future.result()
    with pytest.raises(RuntimeError, match="cannot be awaited on the event loop's thread"):
        next(models.stream(asking("same")))
    response = await asyncio.wrap_future(future)
    assert response.outputs["OUTPUT"].array.tolist() == [[1.0, 1.0]]
    assert {type(outcome) for outcome, _ in outcomes} == {InferenceResponse, ModserveError}
    assert all(final for _, final in outcomes)


async def test_cancelling_a_call(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "slow": PUPPET})
    future = bench.caller.models.infer(asking("slow"))
    execution = await bench.execution()
    future.cancel()
    outcomes: list[Outcome] = []  # of a call that waits for the instance
    call = bench.caller.models.submit(asking("slow"), lambda outcome, final: outcomes.append(outcome))
    threading.Thread(target=call.cancel).start()
    async with asyncio.timeout(30):
        while not outcomes:  # noqa: ASYNC110 - nothing else tells of it
            await asyncio.sleep(0)
    assert isinstance(outcomes[0], ModserveError)
    assert outcomes[0].code is Code.CANCELLED
    execution.finish({"OUTPUT": ONES})
    call.cancel()
    call.taken()


async def test_a_callback_that_raises(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.start({"caller": CALLER, "same": IDENTITY})

    def broken(outcome: Outcome, final: bool) -> None:
        raise RuntimeError("no pipe")

    bench.caller.models.submit(asking("same"), broken)
    await bench.server.infer("same", {"INPUT": ONES})
    await asyncio.sleep(0)
    assert "model 'caller' failed to take a response of model 'same'" in caplog.text


async def test_loading_and_unloading_other_models(bench: Bench) -> None:
    await bench.start({"caller": CALLER, "same": IDENTITY}, model_control_mode="explicit", load_model=("caller",))
    models = bench.caller.models

    def work(models: ModelCaller, request: EngineRequest) -> Any:
        before = models.is_ready("same").result()
        models.load("same").result()
        loaded = models.is_ready("same", 1).result()
        models.unload("same").result()
        return np.array([[before, loaded]], np.float32)

    bench.caller.work = work
    assert await bench.infer() == [[0.0, 1.0]]
    with pytest.raises(ModserveError, match="nobody"):
        await asyncio.wrap_future(models.load("nobody"))
    assert await asyncio.wrap_future(models.is_ready("nobody")) is False


def test_a_source_without_a_server() -> None:
    source = ModelSource(None, 1, Path(), Path())  # type: ignore[arg-type]
    with pytest.raises(ModserveError, match="no other models can be called here"):
        source.models.infer(asking("x"))


class AwaitedSink(RecordingSink):
    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def settle(self, outcome: Outcome, final: bool) -> None:
        super().settle(outcome, final)
        self.over.set()


async def test_a_call_is_a_child_in_the_trace_of_the_request_that_makes_it(bench: Bench, tmp_path: Path) -> None:
    file, sink = tmp_path / "trace.json", AwaitedSink()
    bench.caller.work = called("same")
    options = {"trace_level": frozenset({"TIMESTAMPS"}), "trace_rate": 1, "trace_file": str(file)}
    await bench.start({"caller": CALLER, "same": IDENTITY}, **options)
    tracer, servable = bench.server.tracer, bench.server.model("caller", None)
    trace = tracer.sample(servable)
    assert trace is not None
    submit_traced(trace, servable, InferenceRequest("caller", {"INPUT": Tensor.from_array(ONES)}), sink, 1)
    await sink.over.wait()
    trace.end()
    await asyncio.to_thread(tracer.close)
    heads = [each for each in json.loads(file.read_bytes()) if "model_name" in each]
    ids = [(each["model_name"], each["id"], each.get("parent_id", 0)) for each in heads]
    assert ids == [("caller", 1, 0), ("same", 2, 1)]
