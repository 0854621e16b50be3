"""The RPCs of ``inference.GRPCInferenceService`` and of the health service."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from modserve.core.errors import Code, ModserveError, internal, invalid, unavailable, unsupported
from modserve.core.inflight import Inflight
from modserve.core.response import InferenceResponse
from modserve.core.servable import Handle, Servable
from modserve.core.shared_memory import CudaRegion, SystemRegion
from modserve.core.version import parse_requested
from modserve.frontends.threads import has_many_elements, on_thread
from modserve.pb import inference as pb
from modserve.protocol import (
    classification,
    failures,
    grpc_messages,
    header_forwarding,
    logging_settings,
    metadata,
    regions,
    repository,
    server_timing,
    shared_memory,
    statistics,
    trace_settings,
)
from modserve.protocol.restricted import RPC_CATEGORY, Restriction
from modserve.server import Server

from . import health, tracing
from .options import GrpcOptions
from .reading import read_request
from .stream import InferStreams

_log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Call: TypeAlias = Callable[[Any, Context], Awaitable[Message]]
StreamCall: TypeAlias = Callable[[Any, Context], Awaitable[None]]

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


def grpc_status(error: ModserveError) -> grpc.StatusCode:
    """The status that a call ends with which failed so."""
    return _STATUS_CODES[failures.spelling(error).grpc]


_DEFAULTS = GrpcOptions()
_DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED


class DeadlinePassedError(ModserveError):
    """The client's own deadline passed while its request waited, which gRPC has a status for."""


