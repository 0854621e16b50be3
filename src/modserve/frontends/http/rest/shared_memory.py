"""The calls about regions of memory that clients share."""

from fastapi import APIRouter, Request, Response

from modserve.core.shared_memory import CudaRegion, SystemRegion
from modserve.frontends.offload import on_thread
from modserve.protocol.control import regions
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server

from .messages import json_response, read_body
from .schemas import ERRORS, Described, json_body, responses_of


class SystemRegionStatus(Described):
    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegionStatus(Described):
    name: str
    device_id: int
    byte_size: int


def shared_memory_router(server: Server, max_json: int) -> APIRouter:
    """A call without a region's name is about all regions; there is none to register without."""
    router = APIRouter()
    memory = server.shared_memory

    async def system_status(region: str = "") -> Response:
        """The registered regions of system memory."""
        return json_response(regions.status_json(memory.status(SystemRegion, region)))

    async def cuda_status(region: str = "") -> Response:
        """The registered regions of GPU memory."""
        return json_response(regions.status_json(memory.status(CudaRegion, region)))

    async def system_register(request: Request, region: str = "") -> Response:
        """Make POSIX shared memory known by a name, which tensors of requests can then refer to."""
        memory.check_may_register(SystemRegion, region)
        memory.register_system(regions.register_system_json(region, await read_body(request, max_json)))
        return Response(media_type=MIME_JSON)

    async def cuda_register(request: Request, region: str = "") -> Response:
        """Make memory of a GPU known by a name, which tensors of requests can then refer to."""
        memory.check_may_register(CudaRegion, region)
        await on_thread(memory.register_cuda, *regions.register_cuda_json(region, await read_body(request, max_json)))
        return Response(media_type=MIME_JSON)

    async def system_unregister(region: str = "") -> Response:
        """Forget a region, as soon as no request uses it. An unknown name is no error."""
        memory.unregister(SystemRegion, region)
        return Response(media_type=MIME_JSON)

    async def cuda_unregister(region: str = "") -> Response:
        """Forget a region, as soon as no request uses it. An unknown name is no error."""
        memory.unregister(CudaRegion, region)
        return Response(media_type=MIME_JSON)

    for kind, model, status, register, fields, unregister in (
        (
            "system",
            SystemRegionStatus,
            system_status,
            system_register,
            ("key", "offset", "byte_size"),
            system_unregister,
        ),
        (
            "cuda",
            CudaRegionStatus,
            cuda_status,
            cuda_register,
            ("raw_handle", "device_id", "byte_size"),
            cuda_unregister,
        ),
    ):
        for prefix in (f"/v2/{kind}sharedmemory", f"/v2/{kind}sharedmemory/region/{{region}}"):
            router.add_api_route(f"{prefix}/status", status, responses=responses_of(model, 404, many=True))
            router.add_api_route(
                f"{prefix}/register",
                register,
                methods=["POST"],
                responses={code: ERRORS[code] for code in (400, 501, 503)},
                openapi_extra=json_body(*fields),
            )
            router.add_api_route(f"{prefix}/unregister", unregister, methods=["POST"], responses={501: ERRORS[501]})
    return router
