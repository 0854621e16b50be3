"""The health service, restricted protocols, and deadlines, with a fake context."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from puppet_server import PuppetLoader, call_table, server_over

from modserve.core.errors import unavailable
from modserve.core.version import ModelId
from modserve.pb import health as health_pb2
from modserve.pb import inference as pb
from modserve.pb.health import SERVICE
from modserve.protocol.restricted import CATEGORIES, RPC_CATEGORY, grpc_restrictions
from modserve.server import Server
from modserve.settings import GrpcSettings

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


class AbortedError(Exception):
    pass


class Context:
    """As much of grpc.aio's as these calls use."""

    def __init__(self, *metadata: tuple[str, str], data: bytes = b"", remaining: float | None = None) -> None:
        self.metadata = metadata
        self.data: Any = data
        self.remaining = remaining
        self.written: list[int] = []
        self.wrote = asyncio.Event()
        self.ended: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    def set_trailing_metadata(self, metadata: object) -> None:
        pass

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    def time_remaining(self) -> float | None:
        return self.remaining

    async def read(self) -> Any:
        data, self.data = self.data, grpc.aio.EOF  # type: ignore[attr-defined]
        return data

    async def write(self, data: bytes) -> None:
        self.written.append(health_pb2.HealthCheckResponse.FromString(data).status)
        self.wrote.set()

    def set_code(self, code: grpc.StatusCode) -> None:
        self.ended = code, ""

    def set_details(self, details: str) -> None:
        assert self.ended is not None
        self.ended = self.ended[0], details

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self.ended = code, details
        raise AbortedError

    async def until(self, *written: int) -> None:
        async with asyncio.timeout(30):
            while self.written != list(written):
                assert self.written == list(written)[: len(self.written)]
                self.wrote.clear()
                await self.wrote.wait()


def handler(server: Server, method: str, **restricted: tuple[str, str]) -> Any:
    settings = {name.replace("_", "-"): pair for name, pair in restricted.items()}
    return call_table(server, options=GrpcSettings(restrictions=grpc_restrictions(settings))).methods[method]


@pytest.fixture
def loader() -> PuppetLoader:
    return PuppetLoader(failures={ModelId("echo", 1): unavailable("broken")})


@pytest.fixture
def server(tmp_path: Path, loader: PuppetLoader) -> Server:
    """Nothing is loaded yet."""
    return server_over(tmp_path, loader)


@asynccontextmanager
async def watching(server: Server, name: str) -> AsyncIterator[tuple[Context, "asyncio.Task[None]"]]:
    context = Context(data=health_pb2.HealthCheckRequest(service=name).SerializeToString())
    call = handler(server, f"/{SERVICE}/Watch")
    assert call.response_streaming
    task = asyncio.create_task(call.stream_stream(None, context))
    try:
        yield context, task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_model_is_watched_from_before_it_is_there_to_the_end(server: Server) -> None:
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
        assert echo.written == [UNKNOWN, NOT_SERVING]


@pytest.mark.parametrize("name", ["", pb.SERVICE])
async def test_the_server_is_watched(tmp_path: Path, name: str) -> None:
    server = server_over(tmp_path, PuppetLoader())
    async with watching(server, name) as (context, task):
        await context.until(NOT_SERVING)
        await server.load()
        await context.until(NOT_SERVING, SERVING)
        server.stop_accepting()
        await context.until(NOT_SERVING, SERVING, NOT_SERVING)
        await asyncio.wait_for(task, 30)


async def test_those_who_watch_one_of_several_workers_hear_that_it_leaves(server: Server) -> None:
    """Which still serves what has arrived."""
    await server.load()
    async with watching(server, "simple") as (context, task):
        await context.until(SERVING)
        server.retire(ready=True)
        await asyncio.wait_for(task, 30)
        assert context.written == [SERVING, NOT_SERVING]
        assert server.model_ready("simple", None)


async def test_a_service_that_never_comes(server: Server) -> None:
    async with watching(server, "nosuch") as (context, task):
        await context.until(UNKNOWN)
        await server.load()
        server.stop_accepting()
        await asyncio.wait_for(task, 30)
        assert context.written == [UNKNOWN]


async def test_who_stops_watching_leaves_nothing_behind(server: Server) -> None:
    async with watching(server, "simple") as (context, _):
        await context.until(UNKNOWN)
        assert server.changes.listeners == 1
    assert server.changes.listeners == 0


async def test_a_watch_after_the_end(server: Server) -> None:
    await server.load()
    server.stop_accepting()
    async with watching(server, "simple") as (context, task):
        await asyncio.wait_for(task, 30)
        assert context.written == [NOT_SERVING]


async def test_a_watch_that_is_no_message(server: Server) -> None:
    context = Context(data=b"\xff")
    await handler(server, f"/{SERVICE}/Watch").stream_stream(None, context)
    assert context.ended is not None
    assert context.ended[0] is grpc.StatusCode.INVALID_ARGUMENT


# Restricted protocols


async def outcome(server: Server, rpc: str, *metadata: tuple[str, str]) -> tuple[grpc.StatusCode, str] | None:
    name = SERVICE if rpc in health_pb2.METHODS else pb.SERVICE
    call = handler(server, f"/{name}/{rpc}", **{category: (f"{category}-Key", "open") for category in CATEGORIES})
    context = Context(*metadata)
    run = call.stream_unary or call.stream_stream
    try:
        await run(nothing(), context)
    except AbortedError:
        pass
    return context.ended


async def nothing() -> AsyncIterator[bytes]:
    messages: list[bytes] = []
    for message in messages:
        yield message


@pytest.mark.parametrize("rpc", RPC_CATEGORY)
async def test_a_call_needs_its_header(server: Server, rpc: str) -> None:
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
    server: Server, loader: PuppetLoader, remaining: float | None, ended: tuple[grpc.StatusCode, str]
) -> None:
    """A request fails, by the server's limit or the client's."""
    await server.load()
    puppet = loader.loaded[ModelId("simple", 3)]
    puppet.answer = lambda inflight: inflight.settle(unavailable("Request timeout expired"))  # type: ignore[method-assign]
    message: Any = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 2])
        message.raw_input_contents.append(bytes(8))
    context = Context(data=message.SerializeToString(), remaining=remaining)
    with pytest.raises(AbortedError):
        await handler(server, f"/{pb.SERVICE}/ModelInfer").stream_unary(None, context)
    assert context.ended == ended
