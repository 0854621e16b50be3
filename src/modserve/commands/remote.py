"""Another server, over HTTP or gRPC: the few calls that a comparison with it takes. All of them block."""

import http.client
import json
import struct
import urllib.parse
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from modserve.core import dtypes
from modserve.core.errors import ModserveError, invalid, unavailable
from modserve.core.request import InferenceRequest
from modserve.core.tensor import Tensor
from modserve.pb import inference as pb

_SECONDS = 60.0
_LENGTH = "Inference-Header-Content-Length"
_LONGEST_ERROR = 500
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

M = TypeVar("M", bound=Message)


class UnreachableError(ModserveError):
    """Nobody answers at the address, or no server that speaks the protocol."""


class Remote(Protocol):
    """All methods raise UnreachableError, and INVALID_ARG with the text of an error that the server returns."""

    def check(self) -> None:
        """Whether there is a server at all."""

    def ready_models(self) -> set[str]:
        """The names of the models that serve."""

    def metadata(self, model: str) -> pb.ModelMetadataResponse: ...

    def config(self, model: str, version: int) -> pb.ModelConfig: ...

    def infer(self, request: InferenceRequest) -> Mapping[str, Tensor]:
        """The outputs by name."""

    def close(self) -> None: ...


def connect(url: str) -> Remote:
    """To ``http://…``, ``https://…``, ``grpc://…`` or ``grpcs://…``. Raises INVALID_ARG for other addresses."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise invalid(f"'{url}' is no address: {error}") from None
    if not host or parts.scheme not in ("http", "https", "grpc", "grpcs"):
        raise invalid(f"'{url}' is no address of a server; expected such as http://127.0.0.1:8000 or grpc://host:8001")
    if parts.scheme.startswith("grpc"):
        target = f"[{host}]" if ":" in host else host
        return _OverGrpc(url, f"{target}:{port or 8001}", secure=parts.scheme == "grpcs")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return _OverHttp(url, kind(host, port or (8000 if parts.scheme == "http" else 443), timeout=_SECONDS), parts.path)


# HTTP


class _OverHttp:
    def __init__(self, url: str, connection: http.client.HTTPConnection, prefix: str) -> None:
        self._url = url
        self._connection = connection
        self._prefix = prefix.rstrip("/")

    def check(self) -> None:
        self._message("/v2", pb.ServerMetadataResponse())
        self._connection.close()  # it would be closed over there while models load

    def ready_models(self) -> set[str]:
        rows: Any = self._json("POST", "/v2/repository/index", b'{"ready":true}')
        return {row["name"] for row in rows}

    def metadata(self, model: str) -> pb.ModelMetadataResponse:
        return self._message(f"/v2/models/{_quoted(model)}", pb.ModelMetadataResponse())

    def config(self, model: str, version: int) -> pb.ModelConfig:
        return self._message(f"/v2/models/{_quoted(model)}/versions/{version}/config", pb.ModelConfig())

    def infer(self, request: InferenceRequest) -> Mapping[str, Tensor]:
        raws = {name: bytes(tensor.raw) for name, tensor in request.inputs.items()}
        head = json.dumps(
            {
                "id": request.id,
                "parameters": {**request.parameters, "binary_data_output": True},
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
        ).encode()
        path = f"/v2/models/{_quoted(request.model_name)}/versions/{request.version}/infer"
        response, body = self._call("POST", path, head + b"".join(raws.values()), {_LENGTH: str(len(head))})
        length = int(response.headers.get(_LENGTH, len(body)))
        outputs: dict[str, Tensor] = {}
        for row in _parsed(self._url, body[:length])["outputs"]:
            datatype, shape = dtypes.BY_NAME[row["datatype"]], tuple(row["shape"])
            size = row.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[row["name"]] = _from_json(datatype, shape, row["data"])
            else:
                outputs[row["name"]] = Tensor.from_raw(datatype, shape, body[length : length + size])
                length += size
        return outputs

    def close(self) -> None:
        self._connection.close()

    def _message(self, path: str, message: M) -> M:
        try:
            return json_format.ParseDict(self._json("GET", path), message, ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise UnreachableError(_UNAVAILABLE.code, f"{self._url} speaks another protocol: {error}") from error

    def _json(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        return _parsed(self._url, self._call(method, path, body, {})[1])

    def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            self._connection.request(method, self._prefix + path, body, dict(headers))
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            why = str(error) or type(error).__name__
            raise UnreachableError(_UNAVAILABLE.code, f"cannot reach a server at {self._url}: {why}") from error
        if response.status != 200:
            try:
                text = str(json.loads(content)["error"])
            except (ValueError, KeyError, TypeError):
                text = content.decode(errors="replace").strip()
            raise invalid(text[:_LONGEST_ERROR] or f"status {response.status}")
        return response, content


_UNAVAILABLE = unavailable("")


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _parsed(url: str, content: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise UnreachableError(_UNAVAILABLE.code, f"{url} speaks another protocol: its response is no JSON") from error
    return value


def _from_json(datatype: dtypes.Datatype, shape: tuple[int, ...], data: list[Any]) -> Tensor:
    if datatype is dtypes.BYTES:
        texts = [str(text).encode() for text in np.array(data, dtype=object).ravel()]
        return Tensor.from_raw(datatype, shape, b"".join(struct.pack("<I", len(text)) + text for text in texts))
    return Tensor.from_array(np.array(data).astype(datatype.numpy).reshape(shape), datatype)


# gRPC


class _OverGrpc:
    def __init__(self, url: str, target: str, *, secure: bool) -> None:
        self._url = url
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        credentials = grpc.ssl_channel_credentials() if secure else None
        self._channel = (
            grpc.insecure_channel(target, options)
            if credentials is None
            else grpc.secure_channel(target, credentials, options)
        )

    def check(self) -> None:
        self._call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)

    def ready_models(self) -> set[str]:
        request = pb.RepositoryIndexRequest(ready=True)
        return {row.name for row in self._call("RepositoryIndex", request, pb.RepositoryIndexResponse).models}

    def metadata(self, model: str) -> pb.ModelMetadataResponse:
        return self._call("ModelMetadata", pb.ModelMetadataRequest(name=model), pb.ModelMetadataResponse)

    def config(self, model: str, version: int) -> pb.ModelConfig:
        request = pb.ModelConfigRequest(name=model, version=str(version))
        return self._call("ModelConfig", request, pb.ModelConfigResponse).config

    def infer(self, request: InferenceRequest) -> Mapping[str, Tensor]:
        message = pb.ModelInferRequest(model_name=request.model_name, model_version=str(request.version), id=request.id)
        fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        for key, value in request.parameters.items():
            setattr(message.parameters[key], fields[type(value)], value)
        for name, tensor in request.inputs.items():
            message.inputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
            message.raw_input_contents.append(bytes(tensor.raw))
        response = self._call("ModelInfer", message, pb.ModelInferResponse)
        return {
            row.name: Tensor.from_raw(dtypes.BY_NAME[row.datatype], tuple(row.shape), raw)
            for row, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }

    def close(self) -> None:
        self._channel.close()

    def _call(self, name: str, request: Message, kind: type[M]) -> M:
        method = self._channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        try:
            response: M = method(request, timeout=_SECONDS)
        except grpc.RpcError as error:
            text = str(error.details())[:_LONGEST_ERROR]
            if error.code() in _UNREACHABLE:
                message = f"cannot reach a server at {self._url}: {text}"
                raise UnreachableError(_UNAVAILABLE.code, message) from error
            raise invalid(text or str(error.code().name)) from error
        return response
