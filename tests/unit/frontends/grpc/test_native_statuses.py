"""Calls are counted by the status that they end with, each once."""

import asyncio
from collections import Counter

import pytest
from hyperframe.frame import RstStreamFrame
from native_client import Client, Port, client_fixture, framed, port_fixture, request

from modserve.core.wire.grpc_status import NAMES


@pytest.mark.parametrize(
    ("name", "message", "status"),
    [
        ("ModelInfer", framed(request()), "OK"),
        ("ModelInfer", framed(request("absent")), "NOT_FOUND"),
        ("ModelInfer", framed(b"\xff"), "INVALID_ARGUMENT"),
        ("ServerMetadata", framed(b""), "OK"),
        ("ModelMetadata", framed(b""), "NOT_FOUND"),
        ("Nothing", framed(b""), "UNIMPLEMENTED"),
    ],
    ids=["inference", "absent model", "no message", "another call", "absent metadata", "no method"],
)
async def test_a_call(client: Client, port: Port, name: str, message: bytes, status: str) -> None:
    answer = await client.ask(name, message)
    assert NAMES[answer.status] == status
    assert +Counter(port.dispatcher.responses) == {status: 1}


@pytest.mark.parametrize("name", ["ServerLive", "ServerReady", "ModelReady"])
async def test_probes_do_not_count(client: Client, port: Port, name: str) -> None:
    await client.ask(name, framed(b""))
    assert port.dispatcher.responses == dict.fromkeys(NAMES, 0)


async def test_a_stream_is_one_call(client: Client, port: Port) -> None:
    answer = await client.ask("ModelStreamInfer", framed(request()), framed(request()))
    assert (answer.status, len(answer.messages)) == (0, 2)
    assert +Counter(port.dispatcher.responses) == {"OK": 1}


async def test_what_is_no_call(client: Client, port: Port) -> None:
    answer = await client.ask("ServerMetadata", framed(b""), kind="text/plain")
    assert answer.fields[0][":status"] == "415"
    assert +Counter(port.dispatcher.responses) == {"UNKNOWN": 1}


async def test_clients_that_leave(client: Client, port: Port) -> None:
    for puppet in port.loader.loaded.values():
        puppet.automatic = False
    stream = client.call("ModelInfer", framed(request()))
    await asyncio.sleep(0)
    client.wire.send(RstStreamFrame(stream, error_code=8))
    await asyncio.sleep(0)
    assert +Counter(port.dispatcher.responses) == {"CANCELLED": 1}
    client.call("ModelInfer", framed(request()))
    await asyncio.sleep(0)
    client.wire.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert +Counter(port.dispatcher.responses) == {"CANCELLED": 2}
