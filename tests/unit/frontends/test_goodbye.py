"""At a stop each HTTP connection is served once more: no client is cut off that could not know."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from puppet_server import Client, Stage, infer, request, stage

from modserve.frontends.http.wire.listener import HttpListener
from modserve.server import Phase
from modserve.settings import HttpSettings

LONG = 3600.0
"""Seconds that no test waits for."""
GET = request("GET", "/hello")


@asynccontextmanager
async def stopping(on: Stage, seconds: float = LONG) -> AsyncIterator["asyncio.Task[None]"]:
    """While the server says goodbye to the connections that are open."""
    goodbye = asyncio.create_task(on.site.say_goodbye(seconds))
    await asyncio.sleep(0)
    yield goodbye
    await goodbye


def closed(client: Client) -> bool:
    return client.transport.closing


@pytest.mark.parametrize("data", [infer(), GET, request("POST", "/v1/models/simple:predict", b"{")], ids=str)
async def test_a_request_that_was_on_its_way_is_answered(tmp_path: Path, data: bytes) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer())
        assert "connection" not in (await client.receive())[0].headers
        async with stopping(on) as goodbye:
            assert not closed(client)
            assert not goodbye.done()
            client.send(data)
            answers = await client.receive(2)
            assert answers[1].headers["connection"] == "close"
        assert closed(client)


async def test_a_port_that_retires_serves_each_connection_once_more(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, asyncio.TaskGroup() as tasks:
        listener = HttpListener(on.server, "127.0.0.1", 0, HttpSettings(), tasks)
        place = f"http://127.0.0.1:{await listener.start()}/v2/health/live"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert "connection" not in (await client.get(place)).headers
            retiring = tasks.create_task(listener.retire(LONG, closing=False))
            await asyncio.sleep(0)
            assert (await client.get(place)).headers["connection"] == "close"
            await retiring
        await listener.close()


@pytest.mark.parametrize("data", [infer(), GET, request("POST", "/v1/models/simple:predict", b"{")], ids=str)
async def test_all_that_have_come_are_answered_and_the_last_says_so(tmp_path: Path, data: bytes) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        async with stopping(on):
            client.send(data * 5)
            await client.transport.until(lambda: closed(client))
        assert [answer.headers.get("connection") for answer in client.answers] == [None] * 4 + ["close"]
        assert closed(client)


async def test_one_that_the_system_has_and_nobody_has_read_is_answered(tmp_path: Path) -> None:
    """It was sent behind the others, and before any of them had its answer."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        async with stage(tmp_path) as on:
            client = on.connect()
            client.transport.extra["socket"] = ours
            async with stopping(on):
                theirs.send(infer())
                client.send(infer())
                assert "connection" not in (await client.receive())[0].headers
                client.connection.close_when_idle()
                assert not closed(client)
                client.send(ours.recv(1 << 16))
                assert (await client.receive(2))[1].headers["connection"] == "close"
            assert closed(client)


async def test_one_that_is_coming_in_is_answered(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        clients = [on.connect(), on.connect(), on.connect()]
        whole = infer()
        parts = [5, whole.find(b"\r\n\r\n") + 4, len(whole) - 1]
        for client, part in zip(clients, parts, strict=True):
            client.send(whole[:part])
        async with stopping(on):
            for client, part in zip(clients, parts, strict=True):
                client.send(whole[part:])
        assert [client.answers[0].headers["connection"] for client in clients] == ["close"] * 3
        assert [client.answers[0].status for client in clients] == [200] * 3


async def test_an_idle_one_is_closed_when_it_was_quiet(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        async with stopping(on, 0.001):
            pass
        assert not closed(client)  # it is the listener that closes it, when nothing new is accepted any more
        client.connection.close_when_idle()
        assert closed(client)


async def test_nobody_is_waited_for_without_connections(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, stopping(on):
        pass


async def test_busy_ones_are_not_waited_for(tmp_path: Path) -> None:
    """They hear of it with their response, however long that takes."""
    async with stage(tmp_path, automatic=False) as on:
        busy = on.connect()
        busy.send(infer())
        async with stopping(on):
            pass
        on.simple.answer_all()
        assert busy.answers[0].headers["connection"] == "close"
        assert closed(busy)


async def test_all_idle_ones_are_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        clients = [on.connect() for _ in range(3)]
        async with stopping(on) as goodbye:
            for client in clients:
                assert not goodbye.done()
                client.send(infer())
                assert (await client.receive())[0].headers["connection"] == "close"
                await asyncio.sleep(0)  # the connection is lost


async def test_no_time_at_all(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.connect()
        async with stopping(on, 0.0):
            pass


async def test_a_response_that_had_begun_is_not_the_last(tmp_path: Path) -> None:
    """Its head says nothing of an end, so that the client may have sent another request before it saw one."""
    went_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await went_on.wait()
        await send({"type": "http.response.body", "body": b"two"})

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        await client.transport.until(lambda: b"one" in client.transport.written)
        async with stopping(on) as goodbye:
            went_on.set()
            (first,) = await client.receive()
            assert "connection" not in first.headers
            assert not closed(client)
            assert not goodbye.done()
            client.send(GET)
            assert (await client.receive(2))[1].headers["connection"] == "close"
        assert closed(client)


async def test_a_response_that_begins_later_is_the_last(tmp_path: Path) -> None:
    """Its request was read before the stop."""
    answering = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one"})

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        await asyncio.sleep(0)
        async with stopping(on):
            pass
        answering.set()
        (answer,) = await client.receive()
        assert answer.headers["connection"] == "close"
        assert closed(client)


async def test_the_server_is_not_ready_and_serves_on(tmp_path: Path) -> None:
    async with stage(tmp_path, None) as on:
        assert on.server.ready
        on.server.give_notice()
        assert not on.server.ready
        assert on.server.phase is Phase.RUNNING
        client = on.connect()
        client.send(infer(), request("GET", "/v2/health/ready"), request("GET", "/v2/health/live"))
        assert [answer.status for answer in await client.receive(3)] == [200, 503, 200]
        on.server.retire()
        client.send(infer(), request("GET", "/v2/health/live"))
        assert [answer.status for answer in await client.receive(5)][3:] == [200, 503]


async def test_one_worker_of_several_stays_ready(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.server.retire()
        assert on.server.ready
