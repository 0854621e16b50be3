"""The server as a library: real models and a real engine, no sockets."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from garbage import garbage_left
from modserve import Code, InferenceServer, ModserveError, Settings, Tensor
from modserve.core.errors import internal
from modserve.core.lifecycle import LifecycleState
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.statistics.model_statistics import FailureReason
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.resources import flow
from modserve.server import Phase
from modserve.server.in_process import response
from modserve.testing import PuppetBackend, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPOSITORY = Path(__file__).parents[2] / "model_repository"
PUPPET = """
backend: "puppet"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""


def library(*repositories: Path, **more: Any) -> InferenceServer:
    return InferenceServer(Settings(model_repository=repositories, **more))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[InferenceServer]:
    """Over the repository's own models. No test changes it."""
    async with library(REPOSITORY) as found:
        yield found


def two_vectors(rows: int = 1, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-100, 100, (rows, 16)).astype(np.int32) for name in ("INPUT0", "INPUT1")}


def pictures(rows: int, seed: int = 0) -> dict[str, Array]:
    return {"image": np.random.default_rng(seed).uniform(0, 16, (rows, 64)).astype(np.float32)}


async def failure(server: InferenceServer, model: str, inputs: dict[str, Array], **more: Any) -> ModserveError:
    with pytest.raises(ModserveError) as caught:
        await server.infer(model, inputs, **more)
    return caught.value


# Options of backends


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 4),
        ({"": {"default-max-batch-size": "6"}}, 6),
        ({"": {"default-max-batch-size": "6"}, "onnxruntime": {"default-max-batch-size": "7"}}, 7),
        ({"": {"default-max-batch-size": "6"}, "other": {"default-max-batch-size": "8"}}, 6),
    ],
    ids=["none", "of all", "its own", "another's"],
)
async def test_a_default_for_all_backends(tmp_path: Path, options: dict[str, dict[str, str]], most: int) -> None:
    shutil.copytree(REPOSITORY / "simple" / "1", tmp_path / "simple" / "1")
    async with library(tmp_path, backend_config=options) as found:
        assert found.model("simple").config.max_batch_size == most


# Many responses


def repeated(*values: int) -> dict[str, Array]:
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.zeros(len(values), np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }


@pytest.mark.parametrize("values", [(), (7,), (7, 8, 9)], ids=str)
async def test_responses_of_a_decoupled_model(server: InferenceServer, values: tuple[int, ...]) -> None:
    answers = [
        (response.id, response.outputs["OUT"].array.tolist(), response.outputs["IDX"].array.tolist())
        async for response in server.infer_stream("repeat", repeated(*values), request_id="r")
    ]
    assert answers == [("r", [value], [index]) for index, value in enumerate(values)]


async def test_the_stream_of_a_model_with_one_response(server: InferenceServer) -> None:
    asked = two_vectors(2)
    (response,) = [each async for each in server.infer_stream("simple", asked, outputs=["OUTPUT1"])]
    assert list(response.outputs) == ["OUTPUT1"]
    assert np.array_equal(response.outputs["OUTPUT1"].array, asked["INPUT0"] - asked["INPUT1"])


async def test_a_failure_ends_the_iteration(server: InferenceServer) -> None:
    asked = {**repeated(1, 2), "DELAY": np.zeros(1, np.uint32)}
    with pytest.raises(ModserveError, match=r"expected IN and DELAY shape to match, got \[2\] and \[1\]"):
        await anext(server.infer_stream("repeat", asked))


async def test_one_answer_from_a_decoupled_model(server: InferenceServer) -> None:
    assert (await server.infer("repeat", repeated(7))).outputs["OUT"].array.tolist() == [7]
    for values, code in (((), Code.INTERNAL), ((7, 8), Code.UNSUPPORTED)):
        assert (await failure(server, "repeat", repeated(*values))).code is code


