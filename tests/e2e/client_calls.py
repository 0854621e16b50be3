"""For every public method of `tritonclient`'s clients and tensors, a call whose answer is looked at.

`CALLS` has the clients' methods by name, `TENSOR_CALLS` those of inputs, outputs and results by class and name. Each
takes a `Client` of any flavour that has the method. The models are the examples, the server's options `OPTIONS`.
"""

import base64
import json
import queue
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tritonclient.utils.shared_memory as shm
from google.protobuf.json_format import MessageToDict
from server_process import ServerProcess, eventually
from test_client_flavours import A, B, Client
from tritonclient.grpc import InferenceServerClientPlugin
from wire import SECONDS, http

import modserve

SECRET = "open sesame"
OPTIONS = [
    "--model-control-mode=explicit",
    "--load-model=*",
    "--allow-client-shm=true",
    "--trace-config=rate=1000",
    f"--http-restricted-api=logging:admin-key={SECRET}",
    f"--grpc-restricted-protocol=logging:admin-key={SECRET}",
]
KEY = f"/modserve_calls_{uuid.uuid4().hex}"
NO_GPU = "failed to register CUDA shared memory region: 'gpu'"

Call: TypeAlias = Callable[[Client, ServerProcess], Awaitable[None]]
CALLS: dict[str, Call] = {}
TENSOR_CALLS: dict[str, Call] = {}


def covers(*methods: str, table: dict[str, Call] = CALLS) -> Callable[[Call], Call]:
    """A function that calls all of `methods`."""

    def registered(call: Call) -> Call:
        assert not table.keys() & set(methods), "covered twice"
        table.update(dict.fromkeys(methods, call))
        return call

    return registered


def secret(client: Client) -> dict[str, str]:
    """The header without which calls about the log are refused."""
    return {"admin-key" if client.protocol == "http" else "triton-grpc-protocol-admin-key": SECRET}


def settings_in(answer: Any) -> dict[str, Any]:
    """Settings by name, whichever the protocol."""
    if "settings" not in answer:
        return dict(answer)
    values = {name: next(iter(setting.values())) for name, setting in answer["settings"].items()}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in values.items()}


# --- health, metadata, statistics -------------------------------------------------------------------------------------


@covers("is_server_live")
async def server_live(client: Client, server: ServerProcess) -> None:
    assert await client.call("is_server_live") is True


@covers("is_server_ready")
async def server_ready(client: Client, server: ServerProcess) -> None:
    assert await client.call("is_server_ready") is True


@covers("is_model_ready", "load_model", "unload_model", "get_model_repository_index")
async def model_control(client: Client, server: ServerProcess) -> None:
    async def states() -> dict[str, str]:
        found = await client.ask("get_model_repository_index")
        entries = found if isinstance(found, list) else found["models"]
        return {f"{entry['name']}/{entry.get('version', '')}": entry.get("state", "") for entry in entries}

    assert await client.call("is_model_ready", "digits", "1") is True
    before = await states()
    assert before == dict.fromkeys(before, "READY")
    assert {"digits/1", "digits/2", "simple/1"} <= set(before)
    await client.call("unload_model", "digits", unload_dependents=True)
    assert await client.call("is_model_ready", "digits", "1") is False
    assert (await states())["digits/1"] in ("UNLOADING", "UNAVAILABLE")
    config = json.dumps(
        {"backend": "onnxruntime", "max_batch_size": 5, "version_policy": {"specific": {"versions": [1]}}}
    )
    await client.call("load_model", "digits", config=config)
    assert [await client.call("is_model_ready", "digits", version) for version in ("1", "")] == [True, True]
    assert (await client.ask("get_model_metadata", "digits"))["versions"] == ["1"]
    await client.call("load_model", "digits")
    assert (await client.ask("get_model_metadata", "digits"))["versions"] == ["1"], "no file has changed"
    await client.call("unload_model", "digits")
    await client.call("load_model", "digits")
    assert await states() == before


@covers("get_server_metadata")
async def server_metadata(client: Client, server: ServerProcess) -> None:
    found = await client.ask("get_server_metadata")
    assert (found["name"], found["version"]) == ("modserve", modserve.__version__)
    assert {"system_shared_memory", "model_repository", "statistics", "trace", "logging"} <= set(found["extensions"])


