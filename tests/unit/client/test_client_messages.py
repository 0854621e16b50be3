"""What goes over the wire, and what of it cannot be understood."""

import struct
from typing import Any

import numpy as np
import orjson
import pytest

from modserve.client import grpc_messages, http_messages
from modserve.client.address import Address, is_url, parse
from modserve.client.errors import ClientError
from modserve.client.http_messages import HttpResponse
from modserve.client.input_values import ClientCall, metadata_of
from modserve.client.transport import ENGINE, HEALTH, INDEX, LOAD, METADATA, MODEL_READY, READY, ControlCall
from modserve.core.errors import Code
from modserve.core.tensors.tensor import Tensor
from modserve.pb import inference as pb

ADDRESS = Address("http", "host", 8000, "/prefix")
TENSORS = {"a": Tensor.from_array(np.array([1, 2], np.int32)), "b": Tensor.from_array(np.array([b"x"], dtype=object))}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost", Address("http", "localhost", 8000)),
        ("HTTPS://a/b/", Address("https", "a", 443, "/b")),
        ("grpc://a:1", Address("grpc", "a", 1)),
        ("grpcs://[::1]", Address("grpcs", "::1", 8001)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert is_url(url)
    assert parse(url) == address


def test_an_address_as_text() -> None:
    assert str(parse("http://[::1]:80/a")) == "http://[::1]:80/a"
    assert not is_url("s3://bucket")
    assert not is_url("localhost:8000")


@pytest.mark.parametrize("url", ["http://", "http://a:b", "http://a?b", "http://user@a", "http://a:99999"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ClientError, match=r"is not (an|the) address"):
        parse(url)


def test_an_inference_over_http() -> None:
    call = ClientCall("a model/1", 2, TENSORS, ("o",), "id", {"p": 1}, 1.5)
    request = http_messages.infer(ADDRESS, call)
    assert request.target == "/prefix/v2/models/a%20model%2F1/versions/2/infer"
    length = int(request.headers["inference-header-content-length"])
    assert request.headers["x-request-timeout-ms"] == "1500.000"
    body = b"".join(request.parts)
    assert len(body) == request.length
    assert orjson.loads(body[:length]) == {
        "id": "id",
        "outputs": [{"name": "o", "parameters": {"binary_data": True}}],
        "parameters": {"p": 1},
        "inputs": [
            {"name": "a", "shape": [2], "datatype": "INT32", "parameters": {"binary_data_size": 8}},
            {"name": "b", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}},
        ],
    }
    assert body[length:] == struct.pack("<ii", 1, 2) + b"\1\0\0\0x"


def test_all_outputs_are_binary_without_a_list() -> None:
    request = http_messages.infer(ADDRESS, ClientCall("m", None, {}))
    assert orjson.loads(request.parts[0]) == {"parameters": {"binary_data_output": True}, "inputs": []}
    assert "x-request-timeout-ms" not in request.headers


def test_a_result_over_http() -> None:
    rows = [
        {"name": "x", "shape": [2], "datatype": "INT32", "parameters": {"binary_data_size": 8}},
        {"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]},
        {"name": "z", "shape": [2], "datatype": "BYTES", "data": ["a", "ü"]},
    ]
    head = orjson.dumps({"model_name": "m", "model_version": "4", "outputs": rows, "parameters": {"q": True}})
    reply = HttpResponse(200, {"inference-header-content-length": str(len(head))}, head + struct.pack("<ii", 3, 4))
    result = http_messages.result(reply)
    assert (result.model, result.version, result.id, result.parameters) == ("m", 4, "", {"q": True})
    assert {name: array.tolist() for name, array in result.items()} == {
        "x": [3, 4],
        "y": [[1.5, 2]],
        "z": [b"a", "ü".encode()],
    }


@pytest.mark.parametrize(
    "reply",
    [
        HttpResponse(200, {}, b"<html>"),
        HttpResponse(200, {"inference-header-content-length": "x"}, b"{}"),
        HttpResponse(200, {}, b'{"outputs": [{"name": "x", "shape": [1], "datatype": "FP9"}]}'),
        HttpResponse(200, {}, b'{"outputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1]}]}'),
    ],
)
def test_a_response_that_is_none(reply: HttpResponse) -> None:
    with pytest.raises(ClientError, match="the response cannot be understood"):
        http_messages.result(reply)


@pytest.mark.parametrize(
    ("body", "message"), [(b'{"error":"text"}', "text"), (b" plain \n", "plain"), (b"", "status 404"), (b"[]", "[]")]
)
def test_failures_over_http(body: bytes, message: str) -> None:
    with pytest.raises(ClientError) as caught:
        http_messages.check(HttpResponse(404, {}, body))
    assert (caught.value.code, caught.value.message) == (Code.NOT_FOUND, message)


def test_questions_over_http() -> None:
    assert http_messages.request(ADDRESS, ControlCall(METADATA, "m", 1)).target == "/prefix/v2/models/m/versions/1"
    request = http_messages.request(ADDRESS, ControlCall(LOAD, "a/b", parameters={"config": "{}", "file:1/x": b"abc"}))
    assert request.target == "/prefix/v2/repository/models/a%2Fb/load"
    assert request.parts == (b'{"parameters":{"config":"{}","file:1/x":"YWJj"}}',)


def test_probes_are_a_yes_or_no() -> None:
    for control, status, ready in (
        (ControlCall(READY), 200, True),
        (ControlCall(READY), 400, False),
        (ControlCall(MODEL_READY, "m"), 404, False),
        (ControlCall(MODEL_READY, "m"), 503, False),
    ):
        assert http_messages.answer(control, HttpResponse(status, {}, b"")) is ready
    for status in (403, 500, 502):
        with pytest.raises(ClientError):
            http_messages.answer(ControlCall(READY), HttpResponse(status, {}, b"no"))
    with pytest.raises(ClientError):
        http_messages.answer(ControlCall(READY), HttpResponse(404, {}, b"no"))  # another server


def test_an_inference_over_grpc() -> None:
    message = grpc_messages.infer(ClientCall("m", 2, TENSORS, ("o",), "id", {"a": 1, "b": True, "c": "x", "d": 1.5}))
    assert (message.model_name, message.model_version, message.id) == ("m", "2", "id")
    assert [row.name for row in message.outputs] == ["o"]
    assert list(message.raw_input_contents) == [struct.pack("<ii", 1, 2), b"\1\0\0\0x"]
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in message.parameters.items()}
    assert chosen == {"a": "int64_param", "b": "bool_param", "c": "string_param", "d": "double_param"}


def test_a_result_over_grpc() -> None:
    message = pb.ModelInferResponse(model_name="m", model_version="", id="i")
    message.outputs.add(name="x", datatype="INT32", shape=[2]).contents.int_contents.extend([1, 2])
    message.parameters["p"].bool_param = True
    result = grpc_messages.result(message)
    assert (result.version, result.id, result.parameters, result["x"].tolist()) == (None, "i", {"p": True}, [1, 2])
    message.outputs[0].datatype = "FP9"
    with pytest.raises(ClientError, match="cannot be understood"):
        grpc_messages.result(message)


def test_questions_over_grpc() -> None:
    message, kind = grpc_messages.request(ControlCall(METADATA, "m", 1))
    assert (message, kind) == (pb.ModelMetadataRequest(name="m", version="1"), pb.ModelMetadataResponse)
    message, _ = grpc_messages.request(ControlCall(LOAD, "m", parameters={"config": "{}", "file:1/x": b"abc"}))
    assert isinstance(message, pb.RepositoryModelLoadRequest)
    assert message.parameters["config"].string_param == "{}"
    assert message.parameters["file:1/x"].bytes_param == b"abc"
    index = pb.RepositoryIndexResponse()
    index.models.add(name="m", state="UNKNOWN")
    assert grpc_messages.answer(INDEX, index) == [{"name": "m", "state": "UNKNOWN"}]
    assert grpc_messages.answer(READY, pb.ServerReadyResponse(ready=True)) is True
    assert grpc_messages.answer(HEALTH, pb.ServerReadyResponse(ready=True)) == {"ready": True}
    with pytest.raises(ClientError, match="m/engine is not in gRPC"):
        grpc_messages.request(ControlCall(ENGINE, "m", 1))


def test_best_classes() -> None:
    call = ClientCall("m", None, {}, ("o",), classes=5)
    [output] = orjson.loads(http_messages.infer(ADDRESS, call).parts[0])["outputs"]
    assert output == {"name": "o", "parameters": {"binary_data": True, "classification": 5}}
    assert grpc_messages.infer(call).outputs[0].parameters["classification"].int64_param == 5


def test_metadata_that_is_none() -> None:
    documents: list[Any] = [[], {}, {"name": "m", "inputs": [{"name": "i"}]}]
    for document in documents:
        with pytest.raises(ClientError, match="cannot be understood: it is not the metadata of a model"):
            metadata_of(document)
