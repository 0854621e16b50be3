"""The stored form of responses, which other processes may keep.

    MAGIC  digest (16)  length of the head (4)  head (JSON)  tensors, raw, one after the other

The digest covers the request's key and everything after the digest. It reveals bytes that are truncated, changed, of
another version, or stored under another key. Reading executes nothing.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, Tensor

MAGIC = b"modserve response 1\n"
_DIGEST = 16
_LENGTH = 4
_HEAD_AT = len(MAGIC) + _DIGEST + _LENGTH

_BY_NAME = {row.name: row for row in dtypes.ALL}
_Head: TypeAlias = dict[str, Any]


class UnusableError(Exception):
    """Bytes are no response to this request. The text says why."""


def to_bytes(key: bytes, response: InferenceResponse) -> bytes:
    """The response to the request with this key, without its id. It may be kept anywhere."""
    raws = [(name, tensor, tensor.raw) for name, tensor in response.outputs.items()]
    head = json.dumps(
        {
            "model": response.model_name,
            "version": response.model_version,
            "outputs": [[name, one.datatype.name, list(one.shape), len(raw)] for name, one, raw in raws],
            "parameters": dict(response.parameters),
            "skipped": sorted(response.skipped),
        }
    ).encode()
    body = b"".join((len(head).to_bytes(_LENGTH, "big"), head, *(raw for _, _, raw in raws)))
    return MAGIC + _digest(key, body) + body


def from_bytes(key: bytes, kept: bytes) -> InferenceResponse:
    """The response to the request with this key, with an empty id. Its tensors are views. Raises `UnusableError`."""
    if not kept.startswith(MAGIC) or len(kept) < _HEAD_AT:
        raise UnusableError("it is not a response of this version")
    body = memoryview(kept)[len(MAGIC) + _DIGEST :]
    if _digest(key, body) != kept[len(MAGIC) : len(MAGIC) + _DIGEST]:
        raise UnusableError("its digest is wrong")
    try:
        return _read(body)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnusableError(f"it cannot be read: {error}") from None


def _digest(key: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(key, digest_size=_DIGEST)
    digest.update(body)
    return digest.digest()


def _read(body: memoryview) -> InferenceResponse:
    length = int.from_bytes(body[:_LENGTH], "big")
    head: _Head = json.loads(bytes(body[_LENGTH : _LENGTH + length]))
    at = _LENGTH + length
    outputs: dict[str, Tensor] = {}
    for output in map(_output, head["outputs"]):
        raw = body[at : at + output.size]
        at += output.size
        tensor = outputs[output.name] = Tensor.from_raw(output.datatype, output.shape, raw)
        if not output.datatype.size and tensor.count_elements() != math.prod(output.shape):
            raise ValueError(f"output '{output.name}' has a number of elements that does not match its shape")
    if at != len(body):
        raise ValueError(f"{len(body)} bytes, expected {at}")
    parameters: dict[str, ParameterValue] = {str(name): value for name, value in head["parameters"].items()}
    return InferenceResponse(
        head["model"], head["version"], outputs, parameters=parameters, skipped=frozenset(head["skipped"])
    )


@dataclass(frozen=True, slots=True)
class _Output:
    name: str
    datatype: Datatype
    shape: Shape
    size: int


def _output(values: list[Any]) -> _Output:
    name, datatype, shape, size = values
    output = _Output(str(name), _BY_NAME[datatype], tuple(map(int, shape)), int(size))
    expected = math.prod(output.shape) * output.datatype.size
    if min(output.shape, default=0) < 0 or (output.datatype.size and output.size != expected):
        raise ValueError(f"output '{name}' has {size} bytes, expected {expected}")
    return output
