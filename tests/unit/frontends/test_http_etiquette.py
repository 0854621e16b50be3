"""Methods, slashes in names, chunks and leave to send: one HTTP connection over the whole REST surface."""

import functools
import json
from pathlib import Path

import pytest
from puppet_server import JSON_ANSWER, JSON_BODY, Answer, Client, Stage, infer, request, stage

TOO_MANY = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."


async def ask(on: Stage, method: str, target: str, body: bytes = b"") -> Answer:
    client = on.connect()
    client.send(request(method, target, body))
    return (await client.receive())[0]


def two_heads(client: Client) -> bool:
    return client.transport.written.count(b"\r\n\r\n") == 2


async def test_head_is_get_without_the_body(tmp_path: Path) -> None:
    async with stage(tmp_path, None) as on:
        for path in ("/v2", "/v2/models/simple", "/v2/models/nosuch", "/v2/health/ready", "/nowhere"):
            client, head = on.connect(), on.connect()
            client.send(request("GET", path, X_Request_ID="a"))
            (got,) = await client.receive()
            whole = bytes(client.transport.written)
            assert got.body, path
            head.send(request("HEAD", path, X_Request_ID="a"), request("HEAD", path, X_Request_ID="a"))
            await head.transport.until(functools.partial(two_heads, head))
            assert bytes(head.transport.written) == whole[: len(whole) - len(got.body)] * 2
            assert not head.transport.closing


async def test_options(tmp_path: Path) -> None:
    async with stage(tmp_path, None) as on:
        for target, status, allow in (
            ("/v2", 200, "GET, HEAD, OPTIONS"),
            ("/v2/logging", 200, "GET, POST, HEAD, OPTIONS"),
            ("/v2/models/nosuch/infer", 200, "POST, OPTIONS"),
            ("*", 200, "GET, POST, DELETE, HEAD, OPTIONS"),
            ("/v2/models/nosuch/routing", 200, "GET, POST, DELETE, HEAD, OPTIONS"),
            ("/v2/nowhere", 404, None),
            ("/v2/models/simple/versions/" + "9" * 30, 400, None),
        ):
            answer = await ask(on, "OPTIONS", target)
            assert (answer.status, answer.headers.get("allow")) == (status, allow), target


async def test_an_encoded_slash_is_part_of_a_name(tmp_path: Path) -> None:
    async with stage(tmp_path, None) as on:
        for method, suffix in (
            ("POST", "/infer"),
            ("GET", ""),
            ("GET", "/config"),
            ("GET", "/ready"),
            ("GET", "/stats"),
        ):
            body = JSON_BODY if method == "POST" else b""
            answer = await ask(on, method, f"/v2/models/a%2Fb%2f%2525{suffix}", body)
            assert "model 'a/b/%25' is not" in json.loads(answer.body)["error"].replace("model: ", "model "), suffix
        for path in ("/v2%2Fmodels/simple", "/v2/models/simple%2Fready"):
            assert (await ask(on, "GET", path)).status == 404, path


async def test_whole_urls_as_request_targets(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        for path in ("/v2/health/ready", "/v2/models/simple?a=/b", "", "?a"):
            expected = await ask(on, "GET", path if path.startswith("/") else "/" + path)
            for origin in ("http://localhost:8000", "HTTPS://[::1]"):
                assert await ask(on, "GET", origin + path) == expected, origin + path
        for path in ("/v2/models/simple/infer", "http://localhost/v2/models/simple/infer"):
            assert (await ask(on, "POST", path, JSON_BODY)).body == JSON_ANSWER


@pytest.mark.parametrize("count", [65536, 65537])
async def test_chunks_are_counted(tmp_path: Path, count: int) -> None:
    body = b"1\r\n{\r\n" * (count - 1) + b"a\r\n0123456789\r\n"
    async with stage(tmp_path) as on:
        client = on.connect()
        target = "/v2/models/echo/infer"
        client.send(request(target=target, Transfer_Encoding="chunked", Inference_Header_Content_Length="9"))
        client.send(body, b"0\r\n\r\n")
        (answer,) = await client.receive()
        assert answer.status == 400
        assert (json.loads(answer.body)["error"] == TOO_MANY) is (count > 65536)
        assert (answer.headers.get("connection") == "close") is (count > 65536)
        assert client.transport.eof is (count > 65536)


async def test_leave_to_send_waits_for_the_answers_before(tmp_path: Path) -> None:
    head, _, body = infer(Expect="100-continue").partition(b"\r\n\r\n")
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer(), infer() + head + b"\r\n\r\n")
        assert not client.transport.written
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200]
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 200, 100]
        client.send(body)
        on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 200, 100, 200]
        assert client.answers[-1].body == JSON_ANSWER


async def test_nobody_is_told_to_send_what_has_come(tmp_path: Path) -> None:
    async with stage(tmp_path, automatic=False) as on:
        client = on.connect()
        client.send(infer(), infer(Expect="100-continue"))
        for _ in range(2):
            on.simple.answer_all()
        assert [answer.status for answer in client.answers] == [200, 200]
