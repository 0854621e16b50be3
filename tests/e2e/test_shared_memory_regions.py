"""Tensors in shared memory with `tritonclient`: system memory over both protocols, and what is refused."""

import inspect
import os
import queue
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from repositories import EXAMPLES, write_identity
from server_here import serving_here
from server_process import Server, ServerProcess, eventually
from tritonclient.utils import InferenceServerException, serialized_byte_size
from wire import HOST, SECONDS, http, metric

FLAVOURS = {
    "http": (tritonclient.http, tritonclient.http.InferenceServerClient),
    "grpc": (tritonclient.grpc, tritonclient.grpc.InferenceServerClient),
    "http.aio": (tritonclient.http, tritonclient.http.aio.InferenceServerClient),
    "grpc.aio": (tritonclient.grpc, tritonclient.grpc.aio.InferenceServerClient),
}
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, dtype=np.int32)
KEY = f"/modserve_test_{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`numbers` and `words`; and `stuck`, which waits for a batch of 8."""
    repository = tmp_path_factory.mktemp("sharing")
    write_identity(repository, "numbers")
    write_identity(repository, "words", "BYTES")
    batching = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000 }"
    write_identity(repository, "stuck", extra=batching)
    with serving_here(EXAMPLES, repository, options=["--allow-client-shm=true"]) as running:
        yield running


@pytest.fixture
def region() -> Iterator[Any]:
    """256 bytes of memory, this process's own."""
    found = shm.create_shared_memory_region("mine", KEY, 256, create_only=True)
    yield found
    shm.destroy_shared_memory_region(found)


class Client:
    """A client of any flavour as coroutines."""

    def __init__(self, flavour: str, server: Server) -> None:
        self.tensors, make = FLAVOURS[flavour]
        port = server.http_port if flavour.startswith("http") else server.grpc_port
        self._client = make(f"{HOST}:{port}")

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        result = getattr(self._client, method)(*arguments, **named)
        return await result if inspect.isawaitable(result) else result

    async def status(self, kind: str = "system") -> dict[str, Any]:
        """The regions, alike over both protocols."""
        found = await self.call(f"get_{kind}_shared_memory_status")
        if isinstance(found, list):
            return {each["name"]: each for each in found}
        return {
            name: {field.name: getattr(each, field.name) for field in each.DESCRIPTOR.fields}
            for name, each in found.regions.items()
        }

    def input(self, name: str, datatype: str, shape: list[int], size: int, offset: int = 0) -> Any:
        found = self.tensors.InferInput(name, shape, datatype)
        found.set_shared_memory("r", size, offset)
        return found

    def output(self, name: str, size: int, offset: int = 0) -> Any:
        found = self.tensors.InferRequestedOutput(name)
        found.set_shared_memory("r", size, offset)
        return found


@pytest.fixture(params=FLAVOURS)
async def client(request: pytest.FixtureRequest, sharing: Server) -> AsyncIterator[Client]:
    found = Client(request.param, sharing)
    await found.call("unregister_system_shared_memory")
    yield found
    await found.call("close")


async def test_inputs_and_outputs_in_one_region(client: Client, region: Any) -> None:
    await client.call("register_system_shared_memory", "r", KEY, 256)
    assert await client.status() == {"r": {"name": "r", "key": KEY, "offset": 0, "byte_size": 256}}
    assert await client.status("cuda") == {}
    shm.set_shared_memory_region(region, [A, B])
    inputs = [client.input("INPUT0", "INT32", [1, 16], 64), client.input("INPUT1", "INT32", [1, 16], 64, 64)]
    outputs = [client.output("OUTPUT0", 64, 128), client.output("OUTPUT1", 64, 192)]
    result = await client.call("infer", "simple", inputs, outputs=outputs)
    assert shm.get_contents_as_numpy(region, np.int32, [1, 16], 128).tolist() == (A + B).tolist()
    assert shm.get_contents_as_numpy(region, np.int32, [1, 16], 192).tolist() == (A - B).tolist()
    told = result.get_output("OUTPUT1")
    assert (told["shape"] if isinstance(told, dict) else list(told.shape)) == [1, 16]
    await client.call("unregister_system_shared_memory", "r")
    assert await client.status() == {}


