"""What open calls, trickling messages and unread responses may cost: time and memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hyperframe.frame import RstStreamFrame, SettingsFrame
from native_client import Answer, Client, Port, client_fixture, framed, port_fixture, request

from http2_client import data, window
from modserve.frontends.grpc.listener import connection_limits
from modserve.frontends.grpc.rpc import RpcCall
from modserve.frontends.http2.frames import CANCEL
from modserve.frontends.http2.limits import LIMITS
from modserve.settings import GrpcSettings, Settings

__all__ = ["client_fixture", "port_fixture"]

Pass = Callable[[float], None]


@pytest.fixture(name="pass_time")
def pass_time_fixture(port: Port, monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Moves the clock of the site's loop."""
    now = [port.port.loop.time()]
    monkeypatch.setattr(port.port.loop, "time", lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds
        port.port.tick()

    pass_time(0)
    return pass_time


CALLS = ("ModelInfer", "ModelStreamInfer")


@pytest.mark.parametrize("name", CALLS)
async def test_a_message_that_trickles(port: Port, client: Client, pass_time: Pass, name: str) -> None:
    """A byte in each second: 16 KiB have 300 s, and then as long for as much again."""
    stream = client.call(name, framed(bytes(100_000))[:10], end=False)
    for _ in range(2):
        for _ in range(299):
            pass_time(1)
            client.wire.send(data(stream, b"\0"))
        client.wire.send(data(stream, bytes(LIMITS.part)))
    assert not client.look().get(stream, Answer()).fields
    assert port.held > LIMITS.part
    for _ in range(303):
        pass_time(1)
        client.wire.send(data(stream, b"\0"))
    answer = await client.answer(stream)
    assert (answer.status, answer.text) == (4, "the request has not advanced by 16384 bytes within 300 s")
    for _ in range(3):
        await asyncio.sleep(0)
    assert port.held == 0


async def test_a_message_that_stops(client: Client, pass_time: Pass) -> None:
    stream = client.call("ModelInfer", framed(bytes(100_000))[:10], end=False)
    pass_time(59)
    client.wire.send(data(stream, b"\0"))
    pass_time(59)
    assert not client.look().get(stream, Answer()).fields
    pass_time(3)
    answer = await client.answer(stream)
    assert (answer.status, answer.text) == (4, "nothing more of the request has arrived for 60 s")


async def test_a_stream_between_messages_has_all_the_time(client: Client, pass_time: Pass) -> None:
    stream = client.call("ModelStreamInfer", framed(request()), end=False)
    for number in range(2, 5):
        pass_time(100_000)
        client.wire.send(data(stream, framed(request())[:20]))
        pass_time(1)
        client.wire.send(data(stream, framed(request())[20:]))
        while len(client.look().get(stream, Answer()).messages) < number:  # noqa: ASYNC110  # a turn, no time
            await asyncio.sleep(0)
    client.wire.send(data(stream, b"", end=True))
    assert (await client.answer(stream)).status == 0


async def test_a_message_whose_rest_has_no_window_has_all_the_time(port: Port, client: Client, pass_time: Pass) -> None:
    """While the server does not read what came before it."""
    go = asyncio.Event()
    received: list[int] = []

    async def read(call: RpcCall) -> None:
        await go.wait()
        while (message := await call.read()) is not None:
            received.append(len(message))

    port.handle("ModelStreamInfer", read)
    stream = client.call("ModelStreamInfer", framed(bytes(1000)), framed(bytes(1000))[:500], end=False)
    for _ in range(10):
        pass_time(59)
    assert not client.look().get(stream, Answer()).fields
    go.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert received == [1000]
    pass_time(59)
    assert not client.look().get(stream, Answer()).fields
    pass_time(3)
    assert (await client.answer(stream)).status == 4


def test_one_option_for_both_protocols() -> None:
    settings = Settings(model_repository="models", http_client_timeout=7)
    assert (settings.http.client_timeout, settings.grpc.client_timeout) == (7, 7)
    limits = connection_limits(settings.grpc)
    assert (limits.silence, limits.blockage) == (7, 7)
    endless = connection_limits(GrpcSettings(client_timeout=0))
    assert endless.silence * endless.silences > 10**9


@pytest.mark.parametrize("name", CALLS)
async def test_open_calls_count(port: Port, client: Client, name: str) -> None:
    """Those of all connections: beyond the memory they are refused, and those that end make room."""
    port.server.memory.limit = 200_000
    clients = [client, port.client()]
    calls = [each.call(name, end=False) for _ in range(12) for each in clients]
    await asyncio.sleep(0)
    refused = [each.look()[stream] for each in clients for stream in calls[::2] if stream in each.look()]
    assert 0 < len(refused) < 12
    assert {answer.status for answer in refused} == {8}
    assert port.held <= 200_000
    client.wire.connection.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (await clients[1].ask("ModelInfer", framed(request()))).status == 0
    clients[1].wire.connection.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    assert port.held == 0


async def test_metadata_count(port: Port, client: Client) -> None:
    client.call("ModelInfer", end=False)
    usual = port.held
    client.call("ModelInfer", end=False, more=tuple((f"x{number}", "y") for number in range(300)))
    assert port.held - usual > usual + 8 * 300 * 32
    client.wire.connection.connection_lost(None)


async def test_unread_responses_count(port: Port, client: Client) -> None:
    """However short each is: beyond the memory calls are refused, as soon as they come."""
    port.server.memory.limit = 200_000
    await client.ask("ModelInfer", framed(request()))
    client.wire.send(SettingsFrame(0, settings={4: 0}))
    streams = []
    for _ in range(30):
        streams.append(client.call("ModelInfer", framed(request())))
        for _ in range(5):
            await asyncio.sleep(0)
    answers = client.look()
    statuses = [answers[stream].status for stream in streams if "grpc-status" in answers[stream].fields[-1]]
    assert set(statuses) == {8}
    assert 0 < len(statuses) < 20
    assert 190_000 < port.held < 220_000
    client.wire.send(*[window(stream, 100_000) for stream in streams[:5]])
    assert port.held < 180_000
    assert (await port.client().ask("ModelInfer", framed(request()))).status == 0
    for stream in streams:
        client.wire.send(RstStreamFrame(stream, error_code=CANCEL))
    assert port.held == 0


@pytest.mark.parametrize("how", ["reads on", "goes"])
async def test_what_waits_in_the_transport_counts(port: Port, client: Client, how: str) -> None:
    transport = client.wire.transport
    transport.room, transport._high = 0, 100
    await client.ask("ModelInfer", framed(request()))
    assert client.wire.connection.sender.paused
    assert port.held == transport.get_write_buffer_size() > 100
    if how == "reads on":
        transport.drain()
    else:
        client.wire.connection.connection_lost(None)
    assert port.held == 0


async def test_a_response_that_is_sent_at_once_is_not_counted(port: Port, client: Client) -> None:
    peaks: list[Any] = []
    for _ in range(3):
        await client.ask("ModelInfer", framed(request()))
        peaks.append(port.server.memory.peak)
    assert peaks == [0, 0, 0]