async def test_a_model_does_not_run_ahead_of_a_slow_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "MOST_HELD", 64 * flow.RESPONSE_BYTES)
    shutil.copytree(REPOSITORY / "repeat", tmp_path / "repeat")
    values = list(range(640))
    async with library(tmp_path) as own:
        statistics = own.model("repeat").statistics

        def given() -> int:
            return sum(response.success.count for response in statistics.responses.values())

        seen: list[int] = []
        ahead = 0
        async for response in own.infer_stream("repeat", repeated(*values)):
            for _ in range(100_000):
                if given() >= 64:
                    break
                await asyncio.sleep(0)
            ahead = max(ahead, given() - len(seen))
            assert own.memory.held > 0, "what waits for the reader counts"
            seen += response.outputs["OUT"].array.tolist()
        assert own.memory.held == 0
    assert seen == values
    assert ahead <= 64 + 1


PACED = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT32 dims: -1 }, { name: "DELAY" data_type: TYPE_UINT32 dims: -1 },
        { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  max_inflight_requests: 2
  step { model_name: "repeat" model_version: -1
         input_map [ { key: "IN" value: "IN" }, { key: "DELAY" value: "DELAY" }, { key: "WAIT" value: "WAIT" } ]
         output_map { key: "OUT" value: "each" } }
  step { model_name: "puppet" model_version: -1
         input_map { key: "IN" value: "each" } output_map { key: "OUT" value: "OUT" } }
}
"""


async def test_a_decoupled_step_does_not_run_ahead_of_those_behind_it(tmp_path: Path, engine: PuppetBackend) -> None:
    shutil.copytree(REPOSITORY / "repeat", tmp_path / "repeat")
    write_model(tmp_path, "puppet", PUPPET.replace("max_batch_size: 4", "max_batch_size: 0"))
    write_model(tmp_path, "paced", PACED)
    values = list(range(100))
    async with InferenceServer(Settings(model_repository=tmp_path), backends={"puppet": engine}) as own:
        statistics = own.model("repeat").statistics

        async def work() -> list[int]:
            """Take the steps' requests one by one; how far the model was ahead at each."""
            ahead: list[int] = []
            for done in range(len(values)):
                execution = await next_execution(engine)
                for _ in range(200):  # turns in which the model could go on, if it were let
                    await asyncio.sleep(0)
                ahead.append(sum(response.success.count for response in statistics.responses.values()) - done)
                execution.finish({"OUT": execution.inputs["IN"]})
            return ahead

        working = asyncio.create_task(work())
        seen = [
            response.outputs["OUT"].array.tolist()[0] async for response in own.infer_stream("paced", repeated(*values))
        ]
        assert seen == values
        # Two of the step's requests, two responses that wait for it, and the one with which the model is told to wait.
        assert max(await working) <= 5


async def test_leaving_the_iteration_cancels_the_request(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "repeat", tmp_path / "repeat")
    async with library(tmp_path) as own:
        servable = own.model("repeat")
        delays = np.array([0, 600_000, 600_000], np.uint32)  # nobody can leave later than the last response
        responses = own.infer_stream("repeat", {**repeated(1, 2, 3), "DELAY": delays})
        assert (await anext(responses)).outputs["OUT"].array.tolist() == [1]
        await responses.aclose()
    assert servable.statistics.failures[FailureReason.CANCELED] == 1
    assert servable.statistics.success.count == 0


# Answers


@pytest.mark.parametrize("rows", [1, 3, 8])
async def test_sum_and_difference(server: InferenceServer, rows: int) -> None:
    inputs = two_vectors(rows)
    response = await server.infer("simple", inputs, request_id="7")
    assert (response.model_name, response.model_version, response.id) == ("simple", 1, "7")
    assert list(response.outputs) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(response.outputs["OUTPUT0"].array, inputs["INPUT0"] + inputs["INPUT1"])
    np.testing.assert_array_equal(response.outputs["OUTPUT1"].array, inputs["INPUT0"] - inputs["INPUT1"])


