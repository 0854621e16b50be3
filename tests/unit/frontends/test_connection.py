"""One HTTP connection, driven with literal bytes."""

import asyncio
import gc
import json
import re
import socket
from pathlib import Path
from random import Random

import pytest
from puppet_server import (
    BINARY_ANSWER,
    BINARY_ANSWER_HEADER,
    BINARY_BODY,
    JSON_ANSWER,
    JSON_BODY,
    MAX_JSON,
    Client,
    infer,
    infer_binary,
    request,
    stage,
)

from modserve.core.runtime.turn import BURST
from modserve.frontends.http.wire.reader import Reader
from modserve.protocol.restricted import Restriction
from modserve.settings import HttpSettings

GET = request("GET", "/hello?a=1")
HELLO = b"GET /hello ? a=1 = "


def error(client: Client, index: int = -1) -> str:
    answer = client.answers[index]
    assert answer.headers["content-type"] == "application/json"
    (message,) = json.loads(answer.body).values()
    return str(message)


def refused(client: Client, status: int) -> str:
    """That the last answer refuses the connection with `status`; its message."""
    assert client.answers[-1].status == status
    assert client.answers[-1].headers["connection"] == "close"
    assert client.transport.eof
    return error(client)


# Answers, byte for byte


async def test_a_json_inference(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer())
        assert not client.transport.written
        on.simple.answer_all()
        assert (
            bytes(client.transport.written)
            == b"HTTP/1.1 200 OK\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (on.site.date, len(JSON_ANSWER))
            + JSON_ANSWER
        )
        assert client.transport.writes == 1


async def test_a_binary_inference(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer_binary())
        on.simple.answer_all()
        assert (
            bytes(client.transport.written)
            == (
                b"HTTP/1.1 200 OK\r\n%bContent-Type: application/octet-stream\r\n"
                b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
                % (on.site.date, len(BINARY_ANSWER_HEADER), len(BINARY_ANSWER))
            )
            + BINARY_ANSWER
        )


