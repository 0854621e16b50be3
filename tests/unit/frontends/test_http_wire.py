"""What clients may do to a connection: odd heads, endless framing, falling silent; and what it costs the server."""

import asyncio
import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httptools
import pytest
from puppet_server import JSON_ANSWER, JSON_BODY, MAX_JSON, Client, Stage, infer, infer_binary, request, stage

from garbage import garbage_left
from modserve.frontends.http.wire.head_reader import HeadFields, HeadReader
from modserve.protocol.restricted import Restriction
from modserve.settings import HttpSettings

GET = request("GET", "/hello")
LEFT_TO_HTTPTOOLS = request("GET", Proxy_Connection="close")
KIB = 1024
TIMES = HttpSettings(max_json=MAX_JSON, max_connections=3, idle_timeout=100, client_timeout=10)


def message(client: Client) -> str:
    """Of the error that was the last response."""
    return str(json.loads(client.answers[-1].body)["error"])


def refused(client: Client, status: int) -> str:
    """That the last response refuses the connection with `status`; its message."""
    assert client.answers[-1].status == status
    assert client.answers[-1].headers["connection"] == "close"
    assert client.transport.eof
    before = len(client.transport.written)
    client.send(infer(), GET, b"rubbish")
    assert len(client.transport.written) == before
    return message(client)


# Trailers

CHUNKED = request(target="/v2/models/simple/infer", Transfer_Encoding="chunked")
BODY_AS_CHUNK = b"%x\r\n%b\r\n0\r\n" % (len(JSON_BODY), JSON_BODY)


@pytest.mark.parametrize("target", ["/v2/models/simple/infer", "/v2/models/simple/generate"])
async def test_a_trailer_opens_no_restricted_call(tmp_path: Path, target: str) -> None:
    options = HttpSettings(max_json=MAX_JSON, restrictions={"inference": Restriction("key", "open", "API")})
    async with stage(tmp_path, None, options=options) as on:
        client = on.connect()
        head = request(target=target, Transfer_Encoding="chunked")
        client.send(head + BODY_AS_CHUNK + b"key: open\r\n\r\n")
        (answer,) = await client.receive()
        assert answer.status == 403
        assert not on.simple.submitted


