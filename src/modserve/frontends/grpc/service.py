"""The RPCs of ``inference.GRPCInferenceService``, and the table of all that the port serves."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from modserve.core.errors import Code, ModserveError, unsupported
from modserve.core.response import InferenceResponse
from modserve.core.servable import Servable, submit_traced
from modserve.core.shared_memory import CudaRegion, Place, RegionLease, SystemRegion
from modserve.core.version import parse_requested
from modserve.frontends.threads import has_many_elements, on_thread
from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.pb import reflection as reflection_pb
from modserve.protocol import classification, header_forwarding, shared_memory
from modserve.protocol.control import logging_settings, metadata, regions, repository, statistics, trace_settings
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.long_messages import Tensors
from modserve.protocol.http import server_timing
from modserve.protocol.restricted import RPC_CATEGORY
from modserve.server import FutureSink, Server

from . import tracing
from .border import Border, Call, CallTable, Context, DeadlinePassedError
from .health import HealthService
from .options import GrpcOptions
from .reading import Held, parse, read_request
from .reflection import SERVICES as REFLECTION
from .reflection import ReflectionService
from .stream import InferStreams

_DEFAULTS = GrpcOptions()
_NO_PLACES: Mapping[str, Place] = {}
_NO_COUNTS: Mapping[str, int] = {}


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
        """As every released Triton, false also for a model or version that is not there: clients poll with it."""
        version = parse_requested(message.version)
        try:
            ready = self._server.model_ready(message.name, version)
        except ModserveError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            ready = False
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
        await on_thread(self._server.shared_memory.register_cuda, region, message.raw_handle)
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

    async def ModelInfer(
        self, message: pb.ModelInferRequest, context: Context, tensors: Tensors | None = None
    ) -> bytes | ModserveError:
        """A failure of the execution is returned, not raised: its traceback would hold what holds it."""
        now_ns = time.monotonic_ns()
        server = self._server
        servable = server.model(message.model_name, parse_requested(message.model_version))
        remaining: float | None = context.time_remaining()
        limit_ns = 0 if remaining is None else now_ns + int(remaining * 1e9)
        trace = tracing.unary(server, servable, context, now_ns) if server.tracer.on else None
        lease = server.shared_memory.lease()
        held: Held | None = None
        places: Mapping[str, Place] = _NO_PLACES
        counts: Mapping[str, int] = _NO_COUNTS
        try:
            if tensors is None and grpc_messages.is_plain(message):
                request = grpc_messages.decode_request(message, limit_ns, lease)
            else:
                request, held = await read_request(server, servable, message, tensors, limit_ns, lease)
            if self._header_pattern is not None:
                forwarded = header_forwarding.from_metadata(self._header_pattern, context.invocation_metadata())
                request = header_forwarding.with_headers(request, forwarded)
            if request.outputs:
                places = grpc_messages.output_places(message, lease)
                counts = grpc_messages.class_counts(message)
            sink = FutureSink(asyncio.get_running_loop())
            if trace is None:
                inflight = servable.submit(request, sink, now_ns)
            else:
                inflight = submit_traced(trace, servable, request, sink, now_ns)
            try:
                response = await sink.future
            finally:
                inflight.cancel()  # which does nothing to a request that is settled
            if isinstance(response, ModserveError):
                if limit_ns and response.code is Code.UNAVAILABLE and time.monotonic_ns() >= limit_ns:
                    return DeadlinePassedError(Code.UNAVAILABLE, "Deadline Exceeded")
                return response
            if self._server_timing and (cost := server_timing.value(inflight)):
                context.set_trailing_metadata(((server_timing.HEADER, cost),))
            if (
                grpc_messages.takes_long(response)
                or (counts and has_many_elements(response))
                or (places and server.shared_memory.with_cuda)
            ):
                return await on_thread(_encoded, response, places, lease, counts, servable)
            return _encoded(response, places, lease, counts, servable)
        finally:
            lease.release()
            if held is not None:
                held.release()
            if trace is not None:
                trace.stamp("GRPC_SEND_START")


def _encoded(
    response: InferenceResponse,
    places: Mapping[str, Place],
    lease: RegionLease,
    counts: Mapping[str, int],
    servable: Servable,
) -> bytes:
    if places:
        response = shared_memory.moved(response, places, lease)
    if counts:
        response = classification.classified(response, counts, servable)
    return grpc_messages.encode_response(response)


def call_table(
    server: Server,
    streams: InferStreams | None = None,
    options: GrpcOptions = _DEFAULTS,
    border: Border | None = None,
) -> CallTable:
    """All that the port serves; RPCs that are not served yet answer UNIMPLEMENTED and say so."""
    border = border or Border(server)
    inference = InferenceService(server, options)
    served = {
        pb.SERVICE: (pb.METHODS, inference),
        health_pb.SERVICE: (health_pb.METHODS, HealthService(server)),
    }
    reflection = ReflectionService((*served, *REFLECTION), border.inflating)
    calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for service, (methods, implementation) in {
        **served,
        **dict.fromkeys(REFLECTION, (reflection_pb.METHODS, reflection)),
    }.items():
        for name, method in methods.items():
            restriction = options.restrictions.get(RPC_CATEGORY.get(name, ""))
            call = getattr(implementation, name, None)
            if name == "ModelStreamInfer":
                call = (streams or InferStreams(server)).serve
            if method.server_streaming and call is not None:
                handler = border.stream(method, call, restriction)
            elif name == "ModelInfer":
                handler = border.infer(method, inference.ModelInfer, parse, restriction)
            else:
                handler = border.unary(method, call or _unserved(name), restriction)
            calls[f"/{service}/{name}"] = handler
    return CallTable(calls)


def _unserved(name: str) -> Call:
    async def call(message: Message, context: Context) -> Message:
        raise unsupported(f"{name} is not supported by this version of modserve")

    return call
