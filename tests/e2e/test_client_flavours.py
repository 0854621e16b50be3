"""The four clients of `tritonclient` against the example models: one test body for all of them."""

import inspect
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from numpy.typing import NDArray
from repositories import EXAMPLES
from server_process import Server
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS

import modserve

FLAVOURS = ["http", "grpc", "http.aio", "grpc.aio"]
MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
CLIENTS = {
    "http": tritonclient.http.InferenceServerClient,
    "grpc": tritonclient.grpc.InferenceServerClient,
    "http.aio": tritonclient.http.aio.InferenceServerClient,
    "grpc.aio": tritonclient.grpc.aio.InferenceServerClient,
}

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, dtype=np.int32)


class Client:
    """A client of any flavour as coroutines, answering with JSON objects where the flavour has a choice."""

    def __init__(self, flavour: str, server: Server) -> None:
        self.protocol = flavour.partition(".")[0]
        port = server.http_port if self.protocol == "http" else server.grpc_port
        self.tensors = MODULES[self.protocol]
        self._client = CLIENTS[flavour](f"{HOST}:{port}")

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        result = getattr(self._client, method)(*arguments, **named)
        return await result if inspect.isawaitable(result) else result

    async def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """A call whose answer is an object; over gRPC its 64-bit integers are strings, here they are numbers."""
        if self.protocol == "http":
            return await self.call(method, *arguments, **named)
        return _numbers(await self.call(method, *arguments, **named, as_json=True))

    def input(self, name: str, datatype: str, array: NDArray[Any], **how: Any) -> Any:
        given = self.tensors.InferInput(name, array.shape, datatype)
        given.set_data_from_numpy(array, **(how if self.protocol == "http" else {}))
        return given

    def output(self, name: str, **how: Any) -> Any:
        return self.tensors.InferRequestedOutput(name, **(how if self.protocol == "http" else {}))

    def simple(self, **how: Any) -> list[Any]:
        return [self.input("INPUT0", "INT32", A, **how), self.input("INPUT1", "INT32", B, **how)]

    async def refused(self, method: str, *arguments: Any, **named: Any) -> tuple[str, str]:
        """Status and message of a call that must fail."""
        with pytest.raises(InferenceServerException) as raised:
            await self.call(method, *arguments, **named)
        return raised.value.status(), raised.value.message()


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: element if key in ("version", "versions") else _numbers(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_numbers(element) for element in value]
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value


@asynccontextmanager
async def opened(flavour: str, server: Server) -> AsyncIterator[Client]:
    client = Client(flavour, server)
    try:
        yield client
    finally:
        await client.call("close")


@pytest.fixture(params=FLAVOURS)
async def client(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Client]:
    async with opened(request.param, server) as found:
        yield found


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    return np.random.default_rng(7).integers(0, 17, (5, 64)).astype(np.float32)


def expected_digits(version: int, images: NDArray[np.float32]) -> list[NDArray[Any]]:
    path = EXAMPLES / "digits" / str(version) / "model.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(["label", "probabilities"], {"image": images})
    return found


# --- health, metadata, configuration, statistics ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("is_server_live", ()),
        ("is_server_ready", ()),
        ("is_model_ready", ("simple",)),
        ("is_model_ready", ("digits", "1")),
        ("is_model_ready", ("digits", "2")),
    ],
)
async def test_is_up(client: Client, method: str, arguments: tuple[str, ...]) -> None:
    assert await client.call(method, *arguments) is True


async def test_server_metadata(client: Client) -> None:
    metadata = await client.ask("get_server_metadata")
    assert metadata["name"] == "modserve"
    assert metadata["version"] == modserve.__version__
    assert {"binary_tensor_data", "model_configuration", "statistics"} <= set(metadata["extensions"])


@pytest.mark.parametrize(("version", "versions"), [("", ["1", "2"]), ("1", ["1"]), ("2", ["2"])])
async def test_model_metadata(client: Client, version: str, versions: list[str]) -> None:
    metadata = await client.ask("get_model_metadata", "digits", version)
    assert metadata == {
        "name": "digits",
        "versions": versions,
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 64]}],
        "outputs": [
            {"name": "label", "datatype": "INT64", "shape": [-1, 1]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]},
        ],
    }