TEN_DIGITS = """
005d910000dfaf5003f20b8004c008800580098004b01c7002e5ac00006da000
000cd500000bg900003fg60007fgg200001gg300001gg600001gg600000bga00
0004fc00003gfe00008d8g000016fb00018df10009gg500003dggb500003bg90
007fd10008d6f400021dd000002fb1000001cc1000001a8000845e90007dd900
0001b00000078000001d6220007f098005ga0g6004fgdg100003fa000002g400
00ca000000egge0000dgfa1000bgg70000047g7000004g900054cg40009gga00
000cd000005g800000dg300000ed000000fc720000dgdg30007gbf800019fb30
0078dgf100774bc000008d100488ff6002bff400000g5000009f100000d50000
009e810000ceec00009a0f40003gce20004gg20003g8ad2001f13g8000bgfb10
00bc000002gggd0003gcae0001g1cf0000dg9f20000309b000009f40009cd300
"""
"""The first ten of scikit-learn's digits, 0 to 9: a character a pixel, 0 to g for 0 to 16."""


@pytest.mark.parametrize(
    ("version", "answers", "read"),
    [(1, 1, "0123496789"), (2, 2, "0123456789"), (None, 2, "0123456789")],
    ids=["the older, which mistakes the 5", "the newer", "the latest"],
)
async def test_digits_are_recognised(server: InferenceServer, version: int | None, answers: int, read: str) -> None:
    pixels = [["0123456789abcdefg".index(pixel) for pixel in line] for line in TEN_DIGITS.split()]
    response = await server.infer("digits", {"image": np.array(pixels, np.float32)}, version=version)
    assert response.model_version == answers
    labels, probabilities = (response.outputs[name].array for name in ("label", "probabilities"))
    assert "".join(map(str, labels[:, 0])) == "".join(map(str, probabilities.argmax(axis=1))) == read
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


async def test_both_versions_answer_and_differ(server: InferenceServer) -> None:
    first, second = [
        (await server.infer("digits", pictures(4), version=version)).outputs["probabilities"].array
        for version in (1, 2)
    ]
    assert not np.allclose(first, second)


@pytest.mark.parametrize("names", [["OUTPUT0"], ["OUTPUT1"], ["OUTPUT1", "OUTPUT0"]])
async def test_only_the_outputs_asked_for_come_back(server: InferenceServer, names: list[str]) -> None:
    inputs = two_vectors()
    response = await server.infer("simple", inputs, outputs=names)
    assert list(response.outputs) == names
    whole = await server.infer("simple", inputs)
    for name in names:
        np.testing.assert_array_equal(response.outputs[name].array, whole.outputs[name].array)


async def test_tensors_are_taken_as_they_are(server: InferenceServer) -> None:
    inputs = two_vectors()
    tensors = {name: Tensor.from_raw(dtypes.INT32, (1, 16), array.tobytes()) for name, array in inputs.items()}
    response = await server.infer("simple", tensors)
    np.testing.assert_array_equal(response.outputs["OUTPUT0"].array, inputs["INPUT0"] + inputs["INPUT1"])


async def test_any_mix_of_concurrent_requests_gives_what_single_requests_give(server: InferenceServer) -> None:
    rng = np.random.default_rng(5)
    asked = [
        *[("simple", two_vectors(int(rows), seed)) for seed, rows in enumerate(rng.integers(1, 9, 60))],
        *[("digits", pictures(int(rows), seed)) for seed, rows in enumerate(rng.integers(1, 17, 60))],
    ]
    alone = [await server.infer(model, inputs) for model, inputs in asked]
    before = {model.id: model.statistics.execution_count for model in server.ready_models()}
    together = await asyncio.gather(*(server.infer(model, inputs) for model, inputs in asked))
    executions = [model.statistics.execution_count - before[model.id] for model in server.ready_models()]
    assert sum(executions) < len(asked), "so that there were batches"
    for one, other in zip(alone, together, strict=True):
        assert list(one.outputs) == list(other.outputs)
        for name, tensor in one.outputs.items():
            assert other.outputs[name].shape == tensor.shape
            assert other.outputs[name].array.tobytes() == tensor.array.tobytes()


# Mistakes

SIMPLE_TOO_LARGE = "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'simple'"


