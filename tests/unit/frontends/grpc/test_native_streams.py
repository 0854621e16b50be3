"""How calls end before their time, and streams of messages."""

import asyncio
from typing import Any

import pytest
from hyperframe.frame import RstStreamFrame, SettingsFrame
from native_client import SERVICE, Answer, Client, Port, client_fixture, framed, port_fixture, request

from http2_client import data, window
from modserve.frontends.grpc.rpc import ClientDisconnectedError, RpcCall
from modserve.frontends.http2.frames import CANCEL

# Deadlines and cancellation


class Handler:
    """Waits until it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ends = 0

    async def __call__(self, message: object, call: RpcCall, *more: object) -> Any:
        call.on_end(self._end)
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def _end(self) -> None:
        self.ends += 1


HANDLED = ["ModelInfer", "ServerLive", "/grpc.health.v1.Health/Watch"]


@pytest.mark.parametrize("name", HANDLED)
@pytest.mark.parametrize("how", ["deadline", "reset", "lost", "age"])
async def test_a_call_that_is_cancelled(port: Port, client: Client, name: str, how: str) -> None:
    handler = Handler()
    path = name if name.startswith("/") else SERVICE + name
    port.rpcs[path] = port.rpcs[path]._replace(handler=handler)
    stream = client.call(name, framed(b""), more=(("grpc-timeout", "20m"),) if how == "deadline" else ())
    await handler.begun.wait()
    if how == "deadline":
        answer = await client.answer(stream)
        assert (answer.status, answer.text) == (4, "Deadline Exceeded")
    elif how == "reset":
        client.wire.send(RstStreamFrame(stream, error_code=CANCEL))
    elif how == "lost":
        client.wire.connection.connection_lost(None)
    else:
        for call in list(client.wire.connection.streams.values()):
            call.stop()  # type: ignore[attr-defined]
        assert (await client.answer(stream)).status == 14
    async with asyncio.timeout(5):
        await handler.cancelled.wait()
    assert handler.ends == 1
    assert not client.wire.connection.streams
    await asyncio.sleep(0)


async def test_a_deadline_that_has_passed_when_the_message_comes(client: Client) -> None:
    stream = client.call("ModelInfer", end=False, more=(("grpc-timeout", "1m"),))
    assert (await client.answer(stream)).status == 4


@pytest.mark.parametrize("text", ["", "1", "S", "-1S", "123456789S", "1s", "1.5S"])
async def test_timeouts_that_are_none(client: Client, text: str) -> None:
    stream = client.call("ServerLive", framed(b""), more=(("grpc-timeout", text),))
    assert client.look()[stream].reset == 1


# Streams


async def test_a_stream_of_requests(client: Client) -> None:
    stream = client.call("ModelStreamInfer", framed(request()), framed(request()), end=False)
    while len(client.look().get(stream, Answer()).messages) < 2:  # noqa: ASYNC110  # a turn, no time
        await asyncio.sleep(0)
    client.wire.send(data(stream, framed(request())))
    client.wire.send(data(stream, b"", end=True))
    answer = await client.answer(stream)
    assert answer.status == 0
    assert len(answer.messages) == 3


async def test_a_stream_that_its_client_leaves(client: Client, port: Port) -> None:
    for puppet in port.loader.loaded.values():
        puppet.automatic = False
    stream = client.call("ModelStreamInfer", *[framed(request())] * 3, end=False)
    while sum(len(puppet.submitted) for puppet in port.loader.loaded.values()) < 3:  # noqa: ASYNC110  # a turn, no time
        await asyncio.sleep(0)
    client.wire.send(RstStreamFrame(stream, error_code=CANCEL))
    for _ in range(10):
        await asyncio.sleep(0)
    assert all(inflight.settled for puppet in port.loader.loaded.values() for inflight in puppet.submitted)


async def test_a_writer_waits_for_its_client(port: Port, client: Client) -> None:
    written: list[int] = []

    async def write(call: RpcCall) -> None:
        for number in range(3):
            await call.write(bytes(40_000))
            written.append(number)

    port.handle("ModelStreamInfer", write)
    client.wire.send(SettingsFrame(0, settings={4: 50_000}))
    stream = client.call("ModelStreamInfer")
    for _ in range(10):
        await asyncio.sleep(0)
    assert written == [0]
    client.wire.send(window(stream, 100_000), window(0, 100_000))
    answer = await client.answer(stream)
    assert written == [0, 1, 2]
    assert [len(message) for message in answer.messages] == [40_000] * 3


async def test_a_writer_whose_client_goes(port: Port, client: Client) -> None:
    outcome: list[str] = []

    async def write(call: RpcCall) -> None:
        try:
            await call.write(bytes(100_000))
        except ClientDisconnectedError:
            outcome.append("gone")
            raise
        except asyncio.CancelledError:
            outcome.append("cancelled")
            raise

    port.handle("ModelStreamInfer", write)
    stream = client.call("ModelStreamInfer")
    for _ in range(5):
        await asyncio.sleep(0)
    client.wire.send(RstStreamFrame(stream, error_code=CANCEL))
    for _ in range(5):
        await asyncio.sleep(0)
    assert outcome in (["gone"], ["cancelled"])


async def test_what_a_client_sends_ahead_counts(port: Port, client: Client) -> None:
    """And it gets to send more only when it is read."""
    go = asyncio.Event()

    async def read(call: RpcCall) -> None:
        await go.wait()
        while await call.read() is not None:
            pass

    port.handle("ModelStreamInfer", read)
    stream = client.call("ModelStreamInfer", end=False)
    open_call = port.held
    for _ in range(60):
        client.wire.send(data(stream, framed(bytes(10_000))))
    await asyncio.sleep(0)
    assert port.held == open_call + 600_000
    for _ in range(60):
        client.wire.send(data(stream, framed(bytes(10_000))))
    go.set()
    answer = await client.answer(stream)
    assert answer.status == 8
    assert "memory" in answer.text


async def test_an_outcome_unforeseen(port: Port, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(message: object, call: RpcCall) -> Any:
        raise RuntimeError("unforeseen")

    port.handle("ServerLive", fail)
    assert (await client.ask("ServerLive", framed(b""))).status == 13
