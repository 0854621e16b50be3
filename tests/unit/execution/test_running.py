"""Engines that answer each request by itself: any number of times, from any thread, in and after the execution."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
from pool_bench import CONFIG, Bench, answer, member, refused, sink

from modserve.backends.api import EngineRequest
from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import Code, internal, invalid
from modserve.core.requests.inflight import Inflight, RequestTrace
from modserve.core.requests.request import ParameterValue
from modserve.core.statistics.model_statistics import FailureReason
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape, Tensor
from modserve.execution.batch import single
from modserve.execution.running import RunningRequest
from modserve.resources.flow import Flow
from modserve.testing import Execution, config

TWO_OUTPUTS = (TensorSpec("OUTPUT0", dtypes.INT32, (4,)), TensorSpec("OUTPUT1", dtypes.INT32, (1,)))
DECOUPLED = config(decoupled=True, outputs=TWO_OUTPUTS)
GONE = "model 'model' released a request without a final response"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(1, DECOUPLED, by_request=True)
    yield made
    made.pool.close()


@pytest.fixture
async def plain() -> AsyncIterator[Bench]:
    """Of a model that is not decoupled."""
    made = Bench(1, CONFIG, by_request=True)
    yield made
    made.pool.close()


def rows(value: int, count: int = 1) -> dict[str, Any]:
    return {"OUTPUT0": np.full((count, 4), value, np.int32)}


def responses(entry: Inflight) -> list[Any]:
    return [
        {name: tensor.array.tolist() for name, tensor in response.outputs.items()} for response in sink(entry).responses
    ]


def end(execution: Execution) -> None:
    """End the execution, keeping none of its requests."""
    execution.requests = ()
    execution.finish()


async def test_what_an_engine_gets(bench: Bench) -> None:
    entries = [member(1), member(2, batch_size=3)]
    execution = bench.run(*entries)
    assert [request.id for request in execution.requests] == ["r1", "r2"]
    assert [request.inputs["INPUT0"].tolist() for request in execution.requests] == [[[1] * 4], [[2] * 4] * 3]
    assert [request.outputs for request in execution.requests] == [("OUTPUT0",)] * 2
    assert not any(request.cancelled for request in execution.requests)
    for request in execution.requests:
        request.complete()
    end(execution)
    await bench.until_settled(2)


async def test_one_answer_each(plain: Bench) -> None:
    entries = [member(1), member(2, batch_size=2)]
    execution = plain.run(*entries)
    one, two = execution.requests
    two.respond(rows(20, 2))
    one.respond(rows(10), parameters={"tokens": 3})
    end(execution)
    await plain.until_settled(2)
    assert [answer(entry) for entry in entries] == [[[10] * 4], [[20] * 4] * 2]
    assert sink(entries[0]).responses[0].parameters == {"tokens": 3}
    statistics = plain.statistics
    assert (statistics.success.count, statistics.inference_count, statistics.execution_count) == (2, 3, 1)
    assert statistics.responses == {}


async def test_many_answers_some_after_the_execution(bench: Bench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    (request,) = execution.requests
    request.respond(rows(1))
    execution.finish()
    await bench.until_free()
    assert bench.settled == []
    request.respond({**rows(2, 5), "OUTPUT1": np.zeros((5, 1), np.int32)})
    request.respond(rows(3), final=True)
    await bench.until_settled(1)
    assert responses(entry) == [{"OUTPUT0": [[1] * 4]}, {"OUTPUT0": [[2] * 4] * 5}, {"OUTPUT0": [[3] * 4]}]
    assert sink(entry).ended == 1
    statistics = bench.statistics
    assert (statistics.success.count, statistics.inference_count, statistics.execution_count) == (1, 1, 1)
    assert {index: each.success.count for index, each in statistics.responses.items()} == {0: 1, 1: 1, 2: 1}
    for each in statistics.responses.values():
        assert each.success.ns == each.compute_infer.ns + each.compute_output.ns > 0


async def test_an_end_without_a_response(bench: Bench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    execution.requests[0].complete()
    execution.requests[0].complete()
    end(execution)
    await bench.until_settled(1)
    assert (sink(entry).settled, sink(entry).ended) == (0, 1)
    assert bench.statistics.success.count == 1
    empty = bench.statistics.responses[0]
    assert (empty.empty_response.count, empty.compute_infer.count, empty.compute_output.count) == (1, 1, 0)


async def test_a_failure_in_the_middle(bench: Bench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    (request,) = execution.requests
    request.fail(invalid("not this one"), final=False)
    request.respond(rows(2), final=True)
    end(execution)
    await bench.until_settled(1)
    assert [error.message for error in sink(entry).errors] == ["not this one"]
    assert responses(entry) == [{"OUTPUT0": [[2] * 4]}]
    assert bench.statistics.success.count == 1
    assert (bench.statistics.responses[0].fail.count, bench.statistics.responses[1].success.count) == (1, 1)


async def test_a_failure_at_the_end(bench: Bench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    (request,) = execution.requests
    request.respond(rows(1))
    request.fail(internal("oops"))
    with pytest.raises(RuntimeError, match="final response"):
        request.respond(rows(2))
    end(execution)
    await bench.until_settled(1)
    assert len(responses(entry)) == 1
    assert [(error.code, error.message) for error in sink(entry).errors] == [(Code.INTERNAL, "oops")]
    assert (bench.statistics.fail.count, bench.statistics.failures[FailureReason.BACKEND]) == (1, 1)


async def test_an_exception_answers_those_without_a_final_answer(bench: Bench) -> None:
    done, open_, untouched = entries = [member(1), member(2), member(3)]
    execution = bench.run(*entries)
    execution.requests[0].respond(rows(1), final=True)
    execution.requests[1].respond(rows(2))
    late = execution.requests[1]
    execution.fail(ValueError("engine broke"))
    await bench.until_settled(3)
    late.respond(rows(9))
    text = "model 'model', instance 'model_0': engine broke"
    assert sink(done).errors == []
    assert [error.message for error in sink(open_).errors] == [text]
    assert refused(untouched) == (Code.INTERNAL, text)
    late.complete()
    await asyncio.sleep(0)
    assert len(responses(open_)) == 1
    assert (bench.statistics.success.count, bench.statistics.fail.count, bench.statistics.execution_count) == (1, 2, 0)


@pytest.mark.parametrize("kind", ["decoupled", "plain"])
async def test_a_request_that_an_engine_forgets_fails(kind: str, request: pytest.FixtureRequest) -> None:
    model: Bench = Bench(1, DECOUPLED if kind == "decoupled" else CONFIG, by_request=True)
    entry = member(1)
    end(model.run(entry))
    await model.until_settled(1)
    assert refused(entry) == (Code.INTERNAL, GONE)
    model.pool.close()


async def test_a_cancelled_request_is_over_when_the_engine_ends_it(bench: Bench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    request: EngineRequest = execution.requests[0]
    request.respond(rows(1))
    await asyncio.sleep(0)
    entry.cancel()
    assert request.cancelled
    request.respond(rows(2))
    execution.finish()
    await bench.until_free()
    assert bench.settled == []
    request.complete()
    await bench.until_settled(1)
    assert sink(entry).ended == 1
    assert bench.statistics.failures[FailureReason.CANCELED] == 1
    assert bench.statistics.responses[1].cancel.count == 1


@pytest.mark.parametrize(
    ("model", "outputs", "message"),
    [
        (CONFIG, {"OUTPUT0": None}, "model 'model' did not return output 'OUTPUT0'"),
        (CONFIG, rows(1, 2), "output 'OUTPUT0' of model 'model' has shape [2,4], expected 1 in the first dimension"),
        (DECOUPLED, {"OUTPUT0": np.array(1, np.int32)}, "expected a row or more in the first dimension"),
        (DECOUPLED, {"OUTPUT0": np.zeros((1, 4))}, "is of type float64, but the model configuration says TYPE_INT32"),
    ],
    ids=["nothing", "rows", "no rows", "type"],
)
async def test_a_wrong_response_is_told(model: Any, outputs: dict[str, Any], message: str) -> None:
    bench = Bench(1, model, by_request=True)
    entry = member(1)
    execution = bench.run(entry)
    execution.requests[0].respond(MappingProxyType(outputs), final=True)
    end(execution)
    await bench.until_settled(1)
    code, text = refused(entry)
    assert code is Code.INTERNAL
    assert message in text
    bench.pool.close()


@pytest.mark.parametrize("model", [CONFIG, DECOUPLED], ids=["one response", "decoupled"])
async def test_outputs_may_be_left_out(model: Any) -> None:
    bench = Bench(1, model, by_request=True)
    entry = member(1)
    execution = bench.run(entry)
    execution.requests[0].respond({}, final=True)
    end(execution)
    await bench.until_settled(1)
    assert [response.outputs for response in sink(entry).responses] == [{}]
    bench.pool.close()


class Told(Flow):
    """What it is told."""

    def __init__(self) -> None:
        super().__init__(lambda waiting: None)
        self.calls: list[object] = []

    def on_response(self, size: int) -> None:
        self.calls.append(size)

    def wait(self) -> None:
        self.calls.append("wait")


async def test_an_engine_waits_for_a_slow_client_after_each_answer_but_the_final_one(bench: Bench) -> None:
    entry = member(1)
    flow = entry.flow = Told()
    execution = bench.run(entry)
    (request,) = execution.requests
    request.respond(rows(1))
    request.respond(rows(2, 5))
    request.fail(invalid("not this one"), final=False)
    request.respond(rows(4), final=True)
    end(execution)
    await bench.until_settled(1)
    assert flow.calls == [16, "wait", 80, "wait", 0, "wait"]


async def test_all_that_a_request_says(bench: Bench) -> None:
    said: dict[str, ParameterValue] = {
        "priority": 2,
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
        "other": "x",
    }
    entry = member(1)
    entry.request = replace(entry.request, parameters=said, timeout_ns=5000)
    entry.deadline_ns = time.monotonic_ns() + 10**12
    execution = bench.run(entry)
    [request] = execution.requests
    assert (request.model_name, request.model_version) == ("model", 3)
    assert request.parameters == said
    assert (request.deadline_ns, request.timeout_ns, request.priority) == (entry.deadline_ns, 5000, 2)
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (7, True, False)
    assert request.tensors["INPUT0"].datatype is dtypes.INT32
    request.complete()
    end(execution)
    await bench.until_settled(1)


async def test_a_request_that_says_nothing(bench: Bench) -> None:
    execution = bench.run(member(1))
    [request] = execution.requests
    assert (request.deadline_ns, request.timeout_ns, request.priority) == (0, 0, 0)
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (0, False, False)
    request.stamp("NOBODY_TRACES_IT")
    request.complete()
    end(execution)
    await bench.until_settled(1)


async def test_cancellation_is_pushed_once(bench: Bench) -> None:
    entry = member(1)
    called: list[str] = []
    execution = bench.run(entry)
    [request] = execution.requests
    withdraw = request.on_cancel(lambda: called.append("withdrawn"))
    request.on_cancel(lambda: called.append("pushed"))
    withdraw()
    withdraw()
    entry.cancel()
    assert called == ["pushed"]
    request.on_cancel(lambda: called.append("late"))
    assert called == ["pushed", "late"]
    request.complete()
    request.on_cancel(lambda: called.append("over"))
    assert called == ["pushed", "late"]
    end(execution)
    await bench.until_settled(1)


async def test_cancelling_reaches_those_before_the_engine_too(bench: Bench) -> None:
    entry = member(1)
    called: list[object] = []
    entry.on_cancel = called.append  # as a sequence batcher does
    execution = bench.run(entry)
    [request] = execution.requests

    def raises() -> None:
        raise RuntimeError("no pipe")

    request.on_cancel(lambda: called.append("engine"))
    request.on_cancel(raises)
    entry.cancel()
    assert called == [entry, "engine"]
    request.complete()
    end(execution)
    await bench.until_settled(1)


async def test_a_request_with_callbacks_that_is_let_go_of_fails(bench: Bench) -> None:
    entry = member(1)
    execution = bench.run(entry)
    execution.requests[0].on_cancel(lambda: None)
    end(execution)
    await bench.until_settled(1)
    assert refused(entry) == (Code.INTERNAL, GONE)


async def test_an_engine_that_does_not_wait(bench: Bench) -> None:
    entry = member(1)
    entry.flow = Flow(lambda waiting: None, most=1)
    execution = bench.run(entry)
    [request] = execution.requests
    called: list[str] = []
    request.on_room(lambda: called.append("at once"))
    assert request.respond(rows(1), wait=False)
    assert not request.fail(internal("half"), final=False, wait=False)
    assert not request.fail(internal("whole"), final=False, wait=False)  # which is taken as well
    request.on_room(lambda: called.append("room"))
    entry.on_sent()
    assert called == ["at once"]
    entry.on_sent()
    assert called == ["at once", "room"]
    assert not request.respond(rows(2), final=True, wait=False)
    request.on_room(lambda: called.append("over"))
    assert called == ["at once", "room", "over"]
    end(execution)
    await bench.until_settled(1)
    assert len(sink(entry).responses) == 2


async def test_outputs_as_tensors(plain: Bench) -> None:
    entry = member(1)
    execution = plain.run(entry)
    raw = np.full((1, 4), 7, np.int32).tobytes()
    execution.requests[0].respond({"OUTPUT0": Tensor.from_raw(dtypes.INT32, (1, 4), raw)})
    end(execution)
    await plain.until_settled(1)
    assert answer(entry) == [[7] * 4]


async def test_a_tensor_whose_bytes_are_not_its_shape(plain: Bench) -> None:
    entry = member(1)
    execution = plain.run(entry)
    execution.requests[0].respond({"OUTPUT0": Tensor.from_raw(dtypes.INT32, (1, 4), bytes(15))})
    end(execution)
    await plain.until_settled(1)
    assert refused(entry) == (
        Code.INTERNAL,
        "output 'OUTPUT0' of model 'model' has 15 bytes, but shape [1,4] needs 4 elements of type INT32",
    )


@pytest.mark.parametrize(
    ("output", "remark"),
    [
        (
            Tensor.from_raw(dtypes.FP32, (1, 4), bytes(16)),
            "output 'OUTPUT0' of model 'model' is of type FP32, but the model configuration says TYPE_INT32",
        ),
        (
            Tensor.from_raw(dtypes.INT32, (2, 4), bytes(32)),
            "output 'OUTPUT0' of model 'model' has shape [2,4], expected 1 in the first dimension, as in the inputs",
        ),
        (
            Tensor.from_raw(dtypes.FP64, (0,), b""),
            "output 'OUTPUT0' of model 'model' is of type FP64, but the model configuration says TYPE_INT32",
        ),
        (
            Tensor.from_raw(dtypes.INT32, (), bytes(4)),
            "output 'OUTPUT0' of model 'model' has shape [], expected 1 in the first dimension, as in the inputs",
        ),
        (
            Tensor.from_raw(dtypes.INT32, (1, 2), bytes(8)),
            "output 'OUTPUT0' of model 'model' has shape [1,2], but the model configuration says [-1,4]",
        ),
        (
            Tensor.from_raw(dtypes.INT32, (1, 4, 1), bytes(16)),
            "output 'OUTPUT0' of model 'model' has shape [1,4,1], but the model configuration says [-1,4]",
        ),
    ],
    ids=["type", "rows", "empty", "scalar", "dimension", "rank"],
)
async def test_tensors_that_are_not_as_configured_are_handed_on(
    plain: Bench, output: Tensor, remark: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As Triton does: what is sent is up to the model. The log says so once."""
    for count in (1, 2):
        entry = member(1)
        execution = plain.run(entry)
        request = execution.requests[0]
        assert isinstance(request, RunningRequest)
        if count == 1:  # the configuration is that of all tests
            request._config.deviations.clear()
        request.respond({"OUTPUT0": output})
        end(execution)
        await plain.until_settled(count)
        (response,) = sink(entry).responses
        tensor = response.outputs["OUTPUT0"]
        assert (tensor.datatype, tensor.shape, bytes(tensor.raw)) == (output.datatype, output.shape, bytes(output.raw))
    assert caplog.messages == [f"{remark}; it is passed on unchanged, and this output is not reported again"]