async def test_trailers_are_no_headers_of_the_application(tmp_path: Path) -> None:
    seen: list[list[tuple[bytes, bytes]]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(request(target="/", Transfer_Encoding="chunked") + b"0\r\nHost: other\r\nX: 1\r\n\r\n" + GET)
        assert [answer.status for answer in await client.receive(2)] == [200, 200]
    assert seen[0] == [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize(
    "lines",
    [b"X: 1\r\n" * 20_000, b"X: " + b"x" * 200 * KIB, b"x" * 200 * KIB, b":\r\n" * 30_000],
    ids=["many lines", "a long line", "a long name", "no names"],
)
@pytest.mark.parametrize("piece", [1_000, 10**6], ids=["in pieces", "at once"])
async def test_trailers_have_a_limit(tmp_path: Path, lines: bytes, piece: int) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(CHUNKED + BODY_AS_CHUNK)
        sent = 0
        while sent < len(lines) and not client.transport.written:
            client.send(lines[sent : sent + piece])
            sent += piece
        assert client.answers[-1].status == (400 if lines.startswith(b":") else 431)
        if not lines.startswith(b":"):
            assert "exceed 65536 bytes" in refused(client, 431)
        assert sent < 70 * KIB or piece > 70 * KIB
        assert not on.simple.submitted


async def test_trailers_have_a_limit_where_all_came_together(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(CHUNKED + BODY_AS_CHUNK + b"X: " + b"x" * 70 * KIB + b"\r\n\r\n")
        assert "exceed 65536 bytes" in refused(client, 431)
        assert not on.simple.submitted


async def test_chunk_extensions_have_a_limit(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(CHUNKED, b"5;a=")
        for _ in range(66):
            client.send(b"x" * 1_000)
        assert "exceed 65536 bytes" in refused(client, 431)


async def test_long_chunked_bodies_are_not_all_framing(tmp_path: Path) -> None:
    """What counts against the limit is what comes between chunks, and blank lines in them are data."""
    body = JSON_BODY[:-1] + b"\r\n\r\n" * 300 + b"}"
    async with stage(tmp_path) as on:
        client = on.connect()
        for piece in (7, 100, 10**6):
            data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts(body, 50)) + b"0\r\nX: 1\r\n\r\n"
            client.send(*parts(CHUNKED + data + CHUNKED + data, piece))
        assert [answer.body for answer in await client.receive(6)] == [JSON_ANSWER] * 6


def parts(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


# Heads


def head(*lines: str, first: str = "POST /v2/models/simple/infer HTTP/1.1") -> bytes:
    return "\r\n".join([first, f"Content-Length: {len(JSON_BODY)}", *lines]).encode() + b"\r\n\r\n" + JSON_BODY


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (head(), 400, "a request needs exactly one Host header, this one has 0"),
        (head("Host: a", "Host: a"), 400, "a request needs exactly one Host header, this one has 2"),
        (head("Host: a", "hOST: b"), 400, "a request needs exactly one Host header, this one has 2"),
        (head("Host: a b"), 400, "the Host header is not a host and port: 'a b'"),
        (head("Host: a/b"), 400, "the Host header is not a host and port: 'a/b'"),
        (head("Host: user@a"), 400, "the Host header is not a host and port: 'user@a'"),
        (head("Host: a:b"), 400, "the Host header is not a host and port: 'a:b'"),
        (head("Host: [::1"), 400, "the Host header is not a host and port: '[::1'"),
        (head("Host: " + "/" * 500), 400, "the Host header is not a host and port: '" + "/" * 100 + "…'"),
        (head("Host: a", "Host: a", first="POST / HTTP/1.0"), 400, "a request needs exactly one Host header"),
        (head("Host: a", first="GET / HTTP/2.0"), 505, "HTTP/2.0 is not supported on this port"),
        (head("Host: a", first="GET / HTTP/0.9"), 505, "HTTP/0.9 is not supported on this port"),
        (
            request(Transfer_Encoding="gzip, chunked"),
            501,
            "the Transfer-Encoding 'gzip, chunked' is not supported, only 'chunked' is",
        ),
        (request(Transfer_Encoding="identity, chunked"), 501, "the Transfer-Encoding 'identity, chunked'"),
        (request(Transfer_Encoding="gzip"), 501, "the Transfer-Encoding 'gzip' is not supported"),
        (
            request(Transfer_Encoding="chunked", version="1.0"),
            400,
            "a request of HTTP/1.0 cannot have a Transfer-Encoding",
        ),
        (head("Host: a", first="CONNECT a:80 HTTP/1.1"), 501, "the method CONNECT is not supported"),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 501, "the method CONNECT is not supported"),
        (
            request("POST", "/", Content_Length="1", version="1.1")
            .replace(b"Content-Length: 0\r\n", b"")
            .replace(b"Content-Length: 1", b"Content-Length: " + b"0" * 5_000 + b"99999999"),
            400,
            "request JSON size of 99999999 bytes exceeds",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("piece", [1, 10**6], ids=["in single bytes", "at once"])
async def test_a_head_that_is_refused(tmp_path: Path, data: bytes, status: int, text: str, piece: int) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(*parts(data + GET, piece))
        assert refused(client, status).startswith(text)
        assert len(client.answers) == 1
        assert not on.simple.submitted


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1:8000",
        "[::1]:8000",
        "[fe80::1]",
        "model_server.ns.svc:80",
        "",
        "xn--bcher-kva.example",
        "A:",
    ],
)
async def test_a_host_that_is_one(tmp_path: Path, host: str) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(head(f"Host: {host}"))
        assert (await client.receive())[0].body == JSON_ANSWER


@pytest.mark.parametrize("lines", [(), ("Host: a",)])
async def test_http_1_0_needs_no_host(tmp_path: Path, lines: tuple[str, ...]) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(head(*lines, first="POST /v2/models/simple/infer HTTP/1.0"))
        assert (await client.receive())[0].body == JSON_ANSWER


# Our own failures


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (MemoryError(), 503, "the server is out of memory. Try again later."),
        (ValueError("oops"), 500, "Internal Server Error"),
    ],
    ids=["memory", "other"],
)
@pytest.mark.parametrize(
    ("place", "data"),
    [
        ("reader.Reader.on_message_begin", LEFT_TO_HTTPTOOLS),
        ("reader.Reader.on_header", LEFT_TO_HTTPTOOLS),
        ("reader.Reader.on_headers_complete", LEFT_TO_HTTPTOOLS),
        ("reader.Reader.on_body", CHUNKED + BODY_AS_CHUNK),
        ("reader.Reader.on_message_complete", LEFT_TO_HTTPTOOLS),
        ("asgi.scope", GET),
    ],
)
async def test_a_failure_of_ours_is_not_the_client_s(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
    text: str,
    place: str,
    data: bytes,
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    async with stage(tmp_path) as on:
        with monkeypatch.context() as patch:
            patch.setattr(f"modserve.frontends.http.wire.{place}", fail)
            client = on.connect()
            client.send(data)
        assert refused(client, status) == text
        assert "reading an HTTP request failed unexpectedly" in caplog.text
        assert type(error).__name__ in caplog.text
        bystander = on.connect()
        bystander.send(infer())
        assert (await bystander.receive())[0].body == JSON_ANSWER


LONG = request("POST", "/hello", b"x" * 70 * KIB)


class FailingHeads(HeadReader):
    """Fails at each head."""

    def scan(self, data: bytes, start: int, whole: bool = False) -> HeadFields | None:
        raise ValueError("oops")


async def test_a_failure_of_ours_at_a_usual_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with stage(tmp_path) as on:
        usual, on.site.heads = on.site.heads, FailingHeads(HttpSettings())
        client = on.connect()
        on.site.heads = usual
        client.send(infer())
        assert refused(client, 500) == "Internal Server Error"
        assert "oops" in caplog.text
        bystander = on.connect()
        bystander.send(infer())
        assert (await bystander.receive())[0].body == JSON_ANSWER


@pytest.mark.parametrize(
    ("data", "place", "statuses"),
    [
        pytest.param(LONG + LEFT_TO_HTTPTOOLS, "parser", [200, 500], id="reading"),
        pytest.param(GET + GET, "get_extra_info", [200, 500], id="beginning"),
        pytest.param(GET + LONG, "resume_reading", [200], id="after reading, with a request at hand"),
        pytest.param(GET + infer(Expect="100-continue")[: -len(JSON_BODY)], "write", [200], id="after reading a head"),
        pytest.param(request("GET", "/hello", Connection="close"), "close", [200], id="done"),
    ],
)
async def test_what_fails_after_a_response_costs_its_connection_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    place: str,
    statuses: list[int],
) -> None:
    """The tasks of all requests share a group, which would end with the first that fails."""

    def fail(*arguments: object) -> None:
        raise ValueError("oops")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})
        if place == "parser":  # a new one, since a body with its length leaves none
            monkeypatch.setattr(httptools, "HttpRequestParser", fail)
        else:
            monkeypatch.setattr(client.transport, place, fail)

    async with stage(tmp_path, app, options=HttpSettings(max_json=len(LONG))) as on:
        client = on.connect()
        client.connection.data_received(data)
        await client.transport.until(lambda: client.transport.eof or client.transport.closing)
        monkeypatch.undo()
        assert [answer.status for answer in client.answers] == statuses
        assert client.answers[0].body == b"yes"
        assert "oops" in caplog.text
        client.transport.close()
        bystander = on.connect()
        bystander.send(infer())
        assert (await bystander.receive())[0].body == JSON_ANSWER