@covers("get_model_metadata")
async def model_metadata(client: Client, server: ServerProcess) -> None:
    found = await client.ask("get_model_metadata", "simple", "1")
    assert [found["name"], found["versions"], found["platform"]] == ["simple", ["1"], "onnxruntime_onnx"]
    assert found["inputs"] == [{"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in ("INPUT0", "INPUT1")]


@covers("get_model_config")
async def model_config(client: Client, server: ServerProcess) -> None:
    answer = await client.ask("get_model_config", "digits")
    found = answer.get("config", answer)
    assert (found["name"], found["max_batch_size"]) == ("digits", 32)
    assert [output["label_filename"] for output in found["output"] if "label_filename" in output][-1] == "labels.txt"


@covers("get_inference_statistics")
async def inference_statistics(client: Client, server: ServerProcess) -> None:
    async def inferences() -> int:
        (found,) = (await client.ask("get_inference_statistics", "simple", "1"))["model_stats"]
        return int(found.get("inference_count", 0))

    before = await inferences()
    await client.call("infer", "simple", client.simple())
    assert await inferences() == before + 1


# --- settings ---------------------------------------------------------------------------------------------------------


@covers("get_log_settings", "update_log_settings")
async def log_settings(client: Client, server: ServerProcess) -> None:
    async def settings(method: str, *given: Any) -> dict[str, Any]:
        return settings_in(await client.ask(method, *given, headers=secret(client)))

    before = await settings("get_log_settings")
    assert before["log_verbose_level"] == 0
    changed = {**before, "log_verbose_level": 1}
    assert await settings("update_log_settings", {"log_verbose_level": 1}) == changed
    assert await settings("get_log_settings") == changed
    assert await settings("update_log_settings", {"log_verbose_level": 0}) == before


@covers("get_trace_settings", "update_trace_settings")
async def trace_settings(client: Client, server: ServerProcess) -> None:
    async def settings(method: str, model: str | None, given: Any = None) -> dict[str, Any]:
        named = {"model_name": model} | ({"settings": given} if given else {})
        found = settings_in(await client.ask(method, **named))
        return {name: str(value) for name, value in found.items() if name in ("trace_rate", "trace_count")}

    start = {"trace_rate": "1000", "trace_count": "-1"}
    assert await settings("get_trace_settings", "simple") == start
    own = {**start, "trace_rate": "5"}
    assert await settings("update_trace_settings", "simple", {"trace_rate": "5"}) == own
    assert await settings("get_trace_settings", "simple") == own
    assert await settings("get_trace_settings", None) == start
    assert await settings("update_trace_settings", "simple", {"trace_rate": None}) == start


# --- shared memory ----------------------------------------------------------------------------------------------------


@contextmanager
def region() -> Iterator[Any]:
    """256 bytes, in which A and B are the first 128."""
    found = shm.create_shared_memory_region("region", KEY, 256, create_only=True)
    try:
        shm.set_shared_memory_region(found, [A, B])
        yield found
    finally:
        shm.destroy_shared_memory_region(found)


def contents(found: Any, offset: int) -> Any:
    return shm.get_contents_as_numpy(found, np.int32, [1, 16], offset).tolist()


async def regions(client: Client, kind: str) -> dict[str, int]:
    """Byte sizes by name."""
    answer = await client.ask(f"get_{kind}_shared_memory_status")
    listed = answer if isinstance(answer, list) else answer.get("regions", {}).values()
    return {each["name"]: each["byte_size"] for each in listed}


@covers("get_system_shared_memory_status", "register_system_shared_memory", "unregister_system_shared_memory")
async def system_shared_memory(client: Client, server: ServerProcess) -> None:
    assert await regions(client, "system") == {}
    with region():
        await client.call("register_system_shared_memory", "region", KEY, 192, offset=64)
        assert await regions(client, "system") == {"region": 192}
        await client.call("unregister_system_shared_memory", "region")
        assert await regions(client, "system") == {}


@covers("get_cuda_shared_memory_status", "register_cuda_shared_memory", "unregister_cuda_shared_memory")
async def cuda_shared_memory(client: Client, server: ServerProcess) -> None:
    """No GPU has handed out such a handle, so registering fails, with or without one."""
    handle = base64.b64encode(bytes(64))
    _, message = await client.refused("register_cuda_shared_memory", "gpu", handle, 0, 64)
    assert message.startswith(NO_GPU)
    assert await regions(client, "cuda") == {}
    await client.call("unregister_cuda_shared_memory", "gpu")


# --- inference --------------------------------------------------------------------------------------------------------


def check(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B, strict=True)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B, strict=True)


@covers("infer")
async def infer(client: Client, server: ServerProcess) -> None:
    """With all arguments the method has, plain and compressed."""
    named = {"model_version": "1", "request_id": "17", "priority": 1, "timeout": 10**7, "parameters": {"key": "value"}}
    outputs = [client.output("OUTPUT0"), client.output("OUTPUT1")]
    compressed = [
        {"request_compression_algorithm": name, "response_compression_algorithm": name}
        if client.protocol == "http"
        else {"compression_algorithm": name}
        for name in ("gzip", "deflate")
    ]
    for more in [{}, *compressed]:
        result = await client.call(
            "infer", "simple", client.simple(), outputs=outputs, headers={"x-any": "thing"}, **named, **more
        )
        check(result)
        assert response_of(client, result)["id"] == "17"


def response_of(client: Client, result: Any) -> Any:
    return result.get_response() if client.protocol == "http" else result.get_response(as_json=True)


@covers("async_infer")
async def async_infer(client: Client, server: ServerProcess) -> None:
    if client.protocol == "http":
        (sent,) = [await client.call("async_infer", "simple", client.simple())]
        check(sent.get_result(timeout=SECONDS))
        return
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    await client.call("async_infer", "simple", client.simple(), lambda result, error: answers.put(error or result))
    check(answers.get(timeout=SECONDS))


@covers("generate_request_body", "parse_response_body")
async def bodies(client: Client, server: ServerProcess) -> None:
    """The body is sent by other means."""
    outputs = [client.output("OUTPUT0", binary_data=True), client.output("OUTPUT1", binary_data=False)]
    body, length = await client.call("generate_request_body", client.simple(), outputs=outputs)
    headers = {"Inference-Header-Content-Length": str(length)}
    answer = http(server.http_port, "POST", "/v2/models/simple/infer", body, headers)
    header_length = int(answer.headers["Inference-Header-Content-Length"])
    check(await client.call("parse_response_body", answer.body, header_length=header_length))


def repeat(client: Client) -> list[Any]:
    """Inputs for three responses."""
    return [
        client.input("IN", "INT32", np.array([7, 8, 9], np.int32)),
        client.input("DELAY", "UINT32", np.zeros(3, np.uint32)),
        client.input("WAIT", "UINT32", np.zeros(1, np.uint32)),
    ]


@covers("start_stream", "async_stream_infer", "stop_stream")
async def stream(client: Client, server: ServerProcess) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    await client.call("start_stream", callback=lambda result, error: answers.put(error or result))
    named = {"request_id": "stream", "enable_empty_final_response": True}
    await client.call("async_stream_infer", "repeat", repeat(client), **named)
    await client.call("async_stream_infer", "simple", client.simple())
    results = [answers.get(timeout=SECONDS) for _ in range(5)]
    await client.call("stop_stream")
    *repeated, end = [result for result in results if result.get_response().id == "stream"]
    assert [result.as_numpy("OUT").tolist() for result in repeated] == [[7], [8], [9]]
    assert end.get_response().parameters["triton_final_response"].bool_param
    assert end.as_numpy("OUT") is None
    (added,) = [result for result in results if result.get_response().id == ""]
    check(added)


@covers("stream_infer")
async def stream_infer(client: Client, server: ServerProcess) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "repeat", "inputs": repeat(client)}

    found = []
    async for result, error in await client.call("stream_infer", requests()):
        assert error is None
        found.append(result.as_numpy("OUT").tolist())
    assert found == [[7], [8], [9]]


