"""``grpc.health.v1.Health``: the server as a whole, the inference service, and each model by its name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from modserve.core.errors import Code, ModserveError
from modserve.pb import inference as pb
from modserve.server import Phase, Server

SERVICE = "grpc.health.v1.Health"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_Response = health_pb2.HealthCheckResponse


def check(server: Server) -> Callable[[Any, Context], Awaitable[Message]]:
    """The call that tells a service's status once. It raises NOT_FOUND for an unknown service."""

    async def Check(message: health_pb2.HealthCheckRequest, context: Context) -> Message:
        status = _status(server, message.service)
        if status == _Response.SERVICE_UNKNOWN:
            raise ModserveError(Code.NOT_FOUND, f"unknown service '{message.service}'")
        answer: Message = _Response(status=status)
        return answer

    return Check


def watch(server: Server) -> Callable[[Any, Context], Awaitable[None]]:
    """The call that tells a service's status, and again whenever it is another one.

    A service may be unknown at first. The call ends when the server stops, after it has said so.
    """

    async def Watch(message: health_pb2.HealthCheckRequest, context: Context) -> None:
        changed = asyncio.Event()
        told = None
        with server.changes.told(changed.set):
            while True:
                changed.clear()
                status, last = _status(server, message.service), server.phase is Phase.STOPPING
                if status != told:
                    await context.write(_Response(status=status))
                    told = status
                if last:
                    return
                await changed.wait()

    return Watch


def _status(server: Server, service: str) -> int:
    try:
        serving = server.ready if service in ("", pb.SERVICE) else server.model_ready(service, None)
    except ModserveError:
        return int(_Response.SERVICE_UNKNOWN)
    return int(_Response.SERVING if serving else _Response.NOT_SERVING)