@pytest.mark.parametrize(
    ("dims", "reshape", "max_batch_size", "shape", "expected"),
    [
        ((64,), None, 0, (1, 2), "has shape [1,2], but the model configuration says [64]"),
        ((-1, 3), None, 0, (7, 4), "has shape [7,4], but the model configuration says [-1,3]"),
        ((-1, 3), None, 0, (7, 3), ""),
        ((-1, 3), None, 8, (1, 7, 3), ""),
        ((3, 1), (3,), 8, (1, 3), ""),
        ((1,), (), 0, (), ""),
    ],
)
async def test_the_shape_of_an_output_is_the_configured_one(
    dims: Shape,
    reshape: Shape | None,
    max_batch_size: int,
    shape: Shape,
    expected: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    specs = (TensorSpec("OUTPUT0", dtypes.INT32, dims, reshape=reshape),)
    made = config(outputs=specs, max_batch_size=max_batch_size)
    raw = bytes(4 * math.prod(shape))
    alone = member(1)
    for _ in range(2):
        outputs = {"OUTPUT0": Tensor.from_raw(dtypes.INT32, shape, raw)}
        single(outputs, alone, made, 1, {})
    text = f"output 'OUTPUT0' of model 'model' {expected}; it is passed on unchanged, and this output is not reported"
    assert caplog.messages == ([f"{text} again"] if expected else [])


class Recorded:
    """As much of a trace as an engine reaches."""

    trace_id = "0af7"

    def __init__(self) -> None:
        self.stamps: list[str] = []

    def stamp(self, activity: str, ns: int = 0) -> None:
        assert ns > 0
        self.stamps.append(activity)

    def on_batch(self, timing: object) -> None: ...

    def on_settle(self, outcome: object, final: bool, timing: object) -> None:
        self.stamps.append("settled")


async def test_stamps_reach_the_trace_in_order(bench: Bench) -> None:
    entry = member(1)
    trace = Recorded()
    entry.trace = cast(RequestTrace, trace)
    execution = bench.run(entry)
    [request] = execution.requests
    request.stamp("TOKENIZED")
    request.respond(rows(1))
    request.stamp("SECOND")
    request.complete()
    end(execution)
    await bench.until_settled(1)
    assert trace.stamps == ["TOKENIZED", "settled", "SECOND", "settled"]
