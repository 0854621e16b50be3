"""Clients that send no more: some wait for their answers, some have gone."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import pytest
from puppet_server import JSON_ANSWER, MAX_JSON, Client, infer, request, stage

from modserve.frontends.http.wire import half_closed
from modserve.settings import HttpSettings

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HELLO = request("GET", "/hello")


class FakeSocket:
    """Of a client that is there until the test says otherwise."""

    def __init__(self) -> None:
        self.error = 0

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.error


def send_no_more(client: Client, opened: FakeSocket | None = None) -> None:
    """What a transport does when it has read to the end."""
    client.transport.extra["socket"] = opened or FakeSocket()
    if not client.connection.eof_received():
        client.transport.close()


async def test_an_inference_is_answered_and_then_the_connection_closes(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer())
        send_no_more(client)
        assert bytes(client.transport.written) == CONTINUE, "shows whether anybody reads"
        send_no_more(client)
        assert bytes(client.transport.written) == CONTINUE, "an event loop that reads on finds the end again"
        assert not client.transport.closing
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [100, 200]
        assert client.answers[-1].body == JSON_ANSWER
        assert client.transport.closing


async def test_http_1_0_has_no_answers_before_the_answer(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(request(body=infer().partition(b"\r\n\r\n")[2], version="1.0"))
        send_no_more(client)
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200]
        assert client.transport.closing


@pytest.mark.parametrize("whole", [infer(Connection="close"), infer(Connection="close") + HELLO])
async def test_a_last_request_stays_the_last(tmp_path: Path, whole: bytes) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(whole)
        send_no_more(client)
        send_no_more(client)
        assert bytes(client.transport.written) == CONTINUE
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [100, 200]
        assert client.answers[-1].headers["connection"] == "close"
        assert client.transport.closing


@pytest.mark.parametrize(("headers", "connection"), [({}, "close"), ({"Connection": "keep-alive"}, "keep-alive")])
@pytest.mark.parametrize("target", ["/v2/models/simple/infer", "/hello"])
async def test_how_long_http_1_0_wants_to_stay(
    tmp_path: Path, target: str, headers: dict[str, str], connection: str
) -> None:
    body = infer().partition(b"\r\n\r\n")[2]
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(request(target=target, body=body, version="1.0", **headers))
        send_no_more(client)
        on.simple.answer_all()
        (answer,) = await client.receive()
        assert answer.headers["connection"] == connection
        await client.transport.until(lambda: client.transport.closing)


async def test_a_server_that_stops_serves_no_more_than_the_request_at_hand(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer() + HELLO)
        send_no_more(client)
        client.connection.close_when_idle()
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [100, 200]
        assert client.transport.closing


async def test_all_that_were_sent_are_answered(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer() + HELLO + infer() + infer()[:50])
        send_no_more(client)
        on.simple.answer_all()
        await client.receive(3)
        assert not client.transport.closing
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [100, 200, 200, 200]
        assert client.transport.closing


@pytest.mark.parametrize("sent", [b"", infer()[:20], infer()[:-1]], ids=["nothing", "half a head", "half a body"])
async def test_without_a_request_there_is_nothing_to_wait_for(tmp_path: Path, sent: bytes) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(sent)
        send_no_more(client)
        assert client.transport.closing
        assert not client.transport.written


async def test_an_answer_that_has_begun_is_not_interrupted(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await go.wait()
        await send({"type": "http.response.body", "body": b"last"})

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(HELLO)
        await client.transport.until(lambda: b"first" in client.transport.written)
        send_no_more(client)
        assert client.transport.written.endswith(b"\r\nfirst\r\n0"), "with which the next chunk's size may begin"
        go.set()
        (answer,) = await client.receive()
        assert answer.body == b"firstlast"
        assert client.transport.written.endswith(b"\r\n04\r\nlast\r\n0\r\n\r\n")
        await client.transport.until(lambda: client.transport.closing)


async def test_over_tls_nothing_can_be_sent_any_more(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.transport.extra["sslcontext"] = object()
        client.connection.connection_made(client.transport)
        client.send(infer())
        send_no_more(client)
        assert client.transport.closing
        await asyncio.sleep(0)
        assert on.simple.submitted[0].cancelled


@pytest.mark.parametrize("at_once", [True, False])
async def test_one_that_has_gone_cancels_its_request(
    tmp_path: Path, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_closed, "_POLL_INTERVAL", 0)
    async with stage(tmp_path, automatic=False, options=HttpSettings(max_json=MAX_JSON)) as on:
        client = on.connect()
        client.send(infer())
        opened = FakeSocket()
        opened.error = errno.EPIPE if at_once else 0
        send_no_more(client, opened)
        if not at_once:
            await asyncio.sleep(0)
            assert not client.transport.closing
            opened.error = errno.EPIPE
        await client.transport.until(lambda: client.transport.closing)
        await asyncio.sleep(0)
        assert on.simple.submitted[0].cancelled
