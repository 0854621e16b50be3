"""Regions over both front ends: the calls about them, and how long a request keeps them."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message
from puppet_server import PuppetLoader, Stage, infer, numbers, server_over, stage
from test_grpc_service import Stub

from modserve.core.errors import internal
from modserve.core.tensors.shared_memory import SystemRegion
from modserve.frontends.http import infer as http_infer_call
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.app import create_app
from modserve.pb import inference as pb
from modserve.resources.cuda import Cuda
from modserve.resources.shared_memory import SharedMemory
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings
from work_threads import HeldThreads

TWO = numbers(1, 2).tobytes()
TEN = numbers(10, 10).tobytes()
SUM = numbers(11, 12).tobytes()
SHARED: dict[str, Any] = {"shared_memory_region": "r", "shared_memory_byte_size": 8}


@pytest.fixture
def memory(tmp_path: Path) -> SharedMemory:
    """One region, `r`: both inputs of `simple`, and room for an output."""
    directory = tmp_path / "shm"
    directory.mkdir()
    (directory / "k").write_bytes(TWO + TEN + bytes(8))
    memory = SharedMemory(True, directory=directory, cuda=Cuda(lambda: None))
    memory.register_system(SystemRegion("r", "/k", 0, 24))
    return memory


@contextlib.asynccontextmanager
async def staged(tmp_path: Path, memory: SharedMemory, *, automatic: bool = False) -> AsyncIterator[Stage]:
    async with stage(tmp_path / "models", automatic=automatic) as found:
        found.server.shared_memory = memory
        yield found


def json_body(output_bytes: int = 8, pad: int = 0) -> bytes:
    inputs: list[dict[str, Any]] = [
        {
            "name": f"INPUT{index}",
            "shape": [1, 2],
            "datatype": "INT32",
            "parameters": {**SHARED, "shared_memory_offset": 8 * index},
        }
        for index in range(2)
    ]
    place = {**SHARED, "shared_memory_offset": 16, "shared_memory_byte_size": output_bytes}
    outputs = [{"name": "OUTPUT0", "parameters": place}, {"name": "OUTPUT1"}]
    return json.dumps({"inputs": inputs, "outputs": outputs, "unknown": "x" * pad}).encode()


def leaving(memory: SharedMemory) -> bool:
    """Forget the region; whether it stays, for it is in use."""
    memory.unregister(SystemRegion, "r")
    return bool(memory.status(SystemRegion))


async def after_some_turns(fact: Callable[[], bool]) -> bool:
    """Whether it comes true without anything happening outside the event loop."""
    for _ in range(100):
        if fact():
            return True
        await asyncio.sleep(0)
    return False


async def test_an_http_request_keeps_its_regions_until_it_is_answered(tmp_path: Path, memory: SharedMemory) -> None:
    async with staged(tmp_path, memory) as stage:
        client = stage.connect()
        client.send(infer(json_body()))
        assert leaving(memory)
        stage.simple.answer_all()
        (answer,) = await client.receive()
    assert not memory.status(SystemRegion)
    assert answer.status == 200
    assert json.loads(answer.body)["outputs"] == [
        {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 2]},
        {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 2], "data": [-9, -8]},
    ]
    assert (tmp_path / "shm" / "k").read_bytes() == TWO + TEN + SUM


async def test_a_client_that_goes_gives_its_regions_back(tmp_path: Path, memory: SharedMemory) -> None:
    async with staged(tmp_path, memory) as stage:
        client = stage.connect()
        client.send(infer(json_body()))
        assert leaving(memory)
        client.transport.lose()
        assert not memory.status(SystemRegion)
        stage.simple.answer_all()
    assert (tmp_path / "shm" / "k").read_bytes() == TWO + TEN + bytes(8)


async def test_a_client_that_goes_while_its_request_is_read(tmp_path: Path, memory: SharedMemory) -> None:
    body = json_body(pad=300_000)  # which is read on a thread
    options = HttpSettings(max_json=10**6)
    async with staged(tmp_path, memory) as stage:
        stage.site.calls = CallContext(stage.server, options)
        client = stage.connect()
        client.send(infer(body))
        client.transport.lose()
        async with asyncio.timeout(30):
            await asyncio.get_running_loop().shutdown_default_executor()
        assert await after_some_turns(lambda: not leaving(memory))


async def test_long_outputs_are_copied_on_a_thread_that_keeps_the_regions(
    tmp_path: Path, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the client goes: memory that is being written to stays."""
    monkeypatch.setattr(http_infer_call, "is_long_response", lambda *arguments: True)
    async with staged(tmp_path, memory, automatic=True) as stage:
        threads = HeldThreads()
        client = stage.connect()
        client.send(infer(json_body()))
        await threads.begun.wait()
        client.transport.lose()
        assert leaving(memory)
        threads.go.set()
        async with asyncio.timeout(30):
            await asyncio.get_running_loop().shutdown_default_executor()
        assert await after_some_turns(lambda: not leaving(memory))
    assert (tmp_path / "shm" / "k").read_bytes() == TWO + TEN + SUM


