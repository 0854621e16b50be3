"""The RPCs, called with bytes."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from puppet_server import PuppetLoader, PuppetServable, numbers, server_over
from rpc_calls import STATUSES, FakeCall, call_table

from modserve.__about__ import __version__
from modserve.core.errors import ModserveError, invalid, unavailable
from modserve.core.version import ModelId
from modserve.frontends import offload
from modserve.frontends.grpc import infer_requests
from modserve.frontends.grpc import service as services
from modserve.pb import health as health_pb2
from modserve.pb import inference as pb
from modserve.protocol.failures import STATUS, spelling
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, LoopLimits

SERVED = {
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "LogSettings",
    "TraceSetting",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "ModelInfer",
}
STREAMS = {"ModelStreamInfer"}
"""Served as well; `test_grpc_stream` shows how."""
HEALTH = "grpc.health.v1.Health"


class Stub:
    """Calls a server's handlers."""

    def __init__(self, server: LocalServer) -> None:
        self.table = call_table(server)

    async def __call__(
        self, name: str, message: Message | bytes, *, service: str = pb.SERVICE, remaining: float | None = None
    ) -> Any:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        call = FakeCall(data, remaining=remaining)
        answer = await self.table.serve(f"/{service}/{name}", call)
        assert call.code is None, call.details
        return (pb.METHODS | health_pb2.METHODS)[name].response.FromString(answer)

    async def failure(
        self, name: str, message: Message | bytes, service: str = pb.SERVICE
    ) -> tuple[grpc.StatusCode, str]:
        call = FakeCall(message if isinstance(message, bytes) else message.SerializeToString())
        await self.table.serve(f"/{service}/{name}", call)
        assert call.code is not None
        return call.code, call.details


@pytest.fixture
def loader() -> PuppetLoader:
    return PuppetLoader()


@pytest.fixture
async def server(tmp_path: Path, loader: PuppetLoader) -> LocalServer:
    found = server_over(tmp_path, loader)
    await found.load()
    return found


@pytest.fixture
async def call(server: LocalServer) -> Stub:
    return Stub(server)


@pytest.fixture
def simple(server: LocalServer, loader: PuppetLoader) -> PuppetServable:
    return loader.loaded[ModelId("simple", 3)]


def asked(model: str = "simple", **fields: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, **fields)
    for name, values in (("INPUT0", (1, 2)), ("INPUT1", (10, 10))):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 2])
        message.raw_input_contents.append(numbers(*values).tobytes())
    return message


# What is served


async def test_every_rpc_is_served_or_clearly_refused(call: Stub) -> None:
    assert set(pb.METHODS) > SERVED
    for name, method in pb.METHODS.items():
        assert method.server_streaming == (name in STREAMS), name
        if name in SERVED or name in STREAMS:
            continue
        refusal = await call.failure(name, method.request())
        assert refusal == (grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported by this version of modserve")


async def test_live_and_ready(call: Stub, server: LocalServer) -> None:
    assert (await call("ServerLive", pb.ServerLiveRequest())).live
    assert (await call("ServerReady", pb.ServerReadyRequest())).ready
    server.stop_accepting()
    assert not (await call("ServerLive", pb.ServerLiveRequest())).live
    assert not (await call("ServerReady", pb.ServerReadyRequest())).ready


@pytest.mark.parametrize(("version", "ready"), [("", True), ("1", True), ("3", False)])
async def test_a_model_s_readiness(tmp_path: Path, loader: PuppetLoader, version: str, ready: bool) -> None:
    loader.failures[ModelId("simple", 3)] = invalid("no good")
    server = server_over(tmp_path, loader)
    await server.load()
    answer = await Stub(server)("ModelReady", pb.ModelReadyRequest(name="simple", version=version))
    assert answer.ready is ready


async def test_server_metadata(call: Stub) -> None:
    answer = await call("ServerMetadata", pb.ServerMetadataRequest())
    assert (answer.name, answer.version) == ("modserve", __version__)
    assert "statistics" in answer.extensions


@pytest.mark.parametrize(("version", "versions"), [("", ["1", "3"]), ("1", ["1"])])
async def test_model_metadata(call: Stub, version: str, versions: list[str]) -> None:
    answer = await call("ModelMetadata", pb.ModelMetadataRequest(name="simple", version=version))
    assert (answer.name, list(answer.versions), answer.platform) == ("simple", versions, "identity")
    assert answer.inputs[1] == pb.ModelMetadataResponse.TensorMetadata(name="INPUT1", datatype="INT32", shape=[-1, 2])


async def test_the_configuration(call: Stub) -> None:
    answer = await call("ModelConfig", pb.ModelConfigRequest(name="simple"))
    assert answer.config == pb.ModelConfig(name="simple")


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("", "", [("echo", "1"), ("simple", "1"), ("simple", "3")]),
        ("simple", "", [("simple", "1"), ("simple", "3")]),
        ("simple", "1", [("simple", "1")]),
    ],
)
async def test_statistics(call: Stub, name: str, version: str, expected: list[tuple[str, str]]) -> None:
    answer = await call("ModelStatistics", pb.ModelStatisticsRequest(name=name, version=version))
    assert [(model.name, model.version) for model in answer.model_stats] == expected


