"""Calls that read or change server settings: repository, log, traces, shared memory, routing."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from modserve.core.errors import ModserveError
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.frontends.offload import on_thread
from modserve.protocol.control import control_body, logging_settings, regions, repository, trace_settings
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server
from modserve.server.interface import Region
from modserve.settings import LoopLimits

from .document import LOGGING, REPOSITORY, ROUTING, SHARED_MEMORY, TRACE
from .messages import json_response, new_router, read_body
from .schemas import body_of, empty_of, responses_of


def _post(
    router: APIRouter, path: str, handler: Callable[..., Any], responses: Any, body: str = "", required: bool = False
) -> None:
    extra = body_of(body, required) if body else None
    options = {"responses": responses, "openapi_extra": extra, "response_class": Response}
    router.add_api_route(path, handler, methods=["POST"], **options)


def repository_router(server: Server, max_json: int, limits: LoopLimits) -> APIRouter:
    """Return the repository routes with Triton's paths. Paths with a repository name serve the index only."""
    router = new_router(REPOSITORY)

    async def index(request: Request) -> Response:
        """List the model versions with their states. `ready` limits the index to versions in state READY."""
        only_ready = repository.only_ready(await read_body(request, max_json))
        return json_response(repository.index_json(await server.repository_index(only_ready)))

    async def load(request: Request, model: str) -> Response:
        """Load or reload a model. `parameters` may contain a `config` and files (`file:<version>/<path>`)."""
        repository.check_repository_name(request.path_params.get("repository", ""))
        body = await read_body(request, max_json)
        if len(body) > limits.json:
            parameters = await on_thread(repository.load_json, body)
        else:
            parameters = repository.load_json(body)
        await server.load_model(model, parameters.config, parameters.files)
        return Response(media_type=MIME_JSON)

    async def unload(request: Request, model: str) -> Response:
        """Unload a model. The parameter `unload_dependents` also unloads the models that only this model needs."""
        repository.check_repository_name(request.path_params.get("repository", ""))
        dependents = repository.unload_dependents_json(await read_body(request, max_json))
        await server.unload_model(model, dependents)
        return Response(media_type=MIME_JSON)

    for prefix in ("/v2/repository", "/v2/repository/{repository}"):
        _post(router, f"{prefix}/index", index, responses_of("[IndexedVersion]", 400, 503), "IndexRequestBody")
    for suffix, handler in (("load", load), ("unload", unload)):
        path = f"/v2/repository/models/{{model}}/{suffix}"
        _post(router, path, handler, empty_of(400, 404, 503), f"{suffix.title()}RequestBody")
        path = f"/v2/repository/{{repository}}/models/{{model}}/{suffix}"  # answers: not supported
        router.add_api_route(path, handler, methods=["POST"], include_in_schema=False)
    return router


def logging_router(server: Server, max_json: int) -> APIRouter:
    """Return the routes for log settings."""
    router = new_router(LOGGING)

    async def log_settings() -> Response:
        """Return the log settings."""
        return json_response(logging_settings.json(server.logs.settings))

    async def change_log_settings(request: Request) -> Response:
        """Change log settings with immediate effect. The response has all settings."""
        body, logs = await read_body(request, max_json), server.logs
        await server.change_log_settings(logging_settings.change_by_json(body))
        return json_response(logging_settings.json(logs.settings))

    router.add_api_route("/v2/logging", log_settings, responses=responses_of("LogSettings", 503))
    _post(router, "/v2/logging", change_log_settings, responses_of("LogSettings", 400, 501, 503), "LogSettingsChange")
    return router