async def test_a_failure_gives_regions_back(tmp_path: Path, memory: SharedMemory) -> None:
    async with staged(tmp_path, memory) as stage:
        client = stage.connect()
        client.send(infer(json_body()))
        assert leaving(memory)
        stage.simple.submitted[0].settle(internal("broken"))
        (answer,) = await client.receive()
    assert (answer.status, answer.body) == (500, b'{"error":"broken"}')
    assert not memory.status(SystemRegion)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (json_body(output_bytes=9), 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            json_body(output_bytes=7),
            400,
            "shared memory size specified with the request for output 'OUTPUT0' (7 bytes) should be at least 8 bytes "
            "to hold the results",
        ),
        (json_body().replace(b"OUTPUT1", b"OUTPUT2"), 400, "unexpected inference output 'OUTPUT2' for model 'simple'"),
        (json_body().replace(b'"r"', b'"q"'), 404, "Unable to find shared memory region: 'q'"),
        (json_body().replace(b"[1, 2]", b"[1, 3]"), 400, None),
    ],
    ids=["output outside", "output too small", "output unknown", "region unknown", "shape"],
)
async def test_refused_requests_give_regions_back(
    tmp_path: Path, memory: SharedMemory, body: bytes, status: int, text: str | None
) -> None:
    async with staged(tmp_path, memory, automatic=True) as stage:
        client = stage.connect()
        client.send(infer(body))
        (answer,) = await client.receive()
    assert answer.status == status
    assert text is None or json.loads(answer.body) == {"error": text}
    assert not leaving(memory)


# gRPC


def message(request_id: str = "") -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name="simple", id=request_id)
    for index in range(2):
        tensor = asked.inputs.add(name=f"INPUT{index}", datatype="INT32", shape=[1, 2])
        _place(tensor.parameters, 8 * index)
    _place(asked.outputs.add(name="OUTPUT0").parameters, 16)
    asked.outputs.add(name="OUTPUT1")
    return asked


def _place(parameters: Any, offset: int) -> None:
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_offset"].int64_param = offset
    parameters["shared_memory_byte_size"].int64_param = 8