# --- the client itself ------------------------------------------------------------------------------------------------


class Opener(InferenceServerClientPlugin):  # type: ignore[misc]
    """Adds the header without which calls about the log are refused."""

    def __init__(self, client: Client) -> None:
        self._header = secret(client)

    def __call__(self, request: Any) -> None:
        request.headers.update(self._header)


@covers("register_plugin", "plugin", "unregister_plugin")
async def plugins(client: Client, server: ServerProcess) -> None:
    async def closed() -> bool:
        status, _ = await client.refused("get_log_settings")
        return status in ("403", "StatusCode.UNAVAILABLE")

    opener = Opener(client)
    assert await client.call("plugin") is None
    assert await closed()
    await client.call("register_plugin", opener)
    assert await client.call("plugin") is opener
    assert settings_in(await client.ask("get_log_settings"))["log_verbose_level"] == 0
    await client.call("unregister_plugin")
    assert await closed()


def connections(server: ServerProcess) -> set[str]:
    """The other ends of the server's established TCP connections."""
    ports = {f"{port:04X}" for port in (server.http_port, server.grpc_port)}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {remote for _, local, remote, state, *_ in rows if local.rpartition(":")[2] in ports and state == "01"}


@covers("close")
async def close(client: Client, server: ServerProcess) -> None:
    # gRPC would take the connection of a client before, if that is not gone yet.
    eventually(lambda: not connections(server))
    assert await client.call("is_server_live")
    assert connections(server)
    await client.call("close")
    eventually(lambda: not connections(server))