async def test_model_config(client: Client) -> None:
    config = await client.ask("get_model_config", "simple")
    config = config if client.protocol == "http" else config["config"]
    assert config["name"] == "simple"
    assert config["max_batch_size"] == 8
    assert config["platform"] == "onnxruntime_onnx"
    assert [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in config["input"]] == [
        ("INPUT0", "TYPE_INT32", [16]),
        ("INPUT1", "TYPE_INT32", [16]),
    ]
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["version_policy"] == {"latest": {"num_versions": 1}}


async def test_statistics_count_what_was_inferred(client: Client) -> None:
    async def counts() -> tuple[int, int]:
        answer = await client.ask("get_inference_statistics", "simple", "1")
        (entry,) = answer["model_stats"]
        assert (entry["name"], entry["version"]) == ("simple", "1")
        return entry.get("inference_count", 0), entry["inference_stats"]["success"].get("count", 0)

    inferences, successes = await counts()
    both = np.concatenate([A, A])
    await client.call("infer", "simple", [client.input("INPUT0", "INT32", both), client.input("INPUT1", "INT32", both)])
    assert await counts() == (inferences + 2, successes + 1)


async def test_statistics_of_all_models(client: Client) -> None:
    answer = await client.ask("get_inference_statistics")
    versions = [(entry["name"], entry["version"]) for entry in answer["model_stats"]]
    assert {("digits", "1"), ("digits", "2"), ("simple", "1")} <= set(versions)


# --- inference --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("binary_out", [True, False, None], ids=["binary-out", "json-out", "default-out"])
async def test_simple(client: Client, binary_in: bool, binary_out: bool | None) -> None:
    outputs = None
    if binary_out is not None:
        outputs = [client.output(name, binary_data=binary_out) for name in ("OUTPUT0", "OUTPUT1")]
    result = await client.call("infer", "simple", client.simple(binary_data=binary_in), outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B, strict=True)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B, strict=True)


@pytest.mark.parametrize("wanted", [["OUTPUT1"], ["OUTPUT0"], ["OUTPUT1", "OUTPUT0"]], ids="-".join)
async def test_only_the_outputs_asked_for(client: Client, wanted: list[str]) -> None:
    result = await client.call("infer", "simple", client.simple(), outputs=[client.output(name) for name in wanted])
    response = result.get_response() if client.protocol == "http" else result.get_response(as_json=True)
    assert sorted(output["name"] for output in response["outputs"]) == sorted(wanted)
    expected = {"OUTPUT0": A + B, "OUTPUT1": A - B}
    for name in expected:
        if name in wanted:
            np.testing.assert_array_equal(result.as_numpy(name), expected[name])
        else:
            assert result.as_numpy(name) is None


async def test_request_id_comes_back(client: Client) -> None:
    result = await client.call("infer", "simple", client.simple(), request_id="id 17 ü")
    response = result.get_response() if client.protocol == "http" else result.get_response(as_json=True)
    assert response["id"] == "id 17 ü"