@pytest.mark.parametrize(
    ("model", "more", "code", "message"),
    [
        ("nosuch", {}, Code.NOT_FOUND, "Request for unknown model: 'nosuch' is not found"),
        ("simple", {"version": 2}, Code.NOT_FOUND, "Request for unknown model: 'simple' version 2 is not found"),
        ("", {}, Code.NOT_FOUND, "Request for unknown model: '' is not found"),
        (
            "simple",
            {"outputs": ["nosuch"]},
            Code.INVALID_ARG,
            "unexpected inference output 'nosuch' for model 'simple'",
        ),
    ],
    ids=["model", "version", "empty name", "output"],
)
async def test_unknown_names(
    server: InferenceServer, model: str, more: dict[str, Any], code: Code, message: str
) -> None:
    error = await failure(server, model, two_vectors(), **more)
    assert (error.code, error.message) == (code, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"INPUT0": np.zeros((9, 16), np.int32), "INPUT1": np.zeros((9, 16), np.int32)}, SIMPLE_TOO_LARGE),
        ({"INPUT1": np.zeros((1, 16), np.float32)}, "data-type is 'FP32', but model 'simple' expects 'INT32'"),
        ({"INPUT1": np.zeros((1, 15), np.int32)}, "Expected [-1,16], got [1,15]"),
        ({"INPUT1": np.zeros((1, 16), np.complex64)}, "arrays of numpy type 'complex64' have no v2 datatype"),
        ({"INPUT2": np.zeros((1, 16), np.int32)}, "expected 2 inputs but got 3 inputs for model 'simple'"),
    ],
    ids=["batch", "datatype", "shape", "array type", "input"],
)
async def test_wrong_inputs(server: InferenceServer, changes: dict[str, Array], message: str) -> None:
    error = await failure(server, "simple", {**two_vectors(), **changes})
    assert error.code is Code.INVALID_ARG
    assert message in error.message


@pytest.mark.parametrize("seconds", [float("nan"), float("-inf"), -1e308], ids=str)
async def test_what_is_no_timeout(server: InferenceServer, seconds: float) -> None:
    error = await failure(server, "simple", two_vectors(), timeout=seconds, request_id="7")
    assert (error.code, error.message) == (
        Code.INVALID_ARG,
        f"[request id: 7] timeout is {seconds}, expected a number of seconds; infinity is no limit",
    )


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e308], ids=str)
async def test_a_timeout_that_is_never(server: InferenceServer, seconds: float) -> None:
    assert "OUTPUT0" in (await server.infer("simple", two_vectors(), timeout=seconds)).outputs


# Waiting and cancelling, on an engine that works by hand


@pytest.fixture
def engine() -> PuppetBackend:
    return PuppetBackend()


@pytest_asyncio.fixture(loop_scope="module")
async def by_hand(tmp_path: Path, engine: PuppetBackend) -> AsyncIterator[InferenceServer]:
    write_model(tmp_path, "puppet", PUPPET)
    settings = Settings(model_repository=(tmp_path,))
    async with InferenceServer(settings, backends={"puppet": engine}) as server:
        assert server.ready
        yield server


ONE = {"IN": np.array([[1]], np.int32)}


async def next_execution(engine: PuppetBackend) -> Any:
    return await asyncio.to_thread(engine.next_execution)


async def test_a_request_that_waits_too_long(by_hand: InferenceServer, engine: PuppetBackend) -> None:
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(by_hand.infer("puppet", ONE))
        execution = await next_execution(engine)
        error = await failure(by_hand, "puppet", ONE, timeout=0.001)
        assert (error.code, error.message) == (Code.UNAVAILABLE, "Request timeout expired")
        execution.finish({"OUT": np.array([[5]], np.int32)})
    assert first.result().outputs["OUT"].array.tolist() == [[5]]


