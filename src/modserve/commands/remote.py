"""A server that runs, over HTTP or gRPC: the calls about a model, with tensors. All of them block."""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from modserve.core import dtypes
from modserve.core.request import InferenceRequest, ParameterValue
from modserve.core.tensor import Tensor
from modserve.pb import inference as pb

from .access import Access, RefusedError, UnreachableError, address
from .http_calls import HttpCalls, quoted

__all__ = ["Remote", "Reply", "UnreachableError", "connect"]

_LENGTH = "Inference-Header-Content-Length"
FINAL = "triton_final_response"
FIELDS: Mapping[type, str] = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response to an inference request."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    outputs: Mapping[str, Tensor] = field(default_factory=dict)


class Remote(Protocol):
    """All methods raise UnreachableError, and RefusedError (INVALID_ARG) with the text of the server's error."""

    def check(self) -> None:
        """Whether there is a server at all."""

    def ready_models(self) -> set[str]:
        """The names of the models that serve."""

    def metadata(self, model: str, version: int | None = None) -> pb.ModelMetadataResponse: ...

    def config(self, model: str, version: int | None) -> pb.ModelConfig: ...

    def infer(self, request: InferenceRequest) -> Mapping[str, Tensor]:
        """The outputs by name."""

    def respond(self, request: InferenceRequest, classes: int = 0) -> Reply:
        """The response; `classes` above 0 asks for so many best classes of each output in place of its values."""

    def stream(self, request: InferenceRequest, classes: int = 0) -> Iterator[Reply]:
        """The responses of a decoupled model, as they come."""

    def extensions(self) -> set[str]:
        """The parts of the protocol that the server says it has."""

    def statistics(self, model: str, version: int | None) -> pb.ModelStatisticsResponse: ...

    def close(self) -> None: ...


def connect(url: str | Access) -> Remote:
    """To ``http://…``, ``https://…``, ``grpc://…`` or ``grpcs://…``. Raises INVALID_ARG for other addresses."""
    access = Access(address(url)) if isinstance(url, str) else url
    if access.address.over_grpc:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or the library writes lines of its own
        from .grpc_calls import OverGrpc  # gRPC's library takes a fifth of a second

        return OverGrpc(access)
    return OverHttp(HttpCalls(access))


class OverHttp:
    """A `Remote` over HTTP; inputs and outputs are binary, but for streams."""

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls

    def check(self) -> None:
        self._message("/v2", pb.ServerMetadataResponse())
        self._calls.close()  # it would be closed over there while models load

    def ready_models(self) -> set[str]:
        rows: Any = self._calls.json("POST", "/v2/repository/index", b'{"ready":true}')
        return {row["name"] for row in rows}

    def metadata(self, model: str, version: int | None = None) -> pb.ModelMetadataResponse:
        return self._message(path(model, version), pb.ModelMetadataResponse())

    def config(self, model: str, version: int | None) -> pb.ModelConfig:
        return self._message(f"{path(model, version)}/config", pb.ModelConfig())

    def infer(self, request: InferenceRequest) -> Mapping[str, Tensor]:
        return self.respond(request).outputs

    def respond(self, request: InferenceRequest, classes: int = 0) -> Reply:
        head, body = encoded(request, classes, binary=True)
        response = self._calls.call(
            "POST", f"{path(request.model_name, request.version)}/infer", body, {_LENGTH: str(head)}
        )
        length = int(response.headers.get(_LENGTH.lower(), len(response.content)))
        return self._decoded(response.content[:length], response.content[length:])

    def stream(self, request: InferenceRequest, classes: int = 0) -> Iterator[Reply]:
        head, body = encoded(request, classes, binary=False)
        headers = {_LENGTH: str(head), "Accept": "application/x-ndjson"}
        for line in self._calls.lines(f"{path(request.model_name, request.version)}/infer_stream", body, headers):
            reply = self._decoded(line, b"")
            if reply.outputs or not reply.parameters.get(FINAL):
                yield reply

    def extensions(self) -> set[str]:
        return set(self._message("/v2", pb.ServerMetadataResponse()).extensions)

    def statistics(self, model: str, version: int | None) -> pb.ModelStatisticsResponse:
        return self._message(f"{path(model, version)}/stats", pb.ModelStatisticsResponse())

    def close(self) -> None:
        self._calls.close()

    def _decoded(self, head: bytes, raws: bytes) -> Reply:
        row = self._parsed(head)
        if "error" in row:
            raise RefusedError(str(row["error"]), 200)
        outputs: dict[str, Tensor] = {}
        offset = 0
        for each in row.get("outputs", ()):
            datatype, shape = dtypes.BY_NAME[each["datatype"]], tuple(each["shape"])
            size = each.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[each["name"]] = _from_json(datatype, shape, each["data"])
            else:
                outputs[each["name"]] = Tensor.from_raw(datatype, shape, raws[offset : offset + size])
                offset += size
        return Reply(
            row.get("model_name", ""),
            row.get("model_version", ""),
            row.get("id", ""),
            row.get("parameters", {}),
            outputs,
        )

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise UnreachableError(f"{self._calls.url} speaks another protocol: its response is no JSON") from error
        return value

    def _message(self, path: str, message: M) -> M:
        try:
            return json_format.ParseDict(self._calls.json("GET", path), message, ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise UnreachableError(f"{self._calls.url} speaks another protocol: {error}") from error


def path(model: str, version: int | None) -> str:
    """That of a model, or of one of its versions."""
    return f"/v2/models/{quoted(model)}" + ("" if version is None else f"/versions/{version}")


def encoded(request: InferenceRequest, classes: int, *, binary: bool) -> tuple[int, bytes]:
    """The length of a request's JSON, and its body; inputs are `binary`, and outputs if it is set."""
    raws = {name: bytes(tensor.raw) for name, tensor in request.inputs.items()}
    document: dict[str, Any] = {
        "id": request.id,
        "parameters": {**request.parameters, **({"binary_data_output": True} if binary else {})},
        "inputs": [
            {
                "name": name,
                "datatype": tensor.datatype.name,
                "shape": list(tensor.shape),
                "parameters": {"binary_data_size": len(raws[name])},
            }
            for name, tensor in request.inputs.items()
        ],
    }
    if request.outputs:
        parameters: dict[str, Any] = {"binary_data": binary}
        if classes:
            parameters["classification"] = classes
        document["outputs"] = [{"name": name, "parameters": parameters} for name in request.outputs]
    head = json.dumps(document).encode()
    return len(head), head + b"".join(raws.values())


def _from_json(datatype: dtypes.Datatype, shape: tuple[int, ...], data: list[Any]) -> Tensor:
    if datatype is dtypes.BYTES:
        texts = [str(text).encode() for text in np.array(data, dtype=object).ravel()]
        return Tensor.from_raw(datatype, shape, b"".join(struct.pack("<I", len(text)) + text for text in texts))
    return Tensor.from_array(np.array(data).astype(datatype.numpy).reshape(shape), datatype)
