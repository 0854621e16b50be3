"""Health of the server, at the paths of KServe and of other servers' probes; and ``/``.

Calls about the server's process. Only callers that may stop or look into the process may make them.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from modserve.core.errors import PermissionDeniedError
from modserve.core.runtime.stacks import stacks
from modserve.frontends.http import probes
from modserve.frontends.http.direct import TEXT, DirectCalls
from modserve.frontends.http.local_clients import is_local
from modserve.protocol.restricted import DRAIN, PATH_CATEGORY, STACKS
from modserve.server import Phase, Server
from modserve.settings import HttpSettings

from . import document
from .document import HEALTH, LOGGING
from .messages import json_response, new_router
from .schemas import body_of, errors_of, response_of, responses_of
from .streams import endpoint

if TYPE_CHECKING:
    from modserve.access.authority import Authority


def router(server: Server) -> APIRouter:
    router = new_router(document.HEALTH)

    @router.get("/v2/health/live", responses=responses_of("Live", 503))
    async def live() -> Response:
        """Report whether the server process is up and responding. True as soon as the ports are open."""
        return make_response(await probes.live(server))

    @router.get("/v2/health/ready", responses={**responses_of("Ready", 503), 400: response_of("Ready")})
    async def ready() -> Response:
        """Report whether the server is ready for inference. If not, `reasons` says which models are not."""
        return make_response(await probes.ready(server))

    @router.get("/health", responses={**responses_of("Ready"), 503: response_of("Ready", "Not ready")})
    async def health() -> Response:
        """Report readiness for probes of other servers. The status is 503 while the server is not ready."""
        return make_response(await probes.health(server))

    return router


def root_router(server: Server, options: HttpSettings, direct: DirectCalls) -> APIRouter:
    router = new_router()

    @router.get("/", tags=[document.V1], responses=responses_of("Alive", 503))
    async def alive(request: Request) -> Response:
        """Report liveness for KServe. Requests for HTML get the web console if it is enabled."""
        if server.phase is Phase.STOPPING:
            return json_response({"error": "Server exiting"}, 503)
        if options.console and "text/html" in request.headers.get("accept", ""):
            from modserve.frontends.http.console import page

            return page.response()
        return json_response({"status": "alive"})

    errors = errors_of(400, 404, 413, 422, 500, 501, 503, body="TextErrorAnswer")

    @router.post(
        "/", tags=[document.TEXT], responses={200: response_of("[any]"), **errors}, openapi_extra=body_of("object")
    )
    async def run_text_task(request: Request) -> Response:
        """Embed, classify or rerank texts with the server's only text model, as TEI does at this path."""
        return await endpoint(direct.of(TEXT)["/"], options)(request)

    return router


def make_response(report: probes.Report) -> Response:
    status, content = report
    return json_response(content, status)


def process_router(server: Server, options: HttpSettings, authority: "Authority | None") -> APIRouter:
    """Return the routes about the process, extensions of modserve."""
    router = new_router()

    def check_local(request: Request, path: str, purpose: str) -> None:
        is_guarded = authority is not None or PATH_CATEGORY[path] in options.restrictions
        if not is_guarded and not is_local(request.client and request.client.host, request.headers):
            raise PermissionDeniedError(
                f"without keys, only a client on the server's own machine may {purpose} there, or see --auth-file and "
                "--http-restricted-api"
            )

    @router.post(DRAIN, tags=[HEALTH], responses=responses_of("Drained", 403))
    async def drain(request: Request) -> Response:
        """Take the server out of service permanently, and respond when all accepted requests are finished.

        The server reports that it is not ready, serves for `--shutdown-delay-secs`, then refuses new requests, and
        finishes within `--exit-timeout-secs`. `drained` is false if that was too short.
        """
        check_local(request, DRAIN, "drain it: run 'modserve drain'")
        status, document = await probes.drain(server)
        return json_response(document, status)

    @router.get(STACKS, tags=[LOGGING], responses=responses_of("object", 403))
    async def all_stacks(request: Request) -> Response:
        """Return the stack trace of each server thread, to find out where the server hangs."""
        check_local(request, STACKS, f"see its stacks: GET {STACKS}")
        thread = ThreadPoolExecutor(1, "stacks")  # a new one: all others may hang in reads
        try:
            return json_response({"stacks": await asyncio.get_running_loop().run_in_executor(thread, stacks)})
        finally:
            thread.shutdown(wait=False)

    return router
