"""The bytes of requests, made once: HTTP with binary or JSON tensors, and messages of gRPC."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modserve.core import dtypes
from modserve.core.byte_strings import decode_elements
from modserve.core.errors import invalid
from modserve.core.tensor import Tensor
from modserve.pb import inference as pb

from ..remote import path
from .inputs import Inputs

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
_PREFIX = "triton-grpc-protocol-"


def http_request(
    authority: str, url: str, inputs: Inputs, headers: Sequence[tuple[str, str]], *, binary: bool
) -> bytes:
    """A whole request, head and body. Raises INVALID_ARG for strings that JSON does not have."""
    raws = [bytes(tensor.raw) for tensor in inputs.values()] if binary else []
    rows = [_row(name, tensor, binary) for name, tensor in inputs.items()]
    document: dict[str, Any] = {"inputs": rows}
    if binary:
        document["parameters"] = {"binary_data_output": True}
    text = json.dumps(document, separators=(",", ":")).encode()
    length = len(text) + sum(map(len, raws))
    lines = [f"POST {url} HTTP/1.1", f"Host: {authority}", f"Content-Length: {length}"]
    if binary:
        lines += ["Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {len(text)}"]
    else:
        lines += ["Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return b"".join(["\r\n".join([*lines, "", ""]).encode("latin-1"), text, *raws])


def _row(name: str, tensor: Tensor, binary: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "datatype": tensor.datatype.name, "shape": list(tensor.shape)}
    if binary:
        row["parameters"] = {"binary_data_size": len(tensor.raw)}
    elif tensor.datatype is dtypes.BYTES:
        try:
            row["data"] = [element.decode() for element in decode_elements(tensor.raw)]
        except UnicodeDecodeError:
            raise invalid(f"input '{name}' has strings that are no UTF-8, which JSON cannot carry") from None
    elif tensor.datatype.json_kind == "float":
        row["data"] = [float(value) for value in tensor.array.ravel()]
    else:
        row["data"] = tensor.array.ravel().tolist()
    return row


def http_path(prefix: str, model: str, version: int | None) -> str:
    return f"{prefix}{path(model, version)}/infer"


def grpc_message(model: str, version: int | None, inputs: Inputs) -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version="" if version is None else str(version))
    for name, tensor in inputs.items():
        message.inputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.raw))
    return message.SerializeToString()


def grpc_metadata(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Headers as they are, and as those that open restricted calls of Triton's."""
    for name, value in headers.items():
        lower = name.lower()
        yield lower, value
        if not lower.startswith(_PREFIX):
            yield _PREFIX + lower, value
