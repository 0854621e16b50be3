"""The RPCs of ``inference.GRPCInferenceService``, and the table of all RPCs of the port."""

import time
from collections.abc import Mapping

from google.protobuf.message import Message

from modserve.core.errors import Code, ModserveError, unsupported
from modserve.core.requests import trace_context
from modserve.core.requests.response import InferenceResponse
from modserve.core.residency import describe
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.core.tensors.tensor import Buffer
from modserve.frontends import offload
from modserve.frontends.call import GRPC, FutureCall, InferenceCall
from modserve.frontends.offload import is_long_response
from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.pb import orca
from modserve.pb import reflection as reflection_pb
from modserve.protocol import header_forwarding
from modserve.protocol.control import logging_settings, metadata, regions, repository, trace_settings
from modserve.protocol.failures import grpc_name
from modserve.protocol.grpc.infer_message import InferMessage
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.protocol.http import server_timing
from modserve.protocol.response_form import BINARY
from modserve.protocol.restricted import RPC_CATEGORY
from modserve.server import Server
from modserve.settings import GrpcSettings

from .health import HealthService
from .infer_requests import find_version, in_time, read_request, resolve_version
from .load_reports import LoadReports
from .message_inflater import MessageInflater
from .model_stream import InferStreams
from .reflection import SERVICES as REFLECTION
from .reflection import ReflectionService
from .rpc import Handler, Rpc, RpcCall


