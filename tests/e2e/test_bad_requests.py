"""Wrong requests get the protocol's status and text, over both protocols, and the server goes on serving.

The texts are Triton's. On purpose, malformed JSON is 400 where Triton answers 500, and some texts say more.
"""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from struct import pack
from typing import Any

import grpc
import pytest
from conftest import MAX_JSON
from google.protobuf.message import Message
from server_process import ServerProcess
from tritonclient.grpc import service_pb2
from wire import (
    INPUT0,
    INPUT1,
    SECONDS,
    Ask,
    Input,
    assert_serving,
    binary_request,
    channel,
    connect,
    grpc_infer,
    http,
    http_infer,
    infer_path,
    message,
    send,
    stub,
)

INVALID = (400, grpc.StatusCode.INVALID_ARGUMENT)
NOT_FOUND = (404, grpc.StatusCode.NOT_FOUND)

NOBODY = "[request id: <id_unknown>] "
BAD_VERSION = (
    "failed to get model version from specified version string '{}' (details: stol), version should be an integral "
    "value > 0"
)
HUGE = "9" * 5000  # more digits than Python's int() takes
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


@pytest.fixture(autouse=True)
def still_serving(server: ServerProcess) -> Iterator[None]:
    yield
    assert_serving(server)


def simple(input0: Input, **more: Any) -> Ask:
    return Ask((input0, INPUT1), **more)


def strings(shape: tuple[int, ...], raw: bytes, **more: Any) -> Ask:
    return Ask((Input("INPUT0", "BYTES", shape, raw),), model="identity_BYTES", **more)


def zeros(name: str, shape: tuple[int, ...], count: int) -> Input:
    return Input(name, "INT32", shape, bytes(4 * count))


BOTH = {
    "unknown model": (Ask(model="nosuch"), NOT_FOUND, "Request for unknown model: 'nosuch' is not found"),
    "unknown version": (Ask(version="9"), NOT_FOUND, "Request for unknown model: 'simple' version 9 is not found"),
    "wrong datatype": (
        simple(INPUT0._replace(datatype="FP32")),
        INVALID,
        f"{NOBODY}inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",
    ),
    "wrong datatype, with an id": (
        simple(INPUT0._replace(datatype="UINT32"), id="my-id"),
        INVALID,
        "[request id: my-id] inference input 'INPUT0' data-type is 'UINT32', but model 'simple' expects 'INT32'",
    ),
    "no datatype at all": (
        simple(INPUT0._replace(datatype="INT23")),
        INVALID,
        f"{NOBODY}inference input 'INPUT0' data-type is '<invalid>', but model 'simple' expects 'INT32'",
    ),
    "wrong shape": (
        simple(zeros("INPUT0", (1, 8), 8)),
        INVALID,
        f"{NOBODY}unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,8]. {NOTE}",
    ),
    "too many dimensions": (
        simple(zeros("INPUT0", (1, 1, 16), 16)),
        INVALID,
        f"{NOBODY}unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,1,16]. {NOTE}",
    ),
    "no batch dimension": (
        Ask((zeros("INPUT0", (16,), 16), zeros("INPUT1", (16,), 16))),
        INVALID,
        f"{NOBODY}inference request batch-size must be <= 8 for 'simple'",
    ),
    "no shape": (
        simple(zeros("INPUT0", (), 1)),
        INVALID,
        f"{NOBODY}input 'INPUT0' has no shape but model requires batch dimension for 'simple'",
    ),
    "too large a batch": (
        Ask((zeros("INPUT0", (9, 16), 144), zeros("INPUT1", (9, 16), 144))),
        INVALID,
        f"{NOBODY}inference request batch-size must be <= 8 for 'simple'",
    ),
    "different batch sizes": (
        Ask((INPUT0, zeros("INPUT1", (2, 16), 32))),
        INVALID,
        f"{NOBODY}input 'INPUT1' batch size does not match other inputs for 'simple'",
    ),
    "an empty batch": (
        Ask((Input("INPUT0", "FP32", (0, 3), b""),), model="identity_FP32"),
        INVALID,
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_FP32'. Expected 4, got 0",
    ),
    "missing input": (
        Ask((INPUT0,)),
        INVALID,
        f"{NOBODY}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required "
        "input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "no inputs": (
        Ask(()),
        INVALID,
        f"{NOBODY}expected 2 inputs but got 0 inputs for model 'simple'. Got input(s) [], but missing required "
        "input(s) ['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    "unknown input": (
        Ask((INPUT0, INPUT1._replace(name="NOSUCH"))),
        INVALID,
        "unexpected inference input 'NOSUCH' for model 'simple'",
    ),
    "duplicate input": (Ask((INPUT0, INPUT0)), INVALID, f"{NOBODY}input 'INPUT0' already exists in request"),
    "duplicate input, with an id": (
        Ask((INPUT0, INPUT1, INPUT1), id="my-id"),
        INVALID,
        "[request id: my-id] input 'INPUT1' already exists in request",
    ),
    "unknown output": (
        Ask(outputs=("OUTPUT0", "OUTPUT2")),
        INVALID,
        "unexpected inference output 'OUTPUT2' for model 'simple'",
    ),
    "too few bytes": (
        simple(INPUT0._replace(raw=bytes(60))),
        INVALID,
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 60",
    ),
    "too many bytes": (
        simple(INPUT0._replace(raw=bytes(68))),
        INVALID,
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 68",
    ),
    "BYTES cut in a length": (
        strings((1, 2), pack("<I", 1) + b"a\x01\x00"),
        INVALID,
        f"{NOBODY}incomplete string length indicator for inference input 'INPUT0' for model 'identity_BYTES', "
        "expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer.",
    ),
    "BYTES cut in an element": (
        strings((1, 1), pack("<I", 5) + b"abc"),
        INVALID,
        f"{NOBODY}expected 1 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 0",
    ),
    "BYTES with an absurd length": (
        strings((1, 1), b"\xff\xff\xff\xffabc"),
        INVALID,
        f"{NOBODY}expected 1 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 0",
    ),
    "too few BYTES elements": (
        strings((1, 3), 2 * (pack("<I", 1) + b"a"), id="my-id"),
        INVALID,
        "[request id: my-id] expected 3 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 2",
    ),
    "too many BYTES elements": (
        strings((1, 1), 2 * (pack("<I", 1) + b"a")),
        INVALID,
        f"{NOBODY}unexpected number of string elements 2 for inference input 'INPUT0' for model 'identity_BYTES', "
        "expecting 1",
    ),
}


