"""Every datatype there and back in each of the forms the protocols have, bit for bit."""

import json
import math
from struct import pack
from typing import Any, NamedTuple

import pytest
from repositories import ONNX_TYPES
from server_process import ServerProcess
from tritonclient.grpc import service_pb2
from wire import (
    SECONDS,
    Ask,
    Input,
    binary_outputs,
    channel,
    grpc_infer,
    http,
    http_infer,
    infer_path,
    raw_outputs,
    stub,
)


class Sample(NamedTuple):
    """Four elements: as JSON values, as raw bytes, and the field of typed contents that carries them."""

    values: list[Any]
    raw: bytes
    field: str | None


def strings(*values: str) -> bytes:
    return b"".join(pack("<I", len(value.encode())) + value.encode() for value in values)


LONG = "x" * 1000
SAMPLES = {
    "BOOL": Sample([True, False, False, True], b"\x01\x00\x00\x01", "bool_contents"),
    "UINT8": Sample([0, 1, 128, 255], b"\x00\x01\x80\xff", "uint_contents"),
    "UINT16": Sample([0, 1, 256, 65535], pack("<4H", 0, 1, 256, 65535), "uint_contents"),
    "UINT32": Sample([0, 1, 65536, 2**32 - 1], pack("<4I", 0, 1, 65536, 2**32 - 1), "uint_contents"),
    "UINT64": Sample([0, 1, 2**53 + 1, 2**64 - 1], pack("<4Q", 0, 1, 2**53 + 1, 2**64 - 1), "uint64_contents"),
    "INT8": Sample([0, -1, -128, 127], b"\x00\xff\x80\x7f", "int_contents"),
    "INT16": Sample([0, -1, -32768, 32767], pack("<4h", 0, -1, -32768, 32767), "int_contents"),
    "INT32": Sample([0, -1, -(2**31), 2**31 - 1], pack("<4i", 0, -1, -(2**31), 2**31 - 1), "int_contents"),
    "INT64": Sample(
        [0, 2**53 + 1, -(2**63), 2**63 - 1], pack("<4q", 0, 2**53 + 1, -(2**63), 2**63 - 1), "int64_contents"
    ),
    "FP16": Sample([0.5, -1.5, 65504.0, math.inf], b"\x00\x38\x00\xbe\xff\x7b\x00\x7c", None),
    "BF16": Sample([1.5, -2.0, 0.0, -math.inf], b"\xc0\x3f\x00\xc0\x00\x00\x80\xff", None),
    "FP32": Sample(
        [0.10000000149011612, -0.0, math.nan, -math.inf], pack("<4f", 0.1, -0.0, math.nan, -math.inf), "fp32_contents"
    ),
    "FP64": Sample([0.1, -1e-300, math.nan, math.inf], pack("<4d", 0.1, -1e-300, math.nan, math.inf), "fp64_contents"),
    "BYTES": Sample(["", "text", 'ü€😀\n"', LONG], strings("", "text", 'ü€😀\n"', LONG), "bytes_contents"),
}
TYPED = [datatype for datatype, sample in SAMPLES.items() if sample.field]
MODELS = ["identity", "onnx"]
SHAPE = (2, 2)

models = pytest.mark.parametrize("kind", MODELS)
all_types = pytest.mark.parametrize("datatype", SAMPLES)


def ask(kind: str, datatype: str) -> Ask:
    return Ask((Input("INPUT0", datatype, SHAPE, SAMPLES[datatype].raw),), model=f"{kind}_{datatype}")


def test_onnx_has_every_datatype() -> None:
    assert ONNX_TYPES.keys() == SAMPLES.keys()
    assert len(SAMPLES) == 14


@models
@all_types
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
def test_http_json(server: ServerProcess, kind: str, datatype: str, nested: bool) -> None:
    values = SAMPLES[datatype].values
    data = [values[:2], values[2:]] if nested else values
    body = {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": SHAPE, "data": data}]}
    answer = http(server.http_port, "POST", infer_path(f"{kind}_{datatype}"), json.dumps(body).encode())
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    (output,) = answer.json["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("OUTPUT0", datatype, list(SHAPE))
    # As text, for NaN differs from itself, 1 from true, and -0.0 from 0.
    assert repr(output["data"]) == repr(values)


@models
@all_types
def test_http_binary(server: ServerProcess, kind: str, datatype: str) -> None:
    answer = http_infer(server.http_port, ask(kind, datatype))
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert binary_outputs(answer) == {"OUTPUT0": SAMPLES[datatype].raw}


@models
@all_types
def test_grpc_raw(server: ServerProcess, kind: str, datatype: str) -> None:
    response = grpc_infer(server.grpc_port, ask(kind, datatype))
    (output,) = response.outputs
    assert (output.datatype, tuple(output.shape)) == (datatype, SHAPE)
    assert raw_outputs(response) == {"OUTPUT0": SAMPLES[datatype].raw}


@models
@pytest.mark.parametrize("datatype", TYPED)
def test_grpc_typed_contents(server: ServerProcess, kind: str, datatype: str) -> None:
    sample = SAMPLES[datatype]
    assert sample.field is not None
    values = [value.encode() for value in sample.values] if datatype == "BYTES" else sample.values
    request = service_pb2.ModelInferRequest(model_name=f"{kind}_{datatype}")
    given = request.inputs.add(name="INPUT0", datatype=datatype, shape=SHAPE)
    getattr(given.contents, sample.field).extend(values)
    with channel(server.grpc_port) as opened:
        response = stub(opened).ModelInfer(request, timeout=SECONDS)
    assert raw_outputs(response) == {"OUTPUT0": sample.raw}


@all_types
def test_json_in_and_binary_out(server: ServerProcess, datatype: str) -> None:
    sample = SAMPLES[datatype]
    body = {
        "inputs": [{"name": "INPUT0", "datatype": datatype, "shape": SHAPE, "data": sample.values}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
    answer = http(server.http_port, "POST", infer_path(f"identity_{datatype}"), json.dumps(body).encode())
    assert binary_outputs(answer) == {"OUTPUT0": sample.raw}


@all_types
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_elements_at_all(server: ServerProcess, protocol: str, datatype: str) -> None:
    empty = Ask((Input("INPUT0", datatype, (1, 0), b""),), model=f"identity_{datatype}")
    if protocol == "http":
        assert http_infer(server.http_port, empty).status == 200
    else:
        assert raw_outputs(grpc_infer(server.grpc_port, empty)) == {"OUTPUT0": b""}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_bytes_that_are_no_text(server: ServerProcess, protocol: str) -> None:
    raw = pack("<I", 3) + b"\xff\x00\xfe"
    given = Ask((Input("INPUT0", "BYTES", (1, 1), raw),), model="identity_BYTES")
    if protocol == "http":
        assert binary_outputs(http_infer(server.http_port, given)) == {"OUTPUT0": raw}
    else:
        assert raw_outputs(grpc_infer(server.grpc_port, given)) == {"OUTPUT0": raw}