@pytest.mark.parametrize("error", [BaseExceptionGroup("all", [asyncio.CancelledError()]), GeneratorExit()], ids=str)
async def test_an_application_that_raises_what_is_no_exception(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        await client.transport.until(lambda: client.transport.closing)
        assert "GET /hello failed unexpectedly" in caplog.text


async def test_a_response_that_cannot_be_written_costs_its_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(data: bytes) -> None:
        raise MemoryError

    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer())
        monkeypatch.setattr(client.transport, "write", fail)
        on.simple.answer_all()
        assert client.transport.closing
        assert "a response could not be written" in caplog.text


# Time


def look(on: Stage, *times: float) -> None:
    for now in times:
        for connection in list(on.site.connections):
            connection.check(now)


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        fresh, used = on.connect(), on.connect()
        look(on, 1000)
        used.send(infer())
        await used.receive()
        look(on, 1050, 1099)
        assert not fresh.transport.closing
        look(on, 1100)
        assert (fresh.transport.closing, used.transport.closing) == (True, False)
        look(on, 1149)
        assert not used.transport.closing
        look(on, 1150)
        assert used.transport.closing
        assert not fresh.transport.written


@pytest.mark.parametrize("busy", [True, False])
async def test_half_a_head_has_its_time(tmp_path: Path, busy: bool) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        client = on.connect()
        client.send(b"GET /")
        look(on, 1000)
        for now in range(1001, 1010):
            if busy:
                client.send(b"a")
            look(on, now)
        assert not client.answers
        look(on, 1010)
        assert refused(client, 408) == "the request's head has not ended within 10 s"