# --- tensors ----------------------------------------------------------------------------------------------------------

_INPUTS = ["name", "datatype", "shape", "set_shape", "set_data_from_numpy", "set_shared_memory"]
_OUTPUTS = ["name", "set_shared_memory", "unset_shared_memory"]
_RESULTS = ["as_numpy", "get_output", "get_response"]


@covers(*[f"InferInput.{name}" for name in _INPUTS], table=TENSOR_CALLS)
async def inputs(client: Client, server: ServerProcess) -> None:
    """One is given in the message, after its shape was corrected, the other in shared memory."""
    first, second = (
        client.tensors.InferInput("INPUT0", [16], "INT32"),
        client.tensors.InferInput("INPUT1", [1, 16], "INT32"),
    )
    first.set_shape([1, 16])
    first.set_data_from_numpy(A)
    told = (await client.ask("get_model_metadata", "simple"))["inputs"]
    assert [(each.name(), each.datatype()) for each in (first, second)] == [
        (each["name"], each["datatype"]) for each in told
    ]
    assert list(first.shape()) == list(second.shape()) == [1, 16]
    with region():
        await client.call("register_system_shared_memory", "region", KEY, 256)
        second.set_shared_memory("region", 64, offset=64)
        check(await client.call("infer", "simple", [first, second]))
        await client.call("unregister_system_shared_memory", "region")


@covers(*[f"InferRequestedOutput.{name}" for name in _OUTPUTS], table=TENSOR_CALLS)
async def outputs(client: Client, server: ServerProcess) -> None:
    """Into shared memory first, then in the message again; and the best classes."""
    output = client.output("OUTPUT0")
    assert output.name() == "OUTPUT0"
    with region() as found:
        await client.call("register_system_shared_memory", "region", KEY, 256)
        output.set_shared_memory("region", 64, offset=128)
        await client.call("infer", "simple", client.simple(), outputs=[output])
        assert contents(found, 128) == (A + B).tolist()
        await client.call("unregister_system_shared_memory", "region")
    output.unset_shared_memory()
    result = await client.call("infer", "simple", client.simple(), outputs=[output])
    assert result.as_numpy("OUTPUT0").tolist() == (A + B).tolist()
    best = client.tensors.InferRequestedOutput("OUTPUT0", class_count=1)
    result = await client.call("infer", "simple", client.simple(), outputs=[best])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"18:15"]]


@covers(*[f"InferResult.{name}" for name in _RESULTS], table=TENSOR_CALLS)
async def results(client: Client, server: ServerProcess) -> None:
    result = await client.call("infer", "simple", client.simple())
    check(result)
    assert result.as_numpy("OUTPUT9") is None
    told = result.get_output("OUTPUT1")  # over gRPC, as_json=True gives None: tritonclient forgets to return it
    told = told if client.protocol == "http" else MessageToDict(told, preserving_proto_field_name=True)
    assert (told["name"], told["datatype"], [int(size) for size in told["shape"]]) == ("OUTPUT1", "INT32", [1, 16])
    response = response_of(client, result)
    assert (response["model_name"], response["model_version"]) == ("simple", "1")


@covers("InferResult.from_response_body", table=TENSOR_CALLS)
async def result_from_a_body(client: Client, server: ServerProcess) -> None:
    body, length = await client.call("generate_request_body", client.simple())
    headers = {"Inference-Header-Content-Length": str(length)}
    answer = http(server.http_port, "POST", "/v2/models/simple/infer", body, headers)
    size = answer.headers.get("Inference-Header-Content-Length")
    check(client.tensors.InferResult.from_response_body(answer.body, header_length=int(size) if size else None))


@covers("InferAsyncRequest.get_result", table=TENSOR_CALLS)
async def result_of_an_asynchronous_call(client: Client, server: ServerProcess) -> None:
    await async_infer(client, server)