async def test_an_error(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(request(target="/v2/models/nosuch/infer", X_Request_ID="a-1"))
        body = b'{"error":"Request for unknown model: \'nosuch\' is not found"}'
        assert bytes(client.transport.written) == (
            b"HTTP/1.1 404 Not Found\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"X-Request-ID: a-1\r\n\r\n" % (on.site.date, len(body)) + body
        )


async def test_everything_else_goes_to_the_application(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(GET)
        (answer,) = await client.receive()
        assert (answer.status, answer.body) == (200, HELLO)
        date = on.site.date.decode().strip().removeprefix("Date: ")
        assert answer.headers == {"content-type": "text/plain", "content-length": str(len(HELLO)), "date": date}
        client.send(request("POST", "/a%20b", b"body"))
        assert (await client.receive(2))[1].body == b"POST /a b ?  = body"


# How requests come in


@pytest.mark.parametrize(
    ("whole", "expected"),
    [(infer(), JSON_ANSWER), (infer_binary(), BINARY_ANSWER), (GET, HELLO)],
    ids=["json", "binary", "application"],
)
async def test_a_request_may_be_cut_anywhere(tmp_path: Path, whole: bytes, expected: bytes) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        for position in range(1, len(whole)):
            client.send(whole[:position], whole[position:])
            assert (await client.receive(position))[-1].body == expected


async def test_a_request_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(*(bytes([byte]) for byte in infer_binary()))
        assert (await client.receive())[0].body == BINARY_ANSWER


async def test_a_large_body_in_many_chunks(tmp_path: Path) -> None:
    element = b"x" * 1_000_000
    header = (
        b'{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}],'
        b'"parameters":{"binary_data_output":true}}' % (len(element) + 4)
    )
    raw = len(element).to_bytes(4, "little") + element
    whole = request(target="/v2/models/echo/infer", body=header + raw, Inference_Header_Content_Length=str(len(header)))
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(*(whole[start : start + 5_000] for start in range(0, len(whole), 5_000)))
        (answer,) = await client.receive()
        assert answer.status == 200
        assert answer.body[int(answer.headers["inference-header-content-length"]) :] == raw


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_chunked_transfer_encoding(tmp_path: Path, size: int) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        head = request(Transfer_Encoding="chunked")
        client.send(head + chunked(JSON_BODY, size))
        client.send(head, chunked(JSON_BODY, size))
        assert [answer.body for answer in await client.receive(2)] == [JSON_ANSWER] * 2


async def test_the_client_may_wait_to_be_told_to_continue(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        head, _, body = infer(Expect="100-continue").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert bytes(client.transport.written) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert [answer.status for answer in await client.receive(2)] == [100, 200]


async def test_http_1_0_clients_are_not_told_to_continue(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(request(body=JSON_BODY, version="1.0", Expect="100-continue"))
        assert [answer.status for answer in await client.receive()] == [200]


@pytest.mark.parametrize("name", ["simple", "%73imple", "%73%69%6d%70%6C%65"])
async def test_percent_encoded_names(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(request(target=f"/v2/models/{name}/versions/1/infer?x=/y", body=JSON_BODY))
        (answer,) = await client.receive()
        assert json.loads(answer.body)["model_version"] == "1"


async def test_names_with_other_letters(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(request(target="/v2/models/m%C3%A4%2Fb%ff/infer", body=JSON_BODY))
        assert error(client) == "Request for unknown model: 'mä/b\ufffd' is not found"


# One after the other


async def test_a_connection_stays_open(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        for count in range(1, 4):
            client.send(infer())
            await client.receive(count)
        client.send(request(target="/v2/models/nosuch/infer"), infer_binary())
        bodies = [answer.body for answer in await client.receive(5)]
        assert (bodies[:3], bodies[4]) == ([JSON_ANSWER] * 3, BINARY_ANSWER)
        assert not client.transport.closing


def with_id(number: int) -> bytes:
    return infer(JSON_BODY[:-1] + b',"id":"%d"}' % number)


def ids(client: Client) -> list[int]:
    return [int(json.loads(answer.body)["id"]) for answer in client.answers]


@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "one by one"])
async def test_pipelined_requests_are_answered_in_order(tmp_path: Path, together: bool) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        requests = [with_id(number) for number in range(5)]
        client.send(*([b"".join(requests)] if together else requests))
        for answered in range(5):
            assert ids(client) == list(range(answered))
            on.simple.answer_all()
        assert ids(client) == list(range(5))


async def test_pipelined_requests_of_all_kinds(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer() + GET + request(target="/v2/models/nosuch/infer", body=JSON_BODY) + infer_binary() + GET)
        answers = await client.receive(5)
        assert [answer.status for answer in answers] == [200, 200, 404, 200, 200]
        assert [answer.body for answer in answers if answer.status == 200] == [JSON_ANSWER, HELLO, BINARY_ANSWER, HELLO]


async def test_who_sends_too_much_ahead_is_read_no_further_until_answered(tmp_path: Path) -> None:
    filler = request(target="/v2/models/echo/infer", body=bytes(32 * 1024), Inference_Header_Content_Length="9")
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(with_id(0), filler)
        assert client.transport.reading
        client.send(filler, with_id(1))
        assert not client.transport.reading
        on.simple.answer_all()
        assert client.transport.reading
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 400, 400, 200]


async def test_a_long_body_leaves_turns_to_others(tmp_path: Path) -> None:
    """A client on the same machine sends as fast as it is read, and would have the event loop for itself."""
    whole = request(target="/v2/models/echo/infer", body=bytes(3 * BURST), Inference_Header_Content_Length="9")
    async with stage(tmp_path) as on:
        client = on.connect()
        sent = [whole[start : start + BURST // 4] for start in range(0, len(whole), BURST // 4)]
        read_on = []
        for piece in sent:
            client.send(piece)
            read_on.append(client.transport.reading)
            await asyncio.sleep(0)
            assert client.transport.reading
        assert read_on == [True, True, True, False] * 3 + [True]
        assert [answer.status for answer in await client.receive()] == [400]


async def test_requests_sent_ahead_are_not_read_before_their_turn(tmp_path: Path) -> None:
    """They are worth their bytes, and no objects."""
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        before = len(gc.get_objects())
        client.send(infer(), GET * 2_000)
        assert len(gc.get_objects()) - before < 200
        assert len(on.simple.submitted) == 1
        on.simple.answer_all()
        assert len(await client.receive(2_001)) == 2_001
        assert client.transport.reading


async def test_thousands_of_pipelined_mistakes_behind_one_request(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer() + request(target="/v2/models/nosuch/infer") * 3_000)
        assert not client.transport.written
        on.simple.answer_all()
        assert [answer.status for answer in await client.receive(3_001)] == [200] + [404] * 3_000
        assert client.transport.reading


async def test_requests_sent_ahead_share_the_event_loop(tmp_path: Path) -> None:
    """In each turn those of all connections get a little time, and no connection waits for another's last."""
    async with stage(tmp_path) as on:
        on.site.turns.seconds = 0.0
        greedy = [on.connect() for _ in range(3)]
        for client in greedy:
            client.send(request(target="/v2/models/nosuch/infer") * 50)
        # What has just come is begun at once, and one of what was sent ahead.
        assert [len(client.answers) for client in greedy] == [2, 1, 1]
        other = on.connect()
        other.send(infer())
        assert (await other.receive())[0].body == JSON_ANSWER
        assert all(len(client.answers) < 10 for client in greedy)
        counts = []
        for client in greedy:
            await client.receive(40)
            counts.append([len(each.answers) for each in greedy])
        assert all(max(count) - min(count) <= 2 for count in counts), counts
        for client in greedy:
            assert len(await client.receive(50)) == 50


async def test_a_client_that_goes_leaves_what_it_has_sent_ahead(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.site.turns.seconds = 0.0
        client = on.connect()
        client.send(request(target="/v2/models/nosuch/infer") * 3_000)
        assert len(client.answers) == 2
        client.transport.lose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not on.site.connections


async def test_a_body_s_end_does_not_count_for_the_next_head(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        long = request("POST", "/v2/models/echo/infer", bytes(200_000), Inference_Header_Content_Length="10")
        head, body = long[:200], long[200:]
        client.send(head, body + infer()[:10], infer()[10:])
        assert [answer.status for answer in await client.receive(2)] == [400, 200]


# The end


@pytest.mark.parametrize(
    ("version", "headers", "connection", "closes"),
    [
        ("1.1", {}, None, False),
        ("1.1", {"Connection": "close"}, "close", True),
        ("1.1", {"Connection": "keep-alive"}, None, False),
        ("1.0", {}, "close", True),
        ("1.0", {"Connection": "keep-alive"}, "keep-alive", False),
    ],
    ids=["1.1", "1.1 close", "1.1 keep-alive", "1.0", "1.0 keep-alive"],
)
@pytest.mark.parametrize("target", ["/v2/models/simple/infer", "/v2/models/nosuch/infer", "/other"])
async def test_who_wants_the_connection_to_stay(
    tmp_path: Path, target: str, version: str, headers: dict[str, str], connection: str | None, closes: bool
) -> None:
    async with stage(tmp_path) as on:
        for seen_before in (False, True):
            client = on.connect()
            client.send(request(target=target, body=JSON_BODY, version=version, **headers))
            (answer,) = await client.receive()
            assert (answer.headers.get("connection"), client.transport.closing) == (connection, closes), seen_before


async def test_what_follows_a_last_request_is_ignored(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer(Connection="close") + infer(), infer(), b"rubbish")
        on.simple.answer_all()
        assert [answer.body for answer in client.answers] == [JSON_ANSWER]
        assert client.transport.closing


async def test_a_client_that_goes_cancels_its_request(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client, other = on.connect(), on.connect()
        client.send(infer() + infer())
        other.send(infer())
        client.transport.lose()
        mine, others = on.simple.submitted
        assert (mine.cancelled, others.cancelled) == (True, False)
        on.simple.answer_all()
        assert not client.transport.written
        assert other.answers[0].body == JSON_ANSWER
        assert len(on.simple.submitted) == 2


async def test_a_client_that_goes_disconnects_the_application(tmp_path: Path) -> None:
    seen: list[str] = []

    async def app(scope: object, receive: object, send: object) -> None:
        assert callable(receive)
        seen.extend([(await receive())["type"], (await receive())["type"]])

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        client.transport.lose()
    assert seen == ["http.request", "http.disconnect"]


async def test_closing_waits_for_the_answer_under_way(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        busy, idle = on.connect(), on.connect()
        busy.send(infer())
        for client in (busy, idle):
            client.connection.close_when_idle()
        assert (busy.transport.closing, idle.transport.closing) == (False, True)
        on.simple.answer_all()
        assert busy.answers[0].headers["connection"] == "close"
        assert busy.transport.closing


async def test_the_site_knows_its_connections(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        assert on.site.idle.is_set()
        client = on.connect()
        assert (on.site.connections, on.site.idle.is_set()) == ({client.connection}, False)
        client.transport.lose()
        assert (on.site.connections, on.site.idle.is_set()) == (set(), True)


async def test_a_client_that_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.connection.pause_writing()
        assert not client.transport.reading
        client.send(infer())
        client.connection.resume_writing()
        assert len(await client.receive()) == 1
        assert client.transport.reading


@pytest.mark.parametrize("known", [False, True], ids=["new heads", "known heads"])
async def test_no_answers_are_made_for_a_client_that_does_not_read(tmp_path: Path, known: bool) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        if known:
            client.send(with_id(0))
            on.simple.answer_all()
            assert ids(client) == [0]
        before = len(on.simple.submitted)
        client.send(with_id(1), with_id(2) + with_id(3))
        client.connection.pause_writing()
        on.simple.answer_all()
        client.send(with_id(4))
        assert len(on.simple.submitted) == before + 1
        assert not client.transport.reading
        client.connection.resume_writing()
        for _ in range(3):
            on.simple.answer_all()
        assert ids(client) == [*range(1 - known, 5)]
        assert client.transport.reading


async def test_a_known_head_waits_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer())
        assert len(await client.receive()) == 1
        client.connection.pause_writing()
        client.send(infer())
        assert len(on.simple.submitted) == 1
        client.connection.resume_writing()
        assert len(await client.receive(2)) == 2


async def test_a_refusal_waits_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.connection.pause_writing()
        client.send(infer(), b"nonsense\r\n\r\n")
        assert not client.transport.written
        client.connection.resume_writing()
        assert [answer.status for answer in await client.receive(2)] == [200, 400]


async def test_the_server_stops_although_a_client_does_not_read(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.connection.pause_writing()
        client.send(infer())
        client.connection.close_when_idle()
        assert client.transport.closing


async def test_an_application_that_streams_waits_for_the_client(tmp_path: Path) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"three", "more_body": False})

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        client.connection.pause_writing()
        await client.transport.until(lambda: bool(client.transport.written))
        assert b"transfer-encoding: chunked\r\n" in client.transport.written
        assert client.transport.written.endswith(b"\r\n\r\n3\r\none\r\n")
        client.connection.resume_writing()
        (answer,) = await client.receive()
        assert answer.body == b"onetwothree"


async def test_an_application_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise ValueError("oops")

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        (answer,) = await client.receive()
        assert (answer.status, answer.body) == (500, b'{"error":"Internal Server Error"}')
        assert "GET /hello failed unexpectedly" in caplog.text
        assert not client.transport.closing


# What is refused


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        infer().replace(b"Content-Length: ", b"Content-Length: x"),
        infer().replace(b"Content-Length: ", b"Content-Length: -"),
        infer().replace(b"Content-Length: ", b"Content-Length: 99999999999999999999"),
        infer(Content_Length="7"),
        request(Transfer_Encoding="chunked") + b"x\r\n",
        request(Transfer_Encoding="chunked", Content_Length="2") + b"0\r\n\r\n",
    ],
    ids=[
        "rubbish",
        "TLS",
        "no target",
        "HTTP/2",
        "header without colon",
        "length no number",
        "length negative",
        "length too long",
        "two lengths",
        "chunk size",
        "chunked with length",
    ],
)
async def test_what_is_no_http_is_refused(tmp_path: Path, data: bytes) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(data)
        assert refused(client, 400).startswith("malformed HTTP request: ")
        assert not on.simple.submitted
        client.send(infer(), b"more")
        assert len(client.answers) == 1


async def test_a_refusal_comes_after_the_answers_before_it(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(with_id(0) + with_id(1) + b"rubbish\r\n\r\n", infer())
        assert not client.transport.written
        on.simple.answer_all()
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 200, 400]
        assert refused(client, 400)
        assert len(on.simple.submitted) == 2


async def test_a_refused_connection_is_closed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.frontends.http.wire.half_closed._LINGER", 0.0)
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(b"rubbish\r\n\r\n")
        await client.transport.until(lambda: client.transport.closing)


HEAD_LIMIT = 64 * 1024


@pytest.mark.parametrize("piece", [1_000, HEAD_LIMIT, 10**6], ids=["in pieces", "in two", "in one"])
@pytest.mark.parametrize("place", ["header", "headers", "target"])
async def test_a_head_beyond_64_kib(tmp_path: Path, place: str, piece: int) -> None:
    whole = {
        "header": request("GET", "/", X="x" * HEAD_LIMIT),
        "headers": request("GET", "/")[:-2]
        + b"".join(b"X%d: %b\r\n" % (number, b"x" * 1000) for number in range(66))
        + b"\r\n",
        "target": request("GET", "/" + "x" * HEAD_LIMIT),
    }[place]
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(*(whole[start : start + piece] for start in range(0, len(whole), piece)))
        assert refused(client, 431) == f"the request's head exceeds {HEAD_LIMIT} bytes"
        assert len(client.answers) == 1


async def test_a_head_that_never_ends(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(b"GET / HTTP/1.1\r\nX: ", *(b"x" * 1_000 for _ in range(66)))
        assert refused(client, 431)


@pytest.mark.parametrize("piece", [1_000, 10**6], ids=["in pieces", "in one"])
async def test_empty_lines_before_a_request_have_a_limit(tmp_path: Path, piece: int) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer())
        await client.receive()
        client.send(*[b"\r\n" * (piece // 2)] * (200_000 // piece + 1))
        assert refused(client, 400) == f"empty lines before the request exceed {HEAD_LIMIT} bytes"


async def test_empty_lines_between_requests_do_not_add_up(tmp_path: Path) -> None:
    """Some clients end each body with one (RFC 9112, 2.2)."""
    lines = b"\r\n" * 12_000
    async with stage(tmp_path) as on:
        client = on.connect()
        for number in range(1, 5):
            client.send(lines)
            client.send(infer())
            client.send(lines + request("GET", "/hello"))
            answers = await client.receive(2 * number)
        assert [answer.status for answer in answers] == [200] * 8


async def test_a_head_of_nearly_64_kib(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(request("GET", "/hello?a=1", X="x" * (HEAD_LIMIT - 1_000)))
        assert (await client.receive())[0].body == HELLO


def too_long(size: int) -> str:
    return (
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {MAX_JSON} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize("target", ["/v2/models/simple/infer", "/other"])
async def test_json_that_is_declared_too_long_is_not_even_read(tmp_path: Path, target: str) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        whole = request(target=target, body=bytes(MAX_JSON + 1), Expect="100-continue")
        client.send(whole[:200])
        assert refused(client, 400) == too_long(MAX_JSON + 1)
        client.send(whole[200:])
        assert len(client.answers) == 1


async def test_json_that_turns_out_too_long(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        chunk = b"1000\r\n" + bytes(4096) + b"\r\n"
        client.send(request(Transfer_Encoding="chunked"), chunk)
        assert not client.answers
        client.send(chunk, chunk)
        assert refused(client, 400) == too_long(8192)
        assert len(client.answers) == 1


async def test_json_before_binary_data_that_is_too_long(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer(bytes(2 * MAX_JSON), Inference_Header_Content_Length=str(MAX_JSON + 1)))
        assert error(client) == too_long(MAX_JSON + 1)
        assert not client.transport.closing


async def test_json_as_long_as_may_be(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer(JSON_BODY.ljust(MAX_JSON)))
        assert (await client.receive())[0].body == JSON_ANSWER


# Upgrades


@pytest.mark.parametrize("target", ["/hello?a=1", "/v2/models/simple/infer"])
@pytest.mark.parametrize("pieces", [1, 2], ids=["whole", "cut"])
async def test_an_upgrade_is_declined_by_answering_as_usual(tmp_path: Path, target: str, pieces: int) -> None:
    method, body = ("GET", b"") if target.startswith("/hello") else ("POST", JSON_BODY)
    asked = request(
        method,
        target,
        body,
        Connection="Upgrade, HTTP2-Settings",
        Upgrade="h2c",
        HTTP2_Settings="AAMAAABkAAQCAAAAAAIAAAAA",
    )
    expected = HELLO if method == "GET" else JSON_ANSWER
    async with stage(tmp_path) as on:
        client = on.connect()
        middle = len(asked) // pieces
        client.send(asked[:middle], asked[middle:])
        assert (await client.receive())[0].body == expected
        client.send(asked + infer() + asked)
        assert [answer.body for answer in await client.receive(4)] == [expected, expected, JSON_ANSWER, expected]
        assert not client.transport.closing


async def test_a_binary_inference_that_asks_for_an_upgrade(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        whole = infer_binary(Connection="Upgrade", Upgrade="h2c")
        head = len(whole) - len(BINARY_BODY)
        client.send(whole[: head + 5], whole[head + 5 :])
        assert (await client.receive())[0].body == BINARY_ANSWER


async def test_thousands_of_upgrades_in_one_piece(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(request(target="/v2/models/nosuch/infer", Connection="Upgrade", Upgrade="h2c") * 1_500)
        assert [answer.status for answer in await client.receive(1_500)] == [404] * 1_500


# The memory of heads


@pytest.mark.parametrize("cut", [0, 5, len(JSON_BODY)], ids=["whole", "part of the body", "head alone"])
async def test_the_body_may_come_apart_from_the_head(tmp_path: Path, cut: int) -> None:
    whole = infer()
    async with stage(tmp_path) as on:
        client = on.connect()
        for count in range(1, 4):
            client.send(whole[: len(whole) - cut], whole[len(whole) - cut :])
            assert (await client.receive(count))[-1].body == JSON_ANSWER


async def test_usual_heads_are_not_left_to_httptools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(parser: object, piece: bytes) -> None:
        raise AssertionError(f"parsed: {piece!r}")

    volatile = {"X_Forwarded_For": "1", "Traceparent": "00-1-1-01", "X_B3_TraceId": "1", "Date": "Sun"}
    changed = {name: value + "2" for name, value in volatile.items()}
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer(JSON_BODY, **volatile))
        await client.receive()
        monkeypatch.setattr(Reader, "_parse", fail)
        other = infer(JSON_BODY, **changed)
        client.send(other, other[:-1], other[-1:], other + other)
        assert [answer.body for answer in await client.receive(5)] == [JSON_ANSWER] * 5


@pytest.mark.parametrize(
    "line",
    [b"X-Other: a\x00b", b"X-Other: a\r\n folded", b"X-Other : 1", b"X-Other: a\rb"],
    ids=["control character", "folded", "blank before the colon", "lonely carriage return"],
)
async def test_invalid_lines_that_matter_to_nobody_are_refused(tmp_path: Path, line: bytes) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer(X_Other="1"))
        await client.receive()
        client.send(infer(X_Other="1").replace(b"X-Other: 1", line))
        assert refused(client, 400).startswith("malformed HTTP request: ")


@pytest.mark.parametrize(
    "options",
    [
        HttpSettings(max_json=MAX_JSON, header_pattern=re.compile("x-request-id", re.IGNORECASE)),
        HttpSettings(max_json=MAX_JSON, restrictions={"inference": Restriction("X-Request-Id", "1", "API")}),
    ],
    ids=["forwarded", "restricted"],
)
async def test_a_line_that_matters_here_is_not_left_out(tmp_path: Path, options: HttpSettings) -> None:
    async with stage(tmp_path, options=options) as on:
        client = on.connect()
        client.send(infer(X_Request_Id="1"), infer(X_Request_Id="2"))
        await client.receive(2)
        if options.restrictions:
            assert client.answers[1].body != JSON_ANSWER
        else:
            assert [dict(each.request.parameters) for each in on.simple.submitted] == [
                {"X-Request-Id": "1"},
                {"X-Request-Id": "2"},
            ]


async def test_empty_lines_before_a_request_are_overlooked(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(b"\r\n\r\n" + infer())
        assert (await client.receive())[0].body == JSON_ANSWER


async def test_a_known_head_waits_its_turn(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer())
        on.simple.answer_all()
        client.send(infer(), infer(), infer())
        assert len(on.simple.submitted) == 2
        for _ in range(3):
            on.simple.answer_all()
        assert [answer.body for answer in client.answers] == [JSON_ANSWER] * 4


async def test_a_known_head_with_part_of_its_body(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer())
        await client.receive()
        client.send(infer()[:-5], infer()[-5:] + infer())
        assert [answer.body for answer in await client.receive(3)] == [JSON_ANSWER] * 3


# Rubbish


async def test_no_damage_brings_a_connection_down(tmp_path: Path) -> None:
    wholes = [infer(), infer_binary(Connection="Upgrade", Upgrade="h2c"), GET, request(Transfer_Encoding="chunked")]
    wholes[3] += chunked(JSON_BODY, 50)
    random = Random(7)
    async with stage(tmp_path) as on:
        for whole in wholes * 60:
            damaged = bytearray(whole * 2)
            for _ in range(random.randint(1, 4)):
                start = random.randrange(len(damaged))
                damaged[start : start + random.choice((0, 1, 1, 9))] = random.randbytes(random.choice((0, 1, 1, 9)))
            cut = random.randrange(len(damaged))
            client, bystander = on.connect(), on.connect()
            client.send(bytes(damaged[:cut]), bytes(damaged[cut:]))
            bystander.send(infer())
            assert (await bystander.receive())[0].body == JSON_ANSWER
            assert {answer.status for answer in client.answers} <= {100, 200, 400, 404, 431, 501, 505}
            client.transport.lose()


async def test_the_system_keeps_little_of_an_answer_in_parts(tmp_path: Path) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"a part", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with stage(tmp_path, app) as on:
        with socket.socket() as opened:
            unset = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            client = on.connect()
            client.transport.extra["socket"] = opened
            client.send(infer())
            assert len(await client.receive()) == 1
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == unset
            client.send(GET)
            assert len(await client.receive(2)) == 2
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 64 * 1024


# Counts


async def test_responses_are_counted_by_status(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer())
        client.send(infer(b"{"))
        client.send(GET)
        await client.receive(3)
        client.send(b"nonsense\r\n\r\n")
        counted = {status: count for status, count in enumerate(on.site.statuses) if count}
        assert counted == {200: 2, 400: 2}