def trace_router(server: Server, max_json: int) -> APIRouter:
    """Return the routes for trace settings, global or of one model."""
    router = new_router(TRACE)

    async def read_settings(model: str = "") -> Response:
        """Return the trace settings of a model, or the global ones for all models without their own."""
        return json_response(trace_settings.json(server.tracer_for(model).settings(model)))

    async def change_trace_settings(request: Request, model: str = "") -> Response:
        """Change trace settings at once. null restores the global value, and globally the value at the start."""
        tracer = server.tracer_for(model)
        change = trace_settings.change_by_json(await read_body(request, max_json), tracer.mode)
        await server.change_trace_settings(change, model)
        return json_response(trace_settings.json(tracer.settings(model)))

    for path, errors in (("/v2/trace/setting", ()), ("/v2/models/{model}/trace/setting", (400,))):
        router.add_api_route(
            path, read_settings, name="trace_settings", responses=responses_of("TraceSettings", *errors)
        )
        _post(router, path, change_trace_settings, responses_of("TraceSettings", 400, 501), "TraceSettingsChange")
    return router


def region_router(server: Server, max_json: int) -> APIRouter:
    """Return the routes for shared memory. Without a region name, calls apply to all regions, except to register."""
    router = new_router(SHARED_MEMORY)

    async def register_system_region(request: Request, region: str = "") -> Response:
        """Register a POSIX shared-memory region under a name that request tensors can refer to."""
        server.shared_memory.check_may_register(SystemRegion, region)
        await server.register_region(regions.register_system_json(region, await read_body(request, max_json)))
        return Response(media_type=MIME_JSON)

    async def register_cuda_region(request: Request, region: str = "") -> Response:
        """Register a region of GPU memory under a name that request tensors can refer to."""
        server.shared_memory.check_may_register(CudaRegion, region)
        await server.register_region(*regions.register_cuda_json(region, await read_body(request, max_json)))
        return Response(media_type=MIME_JSON)

    def add(kind: type[Region], name: str, where: str, register: Callable[..., Any]) -> None:
        async def region_status(region: str = "") -> Response:
            return json_response(regions.status_json(await server.regions(kind, region)))

        async def unregister_region(region: str = "") -> Response:
            """Unregister a region once no request uses it, or all without a name. Unknown names are no error."""
            await server.unregister_region(kind, region)
            return Response(media_type=MIME_JSON)

        region_status.__doc__ = f"Return the registered regions of {where} memory."
        listed = responses_of(f"[{kind.__name__}Status]", 404)
        every, one = f"/v2/{name}sharedmemory", f"/v2/{name}sharedmemory/region/{{region}}"
        for prefix in (every, one):
            router.add_api_route(f"{prefix}/status", region_status, responses=listed)
            _post(router, f"{prefix}/unregister", unregister_region, empty_of(501))
        _post(router, f"{one}/register", register, empty_of(400, 501, 503), kind.__name__, required=True)
        router.add_api_route(f"{every}/register", register, methods=["POST"], include_in_schema=False)  # needs a name

    add(SystemRegion, "system", "system", register_system_region)
    add(CudaRegion, "cuda", "GPU", register_cuda_region)
    return router


def routing_router(server: Server, max_json: int) -> APIRouter:
    """Return the routes for routing between the versions of a model, an extension of modserve."""
    router = new_router(ROUTING)

    async def routing(model: str) -> Response:
        """Return how requests without a version are split between the model's versions, and each version's results."""
        return json_response(await server.routing(model))

    async def change_routing(request: Request, model: str) -> Response:
        """Replace the whole routing. null deletes it. A body with `rolled_back` alone keeps it."""
        body = await read_body(request, max_json)
        if body.strip() == b"null":
            return await delete_routing(model)
        document = control_body.read(body)
        await server.set_routing(model, document)
        try:
            return json_response(await server.routing(model))
        except ModserveError:
            if "rolled_back" not in document:
                raise
            return json_response({"model": model, "source": "", "routing": {}, "routes": []})

    async def delete_routing(model: str) -> Response:
        """Delete the routing, and return to the routing in the model's configuration, if any."""
        await server.set_routing(model, None)
        return json_response({})

    path, report = "/v2/models/{model}/routing", responses_of("RoutingReport", 400, 404, 503)
    router.add_api_route(path, routing, responses=report)
    router.add_api_route(path, change_routing, methods=["POST"], responses=report, openapi_extra=body_of("Routing"))
    router.add_api_route(path, delete_routing, methods=["DELETE"], responses=responses_of("object", 404, 503))
    return router