def check_message(answer: Message) -> None:
    assert isinstance(answer, pb.ModelInferResponse)
    assert [each.name for each in answer.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert list(answer.raw_output_contents) == [b"", numbers(-9, -8).tobytes()]


async def submitted(stage: Stage) -> None:
    assert await after_some_turns(lambda: bool(stage.simple.submitted))


async def test_a_call_keeps_its_regions_until_it_is_answered(tmp_path: Path, memory: SharedMemory) -> None:
    async with staged(tmp_path, memory) as stage:
        call = asyncio.ensure_future(Stub(stage.server)("ModelInfer", message()))
        await submitted(stage)
        assert leaving(memory)
        stage.simple.answer_all()
        check_message(await call)
    assert not memory.status(SystemRegion)
    assert (tmp_path / "shm" / "k").read_bytes() == TWO + TEN + SUM


async def test_a_cancelled_call_gives_its_regions_back(tmp_path: Path, memory: SharedMemory) -> None:
    async with staged(tmp_path, memory) as stage:
        call = asyncio.ensure_future(Stub(stage.server)("ModelInfer", message()))
        await submitted(stage)
        assert leaving(memory)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert not memory.status(SystemRegion)


async def test_a_refused_call_gives_its_regions_back(tmp_path: Path, memory: SharedMemory) -> None:
    asked = message()
    asked.outputs[0].parameters["shared_memory_region"].string_param = "q"
    async with staged(tmp_path, memory) as stage:
        failure = await Stub(stage.server).failure("ModelInfer", asked)
    assert failure == (grpc.StatusCode.NOT_FOUND, "Unable to find shared memory region: 'q'")
    assert not leaving(memory)


# The calls about regions


def described(server: LocalServer) -> Callable[..., Any]:
    """Calls over HTTP: status and JSON."""
    app = create_app(server, HttpSettings())

    async def call(method: str, path: str, **body: Any) -> tuple[int, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            answer = await client.request(method, path, json=body or None)
        return answer.status_code, json.loads(answer.content) if answer.content else None

    return call


async def test_regions_over_http(tmp_path: Path, memory: SharedMemory) -> None:
    server = server_over(tmp_path / "models", PuppetLoader())
    server.shared_memory = memory
    call = described(server)
    system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    first, second = [{"name": name, "key": "/k", "offset": 0, "byte_size": 24} for name in ("r", "é s")]
    handle = base64.b64encode(bytes(64)).decode()
    no_gpu = "failed to register CUDA shared memory region: 'r', GPUs not supported"
    handed = {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": 8}
    unknown = {"error": "Unable to find system shared memory region: 'x'"}
    for method, path, body, expected in (
        ("GET", f"{system}/status", {}, (200, [first])),
        ("GET", f"{cuda}/status", {}, (200, [])),
        ("POST", f"{system}/region/%C3%A9%20s/register", {"key": "/k", "byte_size": 24}, (200, None)),
        ("GET", f"{system}/region/%C3%A9%20s/status", {}, (200, [second])),
        ("GET", f"{system}/region/x/status", {}, (404, unknown)),
        ("GET", f"{cuda}/region/x/status", {}, (404, {"error": "Unable to find cuda shared memory region: 'x'"})),
        ("POST", f"{cuda}/region/r/register", handed, (400, {"error": "shared memory region 'r' already in manager"})),
        ("POST", f"{system}/region/r/unregister", {}, (200, None)),
        ("POST", f"{system}/region/r/unregister", {}, (200, None)),
        ("POST", f"{cuda}/region/r/register", handed, (400, {"error": no_gpu})),
        ("POST", f"{cuda}/region/r/unregister", {}, (200, None)),
        ("GET", f"{system}/status", {}, (200, [second])),
        ("POST", f"{cuda}/unregister", {}, (200, None)),
        ("POST", f"{system}/unregister", {}, (200, None)),
        ("GET", f"{system}/status", {}, (200, [])),
        ("POST", f"{system}/status", {}, (405, {"error": "Method Not Allowed"})),
        ("GET", f"{system}/region/r/register", {}, (405, {"error": "Method Not Allowed"})),
        (
            "POST",
            f"{system}/register",
            {},
            (400, {"error": "'region name' is necessary to register system shared memory region"}),
        ),
        (
            "POST",
            f"{cuda}/register",
            {},
            (400, {"error": "'region name' is necessary to register cuda shared memory region"}),
        ),
        (
            "POST",
            f"{system}/region/r/register",
            {},
            (400, {"error": "Shared memory register request has no 'key' field"}),
        ),
    ):
        assert await call(method, path, **body) == expected, (method, path)


async def test_switched_off_over_http(tmp_path: Path) -> None:
    call = described(server_over(tmp_path, PuppetLoader()))
    off = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    for kind in ("system", "cuda"):
        assert await call("GET", f"/v2/{kind}sharedmemory/status") == (200, [])
        for path in ("region/r/register", "register", "region/r/unregister", "unregister"):
            assert await call("POST", f"/v2/{kind}sharedmemory/{path}") == (501, {"error": off}), path


async def test_regions_over_grpc(tmp_path: Path, memory: SharedMemory) -> None:
    server = server_over(tmp_path / "models", PuppetLoader())
    server.shared_memory = memory
    call = Stub(server)
    registered = pb.SystemSharedMemoryRegisterRequest(name="s", key="k", offset=8, byte_size=8)
    assert await call("SystemSharedMemoryRegister", registered) == pb.SystemSharedMemoryRegisterResponse()
    status = await call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())
    assert {name: (each.key, each.offset, each.byte_size) for name, each in status.regions.items()} == {
        "r": ("/k", 0, 24),
        "s": ("k", 8, 8),
    }
    await call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="r"))
    assert list((await call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="s"))).regions) == ["s"]
    assert await call.failure("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="r")) == (
        grpc.StatusCode.NOT_FOUND,
        "Unable to find system shared memory region: 'r'",
    )
    await call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest())
    assert not memory.status(SystemRegion)
    asked = pb.CudaSharedMemoryRegisterRequest(name="g", raw_handle=bytes(64), device_id=0, byte_size=8)
    assert await call.failure("CudaSharedMemoryRegister", asked) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "failed to register CUDA shared memory region: 'g', GPUs not supported",
    )
    assert await call("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(name="g")) == (
        pb.CudaSharedMemoryUnregisterResponse()
    )
    status = await call("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest())
    assert not status.regions
