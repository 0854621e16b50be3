"""The RPCs of ``inference.GRPCInferenceService`` and of the health service."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from modserve.core.errors import Code, ModserveError, internal, invalid, unsupported
from modserve.core.request import InferenceRequest
from modserve.core.version import parse_requested
from modserve.pb import inference as pb
from modserve.protocol import classification, grpc_messages, logging_settings, metadata, repository, statistics
from modserve.protocol.status import STATUS
from modserve.server import Server

from .stream import InferStreams

_log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Call: TypeAlias = Callable[[Any, Context], Awaitable[Message]]
StreamCall: TypeAlias = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
GRPC_STATUS = {code: _STATUS_CODES[spelling.grpc] for code, spelling in STATUS.items()}


class InferenceService:
    """The calls that are served, each named like its RPC: message in, message out; raises `ModserveError`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def ServerLive(self, message: pb.ServerLiveRequest, context: Context) -> Message:
        return pb.ServerLiveResponse(live=self._server.live)

    async def ServerReady(self, message: pb.ServerReadyRequest, context: Context) -> Message:
        return pb.ServerReadyResponse(ready=self._server.ready)

    async def ModelReady(self, message: pb.ModelReadyRequest, context: Context) -> Message:
        ready = self._server.model_ready(message.name, parse_requested(message.version))
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, message: pb.ServerMetadataRequest, context: Context) -> Message:
        server = self._server
        return metadata.server_message(server.name, server.version, server.extensions)

    async def ModelMetadata(self, message: pb.ModelMetadataRequest, context: Context) -> Message:
        servables = self._server.models(message.name, parse_requested(message.version))
        return metadata.model_message(servables[-1], [servable.id.version for servable in servables])

    async def ModelConfig(self, message: pb.ModelConfigRequest, context: Context) -> Message:
        servable = self._server.model(message.name, parse_requested(message.version))
        return pb.ModelConfigResponse(config=metadata.config_message(servable))

    async def ModelStatistics(self, message: pb.ModelStatisticsRequest, context: Context) -> Message:
        return statistics.message(self._server.with_statistics(message.name, parse_requested(message.version)))

    async def RepositoryIndex(self, message: pb.RepositoryIndexRequest, context: Context) -> Message:
        repository.check_repository_name(message.repository_name)
        return repository.index_message(self._server.repository_index(message.ready))

    async def RepositoryModelLoad(self, message: pb.RepositoryModelLoadRequest, context: Context) -> Message:
        repository.check_repository_name(message.repository_name)
        repository.check_load_message(message.parameters)
        self._server.load_model(message.model_name)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, message: pb.RepositoryModelUnloadRequest, context: Context) -> Message:
        repository.check_repository_name(message.repository_name)
        repository.check_unload_message(message.parameters)
        self._server.unload_model(message.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def LogSettings(self, message: pb.LogSettingsRequest, context: Context) -> Message:
        logs = self._server.logs
        logs.change(logging_settings.changed_by_message(logs.settings, message))
        return logging_settings.message(logs.settings)

    async def ModelInfer(self, message: pb.ModelInferRequest, context: Context) -> Message:
        now_ns = time.monotonic_ns()
        servable = self._server.model(message.model_name, parse_requested(message.model_version))
        remaining: float | None = context.time_remaining()
        limit_ns = 0 if remaining is None else now_ns + int(remaining * 1e9)
        request: InferenceRequest = grpc_messages.decode_request(message, now_ns, limit_ns)
        counts = grpc_messages.class_counts(message)
        response = await self._server.run(servable, request, now_ns)
        return grpc_messages.encode_response(classification.classified(response, counts, servable))


def handlers(server: Server, streams: InferStreams | None = None) -> "tuple[grpc.GenericRpcHandler[Any, Any], ...]":
    """Generic handlers for both services; RPCs that are not served yet answer UNIMPLEMENTED and say so."""
    service = InferenceService(server)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, method in pb.METHODS.items():
        call: Call | None = getattr(service, name, None)
        if method.client_streaming or method.server_streaming:
            methods[name] = grpc.stream_stream_rpc_method_handler(
                _stream((streams or InferStreams(server)).serve, name),
                response_serializer=method.response.SerializeToString,
            )
        else:
            methods[name] = grpc.unary_unary_rpc_method_handler(
                _unary(call or _unserved(name), method.request),
                response_serializer=method.response.SerializeToString,
            )
    health = {
        "Check": grpc.unary_unary_rpc_method_handler(
            _unary(_check(server), health_pb2.HealthCheckRequest),
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        )
    }
    return (
        grpc.method_handlers_generic_handler(pb.SERVICE, methods),
        grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
    )


def _unary(call: Call, request: type[Message]) -> Callable[[bytes, Context], Awaitable[Message]]:
    """`call` behind the border: bytes are parsed, and errors become statuses."""

    async def handle(data: bytes, context: Context) -> Message:
        try:
            return await call(_parsed(request, data), context)
        except Exception as error:
            failure = _foreseen(error, getattr(call, "__name__", "a call"))
        await context.abort(GRPC_STATUS[failure.code], failure.message)
        raise AssertionError("abort raises: this is a bug")

    return handle


def _stream(call: StreamCall, name: str) -> StreamCall:
    """A streaming `call` behind the border. It reads and writes messages itself."""

    async def handle(messages: AsyncIterator[bytes], context: Context) -> None:
        try:
            await call(messages, context)
            return
        except Exception as error:
            failure = _foreseen(error, name)
        await context.abort(GRPC_STATUS[failure.code], failure.message)

    return handle


def _foreseen(error: Exception, name: str) -> ModserveError:
    if isinstance(error, ModserveError):
        return error
    _log.error("%s failed unforeseen", name, exc_info=error)
    return internal(f"unforeseen {type(error).__name__}: {error}")


def _parsed(request: type[Message], data: bytes) -> Message:
    try:
        return request.FromString(data)
    except DecodeError:
        raise invalid(f"Unable to parse request: {len(data)} bytes are no {request.DESCRIPTOR.full_name}") from None


def _unserved(name: str) -> Call:
    async def call(message: Message, context: Context) -> Message:
        raise unsupported(f"{name} is not supported by this version of modserve")

    return call


def _check(server: Server) -> Call:
    """Health as a whole, of the inference service, or of a model by its name."""

    async def check(message: health_pb2.HealthCheckRequest, context: Context) -> Message:
        service = message.service
        if service in ("", pb.SERVICE):
            serving = server.ready
        else:
            try:
                serving = server.model_ready(service, None)
            except ModserveError as error:
                raise ModserveError(Code.NOT_FOUND, f"unknown service '{service}'") from error
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        answer: Message = health_pb2.HealthCheckResponse(status=status)
        return answer

    return check