class InferenceService:
    """The calls that are served, each named like its RPC: message in, message out; raises `ModserveError`."""

    def __init__(self, server: Server, options: GrpcOptions) -> None:
        self._server = server
        self._header_pattern = options.header_pattern
        self._server_timing = options.server_timing

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
        return repository.index_message(await self._server.repository_index(message.ready))

    async def RepositoryModelLoad(self, message: pb.RepositoryModelLoadRequest, context: Context) -> Message:
        repository.check_repository_name(message.repository_name)
        parameters = repository.load_message(message.parameters)
        await self._server.load_model(message.model_name, parameters.config, parameters.files)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, message: pb.RepositoryModelUnloadRequest, context: Context) -> Message:
        repository.check_repository_name(message.repository_name)
        dependents = repository.unload_dependents_message(message.parameters)
        await self._server.unload_model(message.model_name, dependents)
        return pb.RepositoryModelUnloadResponse()

    async def LogSettings(self, message: pb.LogSettingsRequest, context: Context) -> Message:
        logs = self._server.logs
        logs.change(logging_settings.changed_by_message(logs.settings, message))
        return logging_settings.message(logs.settings)

    async def SystemSharedMemoryStatus(self, message: pb.SystemSharedMemoryStatusRequest, context: Context) -> Message:
        return regions.system_status_message(self._server.shared_memory.status(SystemRegion, message.name))

    async def SystemSharedMemoryRegister(
        self, message: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> Message:
        region = SystemRegion(message.name, message.key, message.offset, message.byte_size)
        self._server.shared_memory.register_system(region)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> Message:
        self._server.shared_memory.unregister(SystemRegion, message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(self, message: pb.CudaSharedMemoryStatusRequest, context: Context) -> Message:
        return regions.cuda_status_message(self._server.shared_memory.status(CudaRegion, message.name))

    async def CudaSharedMemoryRegister(self, message: pb.CudaSharedMemoryRegisterRequest, context: Context) -> Message:
        region = CudaRegion(message.name, message.device_id, message.byte_size)
        self._server.shared_memory.register_cuda(region, message.raw_handle)
        return pb.CudaSharedMemoryRegisterResponse()

    async def CudaSharedMemoryUnregister(
        self, message: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> Message:
        self._server.shared_memory.unregister(CudaRegion, message.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def TraceSetting(self, message: pb.TraceSettingRequest, context: Context) -> Message:
        tracer = self._server.tracer_for(message.model_name)
        tracer.change(trace_settings.change_by_message(message.settings), message.model_name)
        return trace_settings.message(tracer.settings(message.model_name))

    async def ModelInfer(self, message: pb.ModelInferRequest, context: Context) -> Message:
        now_ns = time.monotonic_ns()
        servable = self._server.model(message.model_name, parse_requested(message.model_version))
        remaining: float | None = context.time_remaining()
        limit_ns = 0 if remaining is None else now_ns + int(remaining * 1e9)
        trace = tracing.unary(self._server, servable, context, now_ns) if self._server.tracer.on else None
        lease = self._server.shared_memory.lease()
        borrowed: Handle | None = None
        try:
            request, borrowed = await read_request(self._server, servable, message, limit_ns, lease)
            if self._header_pattern is not None:
                forwarded = header_forwarding.from_metadata(self._header_pattern, context.invocation_metadata())
                request = header_forwarding.with_headers(request, forwarded)
            places = grpc_messages.output_places(message, lease)
            counts = grpc_messages.class_counts(message)
            accepted: list[Inflight] = []
            response = await self._server.run(trace or servable, request, now_ns, accepted.append)
            if self._server_timing and (cost := server_timing.value(accepted[0])):
                context.set_trailing_metadata(((server_timing.HEADER, cost),))
            if places:
                response = shared_memory.moved(response, places, lease)
        except ModserveError as error:
            if limit_ns and error.code is Code.UNAVAILABLE and time.monotonic_ns() >= limit_ns:
                raise DeadlinePassedError(Code.UNAVAILABLE, "Deadline Exceeded") from error
            raise
        finally:
            lease.release()
            if borrowed is not None:
                borrowed.release()
            if trace is not None:
                trace.stamp("GRPC_SEND_START")
        if grpc_messages.has_many_texts(response) or (counts and has_many_elements(response)):
            return await on_thread(_encoded, response, counts, servable)
        return _encoded(response, counts, servable)


def _encoded(response: InferenceResponse, counts: Mapping[str, int], servable: Servable) -> Message:
    return grpc_messages.encode_response(classification.classified(response, counts, servable))


def handlers(
    server: Server,
    streams: InferStreams | None = None,
    options: GrpcOptions = _DEFAULTS,
) -> "tuple[grpc.GenericRpcHandler[Any, Any], ...]":
    """Generic handlers for both services; RPCs that are not served yet answer UNIMPLEMENTED and say so."""
    restricted = {rpc: options.restrictions.get(category) for rpc, category in RPC_CATEGORY.items()}
    service = InferenceService(server, options)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, method in pb.METHODS.items():
        call: Call | None = getattr(service, name, None)
        if method.client_streaming or method.server_streaming:
            methods[name] = grpc.stream_stream_rpc_method_handler(
                _stream((streams or InferStreams(server)).serve, name, restricted[name]),
                response_serializer=method.response.SerializeToString,
            )
        else:
            methods[name] = grpc.unary_unary_rpc_method_handler(
                _unary(call or _unserved(name), method.request, restricted[name]),
                response_serializer=method.response.SerializeToString,
            )
    health_methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Check": grpc.unary_unary_rpc_method_handler(
            _unary(health.check(server), health_pb2.HealthCheckRequest, restricted["Check"]),
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        ),
        "Watch": grpc.unary_stream_rpc_method_handler(
            _stream(_watch(server), "Watch", restricted["Watch"]),
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        ),
    }
    return (
        grpc.method_handlers_generic_handler(pb.SERVICE, methods),
        grpc.method_handlers_generic_handler(health.SERVICE, health_methods),
    )


def _unary(
    call: Call, request: type[Message], restriction: Restriction | None = None
) -> Callable[[bytes, Context], Awaitable[Message]]:
    """`call` behind the border: bytes are parsed, and errors become statuses."""

    async def handle(data: bytes, context: Context) -> Message:
        try:
            _check_restriction(restriction, context)
            return await call(_parsed(request, data), context)
        except Exception as error:
            failure = _foreseen(error, getattr(call, "__name__", "a call"))
        late = isinstance(failure, DeadlinePassedError)
        code = _DEADLINE_EXCEEDED if late else grpc_status(failure)
        await _abort(context, code, failure)
        raise AssertionError("abort raises: this is a bug")

    return handle


def _stream(call: StreamCall, name: str, restriction: Restriction | None = None) -> StreamCall:
    """A streaming `call` behind the border. It reads and writes messages itself."""

    async def handle(messages: Any, context: Context) -> None:
        try:
            _check_restriction(restriction, context)
            await call(messages, context)
            return
        except Exception as error:
            failure = _foreseen(error, name)
        await _abort(context, grpc_status(failure), failure)

    return handle


async def _abort(context: Context, code: grpc.StatusCode, error: ModserveError) -> None:
    if trailers := failures.trailers(error):
        context.set_trailing_metadata(trailers)
    await context.abort(code, error.message)


def _check_restriction(restriction: Restriction | None, context: Context) -> None:
    """Raises UNAVAILABLE, as Triton does, for a call without the header that it needs."""
    if restriction is not None and not restriction.granted(context.invocation_metadata() or ()):
        raise unavailable(restriction.refusal)


def _watch(server: Server) -> StreamCall:
    call = health.watch(server)

    async def watch(data: bytes, context: Context) -> None:
        await call(_parsed(health_pb2.HealthCheckRequest, data), context)

    return watch


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
