"""Long responses go out in pieces, as the client takes them."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from puppet_server import Client, PuppetServable, Stage, infer, request, stage

from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.frontends.http.wire.long_response import LongResponse

KIB = 1024
MEBIBYTE = KIB * KIB
TEXT = bytes(range(256)) * 16 * KIB
"""4 MiB, in which a piece that is in the wrong place shows."""


def large(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"OUT": np.array([TEXT], object)}


def ask(on: Stage, client: Client) -> PuppetServable:
    """One request whose response is `TEXT` behind its length; it is written when the test says so."""
    servable = on.loader.loaded[ModelId("echo", 1)]
    servable._compute = large
    header = (
        b'{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}}],'
        b'"parameters":{"binary_data_output":true}}'
    )
    body = header + b"\1\0\0\0a"
    target = "/v2/models/echo/infer"
    client.send(request(target=target, body=body, Inference_Header_Content_Length=str(len(header))))
    return servable


def is_whole(client: Client) -> bool:
    (answer,) = client.answers
    length = int(answer.headers["inference-header-content-length"])
    return answer.status == 200 and answer.body[length:] == len(TEXT).to_bytes(4, "little") + TEXT


async def test_each_write_is_short_and_the_bytes_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        sizes: list[int] = []
        write = client.transport.write

        def write_and_count(data: bytes | bytearray | memoryview) -> None:
            sizes.append(len(data))
            write(data)

        monkeypatch.setattr(client.transport, "write", write_and_count)
        ask(on, client).answer_all()
        assert sum(sizes) == MEBIBYTE, "as much as one turn of the event loop may take"
        client.send(infer())
        await client.transport.until(lambda: len(client.transport.written) > len(TEXT))
        assert max(sizes) == 256 * KIB
        assert is_whole(client)
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 200], "the next response follows"


async def test_a_stop_in_the_middle_leaves_the_connection_open_for_one_more(tmp_path: Path) -> None:
    """The head that was sent says nothing of an end."""
    async with stage(tmp_path) as on:
        client = on.connect()
        on.loader.loaded[ModelId("echo", 1)].automatic = False
        ask(on, client).answer_all()
        assert isinstance(client.connection._call, LongResponse)
        goodbye = asyncio.create_task(on.site.say_goodbye(3600.0))
        await client.transport.until(lambda: len(client.transport.written) > len(TEXT))
        assert is_whole(client)
        assert not client.transport.closing
        client.send(infer())
        assert [answer.headers.get("connection") for answer in await client.receive(2)] == [None, "close"]
        assert client.transport.closing
        await goodbye


def pauses(client: Client) -> Iterator[int]:
    """A client that takes one piece, whenever it is asked for; yields what it has."""
    write = client.transport.write

    def write_and_pause(data: bytes | bytearray | memoryview) -> None:
        write(data)
        client.transport.unsent = len(data)
        client.connection.pause_writing()

    client.transport.write = write_and_pause  # type: ignore[method-assign]
    while True:
        yield len(client.transport.written)
        client.transport.unsent = 0
        client.connection.resume_writing()


async def test_a_client_gets_no_more_than_it_takes(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        servable = ask(on, client)
        taking = pauses(client)
        next(taking)
        servable.answer_all()
        client.send(infer())
        total = client.transport.unsent + len(TEXT)
        for number in range(1, 17):
            written = len(client.transport.written)
            assert written == number * 256 * KIB
            assert not client.transport.reading
            assert total <= on.server.memory.held + written <= total + KIB, "what it has not taken counts"
            await asyncio.sleep(0)
            assert len(client.transport.written) == written
            next(taking)
        assert is_whole(client)
        next(taking)
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 200]
        assert on.server.memory.held == 256 * KIB or on.server.memory.held < KIB


@pytest.mark.parametrize("paused", [True, False])
async def test_a_client_that_goes_in_the_middle(tmp_path: Path, paused: bool) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        servable = ask(on, client)
        if paused:
            next(pauses(client))
        servable.answer_all()
        response = client.connection._call
        assert isinstance(response, LongResponse)
        written = len(client.transport.written)
        client.transport.lose()
        await asyncio.sleep(0)
        assert (response.left, on.server.memory.held, len(client.transport.written)) == (0, 0, written)
        assert not on.site.connections


async def test_the_server_closes_a_connection_behind_its_response(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        ask(on, client).answer_all()
        client.connection.close_when_idle()
        assert not client.transport.closing
        await client.transport.until(lambda: client.transport.closing)
        assert is_whole(client)


async def test_nothing_comes_between_for_a_client_that_sends_no_more(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        ask(on, client).answer_all()
        assert client.connection.eof_received()
        await client.transport.until(lambda: client.transport.closing)
        assert is_whole(client)


async def test_a_slow_client_that_takes_something_is_left_alone(tmp_path: Path) -> None:
    """Although its transport has as many bytes at each look: another piece has taken the place of the last."""
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        servable = ask(on, client)
        taking = pauses(client)
        next(taking)
        servable.answer_all()
        patience = on.site.options.client_timeout
        now = 1000.0
        client.connection.check(now)
        for _ in range(4):
            next(taking)
            now += patience * 0.9
            client.connection.check(now)
        assert not client.transport.closing
        client.connection.check(now + patience)
        assert client.transport.closing
