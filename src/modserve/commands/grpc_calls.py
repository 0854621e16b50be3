"""Calls over gRPC to a server that runs. All of them block."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from modserve.core import dtypes
from modserve.core.errors import invalid
from modserve.core.request import InferenceRequest, ParameterValue
from modserve.core.tensor import Tensor
from modserve.pb import inference as pb

from .access import Access, RefusedError, UnreachableError
from .http_calls import START, advice_on
from .remote import FIELDS, FINAL, Reply

_LONGEST_ERROR = 2000
_PREFIX = "triton-grpc-protocol-"
"""What stands before the names of headers that open restricted calls."""
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

M = TypeVar("M", bound=Message)


class OverGrpc:
    """A `remote.Remote` over gRPC."""

    def __init__(self, access: Access) -> None:
        place = access.address
        self._url = place.url
        self._seconds = access.seconds
        self._metadata = tuple(_metadata(access.headers))
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        host = f"[{place.host}]" if ":" in place.host else place.host
        target = f"{host}:{place.port}"
        if not place.secure:
            self._channel = grpc.insecure_channel(target, options)
            return
        if access.insecure:
            raise invalid("gRPC always checks certificates; '--ca-file' names a PEM file with the authority to trust")
        files = [_content(file) for file in (access.ca_file, access.key, access.certificate)]
        self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(*files), options)

    def check(self) -> None:
        self._call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)

    def ready_models(self) -> set[str]:
        request = pb.RepositoryIndexRequest(ready=True)
        return {row.name for row in self._call("RepositoryIndex", request, pb.RepositoryIndexResponse).models}

    def metadata(self, model: str, version: int | None = None) -> pb.ModelMetadataResponse:
        request = pb.ModelMetadataRequest(name=model, version="" if version is None else str(version))
        return self._call("ModelMetadata", request, pb.ModelMetadataResponse)

    def config(self, model: str, version: int | None) -> pb.ModelConfig:
        request = pb.ModelConfigRequest(name=model, version="" if version is None else str(version))
        return self._call("ModelConfig", request, pb.ModelConfigResponse).config

    def infer(self, request: InferenceRequest) -> Mapping[str, Tensor]:
        return self.respond(request).outputs

    def respond(self, request: InferenceRequest, classes: int = 0) -> Reply:
        return _reply(self._call("ModelInfer", message(request, classes), pb.ModelInferResponse))

    def stream(self, request: InferenceRequest, classes: int = 0) -> Iterator[Reply]:
        call = self._channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        try:
            for each in call(iter([message(request, classes)]), timeout=self._seconds, metadata=self._metadata):
                if each.error_message:
                    raise RefusedError(each.error_message[:_LONGEST_ERROR], "stream", advice_on(each.error_message))
                reply = _reply(each.infer_response)
                if reply.outputs or not reply.parameters.get(FINAL):
                    yield reply
        except grpc.RpcError as error:
            raise self._failure(error) from error

    def extensions(self) -> set[str]:
        return set(self._call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse).extensions)

    def statistics(self, model: str, version: int | None) -> pb.ModelStatisticsResponse:
        request = pb.ModelStatisticsRequest(name=model, version="" if version is None else str(version))
        return self._call("ModelStatistics", request, pb.ModelStatisticsResponse)

    def close(self) -> None:
        self._channel.close()

    def _call(self, name: str, request: Message, kind: type[M]) -> M:
        method = self._channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        try:
            response: M = method(request, timeout=self._seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failure(error) from error
        return response

    def _failure(self, error: Any) -> UnreachableError | RefusedError:
        text = str(error.details())[:_LONGEST_ERROR]
        known = advice_on(text)
        if error.code() in _UNREACHABLE and not known:
            message = f"cannot reach a server at {self._url}: {text}"
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return UnreachableError(message, f"--timeout allows more than {self._seconds:g} s")
            if "CERTIFICATE_VERIFY_FAILED" in text:
                return UnreachableError(message, "--ca-file names a PEM file with its authority")
            return UnreachableError(message, f"--url grpc://HOST:PORT names the gRPC port; {START}")
        return RefusedError(text or str(error.code().name), str(error.code().name), known)


def message(request: InferenceRequest, classes: int = 0) -> pb.ModelInferRequest:
    """A request as gRPC sends it, with raw tensors."""
    version = "" if request.version is None else str(request.version)
    made = pb.ModelInferRequest(model_name=request.model_name, model_version=version, id=request.id)
    for key, value in request.parameters.items():
        setattr(made.parameters[key], FIELDS[type(value)], value)
    for name, tensor in request.inputs.items():
        made.inputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
        made.raw_input_contents.append(bytes(tensor.raw))
    for name in request.outputs:
        output = made.outputs.add(name=name)
        if classes:
            output.parameters["classification"].int64_param = classes
    return made


def _reply(response: pb.ModelInferResponse) -> Reply:
    parameters: dict[str, ParameterValue] = {}
    for key, value in response.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            parameters[key] = getattr(value, kind)
    outputs = {
        row.name: Tensor.from_raw(dtypes.BY_NAME[row.datatype], tuple(row.shape), raw)
        for row, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return Reply(response.model_name, response.model_version, response.id, parameters, outputs)


def _metadata(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Headers as they are, and as those that open restricted calls."""
    for name, value in headers.items():
        lower = name.lower()
        yield lower, value
        if not lower.startswith(_PREFIX):
            yield _PREFIX + lower, value


def _content(file: str) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise invalid(f"cannot read {file}: {error.strerror}; see '--ca-file', '--cert' and '--key'") from None
