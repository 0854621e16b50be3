"""Prepared requests as bytes: HTTP with binary or JSON tensors, and gRPC messages."""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from modserve.client import grpc_messages
from modserve.client.http_messages import model_path
from modserve.client.values import ClientCall
from modserve.core.errors import invalid
from modserve.core.requests.request import ParameterValue
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.wire.byte_strings import decode_elements

from .inputs import Inputs

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
GRPC_STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
_NOTHING: Mapping[str, ParameterValue] = MappingProxyType({})
_TAG_WIDTH = 80
"""Bytes of a tag in JSON, so that the lengths in a request's head do not depend on it; spaces fill it up."""


class PreparedRequest(NamedTuple):
    """A request in two parts, between which its tag belongs, if it has one."""

    before: bytes
    after: bytes = b""


def http_request(
    authority: str, url: str, inputs: Inputs, headers: Sequence[tuple[str, str]], *, binary: bool, tagged: bool = False
) -> PreparedRequest:
    """A whole request, head and body; one that is `tagged` with a gap for `http_tag`.

    Raises INVALID_ARG for strings that JSON does not have.
    """
    raws = [bytes(tensor.raw) for tensor in inputs.values()] if binary else []
    rows = json.dumps([_row(name, tensor, binary) for name, tensor in inputs.items()], separators=(",", ":"))
    parameters = '"binary_data_output":true' if binary else ""
    opening = b'{"parameters":{'
    rest = f'{"," if tagged and parameters else ""}{parameters}}},"inputs":{rows}}}'.encode()
    length = len(opening) + (_TAG_WIDTH if tagged else 0) + len(rest)
    lines = [f"POST {url} HTTP/1.1", f"Host: {authority}", f"Content-Length: {length + sum(map(len, raws))}"]
    if binary:
        lines += ["Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {length}"]
    else:
        lines += ["Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    before = "\r\n".join([*lines, "", ""]).encode("latin-1") + opening
    after = b"".join([rest, *raws])
    return PreparedRequest(before, after) if tagged else PreparedRequest(before + after)


SequenceId = int | str
SequenceTag = Callable[[SequenceId, bool, bool], bytes]
"""What a request says of its sequence, as bytes for the slot: the id, whether it is the first one, and the last one."""


def http_tag(sequence: SequenceId, start: bool, end: bool) -> bytes:
    flags = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    return json.dumps(flags, separators=(",", ":"))[1:-1].encode().ljust(_TAG_WIDTH)


def grpc_tag(sequence: SequenceId, start: bool, end: bool) -> bytes:
    """Fields of a ModelInferRequest, which are valid behind those of a prepared one."""
    return grpc_message("", None, {}, {"sequence_id": sequence, "sequence_start": start, "sequence_end": end})


def _row(name: str, tensor: Tensor, binary: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "datatype": tensor.datatype.name, "shape": list(tensor.shape)}
    if binary:
        row["parameters"] = {"binary_data_size": len(tensor.raw)}
    elif tensor.datatype is dtypes.BYTES:
        try:
            row["data"] = [element.decode() for element in decode_elements(tensor.raw)]
        except UnicodeDecodeError:
            raise invalid(f"input '{name}' has strings that are not UTF-8, which JSON cannot represent") from None
    elif tensor.datatype.json_kind == "float":
        row["data"] = [float(value) for value in tensor.array.ravel()]
    else:
        row["data"] = tensor.array.ravel().tolist()
    return row


def http_path(prefix: str, model: str, version: int | None, call: str = "infer") -> str:
    return f"{prefix}{model_path(model, version)}/{call}"


def grpc_message(
    model: str, version: int | None, inputs: Inputs, parameters: Mapping[str, ParameterValue] = _NOTHING
) -> bytes:
    return grpc_messages.infer(ClientCall(model, version, inputs, parameters=parameters)).SerializeToString()