async def test_an_inference(call: Stub) -> None:
    assert await call("ModelInfer", asked(id="7")) == pb.ModelInferResponse(
        model_name="simple",
        model_version="3",
        id="7",
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name=name, datatype="INT32", shape=[1, 2])
            for name in ("OUTPUT0", "OUTPUT1")
        ],
        raw_output_contents=[numbers(11, 12).tobytes(), numbers(-9, -8).tobytes()],
    )


async def test_an_inference_of_a_version_and_one_output(call: Stub) -> None:
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT1")]
    answer = await call("ModelInfer", asked(model_version="1", outputs=outputs))
    assert (answer.model_version, [output.name for output in answer.outputs]) == ("1", ["OUTPUT1"])


@pytest.mark.parametrize("remaining", [None, 5.0])
async def test_the_client_s_deadline_goes_with_the_request(
    call: Stub, simple: PuppetServable, remaining: float | None
) -> None:
    before_ns = time.monotonic_ns()
    await call("ModelInfer", asked(), remaining=remaining)
    (inflight,) = simple.submitted
    if remaining is None:
        assert inflight.deadline_ns == 0
    else:
        assert before_ns <= inflight.deadline_ns - 5_000_000_000 <= time.monotonic_ns()


# What is refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
NO_MODEL = "Request for unknown model: 'nosuch' is not found"
NO_VERSION = "Request for unknown model: 'simple' version 2 is not found"
NO_NUMBER = (
    "failed to get model version from specified version string 'x' (details: stol), "
    "version should be an integral value > 0"
)
OF_A_MODEL: dict[str, Callable[[str, str], Message]] = {
    "ModelMetadata": lambda name, version: pb.ModelMetadataRequest(name=name, version=version),
    "ModelConfig": lambda name, version: pb.ModelConfigRequest(name=name, version=version),
    "ModelInfer": lambda name, version: pb.ModelInferRequest(model_name=name, model_version=version),
}


@pytest.mark.parametrize(
    ("name", "version"), [("nosuch", ""), ("", ""), ("simple", "2")], ids=["model", "no name", "version"]
)
async def test_a_model_that_is_not_there_is_not_ready(call: Stub, name: str, version: str) -> None:
    """As every released Triton; clients poll with this call."""
    assert not (await call("ModelReady", pb.ModelReadyRequest(name=name, version=version))).ready


async def test_the_readiness_of_what_is_no_version(call: Stub) -> None:
    assert await call.failure("ModelReady", pb.ModelReadyRequest(name="simple", version="x")) == (INVALID, NO_NUMBER)


@pytest.mark.parametrize("rpc", OF_A_MODEL)
async def test_unknown_models_and_versions(call: Stub, rpc: str) -> None:
    message = OF_A_MODEL[rpc]
    assert await call.failure(rpc, message("nosuch", "")) == (NOT_FOUND, NO_MODEL)
    assert await call.failure(rpc, message("", "")) == (NOT_FOUND, "Request for unknown model: '' is not found")
    assert await call.failure(rpc, message("simple", "2")) == (NOT_FOUND, NO_VERSION)
    assert await call.failure(rpc, message("simple", "x")) == (INVALID, NO_NUMBER)


async def test_statistics_of_unknown_models_and_versions(call: Stub) -> None:
    request = pb.ModelStatisticsRequest
    assert await call.failure("ModelStatistics", request(name="nosuch")) == (
        INVALID,
        "requested model 'nosuch' is not available",
    )
    assert await call.failure("ModelStatistics", request(name="simple", version="2")) == (
        INVALID,
        "requested model version is not available for model 'simple'",
    )


async def test_a_request_that_the_model_refuses(call: Stub) -> None:
    message = asked(id="7")
    message.inputs[0].shape[:] = [9, 2]
    assert await call.failure("ModelInfer", message) == (
        INVALID,
        "[request id: 7] input 'INPUT1' batch size does not match other inputs for 'simple': shapes begin with the "
        "number of rows, but that of 'INPUT0' is [9,2], and that of 'INPUT1' [1,2]",
    )


@pytest.mark.parametrize("name", sorted(SERVED))
async def test_bytes_that_are_no_message(call: Stub, name: str) -> None:
    message = pb.METHODS[name].request.DESCRIPTOR.full_name
    assert await call.failure(name, b"\xff\xff") == (INVALID, f"Unable to parse request: 2 bytes are no {message}")


@pytest.mark.parametrize("code", STATUS, ids=lambda code: code.name)
async def test_every_code_of_a_failed_request(call: Stub, simple: PuppetServable, code: Any) -> None:
    simple.answer = lambda inflight: inflight.settle(ModserveError(code, "oops"))  # type: ignore[method-assign]
    assert await call.failure("ModelInfer", asked()) == (STATUSES[spelling(ModserveError(code, "")).grpc], "oops")


