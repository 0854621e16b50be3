"""Health of the server, at the paths of KServe and of other servers' probes; and ``/``."""

from fastapi import APIRouter, Request, Response

from modserve.frontends.http import probes
from modserve.frontends.http.direct import TEXT, DirectCalls
from modserve.server import Phase, Server
from modserve.settings import HttpSettings

from . import tags
from .adapter import endpoint
from .messages import json_response, new_router
from .schemas import body_of, errors_of, response_of, responses_of


def router(server: Server) -> APIRouter:
    router = new_router(tags.HEALTH)

    @router.get("/v2/health/live", responses=responses_of("Live", 503))
    async def live() -> Response:
        """Is the process up and responding? True from the moment the ports open."""
        return reported(await probes.live(server))

    @router.get("/v2/health/ready", responses={**responses_of("Ready", 503), 400: response_of("Ready")})
    async def ready() -> Response:
        """May inference be sent? When not, `reasons` tells which models are in the way and why."""
        return reported(await probes.ready(server))

    @router.get("/health", responses={**responses_of("Ready"), 503: response_of("Ready", "Not ready")})
    async def health() -> Response:
        """The same for probes and tools of other servers: 503 when inference may not be sent."""
        return reported(await probes.health(server))

    return router


def root_router(server: Server, options: HttpSettings, direct: DirectCalls) -> APIRouter:
    router = new_router()

    @router.get("/", tags=[tags.V1], responses=responses_of("Alive", 503))
    async def alive(request: Request) -> Response:
        """KServe's liveness; browsers, which ask for HTML, get the console, if the server has one."""
        if server.phase is Phase.STOPPING:
            return json_response({"error": "Server exiting"}, 503)
        if options.console and "text/html" in request.headers.get("accept", ""):
            from modserve.frontends.http.console import page

            return page.response()
        return json_response({"status": "alive"})

    errors = errors_of(400, 404, 413, 422, 500, 501, 503, body="TextErrorAnswer")

    @router.post(
        "/", tags=[tags.TEXT], responses={200: response_of("[any]"), **errors}, openapi_extra=body_of("object")
    )
    async def text(request: Request) -> Response:
        """What the only text model is for: embed, classify or rerank texts, as TEI does at this path."""
        return await endpoint(direct.of(TEXT)["/"], options)(request)

    return router


def reported(report: probes.Report) -> Response:
    status, content = report
    return json_response(content, status)
