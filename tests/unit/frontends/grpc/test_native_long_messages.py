"""Messages of megabytes: collected in one place, and sent a turn's worth at a time."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from native_client import Client, Port, client_fixture, framed, port_fixture

from http2_client import data, window
from modserve.frontends.grpc import messages
from modserve.frontends.grpc.heads import RESOURCE_EXHAUSTED
from modserve.frontends.grpc.rpc import RpcCall
from modserve.frontends.grpc.server_call import ServerCall
from modserve.pb import inference as pb

MEBIBYTE = 1 << 20
MESSAGE = pb.ModelMetadataRequest(name="".join(map(str, range(900_000)))).SerializeToString()
"""5 MB, in which a part that is in the wrong place shows."""

__all__ = ["client_fixture", "port_fixture"]


@pytest.fixture(autouse=True)
def echoing(port: Port) -> None:
    """Calls for metadata return what they got."""

    async def echo(message: Any, _call: RpcCall) -> Any:
        return message.SerializeToString()

    port.handle("ModelMetadata", echo)
    port.server.memory.limit = 100 * MEBIBYTE


def send(client: Client, message: bytes, end: bool = True) -> int:
    """In frames of 16 KiB, each as the server's windows allow."""
    stream = client.call("ModelMetadata", end=False)
    for at in range(0, len(message), 16384):
        client.wire.send(data(stream, message[at : at + 16384], end=end and at + 16384 >= len(message)))
    return stream


async def test_a_long_message_there_and_back(client: Client, port: Port) -> None:
    stream = send(client, framed(MESSAGE))
    client.wire.send(window(stream, 10 * MEBIBYTE), window(0, 10 * MEBIBYTE))
    answer = await client.answer(stream)
    assert (answer.messages, answer.status) == ([MESSAGE], 0)
    await asyncio.sleep(0)
    assert port.held == 0


async def test_a_call_arrives_until_its_message_is_there(client: Client) -> None:
    whole = pb.ModelMetadataRequest(name="n" * 1000).SerializeToString()
    message = framed(whole)
    stream = client.call("ModelMetadata", end=False)
    (call,) = client.wire.connection.streams.values()
    assert isinstance(call, ServerCall)
    for part in message[:500], message[500:999]:
        client.wire.send(data(stream, part, end=False))
        assert call.arriving
    client.wire.send(data(stream, message[999:], end=True))
    assert not call.arriving
    assert (await client.answer(stream)).messages == [whole]
    assert not call.arriving


async def test_a_turn_sends_four_megabytes(client: Client) -> None:
    """However much the client takes."""
    stream = send(client, framed(MESSAGE))
    client.wire.send(window(stream, 10 * MEBIBYTE), window(0, 10 * MEBIBYTE))
    sizes = [0]
    while not client.look()[stream].ended:
        await asyncio.sleep(0)
        sizes.append(len(client.look()[stream].body))
    turns = [after - before for before, after in pairwise(sizes) if after > before]
    assert sum(turns) == len(MESSAGE) + 5
    assert max(turns) == 4 * MEBIBYTE


async def test_a_place_for_all_of_it_when_much_has_come(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = send(client, framed(MESSAGE)[: MEBIBYTE + 5], end=False)
    (call,) = client.wire.connection.streams.values()
    assert isinstance(call, ServerCall)
    assert call._receiver is not None
    assembler = call._receiver._assembler
    assert assembler is not None
    assert len(assembler.message()) == MEBIBYTE
    client.wire.send(data(stream, b"1", end=False))
    assert len(assembler.message()) == len(MESSAGE)
    client.wire.connection.connection_lost(None)
    await asyncio.sleep(0)


async def test_no_memory_for_what_is_announced(client: Client, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(size: int) -> Any:
        raise MemoryError

    stream = send(client, framed(MESSAGE)[:MEBIBYTE], end=False)
    monkeypatch.setattr(messages, "room", nothing)
    client.wire.send(data(stream, bytes(10), end=False))
    answer = await client.answer(stream)
    assert (answer.status, answer.text) == (
        RESOURCE_EXHAUSTED,
        f"the server has no memory for a message of {len(MESSAGE)} bytes",
    )
    assert port.held == 0