async def test_a_cancelled_caller_takes_its_request_along_and_no_other(
    by_hand: InferenceServer, engine: PuppetBackend
) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(by_hand.infer("puppet", ONE))
        execution = await next_execution(engine)
        waiting = tasks.create_task(by_hand.infer("puppet", ONE))
        staying = tasks.create_task(by_hand.infer("puppet", {"IN": np.array([[7]], np.int32)}))
        statistics = by_hand.model("puppet").statistics
        await asyncio.sleep(0)  # in their first turn, both submit
        assert statistics.pending == 2
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert (waiting.cancelled(), statistics.pending) == (True, 1)
        execution.finish({"OUT": np.array([[5]], np.int32)})
        execution = await next_execution(engine)
        assert execution.inputs["IN"].tolist() == [[7]]
        execution.finish({"OUT": np.array([[8]], np.int32)})
    assert running.result().outputs["OUT"].array.tolist() == [[5]]
    assert staying.result().outputs["OUT"].array.tolist() == [[8]]


async def test_a_caller_cancelled_while_its_request_runs(by_hand: InferenceServer, engine: PuppetBackend) -> None:
    caller = asyncio.create_task(by_hand.infer("puppet", ONE))
    execution = await next_execution(engine)
    caller.cancel()
    await asyncio.wait((caller,))
    assert caller.cancelled()
    execution.finish({"OUT": np.array([[5]], np.int32)})
    following = asyncio.create_task(by_hand.infer("puppet", ONE))
    execution = await next_execution(engine)
    execution.finish({"OUT": np.array([[6]], np.int32)})
    assert (await following).outputs["OUT"].array.tolist() == [[6]]


async def test_an_engine_that_fails(by_hand: InferenceServer, engine: PuppetBackend) -> None:
    caller = asyncio.create_task(by_hand.infer("puppet", ONE))
    (await next_execution(engine)).fail(ValueError("oops"))
    with pytest.raises(ModserveError, match="oops") as caught:
        await caller
    assert caught.value.code is Code.INTERNAL


class Failing:
    """A model that fails each request."""

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        found = Inflight(request, sink, {}, ("OUT",), 1, None, now_ns)
        asyncio.get_running_loop().call_soon(found.settle, internal("oops"))
        return found


async def test_a_request_that_fails_leaves_nothing_to_the_garbage_collector(by_hand: InferenceServer) -> None:
    """Its error has the frame of the call, and that must not have the error."""

    async def fail() -> None:
        with suppress(ModserveError):
            await response(Failing(), InferenceRequest("puppet", {}), 0)

    await fail()
    with garbage_left() as left:
        await fail()
        await asyncio.sleep(0)
    assert [type(each).__name__ for each in left] == []


async def test_leaving_finishes_what_is_in_flight(tmp_path: Path, engine: PuppetBackend) -> None:
    write_model(tmp_path, "puppet", PUPPET)
    server = InferenceServer(Settings(model_repository=(tmp_path,)), backends={"puppet": engine})
    async with server:
        caller = asyncio.create_task(server.infer("puppet", ONE))
        execution = await next_execution(engine)
        leaving = asyncio.create_task(server.shut_down())
        await asyncio.sleep(0)  # in its first turn it says so
        assert server.phase is Phase.STOPPING
        error = await failure(server, "puppet", ONE)
        assert (error.code, error.message) == (Code.UNAVAILABLE, "Server not ready")
        assert (server.live, server.ready) == (False, False)
        execution.finish({"OUT": np.array([[5]], np.int32)})
        assert (await caller).outputs["OUT"].array.tolist() == [[5]]
        assert await leaving
    assert (engine.open_models, engine.open_instances) == (0, 0)


async def test_leaving_waits_no_longer_than_it_may(tmp_path: Path, engine: PuppetBackend) -> None:
    write_model(tmp_path, "puppet", PUPPET)
    settings = Settings(model_repository=(tmp_path,), exit_timeout_secs=0)
    async with InferenceServer(settings, backends={"puppet": engine}) as server:
        caller = asyncio.create_task(server.infer("puppet", ONE))
        execution = await next_execution(engine)
        assert not await server.shut_down()
        assert not await server.shut_down()
        execution.finish({"OUT": np.array([[5]], np.int32)})
        await caller


# Starting