async def test_a_mixture(client: Client, region: Any) -> None:
    """One tensor of each direction in the region, and the other in the message."""
    await client.call("register_system_shared_memory", "r", KEY, 128, 128)
    shm.set_shared_memory_region(region, [B], 128)
    plain = client.tensors.InferInput("INPUT0", [1, 16], "INT32")
    plain.set_data_from_numpy(A)
    inputs = [client.input("INPUT1", "INT32", [1, 16], 64), plain]
    outputs = [client.tensors.InferRequestedOutput("OUTPUT1"), client.output("OUTPUT0", 64, 64)]
    result = await client.call("infer", "simple", inputs, outputs=outputs)
    assert result.as_numpy("OUTPUT1").tolist() == (A - B).tolist()
    assert shm.get_contents_as_numpy(region, np.int32, [1, 16], 192).tolist() == (A + B).tolist()


async def test_bytes(client: Client, region: Any) -> None:
    await client.call("register_system_shared_memory", "r", KEY, 256)
    words = np.array([[b"a", b"", "ü€".encode(), b"\xff\0"]], dtype=object)
    serialized = tritonclient.utils.serialize_byte_tensor(words)
    size = serialized_byte_size(serialized)
    shm.set_shared_memory_region(region, [serialized], 3)
    asked = [client.input("INPUT0", "BYTES", [1, 4], size, 3)]
    await client.call("infer", "words", asked, outputs=[client.output("OUTPUT0", 128, 128)])
    assert shm.get_contents_as_numpy(region, np.object_, [1, 4], 128).tolist() == words.tolist()


