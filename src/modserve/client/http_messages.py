"""Requests and responses of KServe v2 over HTTP, with binary tensors, as bytes, without I/O."""

import base64
import struct
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Buffer, Shape, Tensor

from .address import Address
from .errors import bad_response, from_status
from .input_values import ClientCall, Result, version_of
from .transport import HEALTH, MODEL_READY, ControlCall, Parameters

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
class HttpResponse:
    """`headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def model_path(model: str, version: int | None) -> str:
    """Return the path of a model, of one of its versions, or without a name of all models."""
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}".rstrip("/")
    return path if version is None else f"{path}/versions/{version}"


def request(address: Address, control: ControlCall) -> HttpRequest:
    operation = control.operation
    name = urllib.parse.quote(control.model, safe="")
    path = operation.path.format(model=model_path(control.model, control.version), name=name)
    parts: tuple[bytes, ...] = ()
    if operation.method == "POST":
        parts = (orjson.dumps({"parameters": _json(control.parameters)} if control.parameters else {}),)
    return HttpRequest(operation.method, address.prefix + path, {}, parts, control.timeout)


def _json(parameters: Parameters) -> dict[str, str | bool]:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in parameters.items()
    }


_READY = {200: True, 400: False, 503: False}
"""Readiness by status."""


def answer(control: ControlCall, reply: HttpResponse) -> Any:
    """Raises ClientError."""
    operation, ready = control.operation, _READY.get(reply.status)
    if operation is MODEL_READY and reply.status == 404:
        return False
    if operation.probe and ready is not None:
        return ready
    if operation is HEALTH and ready is not None:
        return {**_details(reply.body), "ready": ready}
    check(reply)
    return _parse(reply.body) if reply.body or operation.method == "GET" else {}


def _details(body: bytes) -> dict[str, Any]:
    """Return what a server adds to its readiness; empty if it adds nothing."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def infer(address: Address, call: ClientCall) -> HttpRequest:
    return _inference(address, call, "infer", {}, binary=True)


def stream(address: Address, call: ClientCall) -> HttpRequest:
    """``infer_stream``, an extension of modserve: a response in each line."""
    return _inference(address, call, "infer_stream", {"accept": LINES}, binary=False)


def _inference(
    address: Address, call: ClientCall, method: str, headers: Mapping[str, str], *, binary: bool
) -> HttpRequest:
    """`binary`: whether the outputs are; the inputs always are."""
    raws = [tensor.raw for tensor in call.tensors.values()]
    head = _head(call, binary)
    head["inputs"] = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "datatype": tensor.datatype.name,
            "parameters": {"binary_data_size": len(raw)},
        }
        for (name, tensor), raw in zip(call.tensors.items(), raws, strict=True)
    ]
    text = orjson.dumps(head)
    fields = {LENGTH: str(len(text)), "content-type": "application/octet-stream", **headers, **_patience(call)}
    target = f"{address.prefix}{model_path(call.model, call.version)}/{method}"
    return HttpRequest("POST", target, fields, (text, *raws), call.timeout)


def _head(call: ClientCall, binary: bool) -> dict[str, Any]:
    parameters = dict(call.parameters or {})
    head: dict[str, Any] = {}
    if call.request_id:
        head["id"] = call.request_id
    if call.outputs:
        details = {"binary_data": binary, **({"classification": call.classes} if call.classes else {})}
        head["outputs"] = [{"name": name, "parameters": details} for name in call.outputs]
    elif binary:
        parameters["binary_data_output"] = True
    if parameters:
        head["parameters"] = parameters
    return head


def _patience(call: ClientCall) -> dict[str, str]:
    """Return the header by which the server drops the request once its client has stopped waiting."""
    return {} if not call.timeout else {_PATIENCE: f"{max(0.001, call.timeout * 1000):.3f}"}


def check(reply: HttpResponse) -> None:
    """Raises the failure that the response reports."""
    if reply.status == 200:
        return
    try:
        error = orjson.loads(reply.body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)  # an object in OpenAI's API
    except (ValueError, KeyError, TypeError):
        text = reply.body[:_LONGEST_TEXT].decode(errors="replace").strip()
    raise from_status(reply.status, text)


def result(reply: HttpResponse) -> Result:
    """Raises ClientError."""
    check(reply)
    try:
        length = int(reply.headers.get(LENGTH, len(reply.body)))
    except ValueError:
        raise bad_response("its header length is not a number") from None
    return _result(_parse(memoryview(reply.body)[:length]), memoryview(reply.body)[length:])


def parse_streamed(line: bytes) -> Result:
    """Return a line of ``infer_stream``. Raises the failure that it reports."""
    document = _parse(line)
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
        raise bad_response(repr(error)) from error


def _from_json(datatype: Datatype, shape: Shape, data: list[Any]) -> Tensor:
    if datatype is dtypes.BYTES:
        texts = [str(text).encode() for text in np.array(data, dtype=object).reshape(-1)]
        return Tensor.from_raw(datatype, shape, b"".join(struct.pack("<I", len(text)) + text for text in texts))
    return Tensor.from_array(np.array(data).astype(datatype.numpy).reshape(shape), datatype)


def _parse(text: Buffer) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise bad_response("it is not JSON") from error