async def test_what_is_there_after_the_start(server: InferenceServer) -> None:
    assert (server.phase, server.live, server.ready) == (Phase.RUNNING, True, True)
    assert server.model_names() == ["digits", "digits_pipeline", "digits_resize", "repeat", "simple"]
    assert [(entry.name, entry.version, entry.state) for entry in server.index()] == [
        ("digits", 1, LifecycleState.READY),
        ("digits", 2, LifecycleState.READY),
        ("digits_pipeline", 1, LifecycleState.READY),
        ("digits_resize", 1, LifecycleState.READY),
        ("repeat", 1, LifecycleState.READY),
        ("simple", 1, LifecycleState.READY),
    ]
    assert all(entry.load_ns > 0 for entry in server.index())


async def test_a_bad_model_beside_good_ones(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "simple", tmp_path / "cut")
    (tmp_path / "cut" / "config.pbtxt").unlink()
    model = tmp_path / "cut" / "1" / "model.onnx"
    model.write_bytes(model.read_bytes()[:100])
    write_model(tmp_path, "mistaken", 'backend: "onnxruntime" max_batchsize: 8')
    write_model(tmp_path, "foreign", 'backend: "nosuch"')
    write_model(tmp_path, "empty", 'backend: "onnxruntime"', versions=())
    async with library(REPOSITORY, tmp_path) as server:
        assert (server.phase, server.ready) == (Phase.RUNNING, False)
        reasons = {entry.name: entry.reason for entry in server.unready_reasons()}
        assert {entry.state for entry in server.unready_reasons()} == {LifecycleState.UNAVAILABLE}
        assert set(reasons) == {"cut", "mistaken", "foreign", "empty"}
        assert "did you mean 'max_batch_size'?" in reasons["mistaken"]
        assert "unable to find backend 'nosuch'" in reasons["foreign"]
        assert "at least one version must be available" in reasons["empty"]
        assert (await server.infer("simple", two_vectors())).model_version == 1
        for name in reasons:
            assert (await failure(server, name, two_vectors())).code is Code.NOT_FOUND


async def test_readiness_need_not_be_strict(tmp_path: Path) -> None:
    write_model(tmp_path, "foreign", 'backend: "nosuch"')
    async with library(tmp_path, strict_readiness=False) as server:
        assert server.ready
        assert server.unready_reasons()


async def test_a_name_in_two_repositories_is_no_model(tmp_path: Path) -> None:
    write_model(tmp_path, "simple", 'backend: "identity"')
    async with library(REPOSITORY, tmp_path) as server:
        assert [entry.reason for entry in server.unready_reasons()] == ["model appears in two or more repositories"]
        assert (await failure(server, "simple", two_vectors())).code is Code.NOT_FOUND
        assert (await server.infer("digits", pictures(1))).model_version == 2


async def test_an_empty_repository(tmp_path: Path) -> None:
    async with library(tmp_path) as server:
        assert (server.ready, server.index()) == (True, [])


@pytest.mark.parametrize("kind", ["missing", "a file"])
async def test_a_repository_that_is_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "repository"
    if kind == "a file":
        path.touch()
    with pytest.raises(ModserveError, match="cannot read model repository") as caught:
        async with library(path):
            pytest.fail("it was entered")
    assert caught.value.code is Code.INVALID_ARG


async def test_another_start_in_the_same_process() -> None:
    inputs = two_vectors()
    for _ in range(2):
        async with library(REPOSITORY) as server:
            response = await server.infer("simple", inputs)
            np.testing.assert_array_equal(response.outputs["OUTPUT0"].array, inputs["INPUT0"] + inputs["INPUT1"])
        assert (await failure(server, "simple", inputs)).message == "Server not ready"
        assert server.ready_models() == []


async def test_two_servers_at_once() -> None:
    async with library(REPOSITORY) as first, library(REPOSITORY, id="other") as second:
        assert (first.name, second.name) == ("modserve", "other")
        await first.infer("simple", two_vectors())
        counts = [server.model("simple").statistics.inference_count for server in (first, second)]
        assert counts == [1, 0]