@pytest.mark.parametrize(("ask", "codes", "text"), BOTH.values(), ids=BOTH)
class TestBothProtocols:
    def test_http(self, server: ServerProcess, ask: Ask, codes: tuple[int, grpc.StatusCode], text: str) -> None:
        answer = http_infer(server.http_port, ask)
        assert (answer.status, answer.json) == (codes[0], {"error": text})
        assert answer.headers["Content-Type"] == "application/json"

    def test_grpc(self, server: ServerProcess, ask: Ask, codes: tuple[int, grpc.StatusCode], text: str) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            grpc_infer(server.grpc_port, ask)
        assert (raised.value.code(), raised.value.details()) == (codes[1], text)


# --- what only HTTP can get wrong -------------------------------------------------------------------------------------

GOOD_BODY, GOOD_HEADERS = binary_request(Ask())
JSON_LENGTH = int(GOOD_HEADERS["Inference-Header-Content-Length"])
TOTAL = len(GOOD_BODY)


def spoilt(**fields: Any) -> bytes:
    """A good JSON request to `simple`, with fields of its first input changed, or taken out by None."""
    first = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16)), **fields}
    second = {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
    return json.dumps({"inputs": [{key: v for key, v in first.items() if v is not None}, second]}).encode()


def with_length(value: object) -> dict[str, str]:
    return {"Inference-Header-Content-Length": str(value)}


ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
ELEMENT_TYPE = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
MALFORMED = r"failed to parse the request JSON buffer: .+ at \d+"

# body, headers, message; an re.Pattern where the text is the JSON parser's
HTTP_ONLY: dict[str, tuple[bytes, dict[str, str], str | re.Pattern[str]]] = {
    "short binary data": (
        GOOD_BODY[:-4],
        GOOD_HEADERS,
        "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'simple'",
    ),
    "no binary data": (
        GOOD_BODY[:JSON_LENGTH],
        GOOD_HEADERS,
        "unexpected size for input 'INPUT0', expecting 64 additional bytes for model 'simple'",
    ),
    "surplus binary data": (
        GOOD_BODY + b"\0\0\0\0",
        GOOD_HEADERS,
        "unexpected additional input data for model 'simple'",
    ),
    "surplus behind JSON only": (
        spoilt() + b"\0",
        with_length(len(spoilt())),
        "unexpected additional input data for model 'simple'",
    ),
    "header length too large": (
        GOOD_BODY,
        with_length(TOTAL + 1),
        f"inference header size should be in range (0, {TOTAL}), got: {TOTAL + 1}",
    ),
    "header length huge": (
        GOOD_BODY,
        with_length(10**25),
        f"inference header size should be in range (0, {TOTAL}), got: {10**25}",
    ),
    "header length negative": (
        GOOD_BODY,
        with_length(-1),
        f"inference header size should be in range (0, {TOTAL}), got: -1",
    ),
    "header length no number": (
        GOOD_BODY,
        with_length("abc"),
        "Unable to parse Inference-Header-Content-Length, got: abc",
    ),
    "header length fractional": (
        GOOD_BODY,
        with_length("1.5"),
        "Unable to parse Inference-Header-Content-Length, got: 1.5",
    ),
    "header length empty": (GOOD_BODY, with_length(""), "Unable to parse Inference-Header-Content-Length, got: "),
    "header length one too small": (GOOD_BODY, with_length(JSON_LENGTH - 1), re.compile(MALFORMED)),
    "header length one too large": (GOOD_BODY, with_length(JSON_LENGTH + 1), re.compile(MALFORMED)),
    "header length absent": (GOOD_BODY, {}, re.compile(MALFORMED)),
    "header length absent, no blobs": (
        GOOD_BODY[:JSON_LENGTH],
        {},
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs "
        "in binary data format",
    ),
    "malformed JSON": (b'{"inputs":[}', {}, re.compile(r"failed to parse the request JSON buffer: .+ at 11")),
    "truncated JSON": (spoilt()[:-10], {}, re.compile(MALFORMED)),
    "trailing comma": (b'{"inputs":[],}', {}, re.compile(MALFORMED)),
    "two documents": (b'{"inputs":[]} {}', {}, re.compile(r"failed to parse the request JSON buffer: .+ at 14")),
    "no JSON": (b"hello", {}, re.compile(r"failed to parse the request JSON buffer: .+ at 0")),
    "no UTF-8": (b'{"id":"\xff","inputs":[]}', {}, re.compile(MALFORMED)),
    "empty body": (b"", {}, re.compile(r"failed to parse the request JSON buffer: .+ at 0")),
    "blank body": (b"  ", {}, re.compile(MALFORMED)),
    "nested without end": (b"[" * 100_000, {}, re.compile(r"JSON nesting depth exceeds .+|" + MALFORMED)),
    "no object": (b"[]", {}, "Unable to parse 'inputs': attempt to access JSON non-object as object"),
    "no inputs": (b"{}", {}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    "inputs is null": (b'{"inputs":null}', {}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    "id is a number": (b'{"id":1}', {}, "Unable to parse 'id': attempt to access JSON non-string as string"),
    "NaN for an integer": (spoilt(data=[float("nan")] * 16), {}, ELEMENT_TYPE),
    "Infinity for an integer": (spoilt(data=[float("inf")] * 16), {}, ELEMENT_TYPE),
    "NaN for a shape": (
        spoilt(shape=[float("nan"), 16]),
        {},
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    "a fraction for an integer": (spoilt(data=[1.5] * 16), {}, ELEMENT_TYPE),
    "a string for an integer": (spoilt(data=["1"] * 16), {}, ELEMENT_TYPE),
    "true for an integer": (spoilt(data=[True] * 16), {}, ELEMENT_TYPE),
    "null for an integer": (spoilt(data=[None] * 16), {}, ELEMENT_TYPE),
    "out of range": (
        spoilt(data=[2**31] + [0] * 15),
        {},
        "Unable to parse 'data': element 0 of input 'INPUT0' is 2147483648, INT32 takes -2147483648 to 2147483647",
    ),
    "too few elements": (
        spoilt(data=[1]),
        {},
        "Unable to parse 'data': Failed to parse 'data' field: shape does not match true shape: input 'INPUT0' has 1 "
        "elements, its shape 16",
    ),
    "too many elements": (
        spoilt(data=[1] * 17),
        {},
        "Unable to parse 'data': Shape does not match true shape of 'data' field: input 'INPUT0' has 17 elements, its "
        "shape 16",
    ),
    "data is a string": (
        spoilt(data="abc"),
        {},
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    "no name": (spoilt(name=None), {}, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    "no shape": (
        spoilt(shape=None),
        {},
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    "negative shape": (
        spoilt(shape=[-1, 16]),
        {},
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    "misspelled datatype": (spoilt(datatype="int32"), {}, "invalid datatype for input INPUT0"),
    "no data": (spoilt(data=None), {}, f"{ONE_SOURCE}no field is set"),
    "data from two sources": (
        spoilt(parameters={"binary_data_size": 64}),
        {},
        f"{ONE_SOURCE}set 'data' 'binary_data_size'",
    ),
    "binary size is a string": (
        spoilt(data=None, parameters={"binary_data_size": "64"}),
        {},
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    "reserved parameter": (
        b'{"parameters":{"triton_x":1},"inputs":[]}',
        {},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    "parameter is a list": (
        b'{"parameters":{"x":[1]},"inputs":[]}',
        {},
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
}


@pytest.mark.parametrize(("body", "headers", "text"), HTTP_ONLY.values(), ids=HTTP_ONLY)
def test_http_only(server: ServerProcess, body: bytes, headers: dict[str, str], text: str | re.Pattern[str]) -> None:
    with closing(connect(server.http_port)) as connection:
        answer = send(connection, "POST", infer_path("simple"), body, headers)
        assert answer.status == 400
        assert answer.json.keys() == {"error"}
        if isinstance(text, str):
            assert answer.json["error"] == text
        else:
            assert text.fullmatch(answer.json["error"]), answer.json
        # The mistake is in the body, not in the framing: the connection is as good as before.
        assert "Connection" not in answer.headers
        assert send(connection, "POST", infer_path("simple"), GOOD_BODY, GOOD_HEADERS).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", infer_path("simple"), 405, "Method Not Allowed"),
        ("PUT", infer_path("simple"), 405, "Method Not Allowed"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("POST", infer_path("simple", "x"), 404, "Not Found"),
        ("POST", infer_path("simple", "-1"), 404, "Not Found"),
        ("POST", infer_path("simple", "0"), 404, "Request for unknown model: 'simple' version 0 is not found"),
        ("POST", infer_path("simple", HUGE), 400, BAD_VERSION.format(HUGE)),
        ("GET", f"/v2/models/simple/versions/{HUGE}", 400, BAD_VERSION.format(HUGE)),
        ("GET", f"/v2/models/simple/versions/{HUGE}/ready", 400, BAD_VERSION.format(HUGE)),
        (
            "GET",
            "/v2/models/simple/versions/0/config",
            404,
            "Request for unknown model: 'simple' version 0 is not found",
        ),
        ("POST", infer_path("simple") + "/", 404, "Not Found"),
        ("GET", "/v2/health", 404, "Not Found"),
        ("GET", "/nosuch", 404, "Not Found"),
        ("POST", infer_path("no%20such"), 404, "Request for unknown model: 'no such' is not found"),
        ("GET", "/v2/models/nosuch/config", 404, "Request for unknown model: 'nosuch' is not found"),
        ("GET", "/v2/models/nosuch/ready", 404, "Request for unknown model: 'nosuch' is not found"),
        ("GET", "/v2/models/nosuch/stats", 400, "requested model 'nosuch' is not available"),
        ("GET", "/v2/models/simple/versions/9", 404, "Request for unknown model: 'simple' version 9 is not found"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_paths_and_methods(server: ServerProcess, method: str, path: str, status: int, text: str) -> None:
    answer = http(server.http_port, method, path)
    assert (answer.status, answer.json) == (status, {"error": text})


OVER_LONG = (
    f"request JSON size of {{}} bytes exceeds the maximum allowed input size of {MAX_JSON} bytes. "
    "Use --http-max-input-size to increase the limit."
)


@pytest.mark.parametrize("path", [infer_path("simple"), "/v2/models/simple/infer?x=1", "/v2/nosuch"])
def test_over_long_json(server: ServerProcess, path: str) -> None:
    answer = http(server.http_port, "POST", path, b" " * (MAX_JSON + 1))
    assert (answer.status, answer.json) == (400, {"error": OVER_LONG.format(MAX_JSON + 1)})
    assert answer.headers["Connection"] == "close"


def test_over_long_json_before_binary_data(server: ServerProcess) -> None:
    body = b" " * (MAX_JSON + 1) + b"\0" * 4
    answer = http(server.http_port, "POST", infer_path("simple"), body, with_length(MAX_JSON + 1))
    assert (answer.status, answer.json) == (400, {"error": OVER_LONG.format(MAX_JSON + 1)})


def test_json_of_just_the_limit_is_read(server: ServerProcess) -> None:
    body = spoilt().ljust(MAX_JSON)
    assert http(server.http_port, "POST", infer_path("simple"), body).status == 200


# --- what only gRPC can get wrong -------------------------------------------------------------------------------------


def changed(**fields: Any) -> service_pb2.ModelInferRequest:
    """A good message with fields set, or cleared by None."""
    found = message(Ask())
    for name, value in fields.items():
        found.ClearField(name)
        if isinstance(value, list):
            getattr(found, name).extend(value)
        elif value is not None:
            setattr(found, name, value)
    return found


def typed(model: str, datatype: str, field: str, values: list[Any]) -> service_pb2.ModelInferRequest:
    found = service_pb2.ModelInferRequest(model_name=model)
    given = found.inputs.add(name="INPUT0", datatype=datatype, shape=[1, len(values)])
    getattr(given.contents, field).extend(values)
    return found


def mixed() -> service_pb2.ModelInferRequest:
    found = message(Ask())
    found.inputs[1].contents.int_contents.extend([1] * 16)
    return found


NO_DATA = "unable to find data for input tensor '{}' for model 'simple' in request."
WRONG_FIELD = (
    "unexpected explicit tensor data for input tensor 'INPUT0' for model '{}' of type '{}', expected datatype '{}'"
)

GRPC_ONLY = {
    "version is no number": (changed(model_version="x"), BAD_VERSION.format("x")),
    "version is huge": (changed(model_version=HUGE), BAD_VERSION.format(HUGE)),
    "version is 0": (
        changed(model_version="0"),
        "invalid model version specified '0' , version should be an integral value > 0",
    ),
    "version is negative": (
        changed(model_version="-1"),
        "invalid model version specified '-1' , version should be an integral value > 0",
    ),
    "fewer raw buffers than inputs": (changed(raw_input_contents=[INPUT0.raw]), NO_DATA.format("INPUT1")),
    "more raw buffers than inputs": (
        changed(raw_input_contents=[INPUT0.raw, INPUT1.raw, INPUT1.raw]),
        "expected 2 raw input buffers for model 'simple', got 3: one is needed for each input, in their order",
    ),
    "no data": (changed(raw_input_contents=None), NO_DATA.format("INPUT0")),
    "contents beside raw buffers": (
        mixed(),
        "contents field must not be specified when using raw_input_contents for 'INPUT1' for model 'simple'",
    ),
    "contents in the wrong field": (
        typed("identity_INT32", "INT32", "fp32_contents", [1.5]),
        WRONG_FIELD.format("identity_INT32", "FP32", "INT32"),
    ),
    "contents for FP16": (
        typed("identity_FP16", "FP16", "fp32_contents", [1.5]),
        WRONG_FIELD.format("identity_FP16", "FP32", "FP16"),
    ),
    "contents out of range": (
        typed("identity_INT8", "INT8", "int_contents", [1, 128]),
        "element 1 of input 'INPUT0' is 128, INT8 takes -128 to 127",
    ),
    "negative shape": (
        message(Ask((INPUT0._replace(shape=(-1, 16)), INPUT1._replace(shape=(-1, 16))))),
        f"{NOBODY}inference request batch-size must be <= 8 for 'simple'",
    ),
}


@pytest.mark.parametrize(("request_", "text"), GRPC_ONLY.values(), ids=GRPC_ONLY)
def test_grpc_only(server: ServerProcess, request_: Message, text: str) -> None:
    with channel(server.grpc_port) as opened:
        with pytest.raises(grpc.RpcError) as raised:
            stub(opened).ModelInfer(request_, timeout=SECONDS)
        assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)
        stub(opened).ModelInfer(message(Ask()), timeout=SECONDS)


def test_bytes_that_are_no_message(server: ServerProcess) -> None:
    with channel(server.grpc_port) as opened:
        call = opened.unary_unary("/inference.GRPCInferenceService/ModelInfer", bytes, bytes)
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\xff\xff\xff", timeout=SECONDS)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "Unable to parse request: 3 bytes are no inference.ModelInferRequest"


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
        ("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest()),
        ("SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest()),
        ("CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest()),
        ("CudaSharedMemoryRegister", service_pb2.CudaSharedMemoryRegisterRequest()),
        ("CudaSharedMemoryUnregister", service_pb2.CudaSharedMemoryUnregisterRequest()),
    ],
)
def test_calls_that_are_not_served(server: ServerProcess, method: str, request_: Message) -> None:
    with channel(server.grpc_port) as opened, pytest.raises(grpc.RpcError) as raised:
        getattr(stub(opened), method)(request_, timeout=SECONDS)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert raised.value.details() == f"{method} is not supported by this version of modserve"