async def test_what_nobody_foresaw_is_internal_and_logged(
    call: Stub, simple: PuppetServable, caplog: pytest.LogCaptureFixture
) -> None:
    simple.config_message = b"\xff"
    code, details = await call.failure("ModelConfig", pb.ModelConfigRequest(name="simple"))
    assert code is grpc.StatusCode.INTERNAL
    assert details.startswith("unexpected DecodeError: ")
    assert "ModelConfig failed unexpectedly" in caplog.text


@pytest.mark.parametrize("rpc", ["ModelMetadata", "ModelConfig", "ModelInfer"])
async def test_a_stopping_server(call: Stub, server: LocalServer, rpc: str) -> None:
    server.stop_accepting()
    assert await call.failure(rpc, OF_A_MODEL[rpc]("simple", "")) == (grpc.StatusCode.UNAVAILABLE, "Server not ready")


# The health service


@pytest.mark.parametrize("service", ["", pb.SERVICE, "simple"])
async def test_health(call: Stub, server: LocalServer, service: str) -> None:
    check = health_pb2.HealthCheckRequest(service=service)
    assert (await call("Check", check, service=HEALTH)).status == health_pb2.HealthCheckResponse.SERVING
    server.stop_accepting()
    assert (await call("Check", check, service=HEALTH)).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_of_a_model_that_failed_to_load(tmp_path: Path, loader: PuppetLoader) -> None:
    loader.failures[ModelId("echo", 1)] = unavailable("no good")
    server = server_over(tmp_path, loader)
    await server.load()
    for service in ("", "echo"):
        answer = await Stub(server)("Check", health_pb2.HealthCheckRequest(service=service), service=HEALTH)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_of_what_is_not_there(call: Stub) -> None:
    check = health_pb2.HealthCheckRequest(service="nosuch")
    assert await call.failure("Check", check, HEALTH) == (NOT_FOUND, "unknown service 'nosuch'")


@pytest.fixture
def on_threads(server: LocalServer, call: Stub, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done on threads, where everything counts as long, after the message was taken apart."""
    found: list[Any] = []
    original = offload.on_thread

    async def on_thread(work: Any, *args: Any) -> Any:
        if work is not infer_requests._split:
            found.append(work)
        return await original(work, *args)

    monkeypatch.setattr(offload, "on_thread", on_thread)
    limits = LoopLimits(split=1, elements=1, texts=1)
    call.table = call_table(server, options=GrpcSettings(limits=limits))
    return found


def texts(raw: bytes | None, count: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="echo")
    given = message.inputs.add(name="IN", datatype="BYTES", shape=[count])
    if raw is None:
        given.contents.bytes_contents.extend([b"a", b"bc"])
    else:
        message.raw_input_contents.append(raw)
    return message


TEXTS = b"\1\0\0\0a\2\0\0\0bc"


@pytest.mark.parametrize(
    ("raw", "work"),
    [
        (None, [infer_requests._read_long, services._encode]),
        (TEXTS, [infer_requests._read_long, services._encode]),
    ],
    ids=["typed", "raw"],
)
async def test_many_texts_are_read_and_written_on_threads(
    call: Stub, on_threads: list[Any], raw: bytes | None, work: list[Any]
) -> None:
    answer = await call("ModelInfer", texts(raw, 2))
    assert answer.raw_output_contents == [TEXTS]
    assert on_threads == work


async def test_what_is_wrong_with_many_texts(call: Stub, on_threads: list[Any]) -> None:
    code, details = await call.failure("ModelInfer", texts(TEXTS, 3))
    assert code is INVALID
    assert (
        details
        == "[request id: <id_unknown>] expected 3 string elements for inference input 'IN' for model 'echo', got 2"
    )
    assert on_threads == [infer_requests._read_long]


async def test_digests_of_long_tensors_are_reckoned_on_a_thread(
    call: Stub, on_threads: list[Any], loader: PuppetLoader
) -> None:
    """For models whose answers are kept, or it happens on the event loop when the cache is asked."""
    simple = loader.loaded[ModelId("simple", 3)]
    simple.config = replace(simple.config, cached=True)
    simple.automatic = True
    await call("ModelInfer", asked())
    assert on_threads == [infer_requests._read_long]
    (inflight,) = simple.submitted
    assert all(hasattr(tensor, "_digest") for tensor in inflight.request.inputs.values())


async def test_what_may_be_copied_from_a_gpu_is_read_on_a_thread(
    call: Stub, on_threads: list[Any], server: LocalServer
) -> None:
    message = asked()
    message.ClearField("raw_input_contents")
    for given in message.inputs:
        given.parameters["shared_memory_region"].string_param = "nosuch"
        given.parameters["shared_memory_byte_size"].int64_param = 8
    for with_cuda, work in ((False, []), (True, [infer_requests._read_long])):
        server.shared_memory.with_cuda = with_cuda
        code, _ = await call.failure("ModelInfer", message)
        assert code is NOT_FOUND
        assert on_threads == work


async def test_others_need_no_threads(call: Stub, on_threads: list[Any]) -> None:
    assert (await call("ModelInfer", asked(id="7"))).id == "7"
    assert on_threads == []