class InferenceService:
    """The implemented RPCs, one method each, from message to message. Methods raise `ModserveError`."""

    def __init__(self, server: Server, options: GrpcSettings) -> None:
        self._server = server
        self._limits = options.limits
        self._header_pattern = options.header_pattern
        self._server_timing = options.server_timing
        self._writer = ResponseWriter()

    async def ServerLive(self, message: pb.ServerLiveRequest, call: RpcCall) -> Message:
        return pb.ServerLiveResponse(live=self._server.live)

    async def ServerReady(self, message: pb.ServerReadyRequest, call: RpcCall) -> Message:
        return pb.ServerReadyResponse(ready=(await self._server.readiness()).ready)

    async def ModelReady(self, message: pb.ModelReadyRequest, call: RpcCall) -> Message:
        """Report readiness. Like every released Triton, return false for an unknown model or version: clients poll with
        this RPC."""
        version = find_version(self._server, message.name, message.version)
        try:
            ready = await self._server.model_trouble(message.name, version) is None
        except ModserveError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            ready = False
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, message: pb.ServerMetadataRequest, call: RpcCall) -> Message:
        server = self._server
        return metadata.server_message(server.name, server.version, server.extensions)

    async def ModelMetadata(self, message: pb.ModelMetadataRequest, call: RpcCall) -> Message:
        servables = self._server.models(message.name, find_version(self._server, message.name, message.version))
        await describe(servables[-1])
        return metadata.model_message(servables[-1], [servable.id.version for servable in servables])

    async def ModelConfig(self, message: pb.ModelConfigRequest, call: RpcCall) -> Message:
        servable = self._server.model(message.name, find_version(self._server, message.name, message.version))
        await describe(servable)
        return pb.ModelConfigResponse(config=metadata.config_message(servable))

    async def ModelStatistics(self, message: pb.ModelStatisticsRequest, call: RpcCall) -> Message:
        version = find_version(self._server, message.name, message.version)
        return await self._server.statistics(message.name, version)

    async def RepositoryIndex(self, message: pb.RepositoryIndexRequest, call: RpcCall) -> Message:
        repository.check_repository_name(message.repository_name)
        return repository.index_message(await self._server.repository_index(message.ready))

    async def RepositoryModelLoad(self, message: pb.RepositoryModelLoadRequest, call: RpcCall) -> Message:
        repository.check_repository_name(message.repository_name)
        parameters = repository.load_message(message.parameters)
        await self._server.load_model(message.model_name, parameters.config, parameters.files)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, message: pb.RepositoryModelUnloadRequest, call: RpcCall) -> Message:
        repository.check_repository_name(message.repository_name)
        dependents = repository.unload_dependents_message(message.parameters)
        await self._server.unload_model(message.model_name, dependents)
        return pb.RepositoryModelUnloadResponse()

    async def LogSettings(self, message: pb.LogSettingsRequest, call: RpcCall) -> Message:
        logs = self._server.logs
        if change := logging_settings.change_by_message(message):
            await self._server.change_log_settings(change)
        return logging_settings.message(logs.settings)

    async def SystemSharedMemoryStatus(self, message: pb.SystemSharedMemoryStatusRequest, call: RpcCall) -> Message:
        return regions.system_status_message(await self._server.regions(SystemRegion, message.name))

    async def SystemSharedMemoryRegister(self, message: pb.SystemSharedMemoryRegisterRequest, call: RpcCall) -> Message:
        await self._server.register_region(SystemRegion(message.name, message.key, message.offset, message.byte_size))
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest, call: RpcCall
    ) -> Message:
        await self._server.unregister_region(SystemRegion, message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(self, message: pb.CudaSharedMemoryStatusRequest, call: RpcCall) -> Message:
        return regions.cuda_status_message(await self._server.regions(CudaRegion, message.name))

    async def CudaSharedMemoryRegister(self, message: pb.CudaSharedMemoryRegisterRequest, call: RpcCall) -> Message:
        region = CudaRegion(message.name, message.device_id, message.byte_size)
        await self._server.register_region(region, message.raw_handle)
        return pb.CudaSharedMemoryRegisterResponse()

    async def CudaSharedMemoryUnregister(self, message: pb.CudaSharedMemoryUnregisterRequest, call: RpcCall) -> Message:
        await self._server.unregister_region(CudaRegion, message.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def TraceSetting(self, message: pb.TraceSettingRequest, call: RpcCall) -> Message:
        tracer = self._server.tracer_for(message.model_name)
        if change := trace_settings.change_by_message(message.settings, tracer.mode):
            await self._server.change_trace_settings(change, message.model_name)
        return trace_settings.message(tracer.settings(message.model_name))

    async def ModelInfer(self, message: InferMessage, rpc: RpcCall) -> list[Buffer] | ModserveError:
        """Run an inference. A failure is returned, not raised: its traceback would refer to its own owner."""
        now_ns, deadline_ns, server = time.monotonic_ns(), rpc.deadline_ns, self._server
        version = resolve_version(server, message) if message.model_version else None
        call = FutureCall(server, GRPC, message.model_name, version)
        call.id = message.id
        rpc.set_inference(call)
        call.origin = rpc.origin
        headers = trace_context.from_metadata(rpc.metadata) if server.tracer.propagates else None
        call.begin(server.model(message.model_name, version), now_ns, 0, headers)
        if call.trace is not None:
            rpc.on_end(lambda: _on_sent(call))
        pattern = self._header_pattern
        forwarded = () if pattern is None else header_forwarding.from_metadata(pattern, rpc.metadata)
        try:
            call.submit(await read_request(call, message, deadline_ns, forwarded, self._limits))
            outcome = await call.future
            if isinstance(outcome, ModserveError):
                return _trace_failure(call, in_time(outcome, deadline_ns))
            if self._server_timing and (cost := call.cost):
                rpc.set_trailers(((server_timing.HEADER, cost),))
            if is_long_response(outcome, call.response_form, self._limits) or call.on_gpu:
                return await offload.on_thread(_encode, self._writer, call, outcome)
            return _encode(self._writer, call, outcome)
        except ModserveError as error:
            _trace_failure(call, error)
            raise
        finally:
            call.finish()


def _encode(writer: ResponseWriter, call: InferenceCall, response: InferenceResponse) -> list[Buffer]:
    return writer.parts(response if call.response_form is BINARY else call.render(response))


def _trace_failure(call: InferenceCall, error: ModserveError) -> ModserveError:
    if call.trace is not None:
        call.trace.on_failure(error, grpc_name(error))
    return error


def _on_sent(call: InferenceCall) -> None:
    """Finish the call after its response has been sent, or never will be."""
    call.on_sent()
    call.close()


def rpc_table(
    server: Server,
    options: GrpcSettings,
    inflater: MessageInflater,
    streams: InferStreams | None = None,
    reports: LoadReports | None = None,
) -> Mapping[str, Rpc]:
    """Return all RPCs of the port by path; RPCs that are not implemented answer UNIMPLEMENTED with an explanation."""
    inference = InferenceService(server, options)
    loads = () if reports is None else ((orca.SERVICE, orca.METHODS, reports),)
    reflection = ReflectionService(
        (pb.SERVICE, health_pb.SERVICE, *(name for name, _, _ in loads), *REFLECTION), inflater
    )
    rpcs: dict[str, Rpc] = {}
    for service, methods, implementation in (
        (pb.SERVICE, pb.METHODS, inference),
        (health_pb.SERVICE, health_pb.METHODS, HealthService(server)),
        *((name, reflection_pb.METHODS, reflection) for name in REFLECTION),
        *loads,
    ):
        for name, method in methods.items():
            handler: Handler | None = getattr(implementation, name, None)
            if name == "ModelStreamInfer":
                handler = (streams or InferStreams(server, options, inflater)).serve
            category = RPC_CATEGORY.get(name, "")
            restriction, probes = options.restrictions.get(category), category == "health"
            infers = name == "ModelInfer"
            direct = infers and restriction is None and options.header_pattern is None and not options.server_timing
            rpcs[f"/{service}/{name}"] = Rpc(method, handler or _make_stub(name), restriction, infers, direct, probes)
    return rpcs


def _make_stub(name: str) -> Handler:
    async def handler(message: Message, call: RpcCall) -> Message:
        raise unsupported(f"{name} is not supported by this version of modserve")

    return handler
