"""No call on a connection of our own leaves garbage that only the cyclic collector finds."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hyperframe.frame import RstStreamFrame
from native_client import (
    Client,
    Port,
    framed,
    port_fixture,
    request,
)

from garbage import garbage_left
from http2_client import data

Kind = Callable[[Port, Client], Awaitable[None]]


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def good(port: Port, client: Client) -> None:
    assert (await client.ask("ModelInfer", framed(request()))).status == 0


async def live(port: Port, client: Client) -> None:
    assert (await client.ask("ServerLive", framed(b""))).status == 0


async def unknown_model(port: Port, client: Client) -> None:
    assert (await client.ask("ModelInfer", framed(request("nosuch")))).status == 5


async def unknown_call(port: Port, client: Client) -> None:
    assert (await client.ask("Nothing", framed(b""))).status == 12


async def without_message(port: Port, client: Client) -> None:
    assert (await client.ask("ModelInfer")).status == 13


async def late(port: Port, client: Client) -> None:
    for puppet in port.loader.loaded.values():
        puppet.automatic = False
    stream = client.call("ModelInfer", framed(request()), more=(("grpc-timeout", "10m"),))
    assert (await client.answer(stream)).status == 4
    await turns()


async def reset(port: Port, client: Client) -> None:
    for puppet in port.loader.loaded.values():
        puppet.automatic = False
    for name in ("ModelInfer", "ModelStreamInfer"):
        stream = client.call(name, framed(request()))
        await turns()
        client.wire.send(RstStreamFrame(stream, error_code=8))
        await turns()


async def in_pieces(port: Port, client: Client) -> None:
    stream = client.call("ModelInfer", end=False)
    body = framed(request())
    client.wire.send(data(stream, body[:20]), data(stream, body[20:], end=True))
    assert (await client.answer(stream)).status == 0


async def half_a_message(port: Port, client: Client) -> None:
    stream = client.call("ModelInfer", framed(request())[:20], end=False)
    client.wire.send(RstStreamFrame(stream, error_code=8))


async def stream_of_three(port: Port, client: Client) -> None:
    assert (await client.ask("ModelStreamInfer", *[framed(request())] * 3)).status == 0


KINDS: list[Kind] = [
    good,
    live,
    unknown_model,
    unknown_call,
    without_message,
    late,
    reset,
    in_pieces,
    half_a_message,
    stream_of_three,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_call_leaves_nothing(port: Port, kind: Kind) -> None:
    client = port.client()
    await good(port, client)  # what is made once is there
    await kind(port, client)
    for puppet in port.loader.loaded.values():
        puppet.automatic = True
        puppet.submitted.clear()
    await turns()
    with garbage_left() as left:
        await kind(port, client)
        for puppet in port.loader.loaded.values():
            puppet.submitted.clear()
        client.answers.clear()
        await turns()
    assert left == []
    await turns()


async def test_a_connection_leaves_nothing(port: Port) -> None:
    await good(port, port.client())
    with garbage_left() as left:
        client = port.client()
        await good(port, client)
        client.wire.connection.connection_lost(None)
        client.wire.transport.protocol = None
        del client
        await turns()
    assert left == []
