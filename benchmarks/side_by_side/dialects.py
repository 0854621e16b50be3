"""How a request for a model is spelled for each server, and how its response is read."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import orjson

from modserve.pb import inference as pb

from .models import DATATYPES, Model, Tensor

JSON, BINARY, GRPC = "HTTP JSON", "HTTP binary", "gRPC"
WAYS = {"json": JSON, "binary": BINARY, "grpc": GRPC}
LENGTH = "Inference-Header-Content-Length"
_NUMPY = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


@dataclass(frozen=True)
class Request:
    """A prepared request: over gRPC `body` is the message, and `path` is the method."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    write: Callable[[Model], Request]
    read: Callable[[Model, Mapping[str, str], bytes], dict[str, Tensor]]
    """Of a response's headers (names in lower case) and body: the outputs. Raises ValueError, KeyError or TypeError."""
    is_v2: bool = False
    """Whether tritonclient speaks it."""


def _json(path: str, content: object) -> Request:
    return Request(path, orjson.dumps(content), {"Content-Type": "application/json"})


# ---- The KServe protocol, version 2


def _v2_path(model: Model) -> str:
    return f"/v2/models/{model.name}/infer"


def _v2_input(name: str, tensor: Tensor) -> dict[str, object]:
    return {"name": name, "shape": list(tensor.shape), "datatype": DATATYPES[str(tensor.dtype)]}


def _write_v2_json(model: Model) -> Request:
    inputs = [{**_v2_input(name, each), "data": each.ravel().tolist()} for name, each in model.inputs.items()]
    return _json(_v2_path(model), {"inputs": inputs})


def _write_v2_binary(model: Model) -> Request:
    inputs = [
        {**_v2_input(name, each), "parameters": {"binary_data_size": each.nbytes}}
        for name, each in model.inputs.items()
    ]
    text = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    body = text + b"".join(each.tobytes() for each in model.inputs.values())
    return Request(_v2_path(model), body, {"Content-Type": "application/octet-stream", LENGTH: str(len(text))})


def _read_v2(model: Model, headers: Mapping[str, str], body: bytes) -> dict[str, Tensor]:
    length = int(headers.get(LENGTH.lower(), len(body)))
    outputs, at = {}, length
    for output in json.loads(body[:length])["outputs"]:
        dtype = _NUMPY[output["datatype"]]
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            values = np.asarray(output["data"], dtype)
        else:
            values = np.frombuffer(body[at : at + size], dtype)
            at += size
        outputs[output["name"]] = values.reshape(output["shape"])
    return outputs


def _write_v2_grpc(model: Model) -> Request:
    tensor = pb.ModelInferRequest.InferInputTensor
    message = pb.ModelInferRequest(
        model_name=model.name,
        inputs=[
            tensor(name=name, datatype=DATATYPES[str(each.dtype)], shape=each.shape)
            for name, each in model.inputs.items()
        ],
        raw_input_contents=[each.tobytes() for each in model.inputs.values()],
    )
    return Request(f"/{pb.SERVICE}/ModelInfer", message.SerializeToString())


def _read_v2_grpc(model: Model, headers: Mapping[str, str], body: bytes) -> dict[str, Tensor]:
    response = pb.ModelInferResponse.FromString(body)
    if len(response.raw_output_contents) != len(response.outputs):
        raise ValueError(f"{len(response.outputs)} outputs with {len(response.raw_output_contents)} raw contents")
    return {
        output.name: np.frombuffer(raw, _NUMPY[output.datatype]).reshape(list(output.shape))
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


# ---- A JSON object of tensors, as frameworks without a protocol of their own have it


def _write_plain(path: Callable[[Model], str]) -> Callable[[Model], Request]:
    def write(model: Model) -> Request:
        return _json(path(model), {name: each.tolist() for name, each in model.inputs.items()})

    return write


def _read_plain(model: Model, headers: Mapping[str, str], body: bytes) -> dict[str, Tensor]:
    content = json.loads(body)
    return {name: np.asarray(content[name], _NUMPY[datatype]) for name, (datatype, _) in model.outputs.items()}


# ---- TorchServe's own gRPC service: PredictionsRequest(model_name=1, input=3 map) and PredictionResponse(prediction=1)


def _write_torchserve_grpc(model: Model) -> Request:
    message = protobuf_field(1, model.name.encode())
    for name, each in model.inputs.items():
        message += protobuf_field(3, protobuf_field(1, name.encode()) + protobuf_field(2, each.tobytes()))
    return Request("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions", message)


def protobuf_field(number: int, value: bytes) -> bytes:
    """A length-delimited field."""
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _read_torchserve_grpc(model: Model, headers: Mapping[str, str], body: bytes) -> dict[str, Tensor]:
    at, length, shift = 1, 0, 0
    while True:
        length |= (body[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if body[at - 1] < 0x80:
            break
    data = body[at : at + length]
    outputs: dict[str, Tensor] = {}
    for name, (datatype, dims) in model.outputs.items():
        size = int(np.prod(dims)) * np.dtype(_NUMPY[datatype]).itemsize
        outputs[name] = np.frombuffer(data[:size], _NUMPY[datatype]).reshape(1, *dims)
        data = data[size:]
    return outputs


V2_JSON = Dialect(_write_v2_json, _read_v2, is_v2=True)
V2_BINARY = Dialect(_write_v2_binary, _read_v2, is_v2=True)
V2_GRPC = Dialect(_write_v2_grpc, _read_v2_grpc, is_v2=True)
PLAIN_JSON = Dialect(_write_plain(lambda model: f"/{model.name}"), _read_plain)
TORCHSERVE_JSON = Dialect(_write_plain(lambda model: f"/predictions/{model.name}"), _read_plain)
TORCHSERVE_GRPC = Dialect(_write_torchserve_grpc, _read_torchserve_grpc)


def frame(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, its length, itself."""
    return b"\0" + struct.pack(">I", len(message)) + message
