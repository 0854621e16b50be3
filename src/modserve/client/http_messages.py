"""Requests and responses of KServe v2 over HTTP, with binary tensors, as bytes: nothing here waits for anything."""

import struct
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.errors import Code
from modserve.core.tensor import Buffer, Shape, Tensor

from .address import Address
from .errors import ClientError, from_status
from .transport import MODEL_READY, PROBES, Question
from .values import FINAL, Call, Result, version_of

LENGTH = "inference-header-content-length"
LINES = "application/x-ndjson"
_PATIENCE = "x-request-timeout-ms"
_LONGEST_TEXT = 4096


@dataclass(frozen=True, slots=True, eq=False)
class HttpRequest:
    """`parts` are the body; `timeout` (seconds) bounds all of the call."""

    method: str
    target: str
    headers: Mapping[str, str]
    parts: tuple[Buffer, ...] = ()
    timeout: float | None = None

    @property
    def length(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True, slots=True, eq=False)
class HttpReply:
    """`headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _model_path(model: str, version: int | None) -> str:
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{version}"


def request(address: Address, question: Question) -> HttpRequest:
    operation = question.operation
    name = urllib.parse.quote(question.model, safe="")
    path = operation.path.format(model=_model_path(question.model, question.version), name=name)
    parts: tuple[bytes, ...] = ()
    if operation.method == "POST":
        parts = (orjson.dumps({"parameters": dict(question.parameters)} if question.parameters else {}),)
    return HttpRequest(operation.method, address.prefix + path, {}, parts, question.timeout)


def answer(question: Question, reply: HttpReply) -> Any:
    """Raises ClientError."""
    if question.operation in PROBES and (reply.status < 500 or reply.status == 503):
        if question.operation is MODEL_READY and reply.status == 404:
            return False
        if reply.status in (200, 400, 503):
            return reply.status == 200
    check(reply)
    return _parsed(reply.body) if reply.body or question.operation.method == "GET" else {}


def infer(address: Address, call: Call) -> HttpRequest:
    raws = [tensor.raw for tensor in call.tensors.values()]
    head = _head(call, binary=True)
    head["inputs"] = [
        {**_described(name, tensor), "parameters": {"binary_data_size": len(raw)}}
        for (name, tensor), raw in zip(call.tensors.items(), raws, strict=True)
    ]
    text = orjson.dumps(head)
    headers = {LENGTH: str(len(text)), "content-type": "application/octet-stream", **_patience(call)}
    target = f"{address.prefix}{_model_path(call.model, call.version)}/infer"
    return HttpRequest("POST", target, headers, (text, *raws), call.timeout)


def stream(address: Address, call: Call) -> HttpRequest:
    """``infer_stream``, an extension of modserve: a response in each line."""
    head = _head(call, binary=False)
    raws = [tensor.raw for tensor in call.tensors.values()]
    head["inputs"] = [
        {**_described(name, tensor), "parameters": {"binary_data_size": len(raw)}}
        for (name, tensor), raw in zip(call.tensors.items(), raws, strict=True)
    ]
    text = orjson.dumps(head)
    headers = {LENGTH: str(len(text)), "content-type": "application/octet-stream", "accept": LINES, **_patience(call)}
    target = f"{address.prefix}{_model_path(call.model, call.version)}/infer_stream"
    return HttpRequest("POST", target, headers, (text, *raws), call.timeout)


def _head(call: Call, binary: bool) -> dict[str, Any]:
    parameters = dict(call.parameters or {})
    head: dict[str, Any] = {}
    if call.request_id:
        head["id"] = call.request_id
    if call.outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": binary}} for name in call.outputs]
    elif binary:
        parameters["binary_data_output"] = True
    if parameters:
        head["parameters"] = parameters
    return head


def _described(name: str, tensor: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": list(tensor.shape), "datatype": tensor.datatype.name}


def _patience(call: Call) -> dict[str, str]:
    """The server drops a request for which nobody waits any more."""
    return {} if not call.timeout else {_PATIENCE: f"{max(0.001, call.timeout * 1000):.3f}"}


def check(reply: HttpReply) -> None:
    """Raises the failure that the response reports."""
    if reply.status == 200:
        return
    try:
        text = str(orjson.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        text = reply.body[:_LONGEST_TEXT].decode(errors="replace").strip()
    raise from_status(reply.status, text)


def result(reply: HttpReply) -> Result:
    """Raises ClientError."""
    check(reply)
    try:
        length = int(reply.headers.get(LENGTH, len(reply.body)))
    except ValueError:
        raise _not_understood("its header length is no number") from None
    return _result(_parsed(memoryview(reply.body)[:length]), memoryview(reply.body)[length:])


def streamed(line: bytes) -> Result:
    """A line of ``infer_stream``. Raises the failure that it reports."""
    document = _parsed(line)
    if "error" in document:
        raise from_status(int(document.get("status", 500)), str(document["error"]))
    return _result(document, memoryview(b""))


def _result(document: Mapping[str, Any], binary: memoryview) -> Result:
    try:
        tensors: dict[str, Tensor] = {}
        at = 0
        for row in document.get("outputs") or ():
            datatype, shape = dtypes.BY_NAME[row["datatype"]], tuple(map(int, row["shape"]))
            size = (row.get("parameters") or {}).get("binary_data_size")
            if size is None:
                tensors[row["name"]] = _from_json(datatype, shape, row.get("data") or [])
            else:
                tensors[row["name"]] = Tensor.from_raw(datatype, shape, binary[at : at + size])
                at += size
        version = version_of(str(document.get("model_version", "")))
        name, parameters = str(document.get("model_name", "")), document.get("parameters")
        return Result(name, version, tensors, str(document.get("id", "")), parameters)
    except (KeyError, TypeError, ValueError) as error:
        raise _not_understood(repr(error)) from error


def _from_json(datatype: Datatype, shape: Shape, data: list[Any]) -> Tensor:
    if datatype is dtypes.BYTES:
        texts = [str(text).encode() for text in np.array(data, dtype=object).reshape(-1)]
        return Tensor.from_raw(datatype, shape, b"".join(struct.pack("<I", len(text)) + text for text in texts))
    return Tensor.from_array(np.array(data).astype(datatype.numpy).reshape(shape), datatype)


def _parsed(text: Buffer) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise _not_understood("it is no JSON") from error


def _not_understood(why: str) -> ClientError:
    return ClientError(Code.UNKNOWN, f"the response cannot be understood: {why}", 200)


def is_end(result: Result) -> bool:
    """Whether it only ends a stream; of others the mark of the last response is taken off."""
    bare = result.is_bare_end
    result.parameters.pop(FINAL, None)
    return bare