async def test_what_is_refused(client: Client, region: Any) -> None:
    async def refusal(method: str, *arguments: Any, **named: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            await client.call(method, *arguments, **named)
        return str(caught.value.message())

    async def infer_refusal(size: int = 64, offset: int = 0, output: int = 64) -> str:
        inputs = [client.input(f"INPUT{index}", "INT32", [1, 16], size, offset) for index in range(2)]
        outputs = [client.output("OUTPUT0", output, 128)]
        return await refusal("infer", "simple", inputs, outputs=outputs)

    register = "register_system_shared_memory"
    assert await infer_refusal() == "Unable to find shared memory region: 'r'"
    assert await refusal(register, "r", "/no_such_key", 8) == "Unable to open shared memory region: '/no_such_key'"
    assert await refusal(register, "r", KEY, 257) == "failed to register shared memory region 'r': invalid args"
    assert await refusal(register, "r", KEY, 8, 256) == "failed to register shared memory region 'r': invalid args"
    assert await refusal("get_system_shared_memory_status", "r") == "Unable to find system shared memory region: 'r'"
    await client.call(register, "r", KEY, 256)
    assert await refusal(register, "r", KEY, 256) == "shared memory region 'r' already in manager"
    assert await infer_refusal(offset=256) == "Invalid offset for shared memory region: 'r'"
    assert await infer_refusal(offset=200) == "Invalid offset + byte size for shared memory region: 'r'"
    assert "Expected 64, got 60" in await infer_refusal(size=60)
    assert await infer_refusal(output=63) == (
        "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64 bytes to "
        "hold the results"
    )
    os.truncate(f"/dev/shm{KEY}", 100)
    assert "has been made smaller since" in await infer_refusal(offset=64)
    os.truncate(f"/dev/shm{KEY}", 256)


async def test_a_region_in_use_goes_when_the_request_is_over(client: Client, region: Any, sharing: Server) -> None:
    """Another client's request is under way while this one unregisters."""

    def pending() -> float:
        return metric(sharing, "nv_inference_pending_request_count", model="stuck")

    def given(rows: int) -> Any:
        found = tritonclient.grpc.InferInput("INPUT0", [rows, 4], "INT32")
        found.set_shared_memory("r", rows * 16)
        return [found]

    await client.call("register_system_shared_memory", "r", KEY, 256)
    shm.set_shared_memory_region(region, [A])
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{sharing.grpc_port}") as other:
        place = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
        place.set_shared_memory("r", 16, 240)
        other.async_infer("stuck", given(1), lambda result, error: answers.put(error), outputs=[place])
        eventually(lambda: pending() == 1)
        await client.call("unregister_system_shared_memory")
        assert list(await client.status()) == ["r"]
        filler = tritonclient.grpc.InferInput("INPUT0", [7, 4], "INT32")
        filler.set_data_from_numpy(np.zeros((7, 4), np.int32))
        other.infer("stuck", [filler])
        assert answers.get(timeout=SECONDS) is None
    assert shm.get_contents_as_numpy(region, np.int32, [4], 240).tolist() == [0, 1, 2, 3]
    assert await client.status() == {}


def test_a_stream(sharing: Server, region: Any) -> None:
    """Requests with regions among plain ones, one that fails, and one that is cancelled with the stream."""
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{sharing.grpc_port}") as client:
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("r", KEY, 256)
        shm.set_shared_memory_region(region, [A])
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        given = tritonclient.grpc.InferInput("INPUT0", [1, 16], "INT32")
        given.set_shared_memory("r", 64)
        place = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
        place.set_shared_memory("r", 64, 128)
        small = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
        small.set_shared_memory("r", 63, 192)
        for outputs in ([place], None, [small]):
            client.async_stream_infer("numbers", [given], outputs=outputs)
        first, second, third = [answers.get(timeout=SECONDS) for _ in range(3)]
        assert (first[1], list(first[0].get_response().raw_output_contents)) == (None, [b""])
        assert shm.get_contents_as_numpy(region, np.int32, [1, 16], 128).tolist() == A.tolist()
        assert second[0].as_numpy("OUTPUT0").tolist() == A.tolist()
        assert "should be at least 64 bytes" in third[1].message()
        narrow = tritonclient.grpc.InferInput("INPUT0", [1, 4], "INT32")
        narrow.set_shared_memory("r", 16)
        client.async_stream_infer("stuck", [narrow])
        eventually(lambda: metric(sharing, "nv_inference_pending_request_count", model="stuck") == 1)
        client.unregister_system_shared_memory("r")
        assert list(client.get_system_shared_memory_status().regions) == ["r"]
        client.stop_stream(cancel_requests=True)
        eventually(lambda: not client.get_system_shared_memory_status().regions)


EXAMPLE = """
import numpy as np
import tritonclient.http as client
import tritonclient.utils.shared_memory as shm

a = np.arange(16, dtype=np.int32).reshape(1, 16)
b = np.ones((1, 16), dtype=np.int32)
region = shm.create_shared_memory_region("numbers", "/numbers", 192)
shm.set_shared_memory_region(region, [a, b])

with client.InferenceServerClient("localhost:8000") as server:
    server.register_system_shared_memory("numbers", "/numbers", 192)
    inputs = [client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_shared_memory("numbers", 64)
    inputs[1].set_shared_memory("numbers", 64, offset=64)
    output = client.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("numbers", 64, offset=128)
    server.infer("simple", inputs, outputs=[output])
    print(shm.get_contents_as_numpy(region, np.int32, [1, 16], offset=128))
    server.unregister_system_shared_memory("numbers")

shm.destroy_shared_memory_region(region)
"""


def test_a_program_with_tritonclient(sharing: Server, capsys: pytest.CaptureFixture[str]) -> None:
    key = KEY.removeprefix("/")
    exec(EXAMPLE.replace("localhost:8000", f"{HOST}:{sharing.http_port}").replace("/numbers", f"/{key}_numbers"), {})
    assert "[[ 1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16]]" in capsys.readouterr().out


def test_gpu_memory_without_a_gpu(sharing: Server) -> None:
    """Only the calls: whether there is a GPU is the machine's business."""
    for tensors, port in ((tritonclient.http, sharing.http_port), (tritonclient.grpc, sharing.grpc_port)):
        with tensors.InferenceServerClient(f"{HOST}:{port}") as client:
            with pytest.raises(InferenceServerException) as caught:
                client.register_cuda_shared_memory("g", b"AAAA", 0, 8)
            assert caught.value.message() == "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
            client.unregister_cuda_shared_memory("g")
            client.unregister_cuda_shared_memory()


def test_by_default_there_is_no_shared_memory_for_clients(server: ServerProcess) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException) as caught:
            client.register_system_shared_memory("r", KEY, 8)
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        assert not client.get_system_shared_memory_status().regions
    answer = http(server.http_port, "POST", "/v2/systemsharedmemory/region/r/register", b"{}")
    assert answer.status == 501
    assert answer.json == {
        "error": "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    }
