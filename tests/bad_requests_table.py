# ruff: noqa: E501
"""Requests that are wrong, or nearly so: what is sent, and the status and text of the answer.

Texts are Triton's but where a row's note says why ours is another. The unit suite sends them all to a server in its own
process (`test_bad_requests`), and some to a real one (`tests/e2e/test_bad_request_table.py`).
"""

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from struct import pack
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2
from wire import INPUT0, INPUT1, Ask, Input, binary_request, infer_path, message


@dataclass(frozen=True)
class Http:
    """An HTTP request after which the connection is as good as before."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Wire:
    """Bytes on a connection of their own, which the server closes after its answer."""

    data: bytes


@dataclass(frozen=True)
class Rpc:
    """A gRPC call, of a message or of bytes that are none."""

    method: str
    message: Message | bytes
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Stream:
    """A request on a stream, which answers and goes on."""

    message: Message | bytes


Status: TypeAlias = tuple[int, grpc.StatusCode | None]
"""Over HTTP, and over gRPC."""


FINE: Status = (200, grpc.StatusCode.OK)
"""On the border, but on this side of it; there is no text."""
INVALID: Status = (400, grpc.StatusCode.INVALID_ARGUMENT)
NOT_FOUND: Status = (404, grpc.StatusCode.NOT_FOUND)
UNSUPPORTED: Status = (501, grpc.StatusCode.UNIMPLEMENTED)
NO_METHOD: Status = (405, None)
RESTRICTED: Status = (403, grpc.StatusCode.UNAVAILABLE)
LONG_HEAD: Status = (431, None)
NO_VERSION: Status = (505, None)


@dataclass(frozen=True)
class Row:
    """`request` may be an `Ask`, which is sent over both protocols. `text` is exact, or a pattern for all of it.

    `note` tells what Triton answers instead, and why not we.
    """

    request: Ask | Http | Wire | Rpc | Stream | Message
    text: str | re.Pattern[str]
    status: Status = INVALID
    note: str = ""


MAX_JSON = 200_000
OPTIONS = [
    f"--http-max-input-size={MAX_JSON}",
    "--model-control-mode=explicit",
    "--load-model=*",
    "--allow-client-shm=true",
    "--http-restricted-api=statistics:secret=open",
    "--grpc-restricted-protocol=statistics:secret=open",
]
"""Options of the server that gets all this."""

WAS_500 = "Triton blames itself for JSON that a client got wrong: 500."
WRAPS = "Triton takes the number's lowest bits."

NOBODY = "[request id: <id_unknown>] "
BAD_VERSION = (
    "failed to get model version from specified version string '{}' (details: stol), version should be an integral "
    "value > 0"
)
HUGE = "9" * 5000  # more digits than Python's int() takes


def cut(message: str) -> str:
    """A long message in ASCII as clients get it: 4 KiB, the last of which is its end."""
    note = f" [... {len(message)} characters in all ...] "
    return message[: 3 * 1024 - len(note)] + note + message[-1024:]


NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def simple(input0: Input, **more: Any) -> Ask:
    return Ask((input0, INPUT1), **more)


def strings(shape: tuple[int, ...], raw: bytes, **more: Any) -> Ask:
    return Ask((Input("INPUT0", "BYTES", shape, raw),), model="identity_BYTES", **more)


def zeros(name: str, shape: tuple[int, ...], count: int) -> Input:
    return Input(name, "INT32", shape, bytes(4 * count))


BOTH: dict[str, Row] = {
    "unknown model": Row(Ask(model="nosuch"), "Request for unknown model: 'nosuch' is not found", NOT_FOUND),
    "unknown version": Row(Ask(version="9"), "Request for unknown model: 'simple' version 9 is not found", NOT_FOUND),
    "wrong datatype": Row(simple(INPUT0._replace(datatype="FP32")),
        f"{NOBODY}inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'"),
    "wrong datatype, with an id": Row(simple(INPUT0._replace(datatype="UINT32"), id="my-id"),
        "[request id: my-id] inference input 'INPUT0' data-type is 'UINT32', but model 'simple' expects 'INT32'"),
    "no datatype at all": Row(simple(INPUT0._replace(datatype="INT23")),
        f"{NOBODY}inference input 'INPUT0' data-type is '<invalid>', but model 'simple' expects 'INT32'"),
    "wrong shape": Row(simple(zeros("INPUT0", (1, 8), 8)),
        f"{NOBODY}unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,8]. "),
    "too many dimensions": Row(simple(zeros("INPUT0", (1, 1, 16), 16)),
        f"{NOBODY}unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,1,16]. {NOTE}"),
    "no batch dimension": Row(Ask((zeros("INPUT0", (16,), 16), zeros("INPUT1", (16,), 16))),
        f"{NOBODY}inference request batch-size must be <= 8 for 'simple', got 16: the shape of 'INPUT0' lacks the number of rows in front, which is [1,16] for one row"),
    "no shape": Row(simple(zeros("INPUT0", (), 1)),
        f"{NOBODY}input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
    "too large a batch": Row(Ask((zeros("INPUT0", (9, 16), 144), zeros("INPUT1", (9, 16), 144))),
        f"{NOBODY}inference request batch-size must be <= 8 for 'simple', got 9"),
    "different batch sizes": Row(Ask((INPUT0, zeros("INPUT1", (2, 16), 32))),
        f"{NOBODY}input 'INPUT1' batch size does not match other inputs for 'simple': shapes begin with the number of rows, but that of 'INPUT0' is [1,16], and that of 'INPUT1' [2,16]"),
    "an empty batch": Row(Ask((Input("INPUT0", "FP32", (0, 3), b""),), model="identity_FP32"),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_FP32'. Expected 12, got 0: its shape [0,3] begins with a batch size of 0, which must be 1 to 8",
        note="Triton does not say which number is wrong."),
    "missing input": Row(Ask((INPUT0,)),
        f"{NOBODY}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."),
    "no inputs": Row(Ask(()),
        f"{NOBODY}expected 2 inputs but got 0 inputs for model 'simple'. Got input(s) [], but missing required input(s) ['INPUT0','INPUT1']. Please provide all required input(s)."),
    "unknown input": Row(Ask((INPUT0, INPUT1._replace(name="NOSUCH"))),
        "unexpected inference input 'NOSUCH' for model 'simple': its inputs are 'INPUT0', 'INPUT1'"),
    "duplicate input": Row(Ask((INPUT0, INPUT0)), f"{NOBODY}input 'INPUT0' already exists in request"),
    "duplicate input, with an id": Row(Ask((INPUT0, INPUT1, INPUT1), id="my-id"),
        "[request id: my-id] input 'INPUT1' already exists in request"),
    "unknown output": Row(Ask(outputs=("OUTPUT0", "OUTPUT2")),
        "unexpected inference output 'OUTPUT2' for model 'simple'"),
    "too few bytes": Row(simple(INPUT0._replace(raw=bytes(60))),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 60"),
    "too many bytes": Row(simple(INPUT0._replace(raw=bytes(68))),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 68"),
    "BYTES cut in a length": Row(strings((1, 2), pack("<I", 1) + b"a\x01\x00"),
        f"{NOBODY}incomplete string length indicator for inference input 'INPUT0' for model 'identity_BYTES', expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer."),
    "BYTES cut in an element": Row(strings((1, 1), pack("<I", 5) + b"abc"),
        f"{NOBODY}expected 1 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 0"),
    "BYTES with an absurd length": Row(strings((1, 1), b"\xff\xff\xff\xffabc"),
        f"{NOBODY}expected 1 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 0"),
    "too few BYTES elements": Row(strings((1, 3), 2 * (pack("<I", 1) + b"a"), id="my-id"),
        "[request id: my-id] expected 3 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 2"),
    "too many BYTES elements": Row(strings((1, 1), 2 * (pack("<I", 1) + b"a")),
        f"{NOBODY}unexpected number of string elements 2 for inference input 'INPUT0' for model 'identity_BYTES', expecting 1"),
    "BYTES with an element too many, which is cut": Row(strings((1, 1), pack("<I", 1) + b"a" + pack("<I", 9) + b"b"),
        f"{NOBODY}unexpected number of string elements 2 for inference input 'INPUT0' for model 'identity_BYTES', expecting 1"),
    "one input more than there are": Row(Ask((INPUT0, INPUT1, INPUT1._replace(name="INPUT2"))),
        f"{NOBODY}expected 2 inputs but got 3 inputs for model 'simple'. Got input(s) ['INPUT0','INPUT1','INPUT2'], but missing required input(s) []. Please provide all required input(s).",
        note="Triton lists them in another order, and no empty list."),
    "an unknown input alone": Row(Ask((INPUT0._replace(name="A"),)),
        f"{NOBODY}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['A'], but missing required input(s) ['INPUT0','INPUT1']. Please provide all required input(s)."),
    "an input without a name": Row(simple(INPUT0._replace(name="")),
        "unexpected inference input '' for model 'simple': its inputs are 'INPUT0', 'INPUT1'"),
    "an output without a name": Row(Ask(outputs=("",)), "unexpected inference output '' for model 'simple'"),
    "an output twice": Row(Ask(outputs=("OUTPUT0", "OUTPUT0")), f"{NOBODY}output 'OUTPUT0' already exists in request"),
    "an output twice, with an id": Row(Ask(outputs=("OUTPUT0", "OUTPUT1", "OUTPUT1"), id="my-id"),
        "[request id: my-id] output 'OUTPUT1' already exists in request"),
    "inputs in another order": Row(Ask((INPUT1, INPUT0)), "", FINE),
    "an empty batch of two inputs": Row(Ask((zeros("INPUT0", (0, 16), 0), zeros("INPUT1", (0, 16), 0))),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 0: its shape [0,16] begins with a batch size of 0, which must be 1 to 8",
        note="Triton does not say which number is wrong."),
    "a dimension of 0 that is allowed": Row(Ask((Input("INPUT0", "FP32", (1, 0), b""),), model="identity_FP32"),
        "", FINE),
    "no elements but bytes": Row(Ask((Input("INPUT0", "FP32", (1, 0), bytes(4)),), model="identity_FP32"),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_FP32'. Expected 0, got 4"),
    "a huge dimension": Row(Ask((Input("INPUT0", "FP32", (1, 2**62), bytes(4)),), model="identity_FP32"),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_FP32'. Expected 18446744073709551616, got 4"),
    "dimensions whose product is huge": Row(
        Ask((Input("INPUT0", "FP32", (2, 2**62), bytes(4)),), model="identity_FP32"),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_FP32'. Expected 36893488147419103232, got 4"),
    "an empty tensor with a huge dimension": Row(
        Ask((Input("INPUT0", "FP32", (2**63 - 1, 0), b""),), model="identity_FP32"),
        f"{NOBODY}inference request batch-size must be <= 8 for 'identity_FP32', got 9223372036854775807"),
    "BYTES without data": Row(strings((1, 1), b""),
        f"{NOBODY}expected 1 string elements for inference input 'INPUT0' for model 'identity_BYTES', got 0"),
    "BYTES of no elements": Row(strings((1, 0), b""), "", FINE),
    "BYTES of no elements but data": Row(strings((1, 0), pack("<I", 0)),
        f"{NOBODY}unexpected number of string elements 1 for inference input 'INPUT0' for model 'identity_BYTES', expecting 0"),
    "BYTES with an empty element": Row(strings((1, 1), pack("<I", 0)), "", FINE),
    "BOOL that is neither 0 nor 1": Row(Ask((Input("INPUT0", "BOOL", (1, 2), b"\x02\xff"),), model="identity_BOOL"),
        "", FINE),
    "half a number": Row(Ask((Input("INPUT0", "FP64", (1, 1), bytes(7)),), model="identity_FP64"),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_FP64'. Expected 8, got 7"),
    "an id of many characters": Row(Ask((INPUT0,), id="x" * 300),
        f"[request id: {'x' * 300}] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."),
    "an id that is no ASCII": Row(Ask((INPUT0,), id="é\n\"'"),
        "[request id: é\n\"'] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."),
    "a model name of odd characters": Row(Ask(model="no such/..%"),
        "Request for unknown model: 'no such/..%' is not found", NOT_FOUND),
}  # fmt: skip

# --- what only HTTP can get wrong -------------------------------------------------------------------------------------

GOOD_BODY, GOOD_HEADERS = binary_request(Ask())
JSON_LENGTH = int(GOOD_HEADERS["Inference-Header-Content-Length"])
TOTAL = len(GOOD_BODY)
SECOND = {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}


def spoilt(**fields: Any) -> bytes:
    """A good JSON request to `simple`, with fields of its first input changed, or taken out by None."""
    first = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16)), **fields}
    return json.dumps({"inputs": [{key: v for key, v in first.items() if v is not None}, SECOND]}).encode()


def besides(**fields: Any) -> bytes:
    """A good JSON request to `simple`, with more fields beside its inputs."""
    return json.dumps({**json.loads(spoilt()), **fields}).encode()


def output(**options: Any) -> bytes:
    """A good JSON request to `simple` for OUTPUT0 with parameters."""
    return besides(outputs=[{"name": "OUTPUT0", "parameters": options}])


def one(datatype: str, shape: Any, data: Any) -> Http:
    """A request to an identity model in JSON."""
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}]})
    return infer(body.encode(), model=f"identity_{datatype}")


def infer(body: bytes, headers: Mapping[str, str] | None = None, model: str = "simple") -> Http:
    return Http("POST", infer_path(model), body, headers)


def post(path: str, body: object = b"", **headers: str) -> Http:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Http("POST", path, content, {name.replace("_", "-"): value for name, value in headers.items()})


def with_length(value: object) -> dict[str, str]:
    return {"Inference-Header-Content-Length": str(value)}


def raw(head: bytes, *headers: str, body: bytes = b"") -> Wire:
    """An HTTP request, spelled out."""
    return Wire(b"\r\n".join([head, b"Host: localhost", *(each.encode() for each in headers)]) + b"\r\n\r\n" + body)


def posted(body: bytes, *headers: str) -> bytes:
    return raw(b"POST " + infer_path("simple").encode() + b" HTTP/1.1", *headers, body=body).data


def integer_expected(found: str) -> str:
    return (
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer: "
        f"element 0 of input 'INPUT0' is {found}, but INT32 takes integers"
    )


MALFORMED = r"failed to parse the request JSON buffer: .+ at \d+"
OVER_LONG = (
    f"request JSON size of {MAX_JSON + 1} bytes exceeds the maximum allowed input size of {MAX_JSON} bytes. "
    "Use --http-max-input-size to increase the limit."
)
CLIENT_HELLO = bytes.fromhex("16030100050100000100")
DEEP = "[" * 120 + "1" + "]" * 120
SHARED = {"shared_memory_region": "nosuch", "shared_memory_byte_size": 64}


HTTP: dict[str, Row] = {
    "short binary data": Row(infer(GOOD_BODY[:-4], GOOD_HEADERS),
        "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'simple'"),
    "no binary data": Row(infer(GOOD_BODY[:JSON_LENGTH], GOOD_HEADERS),
        "unexpected size for input 'INPUT0', expecting 64 additional bytes for model 'simple'"),
    "surplus binary data": Row(infer(GOOD_BODY + b"\0\0\0\0", GOOD_HEADERS),
        "unexpected additional input data for model 'simple'"),
    "surplus behind JSON only": Row(infer(spoilt() + b"\0", with_length(len(spoilt()))),
        "unexpected additional input data for model 'simple'"),
    "header length too large": Row(infer(GOOD_BODY, with_length(TOTAL + 1)),
        f"inference header size should be in range (0, {TOTAL}), got: {TOTAL + 1}"),
    "header length huge": Row(infer(GOOD_BODY, with_length(10**25)),
        f"inference header size should be in range (0, {TOTAL}), got: {10**25}"),
    "header length negative": Row(infer(GOOD_BODY, with_length(-1)),
        f"inference header size should be in range (0, {TOTAL}), got: -1"),
    "header length one too small": Row(infer(GOOD_BODY, with_length(JSON_LENGTH - 1)), re.compile(MALFORMED)),
    "header length one too large": Row(infer(GOOD_BODY, with_length(JSON_LENGTH + 1)), re.compile(MALFORMED)),
    "header length absent": Row(infer(GOOD_BODY), re.compile(MALFORMED)),
    "malformed JSON": Row(infer(b'{"inputs":[}'), re.compile(r"failed to parse the request JSON buffer: .+ at 11")),
    "truncated JSON": Row(infer(spoilt()[:-10]), re.compile(MALFORMED)),
    "trailing comma": Row(infer(b'{"inputs":[],}'), re.compile(MALFORMED)),
    "two documents": Row(infer(b'{"inputs":[]} {}'), re.compile(r"failed to parse the request JSON buffer: .+ at 14")),
    "no JSON": Row(infer(b"hello"), re.compile(r"failed to parse the request JSON buffer: .+ at 0")),
    "no UTF-8": Row(infer(b'{"id":"\xff","inputs":[]}'), re.compile(MALFORMED)),
    "empty body": Row(infer(b""), re.compile(r"failed to parse the request JSON buffer: .+ at 0")),
    "blank body": Row(infer(b"  "), re.compile(MALFORMED)),
    "nested without end": Row(infer(b"[" * 100_000), re.compile(r"JSON nesting depth exceeds .+|" + MALFORMED)),
    "no object": Row(infer(b"[]"),
        "Unable to parse 'inputs': attempt to access JSON non-object as object: the request body is a list"),
    "NaN for an integer": Row(infer(spoilt(data=[float("nan")] * 16)), integer_expected("the number NaN")),
    "Infinity for an integer": Row(infer(spoilt(data=[float("inf")] * 16)), integer_expected("the number Infinity")),
    "NaN for a shape": Row(infer(spoilt(shape=[float("nan"), 16])),
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer: 'shape' of input 'INPUT0' has the number NaN"),
    "a fraction for an integer": Row(infer(spoilt(data=[1.5] * 16)), integer_expected("the number 1.5")),
    "a string for an integer": Row(infer(spoilt(data=["1"] * 16)), integer_expected("a string")),
    "true for an integer": Row(infer(spoilt(data=[True] * 16)), integer_expected("true")),
    "null for an integer": Row(infer(spoilt(data=[None] * 16)), integer_expected("null")),
    "out of range": Row(infer(spoilt(data=[2**31] + [0] * 15)),
        "Unable to parse 'data': element 0 of input 'INPUT0' is 2147483648, INT32 takes -2147483648 to 2147483647"),
    "too few elements": Row(infer(spoilt(data=[1])),
        "Failed to parse 'data' field: shape does not match true shape: input 'INPUT0' has 1 elements, its shape 16"),
    "too many elements": Row(infer(spoilt(data=[1] * 17)),
        "Unable to parse 'data': Shape does not match true shape of 'data' field: input 'INPUT0' has 17 elements, its shape 16"),
    "data is a string": Row(infer(spoilt(data="abc")),
        "Unable to parse 'data': attempt to access JSON non-array as array: 'data' of input 'INPUT0' is a string"),
    "misspelled datatype": Row(infer(spoilt(datatype="int32")),
        "invalid datatype for input INPUT0: 'int32', did you mean INT32?"),
    # types of what JSON has
    "id is empty": Row(infer(besides(id="")), "", FINE),
    "an input is a number": Row(infer(b'{"inputs":[1]}'),
        "Unable to parse 'name': attempt to access JSON non-object as object: inputs[0] is the number 1", note=WAS_500),
    "an input is null": Row(infer(b'{"inputs":[null]}'),
        "Unable to parse 'name': attempt to access JSON non-object as object: inputs[0] is null", note=WAS_500),
    "outputs is empty": Row(infer(besides(outputs=[])), "", FINE),
    "an output is a string": Row(infer(besides(outputs=["OUTPUT0"])),
        "Unable to parse 'name': attempt to access JSON non-object as object: outputs[0] is a string", note=WAS_500),
    "an output's name is a number": Row(infer(besides(outputs=[{"name": 1}])),
        "Unable to parse 'name': attempt to access JSON non-string as string: 'name' of outputs[0] is the number 1",
        note=WAS_500),
    "unknown keys": Row(infer(besides(foo=[1], model_name="x")), "", FINE),
    "shape is empty": Row(infer(spoilt(shape=[], data=[1])),
        f"{NOBODY}input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
    "shape of 2^64": Row(infer(spoilt(shape=[1, 2**64])),
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer: 'shape' of input 'INPUT0' has the number 1.8446744073709552e+19",
        note=WAS_500),
    "shape whose product overflows": Row(infer(spoilt(shape=[2**32, 2**32])),
        "invalid shape for input 'INPUT0': shape [4294967296,4294967296] causes total element count to exceed maximum size of 9223372036854775807"),
    "shape whose bytes overflow": Row(infer(spoilt(shape=[2**31, 2**31])),
        "byte size overflow for input 'INPUT0': element count (4611686018427387904) * data type size (4) exceeds maximum allowed size (9223372036854775807)"),
    "shape of more bytes than JSON may have": Row(infer(spoilt(shape=[1, MAX_JSON])),
        "JSON input 'INPUT0' has a byte_size (800000 bytes) that exceeds the maximum allowed value of 200000 bytes. Use --http-max-input-size to increase the limit."),
    "data is null": Row(infer(spoilt().replace(json.dumps(list(range(16))).encode(), b"null")),
        "Unable to parse 'data': attempt to access JSON non-array as array: 'data' of input 'INPUT0' is null",
        note=WAS_500),
    "data is an object": Row(infer(spoilt(data={})),
        "Unable to parse 'data': attempt to access JSON non-array as array: 'data' of input 'INPUT0' is an object",
        note=WAS_500),
    "data is empty": Row(infer(spoilt(data=[])),
        "Failed to parse 'data' field: shape does not match true shape: input 'INPUT0' has 0 elements, its shape 16",
        note=WAS_500),
    "data is nested unevenly": Row(infer(spoilt(data=[[0, [1, 2, 3]], [[4, 5], 6, 7], *range(8, 16)])), "", FINE),
    "data has an object": Row(infer(spoilt(data=[{}] * 16)), integer_expected("an object"), note=WAS_500),
    "data is nested too deeply": Row(infer(spoilt().replace(b"[0,", b"[" + DEEP.encode() + b",")),
        "JSON nesting depth exceeds maximum allowed limit (100)"),
    "a whole number with a point": Row(infer(spoilt(data=[1.0] * 16)),
        integer_expected("the number 1.0"), note=WAS_500),
    "a number of thousands of digits": Row(infer(spoilt().replace(b"[0,", b"[" + HUGE.encode() + b",")),
        "failed to parse the request JSON buffer: a number has more than 4300 digits", note=WAS_500),
    "0 for a BOOL": Row(one("BOOL", [1, 1], [0]),
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean: element 0 of input 'INPUT0' is the number 0, but BOOL takes true or false",
        note=WAS_500),
    "-1 for a UINT8": Row(one("UINT8", [1, 1], [-1]),
        "Unable to parse 'data': element 0 of input 'INPUT0' is -1, UINT8 takes 0 to 255"),
    "256 for a UINT8": Row(one("UINT8", [1, 1], [256]),
        "Unable to parse 'data': element 0 of input 'INPUT0' is 256, UINT8 takes 0 to 255", note=WRAPS),
    "128 for an INT8": Row(one("INT8", [1, 1], [128]),
        "Unable to parse 'data': element 0 of input 'INPUT0' is 128, INT8 takes -128 to 127", note=WRAPS),
    "2^63 for an INT64": Row(one("INT64", [1, 1], [2**63]),
        "Unable to parse 'data': element 0 of input 'INPUT0' is 9223372036854775808, INT64 takes -9223372036854775808 to 9223372036854775807",
        note=WAS_500),
    "2^64 for a UINT64": Row(one("UINT64", [1, 1], [2**64]),
        "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer: element 0 of input 'INPUT0' is the number 1.8446744073709552e+19, but UINT64 takes integers",
        note=WAS_500),
    "a string for an FP32": Row(one("FP32", [1, 1], ["1"]),
        "Unable to parse 'data': attempt to access JSON non-number as double: element 0 of input 'INPUT0' is a string, but FP32 takes numbers",
        note=WAS_500),
    "true for an FP32": Row(one("FP32", [1, 1], [True]),
        "Unable to parse 'data': attempt to access JSON non-number as double: element 0 of input 'INPUT0' is true, but FP32 takes numbers",
        note=WAS_500),
    "NaN for an FP32": Row(one("FP32", [1, 1], [float("nan")]), "", FINE),
    "a number too large for an FP64": Row(one("FP64", [1, 1], [10**400]),
        "Unable to parse 'data': attempt to access JSON non-number as double: element 0 of input 'INPUT0' is the number 10000000000000000000000000000000..., but FP64 takes numbers up to 1.8e308"),
    "a number for BYTES": Row(one("BYTES", [1, 1], [1]),
        "Unable to parse 'data': attempt to access JSON non-string as string: element 0 of input 'INPUT0' is the number 1, but BYTES takes strings",
        note=WAS_500),
    "too many strings": Row(one("BYTES", [1, 1], ["a", "b"]),
        "Unable to parse 'data': Shape does not match true shape of 'data' field: input 'INPUT0' has 2 elements, its shape 1"),
    "a comment": Row(infer(b'{/**/"inputs":[]}'), re.compile(MALFORMED), note=WAS_500),
    "single quotes": Row(infer(b"{'inputs':[]}"), re.compile(MALFORMED), note=WAS_500),
    "a byte order mark": Row(infer(b"\xef\xbb\xbf" + spoilt()),
        "failed to parse the request JSON buffer: Unexpected UTF-8 BOM (decode using utf-8-sig) at 0", note=WAS_500),
    "UTF-16": Row(infer(spoilt().decode().encode("utf-16")),
        "failed to parse the request JSON buffer: invalid UTF-8 at 0", note=WAS_500),
    # parameters
    "sequence_id is a fraction": Row(infer(besides(parameters={"sequence_id": 1.5})),
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string: 'sequence_id' is the number 1.5",
        note=WAS_500),
    "sequence_id is negative": Row(infer(besides(parameters={"sequence_id": -1})),
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string: 'sequence_id' is the number -1",
        note=WAS_500),
    "priority is negative": Row(infer(besides(parameters={"priority": -1})),
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer: 'priority' is the number -1",
        note=WAS_500),
    "timeout is a fraction": Row(infer(besides(parameters={"timeout": 0.5})),
        "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer: 'timeout' is the number 0.5",
        note=WAS_500),
    "timeout is beyond 2^64": Row(infer(besides(parameters={"timeout": 2**64})),
        "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer: 'timeout' is the number 1.8446744073709552e+19",
        note=WAS_500),
    # outputs
    "classification is 0": Row(infer(output(classification=0)), "", FINE),
    "classification is more than there is": Row(infer(output(classification=1000)), "", FINE),
    "classification of FP16": Row(
        infer(json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP16", "shape": [1, 1], "data": [1]}], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}]}).encode(), model="identity_FP16"),
        "class result not available for output due to unsupported type 'FP16'"),
    "an output in an unknown region": Row(infer(output(**SHARED)),
        "Unable to find shared memory region: 'nosuch'", NOT_FOUND),
    "an output's region is a number": Row(infer(output(shared_memory_region=1)),
        "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string: 'shared_memory_region' is the number 1",
        note=WAS_500),
    # regions and binary data of inputs
    "an input in an unknown region": Row(infer(spoilt(data=None, parameters=SHARED)),
        "Unable to find shared memory region: 'nosuch'", NOT_FOUND),
    "a region and data": Row(infer(spoilt(parameters=SHARED)),
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But set 'data' 'shared_memory_region'"),
    "a region and binary data": Row(infer(spoilt(data=None, parameters={**SHARED, "binary_data_size": 64})),
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But set 'binary_data_size' 'shared_memory_region'"),
    "a region's size is a string": Row(infer(spoilt(data=None, parameters={**SHARED, "shared_memory_byte_size": "64"})),
        "Unable to parse 'shared_memory_byte_size': attempt to access JSON non-unsigned-integer as unsigned-integer: 'shared_memory_byte_size' is a string",
        note=WAS_500),
    "binary size is huge": Row(
        infer(spoilt(data=None, parameters={"binary_data_size": 2**63}), with_length(len(spoilt(data=None, parameters={"binary_data_size": 2**63})))),
        "unexpected size for input 'INPUT0', expecting 9223372036854775808 additional bytes for model 'simple'"),
    "header length with a sign": Row(infer(GOOD_BODY, with_length(f"+{JSON_LENGTH}")),
        "Unable to parse Inference-Header-Content-Length, got: +254"),
    "header length 0 with two inputs": Row(infer(GOOD_BODY, with_length(0)),
        f"{NOBODY}Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration"),
    "a raw request of half an element": Row(infer(bytes(3), with_length(0), "identity_INT32"),
        f"{NOBODY}input byte size mismatch for input 'INPUT0' for model 'identity_INT32'. Expected 0, got 3"),
    "a raw request without a body": Row(infer(b"", with_length(0), "identity_INT32"), "", FINE),
    # encodings
    "no gzip": Row(infer(spoilt(), {"Content-Encoding": "gzip"}),
        "failed to decompress the request body, which is not gzip data: Error -3 while decompressing data: incorrect header check"),
    "no deflate": Row(infer(spoilt(), {"Content-Encoding": "deflate"}),
        "failed to decompress the request body, which is not deflate data: Error -3 while decompressing data: incorrect header check"),
    "gzip with bytes behind it": Row(infer(gzip.compress(spoilt(), mtime=0) + b"xx", {"Content-Encoding": "gzip"}),
        "failed to decompress the request body: 2 bytes follow the gzip data"),
    "gzip that grows too much": Row(infer(gzip.compress(b" " * (MAX_JSON + 1), mtime=0), {"Content-Encoding": "gzip"}),
        "Decompressed data size exceeds the maximum allowed value of 200000 bytes. Use --http-max-input-size to increase the limit."),
    "gzip in capitals": Row(infer(gzip.compress(spoilt(), mtime=0), {"Content-Encoding": "GZIP"}), "", FINE),
    # sizes
    "JSON of just the limit": Row(infer(spoilt().ljust(MAX_JSON)), "", FINE),
    "JSON over the limit before binary data": Row(infer(b" " * (MAX_JSON + 1) + b"\0" * 4, with_length(MAX_JSON + 1)),
        OVER_LONG),
    # models with any number of responses
    "infer on a model that may answer more than once": Row(
        infer(json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "data": [1, 2]}, {"name": "DELAY", "datatype": "UINT32", "shape": [2], "data": [0, 0]}, {"name": "WAIT", "datatype": "UINT32", "shape": [1], "data": [0]}]}).encode(), model="repeat"),
        "this call doesn't support models with decoupled transaction policy that respond more than once, as model 'repeat' did; use ModelStreamInfer over gRPC, infer_stream or generate_stream over HTTP",
        UNSUPPORTED),
    # infer_stream, which Triton lacks
    "infer_stream: malformed": Row(post("/v2/models/simple/infer_stream", b"{"), re.compile(MALFORMED)),
    "infer_stream: unknown model": Row(post("/v2/models/nosuch/infer_stream", b"{}"),
        "Request for unknown model: 'nosuch' is not found", NOT_FOUND),
    "infer_stream: missing input": Row(post("/v2/models/simple/infer_stream", b'{"inputs":[]}'),
        f"{NOBODY}expected 2 inputs but got 0 inputs for model 'simple'. Got input(s) [], but missing required input(s) ['INPUT0','INPUT1']. Please provide all required input(s)."),
    "infer_stream: GET": Row(Http("GET", "/v2/models/simple/infer_stream"), "Method Not Allowed", NO_METHOD),
    # generate
    "generate: malformed": Row(post("/v2/models/identity_INT32/generate", b"{"), re.compile(MALFORMED), note=WAS_500),
    "generate: nested too deeply": Row(post("/v2/models/identity_INT32/generate", DEEP.encode()),
        "JSON nesting depth exceeds maximum allowed limit (100)"),
    "generate: a string for a number": Row(post("/v2/models/identity_INT32/generate", {"INPUT0": "x"}),
        integer_expected("a string"), note=WAS_500),
    "generate: no input": Row(post("/v2/models/identity_INT32/generate", {}),
        f"{NOBODY}expected 1 inputs but got 0 inputs for model 'identity_INT32'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s)."),
    "generate: the wrong number of elements": Row(post("/v2/models/simple/generate", {"INPUT0": [1, 2], "INPUT1": [1]}),
        "The schema can not convert input 'INPUT0' to tensor with proper shape: its value has 2 elements, and the input's shape is [-1,16]"),
    "generate: two responses": Row(post("/v2/models/repeat/generate", {"IN": [1, 2], "DELAY": [0, 0], "WAIT": 0}),
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses",
        note="Triton says so with 200."),
    "generate_stream: malformed": Row(post("/v2/models/identity_INT32/generate_stream", b"{"),
        re.compile(MALFORMED), note=WAS_500),
    "generate_stream: a string for a number": Row(post("/v2/models/identity_INT32/generate_stream", {"INPUT0": "x"}),
        integer_expected("a string"), note=WAS_500),
    # KServe v1 and TensorFlow Serving
    "v1: malformed": Row(post("/v1/models/simple:predict", b"{"), re.compile(MALFORMED)),
    "v1: neither rows nor columns": Row(post("/v1/models/simple:predict", {"data": 1}),
        "Missing 'inputs' or 'instances' key: the request has 'data'"),
    "v1: values for two inputs": Row(post("/v1/models/simple:predict", {"instances": [1]}),
        "'instances' is a list of values, but model 'simple' has 2 inputs: give a list of objects with the keys 'INPUT0', 'INPUT1'"),
    "v1: an unknown input": Row(post("/v1/models/simple:predict", {"instances": [{"A": 1}]}),
        "instances[0] has the key 'A', which is not an input of model 'simple': its inputs are 'INPUT0', 'INPUT1'"),
    "v1: a missing input": Row(post("/v1/models/simple:predict", {"inputs": {"INPUT0": [[1] * 16]}}),
        "'inputs' lacks the key 'INPUT1', a required input of model 'simple'"),
    "v1: a string for a number": Row(post("/v1/models/digits:predict", {"instances": [["x"] * 64]}),
        "instances[0][0] is a string, but input 'image' of datatype FP32 takes numbers"),
    "v1: the wrong width": Row(post("/v1/models/digits:predict", {"instances": [[1] * 63]}),
        f"{NOBODY}unexpected shape for input 'image' for model 'digits'. Expected [-1,64], got [1,63]. "),
    "v1: no base64": Row(post("/v1/models/identity_BYTES:predict", {"instances": [[{"b64": "?"}]]}),
        "instances[0][0] is not valid base64: byte 0x3f at position 0 is not of Base64"),
    "v1: a number too large": Row(post("/v1/models/identity_INT8:predict", {"instances": [[128]]}),
        "instances[0][0] is the number 128, but input 'INPUT0' of datatype INT8 takes -128 to 127"),
    "v1: an unknown signature": Row(post("/v1/models/simple:predict", {"signature_name": "x", "instances": [1]}),
        'Serving signature name: "x" not found in signature def: each model has one signature, "serving_default"'),
    "v1: a v2 request": Row(post("/v1/models/simple:predict", spoilt()),
        "'inputs' is a list of tensors of the v2 protocol, whose requests go to /v2/models/simple/infer: give an object with the keys 'INPUT0', 'INPUT1'"),
    "v1: a label": Row(post("/v1/models/simple/labels/stable:predict", {}),
        "Unrecognized servable version label: stable: this server has no version labels, use /versions/<number>",
        NOT_FOUND),
}  # fmt: skip

PATHS: dict[str, Row] = {
    **{
        f"{method} {path}"[:60]: Row(Http(method, path), text, status)
        for method, path, status, text in (
            ("GET", infer_path("simple"), NO_METHOD, "Method Not Allowed"),
            ("PUT", infer_path("simple"), NO_METHOD, "Method Not Allowed"),
            ("DELETE", "/v2", NO_METHOD, "Method Not Allowed"),
            ("PATCH", "/v2/repository/index", NO_METHOD, "Method Not Allowed"),
            ("POST", "/v2/health/live", NO_METHOD, "Method Not Allowed"),
            ("GET", "/v2/repository/index", NO_METHOD, "Method Not Allowed"),
            ("GET", "/v2/models/simple/generate", NO_METHOD, "Method Not Allowed"),
            ("GET", "/v1/models/simple:predict", NO_METHOD, "Method Not Allowed"),
            ("POST", infer_path("simple", "x"), NOT_FOUND, "Not Found"),
            ("POST", infer_path("simple", "-1"), NOT_FOUND, "Not Found"),
            ("POST", infer_path("simple", "1.0"), NOT_FOUND, "Not Found"),
            ("POST", infer_path("simple", "0"), NOT_FOUND, "Request for unknown model: 'simple' version 0 is not found"),
            ("POST", infer_path("simple", HUGE), INVALID, cut(BAD_VERSION.format(HUGE))),
            ("GET", f"/v2/models/simple/versions/{HUGE}", INVALID, cut(BAD_VERSION.format(HUGE))),
            ("GET", f"/v2/models/simple/versions/{HUGE}/ready", INVALID, cut(BAD_VERSION.format(HUGE))),
            ("GET", "/v2/models/simple/versions/0/config", NOT_FOUND, "Request for unknown model: 'simple' version 0 is not found"),
            ("POST", "/v2/models/simple/inference", NOT_FOUND, "Not Found; did you mean '/v2/models/simple/infer'?"),
            ("POST", infer_path("simple") + "/", NOT_FOUND, f"Not Found; did you mean '{infer_path('simple')}'?"),
            ("POST", "/v2/models//infer", NOT_FOUND, "Not Found"),
            ("POST", "//v2/models/simple/infer", NOT_FOUND, "Not Found; did you mean '/v2/models/simple/infer'?"),
            ("GET", "/V2", NOT_FOUND, "Not Found; did you mean '/v2'?"),
            ("GET", "/v2/health", NOT_FOUND, "Not Found"),
            ("GET", "/nosuch", NOT_FOUND, "Not Found"),
            ("GET", "/v3/models/simple", NOT_FOUND, "Not Found"),
            ("POST", infer_path("no%20such"), NOT_FOUND, "Request for unknown model: 'no such' is not found"),
            ("POST", infer_path("a%2Fb"), NOT_FOUND, "Request for unknown model: 'a/b' is not found"),
            ("POST", infer_path("%FF"), NOT_FOUND, "Request for unknown model: '\ufffd' is not found"),
            ("GET", "/v2/models/simple/stats", RESTRICTED, "This API is restricted, expecting header 'secret'"),
            ("GET", "/v2/models/stats?secret=open", RESTRICTED, "This API is restricted, expecting header 'secret'"),
            ("GET", "/v2/models/simple?version=9", FINE, ""),
            ("GET", "/v2/systemsharedmemory/status?region=x", FINE, ""),
        )
    },
    "the restricted header is wrong": Row(Http("GET", "/v2/models/simple/stats", headers={"secret": "shut"}),
        "This API is restricted, expecting header 'secret'", RESTRICTED),
    "statistics of an unknown model": Row(Http("GET", "/v2/models/nosuch/stats", headers={"secret": "open"}),
        "requested model 'nosuch' is not available"),
    "statistics of an unknown version": Row(
        Http("GET", "/v2/models/simple/versions/9/stats", headers={"secret": "open"}),
        "requested model version is not available for model 'simple'"),
}  # fmt: skip

FRAMING: dict[str, Row] = {
    "no request line": Row(Wire(b"GARBAGE\r\n\r\n"), "malformed HTTP request: Invalid method encountered"),
    "no HTTP": Row(Wire(b"\x00\x01\x02\x03\r\n\r\n"), "malformed HTTP request: Invalid method encountered"),
    "a TLS hello": Row(Wire(CLIENT_HELLO), "malformed HTTP request: Invalid method encountered"),
    "an HTTP/2 preface": Row(Wire(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "malformed HTTP request: Pause on PRI/Upgrade"),
    "an unknown version": Row(Wire(b"GET /v2 HTTP/9.9\r\n\r\n"), "malformed HTTP request: Invalid HTTP version"),
    "an unknown method": Row(Wire(b"FOO /v2 HTTP/1.1\r\n\r\n"), "malformed HTTP request: Invalid method encountered"),
    "a header without a colon": Row(Wire(b"GET /v2 HTTP/1.1\r\nHost localhost\r\n\r\n"),
        "malformed HTTP request: Invalid header token"),
    "a space in a header's name": Row(Wire(b"GET /v2 HTTP/1.1\r\nBad Name: 1\r\n\r\n"),
        "malformed HTTP request: Invalid header token"),
    "a control character in a header": Row(Wire(b"GET /v2 HTTP/1.1\r\nX: \x01\r\n\r\n"),
        "malformed HTTP request: Invalid header value char"),
    "a length that is no number": Row(Wire(posted(b"", "Content-Length: abc")),
        "malformed HTTP request: Invalid character in Content-Length"),
    "a negative length": Row(Wire(posted(b"", "Content-Length: -5")),
        "malformed HTTP request: Invalid character in Content-Length"),
    "two lengths": Row(Wire(posted(b"", "Content-Length: 5", "Content-Length: 6")),
        "malformed HTTP request: Duplicate Content-Length"),
    "a length and chunks": Row(Wire(posted(b"", "Content-Length: 5", "Transfer-Encoding: chunked")),
        "malformed HTTP request: Transfer-Encoding can't be present with Content-Length"),
    "chunks of no size": Row(Wire(posted(b"zz\r\nabc\r\n", "Transfer-Encoding: chunked")),
        "malformed HTTP request: Invalid character in chunk size"),
    "a chunk longer than said": Row(Wire(posted(b"2\r\nabcdef\r\n0\r\n\r\n", "Transfer-Encoding: chunked")),
        "malformed HTTP request: Expected LF after chunk data"),
    "JSON announced too long": Row(Wire(posted(b"", f"Content-Length: {MAX_JSON + 1}")), OVER_LONG),
    "JSON too long, in chunks that go on": Row(
        Wire(posted(b"c350\r\n%b\r\n" % (b" " * 50_000) * 5, "Transfer-Encoding: chunked")),
        "request JSON size of 250000 bytes exceeds the maximum allowed input size of 200000 bytes. Use --http-max-input-size to increase the limit."),
    "JSON announced absurdly long": Row(Wire(posted(b"", f"Content-Length: {10**15}")),
        "request JSON size of 1000000000000000 bytes exceeds the maximum allowed input size of 200000 bytes. Use --http-max-input-size to increase the limit."),
    "a head too long": Row(Wire(b"GET /v2 HTTP/1.1\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n"),
        "the request's head exceeds 65536 bytes", LONG_HEAD),
    "a head too long, of many headers": Row(
        Wire(b"GET /v2 HTTP/1.1\r\n" + b"X: aaaaaaaaaaaaaaaa\r\n" * 7_000 + b"\r\n"),
        "the request's head exceeds 65536 bytes", LONG_HEAD),
    "a chunk's size that overflows": Row(Wire(posted(b"fffffffffffffffff\r\n", "Transfer-Encoding: chunked")),
        "malformed HTTP request: Chunk size overflow"),
    "a length with a sign": Row(Wire(posted(b"", "Content-Length: +5")),
        "malformed HTTP request: Invalid character in Content-Length"),
    "a length that overflows": Row(Wire(posted(b"", f"Content-Length: {2**64}")),
        "malformed HTTP request: Content-Length overflow"),
    "a null byte in the path": Row(Wire(b"GET /v2\x00 HTTP/1.1\r\n\r\n"),
        "malformed HTTP request: Invalid char in url path"),
    "a header that is continued": Row(Wire(b"GET /v2 HTTP/1.1\r\nX: a\r\n b\r\n\r\n"),
        "malformed HTTP request: Unexpected whitespace after header value"),
    "CONNECT, and a request for its body": Row(
        raw(b"CONNECT localhost:80 HTTP/1.1", "Content-Length: 33", body=b"GET /v2 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
        "the method CONNECT is not supported: this server is not a proxy", UNSUPPORTED),
    "trailers without end": Row(
        Wire(posted(b"0\r\n" + b"X: aaaaaaaaaaaaaaaa\r\n" * 7_000, "Transfer-Encoding: chunked")),
        "the chunk extensions and trailers of the request's body exceed 65536 bytes", LONG_HEAD),
    "JSON over the limit": Row(Wire(posted(b" " * (MAX_JSON + 1), f"Content-Length: {MAX_JSON + 1}")), OVER_LONG),
    "JSON over the limit, with a query": Row(
        raw(b"POST /v2/models/simple/infer?x=1 HTTP/1.1", f"Content-Length: {MAX_JSON + 1}"),
        OVER_LONG),
    "JSON over the limit, no such path": Row(raw(b"POST /v2/nosuch HTTP/1.1", f"Content-Length: {MAX_JSON + 1}"),
        OVER_LONG),
}  # fmt: skip

CONTROL: dict[str, Row] = {
    "index: malformed": Row(post("/v2/repository/index", b"{"), re.compile(MALFORMED), note=WAS_500),
    "load: malformed": Row(post("/v2/repository/models/simple/load", b"{"), re.compile(MALFORMED), note=WAS_500),
    "load: config is no JSON": Row(post("/v2/repository/models/simple/load", {"parameters": {"config": "{"}}),
        re.compile("failed to load 'simple', failed to poll from model repository: Invalid config override: .+", re.S),
        note="Triton: 500, and nothing behind the first colon."),
    "load: config has an unknown field": Row(
        post("/v2/repository/models/simple/load", {"parameters": {"config": '{"foo": 1}'}}),
        re.compile("failed to load 'simple', failed to poll from model repository: .+ no field named \"foo\".*", re.S),
        note="Triton: 500, and nothing behind the first colon."),
    "load: files without config": Row(
        post("/v2/repository/models/simple/load", {"parameters": {"file:1/model.onnx": "QUJD"}}),
        "Load parameter 'config' must be specified for model file override"),
    "load: no base64": Row(post("/v2/repository/models/simple/load", {"parameters": {"config": "{}", "file:1/x": "?"}}),
        "invalid value for load parameter 'file:1/x', expected base64: byte 0x3f at position 0 is not of Base64"),
    "load: a file outside": Row(
        post("/v2/repository/models/simple/load", {"parameters": {"config": "{}", "file:../x": "QUJD"}}),
        "invalid path '../x' of a file override: expected '<version>/<path>', the path of a file inside the model's directory"),
    "load: a name that is a path": Row(post("/v2/repository/models/..%2Fx/load"),
        "invalid model name '../x', model name must not contain path traversal characters"),
    "unload: unknown model": Row(post("/v2/repository/models/nosuch/unload"), "", FINE),
    "load: unknown model": Row(post("/v2/repository/models/nosuch/load"),
        "failed to load 'nosuch', failed to poll from model repository",
        NOT_FOUND, "Triton blames itself for a model that is not there: 500."),
    "unload: malformed": Row(post("/v2/repository/models/simple/unload", b"{"), re.compile(MALFORMED), note=WAS_500),
    "trace: malformed": Row(post("/v2/trace/setting", b"{"), re.compile(MALFORMED), note=WAS_500),
    "trace: a rate that is huge": Row(post("/v2/trace/setting", {"trace_rate": HUGE}),
        cut(f"Unable to parse 'trace_rate', got: {HUGE}")),
    "region: malformed": Row(post("/v2/systemsharedmemory/region/r/register", b"{"),
        re.compile(MALFORMED), note=WAS_500),
    "region: a negative size": Row(
        post("/v2/systemsharedmemory/region/r/register", {"key": "/nosuch", "byte_size": -1}),
        "attempt to access JSON non-unsigned-integer as unsigned-integer", note=WAS_500),
    "region: no such memory": Row(post("/v2/systemsharedmemory/region/r/register", {"key": "/nosuch", "byte_size": 64}),
        "Unable to open shared memory region: '/nosuch'", note="Triton: 500."),
    "region: a key that is a path": Row(
        post("/v2/systemsharedmemory/region/r/register", {"key": "/../../etc/passwd", "byte_size": 64}),
        "Unable to open shared memory region: '/../../etc/passwd'"),
    "region: a key of slashes only": Row(
        post("/v2/systemsharedmemory/region/r/register", {"key": "//", "byte_size": 64}),
        "cannot register shared memory region 'r' - invalid shm key '//'"),
    "region: a key with a null byte": Row(
        post("/v2/systemsharedmemory/region/r/register", {"key": "/a\0b", "byte_size": 64}),
        "Unable to open shared memory region: '/a\0b'"),
    "region: unknown": Row(Http("GET", "/v2/systemsharedmemory/region/r/status"),
        "Unable to find system shared memory region: 'r'", NOT_FOUND),
    "region: unregister an unknown one": Row(post("/v2/systemsharedmemory/region/r/unregister"), "", FINE),
    "GPU region: unknown": Row(Http("GET", "/v2/cudasharedmemory/region/r/status"),
        "Unable to find cuda shared memory region: 'r'", NOT_FOUND),
}  # fmt: skip

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


def twice() -> service_pb2.ModelInferRequest:
    found = typed("identity_INT32", "INT32", "int_contents", [1])
    found.inputs[0].contents.uint_contents.extend([1])
    return found


def parameter(name: str, **choice: Any) -> service_pb2.ModelInferRequest:
    """A good message with a parameter; without a choice it has no value."""
    found = message(Ask())
    found.parameters[name].SetInParent()
    for key, value in choice.items():
        setattr(found.parameters[name], key, value)
    return found


def placed(where: str, **options: Any) -> service_pb2.ModelInferRequest:
    """A message whose first input or output has parameters: texts, numbers or truths."""
    found = message(Ask())
    if where == "outputs":
        found.outputs.add(name="OUTPUT0")
    else:
        del found.raw_input_contents[0]
    for name, value in options.items():
        given = getattr(found, where)[0].parameters[name]
        field = {str: "string_param", bool: "bool_param", int: "int64_param"}[type(value)]
        setattr(given, field, value)
    return found


def load(name: str = "simple", /, **parameters: Any) -> Rpc:
    """Bytes become bytes_param, with `file_` for ``file:``."""
    found = service_pb2.RepositoryModelLoadRequest(model_name=name)
    for key, value in parameters.items():
        given = found.parameters[key.replace("file_", "file:")]
        field = {str: "string_param", bytes: "bytes_param", bool: "bool_param"}[type(value)]
        setattr(given, field, value)
    return Rpc("RepositoryModelLoad", found)


def unload(**parameters: Any) -> Rpc:
    found = service_pb2.RepositoryModelUnloadRequest(model_name="simple")
    for key, value in parameters.items():
        found.parameters[key].string_param = value
    return Rpc("RepositoryModelUnload", found)


def logged(name: str, **choice: Any) -> Rpc:
    found = service_pb2.LogSettingsRequest()
    for key, value in choice.items():
        setattr(found.settings[name], key, value)
    return Rpc("LogSettings", found)


NO_DATA = "unable to find data for input tensor '{}' for model 'simple' in request."
WRONG_FIELD = (
    "unexpected explicit tensor data for input tensor 'INPUT0' for model '{}' of type '{}', expected datatype '{}'"
)
NO_MESSAGE = b"\xff\xff\xff"


GRPC: dict[str, Row] = {
    "version is huge": Row(changed(model_version=HUGE), cut(BAD_VERSION.format(HUGE))),
    "fewer raw buffers than inputs": Row(changed(raw_input_contents=[INPUT0.raw]), NO_DATA.format("INPUT1")),
    "more raw buffers than inputs": Row(changed(raw_input_contents=[INPUT0.raw, INPUT1.raw, INPUT1.raw]),
        "expected 2 raw input buffers for model 'simple', got 3: one is needed for each input, in their order"),
    "no data": Row(changed(raw_input_contents=None), NO_DATA.format("INPUT0")),
    "contents beside raw buffers": Row(mixed(),
        "contents field must not be specified when using raw_input_contents for 'INPUT1' for model 'simple'"),
    "contents in the wrong field": Row(typed("identity_INT32", "INT32", "fp32_contents", [1.5]),
        WRONG_FIELD.format("identity_INT32", "FP32", "INT32")),
    "contents for FP16": Row(typed("identity_FP16", "FP16", "fp32_contents", [1.5]),
        WRONG_FIELD.format("identity_FP16", "FP32", "FP16")),
    "contents out of range": Row(typed("identity_INT8", "INT8", "int_contents", [1, 128]),
        "element 1 of input 'INPUT0' is 128, INT8 takes -128 to 127"),
    "negative shape": Row(message(Ask((INPUT0._replace(shape=(-1, 16)), INPUT1._replace(shape=(-1, 16))))),
        f"{NOBODY}All input dimensions should be specified for input 'INPUT0' for model 'simple', got [-1,16]",
        note="Triton: the batch size must be <= 8, taking the number for one without a sign."),
    "bytes that are no message": Row(Rpc("ModelInfer", NO_MESSAGE),
        "Unable to parse request: 3 bytes are no inference.ModelInferRequest"),
    "an empty message": Row(Rpc("ModelInfer", b""), "Request for unknown model: '' is not found", NOT_FOUND),
    "a message cut": Row(Rpc("ModelInfer", message(Ask()).SerializeToString()[:-1]),
        "Unable to parse request: 181 bytes are no inference.ModelInferRequest"),
    "text that is no UTF-8": Row(Rpc("ModelInfer", b"\x0a\x01\xff"),
        "Unable to parse request: 3 bytes are no inference.ModelInferRequest"),
    "version is a fraction": Row(changed(model_version="1.5"),
        "failed to get model version from specified version string '1.5' (details: stol), version should be an integral value > 0",
        note="Triton reads the 1."),
    "contents in two fields": Row(twice(),
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity_INT32', binary data was already supplied."),
    "contents of the wrong number": Row(typed("simple", "INT32", "int_contents", [1]),
        f"{NOBODY}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."),
    "negative contents for a UINT8": Row(typed("identity_UINT8", "UINT8", "uint_contents", [256]),
        "element 0 of input 'INPUT0' is 256, UINT8 takes 0 to 255", note=WRAPS),
    "contents for BF16": Row(typed("identity_BF16", "BF16", "fp32_contents", [1.5]),
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity_BF16' of type 'FP32', expected datatype 'BF16'"),
    "contents for a misspelled datatype": Row(typed("identity_INT32", "int32", "int_contents", [1]),
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity_INT32' of type 'INT32', expected datatype '<invalid>'"),
    "a parameter without a value": Row(parameter("x"),
        "invalid value type for 'x' parameter, expected int64_param, bool_param, or string_param."),
    "timeout is a text": Row(parameter("timeout", string_param="1"),
        "invalid value type for 'timeout' parameter, expected int64_param."),
    "empty final response is a number": Row(parameter("triton_enable_empty_final_response", int64_param=1),
        "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."),
    "an input in an unknown region, in gRPC": Row(
        placed("inputs", shared_memory_region="nosuch", shared_memory_byte_size=64),
        "Unable to find shared memory region: 'nosuch'", NOT_FOUND),
    "a region without a size": Row(placed("inputs", shared_memory_region="nosuch"),
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'"),
    "a size without a region": Row(placed("inputs", shared_memory_byte_size=64),
        "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'INPUT0'"),
    "a region that is a number": Row(placed("inputs", shared_memory_region=1, shared_memory_byte_size=64),
        "invalid value type for 'shared_memory_region' parameter for tensor 'INPUT0', expected string_param."),
    "a region's size is a text": Row(placed("inputs", shared_memory_region="r", shared_memory_byte_size="64"),
        "invalid value type for 'shared_memory_byte_size' parameter for tensor 'INPUT0', expected int64_param."),
    "an output in an unknown region, in gRPC": Row(
        placed("outputs", shared_memory_region="nosuch", shared_memory_byte_size=64),
        "Unable to find shared memory region: 'nosuch'", NOT_FOUND),
}  # fmt: skip

STREAMS: dict[str, Row] = {
    "bytes that are no message": Row(Stream(NO_MESSAGE),
        "Unable to parse request: 3 bytes are no inference.ModelInferRequest"),
    "an unknown model": Row(Stream(changed(model_name="nosuch")),
        "Request for unknown model: 'nosuch' is not found", NOT_FOUND),
    "no data": Row(Stream(changed(raw_input_contents=None)),
        "unable to find data for input tensor 'INPUT0' for model 'simple' in request."),
    "a parameter without a value": Row(Stream(parameter("x")),
        "invalid value type for 'x' parameter, expected int64_param, bool_param, or string_param."),
}  # fmt: skip

GRPC_CONTROL: dict[str, Row] = {
    "readiness of an unknown model": Row(Rpc("ModelReady", service_pb2.ModelReadyRequest(name="nosuch")), "", FINE),
    "statistics without the header": Row(Rpc("ModelStatistics", service_pb2.ModelStatisticsRequest()),
        "This protocol is restricted, expecting header 'triton-grpc-protocol-secret'", RESTRICTED),
    "statistics of an unknown model, in gRPC": Row(
        Rpc("ModelStatistics", service_pb2.ModelStatisticsRequest(name="nosuch"), (("triton-grpc-protocol-secret", "open"),)),
        "requested model 'nosuch' is not available"),
    "load without a name": Row(load(""), "Model name cannot be empty. Please enter a valid name to deploy."),
    "load: unknown model, in gRPC": Row(load("nosuch"),
        "failed to load 'nosuch', failed to poll from model repository",
        NOT_FOUND, "Triton blames itself for a model that is not there: INTERNAL."),
    "load: a name that is a path, in gRPC": Row(load("../x"),
        "invalid model name '../x', model name must not contain path traversal characters"),
    "load: an unknown parameter, in gRPC": Row(load(x="1"), "unrecognized load parameter 'x'."),
    "load: config is a truth": Row(load(config=True),
        "invalid value type for load parameter 'config', expected string_param."),
    "load: files without config, in gRPC": Row(load(**{"file_1/x": b"abc"}),
        "Load parameter 'config' must be specified for model file override"),
    "region: no such memory, in gRPC": Row(
        Rpc("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/nosuch", byte_size=64)),
        "Unable to open shared memory region: '/nosuch'", note="Triton: INTERNAL."),
    "region: no name, in gRPC": Row(
        Rpc("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest(key="/nosuch", byte_size=64)),
        "'region name' is necessary to register system shared memory region"),
    "GPU region: unknown, in gRPC": Row(
        Rpc("CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest(name="r")),
        "Unable to find cuda shared memory region: 'r'", NOT_FOUND),
}  # fmt: skip

LOGS: dict[str, Row] = {
    "log: malformed": Row(post("/v2/logging", b"{"), re.compile(MALFORMED), note=WAS_500),
    "log: an unknown format": Row(post("/v2/logging", {"log_format": "x"}),
        "invalid argument for --log_format, got: x"),
    "log: an unknown setting": Row(post("/v2/logging", {"foo": 1}), "", FINE),
    "log: a file, in gRPC": Row(logged("log_file", string_param="x"),
        "log file location can not be updated through network protocol", UNSUPPORTED),
}  # fmt: skip
"""Rows that only a server can answer that has a process of its own: it changes how that logs."""

TABLES = (BOTH, HTTP, PATHS, FRAMING, CONTROL, GRPC, STREAMS, GRPC_CONTROL, LOGS)
