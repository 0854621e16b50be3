"""``grpc.health.v1.Health``: the server as a whole, the inference service, and each model by its name."""

import asyncio

from google.protobuf.message import Message

from modserve.core.errors import Code, ModserveError, OverloadedError
from modserve.pb import health as pb
from modserve.pb import inference
from modserve.server import Phase, Server

from .rpc import RpcCall

_Response = pb.HealthCheckResponse
_MAX_LISTED = 100
"""Services that `List` returns. The protocol lets a server fail with RESOURCE_EXHAUSTED where it has more."""


class HealthService:
    """The calls that are served, each named like its RPC: message in, message out; raises `ModserveError`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def Check(self, message: pb.HealthCheckRequest, call: RpcCall) -> Message:
        """Return a service's status once. Raises NOT_FOUND for an unknown service."""
        status = await self._status_of_all(message.service)
        if status == _Response.SERVICE_UNKNOWN:
            raise ModserveError(Code.NOT_FOUND, f"unknown service '{message.service}'")
        return _Response(status=status)

    async def List(self, message: pb.HealthListRequest, call: RpcCall) -> Message:
        """Return the status of every service. Raises RESOURCE_EXHAUSTED for too many models."""
        names = ("", inference.SERVICE, *self._server.model_names())
        if len(names) > _MAX_LISTED:
            raise OverloadedError(
                f"the server has {len(names)} services, and lists at most {_MAX_LISTED}; ask for each by its name",
                too_many=True,
            )
        statuses = await asyncio.gather(*map(self._status, names))  # at once: each may take seconds
        services = zip(names, statuses, strict=True)
        return pb.HealthListResponse(statuses={name: _Response(status=status) for name, status in services})

    async def Watch(self, message: pb.HealthCheckRequest, call: RpcCall) -> None:
        """Send a service's status, and again whenever it changes. A service may be unknown at first.

        The call ends when the server stops, after it has said so. Engines are asked when something else has changed: no
        event tells when their status would change.
        """
        changed = asyncio.Event()
        sent = None
        with self._server.changes.listening(changed.set):
            while True:
                changed.clear()
                last = self._server.retiring or self._server.phase is Phase.STOPPING  # the other may take seconds
                status = await self._status(message.service)
                if last and status == _Response.SERVING:
                    status = _Response.NOT_SERVING  # while it retires, calls that have arrived are still served
                if status != sent:
                    await call.write(_Response(status=status).SerializeToString())
                    sent = status
                if last:
                    return
                await changed.wait()

    async def _status_of_all(self, service: str) -> int:
        """Return the status where several workers are one server."""
        if service in ("", inference.SERVICE):
            return _Response.SERVING if (await self._server.readiness()).ready else _Response.NOT_SERVING
        try:
            trouble = await self._server.model_trouble(service, None)
        except ModserveError:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if trouble is None else _Response.NOT_SERVING

    async def _status(self, service: str) -> int:
        """Return the status in this process: `Watch` hears when that changes, and of others it does not."""
        server = self._server
        if service in ("", inference.SERVICE):
            return _Response.SERVING if server.ready else _Response.NOT_SERVING
        try:
            serving = await server.check_model_ready(service, None)
        except ModserveError:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if serving else _Response.NOT_SERVING