async def test_half_a_body_has_its_time(tmp_path: Path) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        for whole in (infer(), CHUNKED + BODY_AS_CHUNK):
            client = on.connect()
            client.send(whole[:-70])
            look(on, 1000)
            for now in (1009, 1018, 1027):
                client.send(whole[-70 + (now - 1009) : -70 + (now - 1000)])
                look(on, now)
            assert not client.answers
            look(on, 1037)
            assert refused(client, 408) == "nothing more of the request's body has arrived for 10 s"
            client.transport.lose()


async def test_a_body_that_trickles(tmp_path: Path) -> None:
    """A byte in each second: 16 KiB have five times the time-out, and then as long for as much again."""
    async with stage(tmp_path, options=TIMES) as on:
        client = on.connect()
        client.send(
            b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n"
            b"Inference-Header-Content-Length: 2\r\n\r\n{}"
        )
        for second in range(1000, 1152):
            look(on, second)
            client.send(b" " * 16384 if second in (1049, 1098) else b" ")
            assert bool(client.answers) is (second >= 1149)
        assert refused(client, 408) == "the request's body has not advanced by 16384 bytes within 50 s"
        assert on.site.memory.held == 0


async def test_a_model_has_all_the_time_it_needs(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False, options=TIMES) as on:
        client = on.connect()
        client.send(infer())
        look(on, 1000, 2000, 3000)
        on.simple.answer_all()
        assert client.answers[0].body == JSON_ANSWER
        look(on, 3099)
        assert not client.transport.closing
        look(on, 3101)
        assert client.transport.closing


@pytest.mark.parametrize("closing", [False, True], ids=["stays open", "closes"])
@pytest.mark.parametrize("blocked", [False, True], ids=["little", "much"])
async def test_a_response_that_nobody_reads(tmp_path: Path, closing: bool, blocked: bool) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        client = on.connect()
        client.send(infer())
        await client.receive()
        client.transport.unsent = 100 * KIB if blocked else 100
        if blocked:
            client.connection.pause_writing()
        if closing:
            client.transport.closing = True
        aborted: list[bool] = []
        client.transport.abort = lambda: aborted.append(True)  # type: ignore[method-assign]
        look(on, 1000)
        for now in range(1009, 1100, 9):
            client.transport.unsent -= 1
            look(on, now)
        assert not aborted
        look(on, 1110)
        assert aborted


async def test_no_time_is_all_time(tmp_path: Path) -> None:
    async with stage(tmp_path, options=HttpSettings(idle_timeout=0, client_timeout=0)) as on:
        idle, slow = on.connect(), on.connect()
        slow.send(b"GET /")
        look(on, 0, 10.0**9)
        assert not idle.transport.closing
        assert not slow.transport.written


