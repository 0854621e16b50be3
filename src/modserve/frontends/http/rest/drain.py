"""The call that takes a server out of service. Whoever may stop the process may make it, and nobody else."""

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request, Response

from modserve.core.errors import PermissionDeniedError
from modserve.protocol.restricted import DRAIN, PATH_CATEGORY
from modserve.server import Server
from modserve.settings import HttpSettings

from .messages import json_response, new_router
from .schemas import responses_of
from .tags import HEALTH

if TYPE_CHECKING:
    from modserve.access.authority import Authority

_FORWARDED: Final = ("forwarded", "via", "x-forwarded-", "x-real-ip", "x-envoy-")
"""Beginnings of the headers by which proxies say that a request comes from elsewhere."""


def drain_router(server: Server, options: HttpSettings, authority: "Authority | None") -> APIRouter:
    """An extension of ours."""
    router = new_router(HEALTH)
    is_guarded = authority is not None or PATH_CATEGORY[DRAIN] in options.restrictions

    @router.post(DRAIN, responses=responses_of("Drained", 403))
    async def drain(request: Request) -> Response:
        """Take the server out of service for good, and respond when it has finished what it had accepted.

        It says that it is not ready, goes on for `--shutdown-delay-secs`, takes nothing new, and then has
        `--exit-timeout-secs`. `drained` is false if that was too short.
        """
        if not is_guarded and not is_local(request.client and request.client.host, request.headers):
            raise PermissionDeniedError(
                "without keys, only a client on the server's own machine may drain it: run 'modserve drain' there, or "
                "see --auth-file and --http-restricted-api"
            )
        report = await server.drain()
        seconds = round(report.seconds, 3)
        return json_response({"drained": report.drained, "in_flight": dict(report.in_flight), "seconds": seconds})

    return router


def is_local(address: str | None, headers: Iterable[str]) -> bool:
    """Whether a client is on this machine, and no proxy for one that is not. None: it came by a Unix-domain socket."""
    if any(name.lower().startswith(_FORWARDED) for name in headers):
        return False
    if address is None:
        return True
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
