"""The health service, restricted protocols, and deadlines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from puppet_server import PuppetLoader, server_over
from rpc_calls import CallTable, FakeCall, call_table

from modserve.core.errors import unavailable
from modserve.core.version import ModelId
from modserve.frontends.grpc.rpc import Response
from modserve.pb import health as health_pb2
from modserve.pb import inference as pb
from modserve.pb.health import SERVICE
from modserve.protocol.restricted import CATEGORIES, RPC_CATEGORY, grpc_restrictions
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


class Watcher(FakeCall):
    """Keeps the statuses that come."""

    def __init__(self, message: bytes) -> None:
        super().__init__(message)
        self.statuses: list[int] = []
        self.wrote = asyncio.Event()

    async def write(self, message: Response) -> None:
        await super().write(message)
        self.statuses.append(health_pb2.HealthCheckResponse.FromString(self.written[-1]).status)
        self.wrote.set()

    async def until(self, *statuses: int) -> None:
        async with asyncio.timeout(30):
            while self.statuses != list(statuses):
                assert self.statuses == list(statuses)[: len(self.statuses)]
                self.wrote.clear()
                await self.wrote.wait()


def table(server: LocalServer, **restricted: tuple[str, str]) -> CallTable:
    settings = {name.replace("_", "-"): pair for name, pair in restricted.items()}
    return call_table(server, options=GrpcSettings(restrictions=grpc_restrictions(settings)))


@pytest.fixture
def loader() -> PuppetLoader:
    return PuppetLoader(failures={ModelId("echo", 1): unavailable("broken")})


@pytest.fixture
def server(tmp_path: Path, loader: PuppetLoader) -> LocalServer:
    """Nothing is loaded yet."""
    return server_over(tmp_path, loader)


@asynccontextmanager
async def watching(server: LocalServer, name: str) -> AsyncIterator[tuple[Watcher, "asyncio.Task[bytes]"]]:
    watcher = Watcher(health_pb2.HealthCheckRequest(service=name).SerializeToString())
    task = asyncio.create_task(table(server).serve(f"/{SERVICE}/Watch", watcher))
    try:
        yield watcher, task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_model_is_watched_from_before_it_is_there_to_the_end(server: LocalServer) -> None:
    async with watching(server, "simple") as (simple, task), watching(server, "echo") as (echo, _):
        await simple.until(UNKNOWN)
        await echo.until(UNKNOWN)
        await server.load()
        await simple.until(UNKNOWN, NOT_SERVING, SERVING)
        await echo.until(UNKNOWN, NOT_SERVING)
        server.stop_accepting()
        await simple.until(UNKNOWN, NOT_SERVING, SERVING, NOT_SERVING)
        async with asyncio.timeout(30):
            await task
        assert echo.statuses == [UNKNOWN, NOT_SERVING]


@pytest.mark.parametrize("name", ["", pb.SERVICE])
async def test_the_server_is_watched(tmp_path: Path, name: str) -> None:
    server = server_over(tmp_path, PuppetLoader())
    async with watching(server, name) as (watcher, task):
        await watcher.until(NOT_SERVING)
        await server.load()
        await watcher.until(NOT_SERVING, SERVING)
        server.stop_accepting()
        await watcher.until(NOT_SERVING, SERVING, NOT_SERVING)
        await asyncio.wait_for(task, 30)


async def test_those_who_watch_one_of_several_workers_hear_that_it_leaves(server: LocalServer) -> None:
    """Which still serves what has arrived."""
    await server.load()
    async with watching(server, "simple") as (watcher, task):
        await watcher.until(SERVING)
        server.retire()
        await asyncio.wait_for(task, 30)
        assert watcher.statuses == [SERVING, NOT_SERVING]
        assert server.model_ready("simple", None)


async def test_a_service_that_never_comes(server: LocalServer) -> None:
    async with watching(server, "nosuch") as (watcher, task):
        await watcher.until(UNKNOWN)
        await server.load()
        server.stop_accepting()
        await asyncio.wait_for(task, 30)
        assert watcher.statuses == [UNKNOWN]


async def test_who_stops_watching_leaves_nothing_behind(server: LocalServer) -> None:
    async with watching(server, "simple") as (watcher, _):
        await watcher.until(UNKNOWN)
        assert server.changes.listeners == 1
    assert server.changes.listeners == 0


async def test_a_watch_after_the_end(server: LocalServer) -> None:
    await server.load()
    server.stop_accepting()
    async with watching(server, "simple") as (watcher, task):
        await asyncio.wait_for(task, 30)
        assert watcher.statuses == [NOT_SERVING]


async def test_a_watch_that_is_no_message(server: LocalServer) -> None:
    watcher = Watcher(b"\xff")
    await table(server).serve(f"/{SERVICE}/Watch", watcher)
    assert watcher.code is grpc.StatusCode.INVALID_ARGUMENT


# Restricted protocols


async def outcome(server: LocalServer, rpc: str, *metadata: tuple[str, str]) -> tuple[grpc.StatusCode, str] | None:
    name = SERVICE if rpc in health_pb2.METHODS else pb.SERVICE
    call = FakeCall(b"", metadata=metadata)
    restricted = table(server, **{category: (f"{category}-Key", "open") for category in CATEGORIES})
    await restricted.serve(f"/{name}/{rpc}", call)
    return None if call.code is None else (call.code, call.details)


@pytest.mark.parametrize("rpc", RPC_CATEGORY)
async def test_a_call_needs_its_header(server: LocalServer, rpc: str) -> None:
    category = RPC_CATEGORY[rpc]
    needed = f"triton-grpc-protocol-{category}-Key"
    refusal = grpc.StatusCode.UNAVAILABLE, f"This protocol is restricted, expecting header '{needed}'"
    assert await outcome(server, rpc) == refusal
    assert await outcome(server, rpc, (needed.lower(), "shut")) == refusal
    assert await outcome(server, rpc, (f"{category}-key", "open")) == refusal
    if rpc != "Watch":  # which would go on
        assert await outcome(server, rpc, (needed.lower(), "open")) != refusal


# Deadlines


@pytest.mark.parametrize(
    ("remaining", "ended"),
    [
        (0.0, (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")),
        (1000.0, (grpc.StatusCode.UNAVAILABLE, "Request timeout expired")),
        (None, (grpc.StatusCode.UNAVAILABLE, "Request timeout expired")),
    ],
    ids=["passed", "not yet", "none"],
)
async def test_the_client_s_own_deadline(
    server: LocalServer, loader: PuppetLoader, remaining: float | None, ended: tuple[grpc.StatusCode, str]
) -> None:
    """A request fails, by the server's limit or the client's."""
    await server.load()
    puppet = loader.loaded[ModelId("simple", 3)]
    puppet.answer = lambda inflight: inflight.settle(unavailable("Request timeout expired"))  # type: ignore[method-assign]
    message: Any = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 2])
        message.raw_input_contents.append(bytes(8))
    call = FakeCall(message.SerializeToString(), remaining=remaining)
    await table(server).serve(f"/{pb.SERVICE}/ModelInfer", call)
    assert (call.code, call.details) == ended