# How many


async def test_at_the_limit_who_has_most_connections_makes_room_for_who_has_few(tmp_path: Path) -> None:
    def connect(on: Stage, host: str) -> Client:
        return Client(on.site, (host, 1))

    async with stage(tmp_path, options=TIMES) as on:
        greedy = [connect(on, "192.0.2.1") for _ in range(3)]
        greedy[0].send(infer())
        modest = connect(on, "192.0.2.2")
        assert not greedy[0].transport.closing, "it is served first"
        assert (await greedy[0].receive())[0].body == JSON_ANSWER
        assert greedy[0].transport.closing
        greedy[0].transport.lose()
        modest.send(infer())
        assert (await modest.receive())[0].body == JSON_ANSWER
        for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
            refused = connect(on, host)
            assert refused.answers[0].status == 503, "two, one and none: nobody has two more than the new one"
            refused.transport.lose()
        for client in (*greedy[1:], modest):
            client.transport.lose()
        assert not on.site.connections


async def test_connections_have_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        clients = [on.connect() for _ in range(3)]
        with caplog.at_level(logging.WARNING):
            turned_away = [on.connect() for _ in range(20)]
        for client in turned_away:
            assert client.answers[0].status == 503
            assert client.answers[0].headers["connection"] == "close"
            assert "3 connections open, which is its limit" in message(client)
            client.send(infer())
        assert [client.transport.closing for client in turned_away] == [False] * 8 + [True] * 12
        assert len(caplog.records) == 1
        assert "--http-max-connections" in caplog.text
        for client in clients:
            client.send(infer())
            assert (await client.receive())[0].body == JSON_ANSWER
        for client in turned_away + clients[:1]:
            client.transport.lose()
        client = on.connect()
        client.send(infer())
        assert (await client.receive())[0].body == JSON_ANSWER


async def test_a_process_without_descriptors_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with stage(tmp_path) as on:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr("os.open", fail)
            for _ in range(5):
                on.site._tick()
                on.site.stop_ticking()
        assert caplog.messages == [
            "new connections cannot be accepted: Too many open files. Raise the limit (ulimit -n)"
        ]


# The date


async def test_every_response_has_a_date(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        client.send(infer(), infer_binary(), request(target="/v2/models/nosuch/infer"), GET, b"rubbish\r\n\r\n")
        answers = await client.receive(5)
        assert [answer.status for answer in answers] == [200, 200, 404, 200, 400]
        date = on.site.date.decode().removeprefix("Date: ").strip()
        assert [answer.headers["date"] for answer in answers] == [date] * 5
        assert client.transport.written.count(b"\r\nDate: ") == 5


async def test_the_date_of_an_application_is_left_alone(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Date", b"yesterday")]})
        await send({"type": "http.response.body", "body": b""})

    async with stage(tmp_path, app) as on:
        client = on.connect()
        client.send(GET)
        assert (await client.receive())[0].headers["date"] == "yesterday"
        assert client.transport.written.lower().count(b"date:") == 1


async def test_the_date_moves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path) as on:
        monkeypatch.setattr("time.time", lambda: 784111777.0)
        on.site._tick()
        on.site.stop_ticking()
        client = on.connect()
        client.send(infer())
        assert (await client.receive())[0].headers["date"] == "Sun, 06 Nov 1994 08:49:37 GMT"


# The memory budget

LARGE = 300 * KIB


def large_request(size: int = LARGE) -> bytes:
    """An inference that is refused when its body has been read: its JSON is none."""
    return request(target="/v2/models/echo/infer", body=bytes(size), Inference_Header_Content_Length="10")


def large_chunks(size: int = LARGE) -> bytes:
    start = request(target="/v2/models/echo/infer", Transfer_Encoding="chunked", Inference_Header_Content_Length="10")
    return start + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts(bytes(size), 10_000)) + b"0\r\n\r\n"


