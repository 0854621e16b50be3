"""The best classes of an output, through `tritonclient` and byte for byte."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from server_process import ServerProcess
from tritonclient.utils import InferenceServerException
from wire import HOST, http, infer_path

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), dtype=np.int32)
VALUES: dict[str, NDArray[Any]] = {
    "BOOL": np.array([[True]]),
    "BYTES": np.array([[b"a"]], dtype=object),
    "FP16": np.array([[1.0]], dtype=np.float16),
}


class Client:
    """`tritonclient`, asking for outputs in one of the three forms in which they come."""

    def __init__(self, form: str, server: ServerProcess) -> None:
        self._http = form != "grpc"
        self._module = tritonclient.http if self._http else tritonclient.grpc
        self._form = {"binary_data": form == "http binary"} if self._http else {}
        port = server.http_port if self._http else server.grpc_port
        self._client = self._module.InferenceServerClient(f"{HOST}:{port}")

    def infer(self, model: str, inputs: dict[str, tuple[str, NDArray[Any]]], **class_counts: int) -> Any:
        given = []
        for name, (datatype, array) in inputs.items():
            given.append(self._module.InferInput(name, array.shape, datatype))
            given[-1].set_data_from_numpy(array)
        wanted = [
            self._module.InferRequestedOutput(name, class_count=count, **self._form)
            for name, count in class_counts.items()
        ]
        return self._client.infer(model, given, outputs=wanted)

    def simple(self, **class_counts: int) -> Any:
        return self.infer("simple", {"INPUT0": ("INT32", A), "INPUT1": ("INT32", B)}, **class_counts)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(params=["http json", "http binary", "grpc"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    found = Client(request.param, server)
    yield found
    found.close()


def texts(result: Any, name: str) -> list[list[str]]:
    """Out of JSON the client gives str, else bytes."""
    rows = result.as_numpy(name).tolist()
    return [[element if isinstance(element, str) else element.decode() for element in row] for row in rows]


def test_the_three_likeliest_digits_by_name(client: Client) -> None:
    images = np.random.default_rng(3).integers(0, 17, (2, 64)).astype(np.float32)
    inputs = {"image": ("FP32", images)}
    probabilities = client.infer("digits", inputs, probabilities=0).as_numpy("probabilities")
    result = client.infer("digits", inputs, label=0, probabilities=3)
    expected = [
        [f"{row[index]:.6f}:{index}:{DIGITS[index]}" for index in np.argsort(-row, kind="stable")[:3]]
        for row in probabilities
    ]
    assert texts(result, "probabilities") == expected
    assert [row[0].split(":")[1] for row in expected] == [str(label) for (label,) in result.as_numpy("label")]


def test_an_output_without_labels_beside_one_in_full(client: Client) -> None:
    result = client.simple(OUTPUT0=3, OUTPUT1=0)
    assert texts(result, "OUTPUT0") == [["16:15", "15:14", "14:13"]]
    assert np.array_equal(result.as_numpy("OUTPUT1"), A - B)


def test_all_classes_when_more_are_asked_for(client: Client) -> None:
    assert texts(client.simple(OUTPUT1=100), "OUTPUT1") == [[f"{index - 1}:{index}" for index in range(15, -1, -1)]]


@pytest.mark.parametrize("datatype", VALUES)
def test_datatypes_without_an_order(client: Client, datatype: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer(f"identity_{datatype}", {"INPUT0": (datatype, VALUES[datatype])}, OUTPUT0=1)
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert raised.value.message() == (f"class result not available for output due to unsupported type '{datatype}'")


def test_an_answer_byte_for_byte(server: ServerProcess) -> None:
    """What Triton answered to the same request."""
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": array.tolist()}
        for name, array in (("INPUT0", A), ("INPUT1", B))
    ]
    outputs = [
        {"name": "OUTPUT0", "parameters": {"classification": 4}},
        {"name": "OUTPUT1", "parameters": {"classification": 2, "binary_data": True}},
    ]
    body = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    answer = http(server.http_port, "POST", infer_path("simple"), body)
    header = (
        b'{"model_name":"simple","model_version":"1","outputs":['
        b'{"name":"OUTPUT0","datatype":"BYTES","shape":[1,4],"data":["16:15","15:14","14:13","13:12"]},'
        b'{"name":"OUTPUT1","datatype":"BYTES","shape":[1,2],"parameters":{"binary_data_size":18}}]}'
    )
    assert answer.body == header + b"\x05\x00\x00\x0014:15\x05\x00\x00\x0013:14"
    assert answer.headers["Inference-Header-Content-Length"] == str(len(header))


def test_the_server_lists_the_extension_first_as_triton_does(server: ServerProcess) -> None:
    assert http(server.http_port, "GET", "/v2").json["extensions"][0] == "classification"