async def test_custom_parameters_are_taken(client: Client) -> None:
    result = await client.call(
        "infer", "simple", client.simple(), parameters={"text": "a", "count": 3, "flag": True}, timeout=10_000_000
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


@pytest.mark.parametrize(("asked", "answering"), [("", 2), ("1", 1), ("2", 2)], ids=["latest", "1", "2"])
async def test_versions_of_digits(client: Client, asked: str, answering: int, images: NDArray[np.float32]) -> None:
    given = [client.input("image", "FP32", images)]
    result = await client.call("infer", "digits", given, model_version=asked)
    response = result.get_response() if client.protocol == "http" else result.get_response(as_json=True)
    assert (response["model_name"], response["model_version"]) == ("digits", str(answering))
    label, probabilities = expected_digits(answering, images)
    np.testing.assert_array_equal(result.as_numpy("label"), label, strict=True)
    np.testing.assert_array_equal(result.as_numpy("probabilities"), probabilities, strict=True)


def test_the_versions_of_digits_differ(images: NDArray[np.float32]) -> None:
    assert not np.array_equal(expected_digits(1, images)[1], expected_digits(2, images)[1])


@pytest.mark.parametrize("flavour", ["http", "grpc"])
def test_asynchronous_calls_of_the_synchronous_clients(server: Server, flavour: str) -> None:
    client = Client(flavour, server)
    inner = client._client
    if flavour == "http":
        results = [call.get_result() for call in [inner.async_infer("simple", client.simple()) for _ in range(4)]]
    else:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(4):
            inner.async_infer("simple", client.simple(), callback=lambda result, error: answers.put(error or result))
        results = [answers.get(timeout=SECONDS) for _ in range(4)]
    inner.close()
    for result in results:
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


# --- errors as the clients see them -----------------------------------------------------------------------------------

REFUSALS = {
    "unknown-model": (
        {"model_name": "nosuch"},
        ("404", "StatusCode.NOT_FOUND"),
        "Request for unknown model: 'nosuch' is not found",
    ),
    "unknown-version": (
        {"model_name": "simple", "model_version": "9"},
        ("404", "StatusCode.NOT_FOUND"),
        "Request for unknown model: 'simple' version 9 is not found",
    ),
    "too-few-inputs": (
        {"model_name": "simple", "inputs": 1, "request_id": "r1"},
        ("400", "StatusCode.INVALID_ARGUMENT"),
        "[request id: r1] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "unknown-output": (
        {"model_name": "simple", "outputs": ["OUTPUT9"]},
        ("400", "StatusCode.INVALID_ARGUMENT"),
        "unexpected inference output 'OUTPUT9' for model 'simple'",
    ),
}


@pytest.mark.parametrize(("request_", "statuses", "message"), REFUSALS.values(), ids=REFUSALS)
async def test_inference_errors(
    client: Client, request_: dict[str, Any], statuses: tuple[str, str], message: str
) -> None:
    named = dict(request_)
    named["inputs"] = client.simple()[: named.pop("inputs", 2)]
    if "outputs" in named:
        named["outputs"] = [client.output(name) for name in named["outputs"]]
    assert await client.refused("infer", **named) == (statuses[client.protocol == "grpc"], message)


@pytest.mark.parametrize(
    ("method", "arguments", "code", "message"),
    [
        ("get_model_metadata", ("nosuch",), "NOT_FOUND", "Request for unknown model: 'nosuch' is not found"),
        (
            "get_model_config",
            ("simple", "9"),
            "NOT_FOUND",
            "Request for unknown model: 'simple' version 9 is not found",
        ),
        ("get_inference_statistics", ("nosuch",), "INVALID", "requested model 'nosuch' is not available"),
        (
            "get_inference_statistics",
            ("simple", "9"),
            "INVALID",
            "requested model version is not available for model 'simple'",
        ),
    ],
    ids=["metadata", "config", "statistics-model", "statistics-version"],
)
async def test_errors_of_the_other_calls(
    client: Client, method: str, arguments: tuple[str, ...], code: str, message: str
) -> None:
    spelled = {"NOT_FOUND": ("404", "StatusCode.NOT_FOUND"), "INVALID": ("400", "StatusCode.INVALID_ARGUMENT")}
    assert await client.refused(method, *arguments) == (spelled[code][client.protocol == "grpc"], message)


async def test_readiness_of_an_unknown_model(client: Client) -> None:
    assert await client.call("is_model_ready", "nosuch") is False


async def test_a_client_survives_its_errors(client: Client) -> None:
    await client.refused("infer", "nosuch", client.simple())
    result = await client.call("infer", "simple", client.simple())
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


def test_labels_file_is_where_the_configuration_says() -> None:
    """A client that reads the labels by the configuration's word finds ten of them."""
    assert len(Path(EXAMPLES / "digits" / "labels.txt").read_text().splitlines()) == 10