@pytest.mark.parametrize("whole", [large_request(), large_chunks()], ids=["length", "chunks"])
@pytest.mark.parametrize("piece", [10_000, 10**6], ids=["in pieces", "at once"])
async def test_a_body_counts_until_its_request_is_answered(tmp_path: Path, whole: bytes, piece: int) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        memory = on.server.memory
        client = on.connect()
        client.send(whole[: len(whole) // 2])
        assert LARGE * 0.4 < memory.held < LARGE * 0.6
        client.send(*parts(whole[len(whole) // 2 :], piece))
        assert (await client.receive())[0].status == 400
        assert memory.peak == LARGE
        assert memory.held == 0
        # the same with a head that is known
        client.send(*parts(whole, piece))
        assert len(await client.receive(2)) == 2
        assert memory.held == 0


async def test_a_request_in_flight_whose_client_goes(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await go.wait()

    async with stage(tmp_path, app, options=HttpSettings()) as on:
        client = on.connect()
        client.send(request(target="/other", body=bytes(LARGE)))
        assert on.server.memory.held == LARGE
        client.transport.lose()
        assert on.server.memory.held == 0
        go.set()


async def test_a_small_request_in_one_piece_costs_no_accounting(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer())
        assert on.server.memory.peak == 0
        on.simple.answer_all()
        client.send(infer()[:-1])
        assert on.server.memory.held == len(JSON_BODY) - 1
        client.send(infer()[-1:])
        assert on.server.memory.held == len(JSON_BODY)
        on.simple.answer_all()
        assert on.server.memory.held == 0


@pytest.mark.parametrize("whole", [large_request(), large_chunks()], ids=["length", "chunks"])
async def test_beyond_the_budget_a_request_is_refused_at_once(tmp_path: Path, whole: bytes) -> None:
    async with stage(tmp_path) as on:
        memory = on.server.memory
        memory.limit = 400 * KIB
        first, second = on.connect(), on.connect()
        first.send(whole[:-1000])
        held = memory.held
        assert held > 200 * KIB
        sent = 0
        while not second.transport.written:
            second.send(whole[sent : sent + 10_000])
            sent += 10_000
        assert sent < 200 * KIB
        assert refused(second, 503).startswith("the server is out of memory for requests: those in flight hold ")
        assert memory.held == held
        assert memory.refused == 1
        first.send(whole[-1000:])
        assert (await first.receive())[0].status == 400
        assert memory.held == 0


async def test_a_body_larger_than_the_budget_is_not_begun(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.server.memory.limit = 100 * KIB
        client = on.connect()
        client.send(large_request()[:200])
        text = refused(client, 413)
        assert text.startswith(f"the request needs {LARGE} bytes of memory, and the server allows {100 * KIB} bytes")
        assert on.server.memory.held == 0


async def test_who_declares_much_and_sends_nothing_holds_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.server.memory.limit = 2 * LARGE
        for _ in range(10):
            on.connect().send(large_request()[:-LARGE])
        assert on.server.memory.held == 0


async def test_what_is_sent_ahead_counts(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        memory = on.server.memory
        for ending in ("answered", "gone", "too much"):
            client = on.connect()
            client.send(infer(), large_request(100 * KIB), GET)
            assert 100 * KIB < memory.held < 101 * KIB
            if ending == "answered":
                on.simple.answer_all()
                assert len(await client.receive(3)) == 3
            elif ending == "gone":
                client.transport.lose()
            else:
                memory.limit = 200 * KIB
                client.send(bytes(200 * KIB))
                on.simple.answer_all()
                assert [answer.status for answer in client.answers] == [200]
                assert client.transport.closing
            assert memory.held == 0, ending


async def test_responses_that_are_not_taken_count(tmp_path: Path) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        memory = on.server.memory
        memory.limit = 1000
        for gone in (False, True):
            client = on.connect()
            client.send(infer())
            await client.receive()
            client.transport.unsent = 100_000
            client.connection.pause_writing()
            assert memory.held == 100_000
            client.transport.unsent = 70_000
            look(on, 1000)
            assert memory.held == 70_000
            other = on.connect()
            other.send(infer()[:-1])
            refused(other, 503)
            if gone:
                client.transport.lose()
            else:
                client.connection.resume_writing()
            assert memory.held == 0
            client.transport.lose()
            other.transport.lose()


@pytest.mark.parametrize(
    "end",
    [
        lambda client: client.transport.lose(),
        lambda client: client.connection.abort(),
        lambda client: client.connection.close_when_idle(),
        lambda client: client.connection.eof_received() or client.transport.close(),
        lambda client: client.connection.check(0.0) or client.connection.check(50.0),
    ],
    ids=["lost", "aborted", "closed", "half closed", "too late"],
)
@pytest.mark.parametrize("whole", [large_request(), large_chunks()], ids=["length", "chunks"])
async def test_a_body_that_never_ends_is_given_back(
    tmp_path: Path, end: Callable[[Client], object], whole: bytes
) -> None:
    async with stage(tmp_path, options=TIMES) as on:
        client = on.connect()
        client.send(*parts(whole[: LARGE // 2], 10_000))
        assert on.server.memory.held > 0
        end(client)
        await asyncio.sleep(0)
        assert on.server.memory.held == 0
        if not client.transport.lost:
            client.transport.lose()
        assert on.server.memory.held == 0
        assert not on.site.connections


# Garbage


def of_the_wire(garbage: list[object]) -> list[str]:
    """The kinds of those that these modules have made."""
    return [type(each).__name__ for each in garbage if _is_of_the_wire(each)]


def _is_of_the_wire(each: object) -> bool:
    if isinstance(each, FrameType):
        return "frontends/http" in each.f_code.co_filename
    return type(each).__module__.startswith("modserve.frontends.http")


async def _streaming(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/fails":
        raise ValueError("oops")
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await asyncio.sleep(0)
    if scope["path"] == "/waits":
        await receive()
    await send({"type": "http.response.body", "body": b"end"})


KINDS = {
    "answered by the application": GET,
    "a stream": request("GET", "/stream"),
    "an application that fails": request("GET", "/fails"),
    "a body": request(target="/body", body=bytes(2000)),
    "chunks": request(target="/body", Transfer_Encoding="chunked") + b"2\r\nab\r\n0\r\nX: 1\r\n\r\n",
    "an upgrade": request("GET", "/hello", Connection="Upgrade", Upgrade="h2c"),
    "pipelined": GET * 5,
    "an unknown model": request(target="/v2/models/nosuch/infer"),
}
REFUSED = {
    "rubbish": b"rubbish\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a version": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "a long head": request("GET", "/", X="x" * 70_000),
    "a long body": request("POST", "/", bytes(MAX_JSON + 1)),
    "too many chunks": CHUNKED + b"1\r\n{\r\n" * 5000,
    "trailers": CHUNKED + b"0\r\n" + b"X: 1\r\n" * 20_000,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_leaves_no_cycles_on_a_connection_that_lives(tmp_path: Path, kind: str) -> None:
    async with stage(tmp_path, _streaming) as on:
        client = on.connect()
        count = KINDS[kind].count(b"HTTP/1.1")

        async def ask(number: int) -> None:
            client.send(KINDS[kind])
            await client.receive(number * count)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        await ask(1)  # what is made once
        with garbage_left() as left:
            await ask(2)
            await ask(3)
        assert of_the_wire(left) == []


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refusal_leaves_no_cycles(tmp_path: Path, kind: str) -> None:
    async with stage(tmp_path, _streaming) as on:
        with garbage_left() as left:
            client = on.connect()
            client.send(REFUSED[kind])
            assert client.transport.eof
        assert of_the_wire(left) == []


async def test_a_client_that_goes_leaves_no_cycles(tmp_path: Path) -> None:
    async with stage(tmp_path, _streaming) as on:
        with garbage_left() as left:
            for data in (request("GET", "/waits"), request("GET", "/stream"), request(body=JSON_BODY)[:-5]):
                client = on.connect()
                client.send(data)
                await asyncio.sleep(0)
                client.transport.lose()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        assert of_the_wire(left) == []
