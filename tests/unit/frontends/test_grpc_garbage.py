"""No call leaves garbage that only the cyclic collector finds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from puppet_server import MANY, SIMPLE, PuppetLoader, PuppetServable, infer_streams, server_over
from rpc_calls import FakeCall, call_table
from test_grpc_service import asked
from test_grpc_stream import Exchange, asked_many, response, turns
from test_grpc_stream import asked as stream_asked

from garbage import garbage_left
from modserve.core.errors import internal
from modserve.core.requests.memory import MemoryBudget
from modserve.core.version import ModelId
from modserve.pb import health
from modserve.pb import inference as pb
from modserve.protocol import classification
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, LoopLimits


async def left(exchange: Exchange) -> None:
    """A connection does not hold the task of a call that is over."""
    task = exchange.__dict__.pop("task")
    task.cancel()
    await asyncio.wait([task])


Kind = Callable[["Harness"], Awaitable[None]]


class Harness:
    def __init__(self, server: LocalServer, loader: PuppetLoader) -> None:
        self.server = server
        self.simple: PuppetServable = loader.loaded[ModelId("simple", 3)]
        self.many: PuppetServable = loader.loaded[ModelId("many", 1)]
        self.many.automatic = False
        self.streams = infer_streams(server)
        self.table = call_table(server, self.streams)
        self.slow_table = call_table(server, self.streams, GrpcSettings(limits=LoopLimits(message=0, split=0)))
        """All messages are long."""

    async def unary(self, rpc: str, message: bytes | None, service: str = pb.SERVICE) -> None:
        """One call, however it ends."""
        await self.table.serve(f"/{service}/{rpc}", FakeCall(*([] if message is None else [message])))

    def open(self, *metadata: tuple[str, str]) -> Exchange:
        return Exchange(self.server, self.streams, metadata, self.table)

    def forget(self) -> None:
        """What the puppets keep."""
        self.simple.submitted.clear()
        self.many.submitted.clear()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    loader = PuppetLoader({"simple": SIMPLE, "many": MANY})
    server = server_over(tmp_path, loader)
    server.memory = MemoryBudget(1 << 20)
    await server.load()
    yield Harness(server, loader)
    assert server.memory.held == 0


def infer(model: str = "simple") -> bytes:
    return asked(model).SerializeToString()


async def fails(harness: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.simple, "answer", lambda inflight: inflight.settle(internal("oops")))
        await harness.unary("ModelInfer", infer())


async def raises(harness: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.simple, "submit", lambda *_: 1 / 0)
        await harness.unary("ModelInfer", infer())


async def cancelled(harness: Harness) -> None:
    harness.simple.automatic = False
    task = asyncio.ensure_future(harness.unary("ModelInfer", infer()))
    await turns()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    harness.simple.automatic = True


async def too_large(harness: Harness) -> None:
    message = asked("simple")
    message.raw_input_contents.append(bytes(2 << 20))
    await harness.unary("ModelInfer", message.SerializeToString())


async def long_and_wrong(harness: Harness) -> None:
    table, harness.table = harness.table, harness.slow_table
    await harness.unary("ModelInfer", b"\xff\xff")
    harness.table = table


def unary(rpc: str, message: bytes | None, service: str = pb.SERVICE) -> Kind:
    return lambda harness: harness.unary(rpc, message, service)


async def stream_ok(harness: Harness) -> None:
    exchange = harness.open()
    exchange.send(stream_asked("a"), stream_asked("b"), stream_asked("c", model="nosuch"), b"\xff\xff")
    exchange.half_close()
    await exchange.ending()
    assert len(exchange.answers) == 4


async def stream_hard_error(harness: Harness) -> None:
    exchange = harness.open(("triton_grpc_error", "true"))
    exchange.send(stream_asked("a"), stream_asked("c", model="nosuch"), stream_asked("b"))
    await exchange.ending()


async def stream_many(harness: Harness) -> None:
    exchange = harness.open()
    exchange.send(asked_many("a"), asked_many("b"))
    exchange.half_close()
    await turns()
    a, b = harness.many.submitted
    a.settle(response(a, 1), final=False)
    b.settle(internal("oops"), final=False)
    b.settle(response(b, 1))
    a.settle(None)
    await exchange.ending()
    assert len(exchange.answers) == 4 - 1


async def stream_cancelled(harness: Harness) -> None:
    harness.simple.automatic = False
    exchange = harness.open()
    exchange.send(stream_asked("a"), asked_many("b"), asked_many("c"))
    await turns()
    b = harness.many.submitted[0]
    b.settle(response(b, 1), final=False)
    await turns()
    await left(exchange)
    harness.simple.automatic = True


async def stream_gone(harness: Harness) -> None:
    harness.simple.automatic = False
    exchange = harness.open()
    exchange.send(stream_asked("a"), stream_asked("b"))
    await turns()
    exchange.gone = True
    harness.simple.answer(harness.simple.submitted[0])
    await exchange.ending()
    harness.simple.automatic = True


async def stream_stopped(harness: Harness) -> None:
    exchange = harness.open()
    exchange.send(stream_asked("a"))
    await turns()
    harness.streams.stop()
    await exchange.ending()
    harness.streams._stopped = False


async def stream_no_answer(harness: Harness) -> None:
    """Its answer cannot be made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "classify", lambda *_: 1 / 0)
        await stream_one(harness)


async def stream_one(harness: Harness) -> None:
    exchange = harness.open()
    exchange.send(stream_asked("a"))
    exchange.half_close()
    await exchange.ending()


async def watch(harness: Harness) -> None:
    task = asyncio.ensure_future(harness.table.serve(f"/{health.SERVICE}/Watch", FakeCall(b"")))
    await turns()
    task.cancel()
    await asyncio.wait([task])


KINDS: dict[str, Kind] = {
    "live": unary("ServerLive", b""),
    "health": unary("Check", b"", health.SERVICE),
    "health of what is not there": unary("Check", b"\x0a\x01x", health.SERVICE),
    "watch": watch,
    "inference": unary("ModelInfer", infer()),
    "no message": unary("ModelInfer", None),
    "no such message": unary("ModelInfer", b"\xff\xff"),
    "no such model": unary("ModelInfer", infer("nosuch")),
    "wrong inputs": unary("ModelInfer", pb.ModelInferRequest(model_name="simple").SerializeToString()),
    "fails": fails,
    "raises": raises,
    "cancelled": cancelled,
    "too large": too_large,
    "long and wrong": long_and_wrong,
    "stream": stream_ok,
    "stream of one": stream_one,
    "stream with triton_grpc_error": stream_hard_error,
    "stream, decoupled": stream_many,
    "stream, cancelled": stream_cancelled,
    "stream, client gone": stream_gone,
    "stream, server stops": stream_stopped,
    "stream, answer cannot be made": stream_no_answer,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_call_leaves_garbage(harness: Harness, kind: str) -> None:
    for _ in range(2):  # the first fills caches
        with garbage_left() as left_over:
            await KINDS[kind](harness)
            harness.forget()
            await turns()
    assert not left_over, "\n".join(f"{type(each).__name__} {str(each)[:200]}" for each in left_over)
