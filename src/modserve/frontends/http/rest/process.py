"""Calls about the server's process. Whoever may stop or look into the process may make them, and nobody else."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from modserve.core.errors import PermissionDeniedError
from modserve.core.runtime.stacks import stacks
from modserve.frontends.http import probes
from modserve.frontends.http.local_clients import is_local
from modserve.protocol.restricted import DRAIN, PATH_CATEGORY, STACKS
from modserve.server import Server
from modserve.settings import HttpSettings

from .messages import json_response, new_router
from .schemas import responses_of
from .tags import HEALTH, LOGGING

if TYPE_CHECKING:
    from modserve.access.authority import Authority


def process_router(server: Server, options: HttpSettings, authority: "Authority | None") -> APIRouter:
    """Extensions of ours."""
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
        """Take the server out of service for good, and respond when it has finished what it had accepted.

        It says that it is not ready, goes on for `--shutdown-delay-secs`, takes nothing new, and then has
        `--exit-timeout-secs`. `drained` is false if that was too short.
        """
        check_local(request, DRAIN, "drain it: run 'modserve drain'")
        status, document = await probes.drain(server)
        return json_response(document, status)

    @router.get(STACKS, tags=[LOGGING], responses=responses_of("object", 403))
    async def all_stacks(request: Request) -> Response:
        """The stack of each thread of the server, to find out what hangs."""
        check_local(request, STACKS, f"see its stacks: GET {STACKS}")
        thread = ThreadPoolExecutor(1, "stacks")  # of its own: all others may hang in reads
        try:
            return json_response({"stacks": await asyncio.get_running_loop().run_in_executor(thread, stacks)})
        finally:
            thread.shutdown(wait=False)

    return router
