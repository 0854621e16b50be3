"""A gRPC port on a transport that only keeps what is written: calls of all four kinds, and an event loop whose clock is
turned by hand.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from puppet_server import PuppetLoader, server_over

from http2_client import Transport
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.grpc_port import GrpcPort
from modserve.frontends.grpc.rpc import Rpc, RpcCall
from modserve.frontends.http2.connection import Http2Connection
from modserve.frontends.http2.policies import Policies
from modserve.pb import inference as pb
from modserve.pb.descriptors import Method
from modserve.settings import GrpcSettings
from product.http2.http2_peer import orders

KINDS: Final = ("unary", "client", "server", "both")
"""Who streams."""


class Loop(asyncio.SelectorEventLoop):
    """Its clock stands still unless it is turned."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Run until nobody has anything to do."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        while ready:
            self.call_soon(self.stop)
            self.run_forever()


class Port:
    """The server's side of one connection."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        server = server_over(folder, PuppetLoader(models={}))
        self.memory = server.memory
        self.dispatcher = Dispatcher(server, GrpcSettings().limits)
        self.port = GrpcPort(self.loop, Policies(), self.dispatcher, table())
        self.connection = Http2Connection(self.port)
        self.transport = Transport(self.connection)
        self.connection.connection_made(self.transport)

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.loop.settle()

    def written(self) -> bytes:
        written, self.transport.written = b"".join(self.transport.written), []
        return written

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.loop.now += 1.0
            self.port.tick()
            self.loop.settle()

    def close(self) -> None:
        if self.connection.sender.transport is not None:
            self.connection.connection_lost(None)
        self.loop.settle()
        self.port.deadlines.close()
        self.loop.close()


def table() -> dict[str, Rpc]:
    handlers: dict[str, Callable[..., Awaitable[Any]]] = {
        "unary": _unary, "client": _sum, "server": _many, "both": _each
    }  # fmt: skip
    message = pb.ModelMetadataRequest
    return {
        path(kind): Rpc(Method(kind, message, message, kind in ("client", "both"), kind != "unary"), handler)
        for kind, handler in handlers.items()
    }


def path(kind: str) -> str:
    return f"/test.Fence/{kind}"


async def _unary(message: Any, _: RpcCall) -> bytes:
    _count, size, tag = orders(message)
    return bytes((tag,)) * size


async def _sum(call: RpcCall) -> None:
    """One response, as long as all that were asked for."""
    total = tag = 0
    while (message := await call.read()) is not None:
        count, size, tag = orders(message)
        total += count * size
    await call.write(bytes((tag,)) * total)


async def _many(message: Any, call: RpcCall) -> None:
    count, size, tag = orders(message)
    for _ in range(count):
        await call.write(bytes((tag,)) * size)


async def _each(call: RpcCall) -> None:
    while (message := await call.read()) is not None:
        await _many(pb.ModelMetadataRequest.FromString(message), call)
