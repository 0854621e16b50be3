"""The short cut, the plain path and the application give the same answers to the same inference requests."""

import asyncio
import gzip
import json
import struct
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from puppet_server import (
    BINARY_BODY,
    BINARY_HEADER,
    JSON_BODY,
    MAX_JSON,
    Answer,
    PuppetLoader,
    Stage,
    request,
    server_over,
    stage,
)

from modserve.frontends.http.rest.app import create_app
from modserve.protocol import compression
from modserve.settings import HttpSettings, LoopLimits
from work_threads import Threads

PATH = "/v2/models/simple/infer"
HEADER = "Inference-Header-Content-Length"
LENGTH = str(len(BINARY_HEADER))
ONE_BINARY = json.dumps(
    {**json.loads(BINARY_HEADER), "id": "7", "outputs": [{"name": "OUTPUT1", "parameters": {"binary_data": True}}]}
)


def json_body(**fields: object) -> bytes:
    return json.dumps({**json.loads(JSON_BODY), **fields}).encode()


def first_input(**fields: object) -> bytes:
    document = json.loads(JSON_BODY)
    document["inputs"][0].update(fields)
    return json.dumps(document).encode()


REQUESTS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "json": (PATH, JSON_BODY, {}),
    "json with id": (PATH, json_body(id="7é"), {}),
    "one output": (PATH, json_body(outputs=[{"name": "OUTPUT1"}]), {}),
    "best class": (PATH, json_body(outputs=[{"name": "OUTPUT1", "parameters": {"classification": 1}}]), {}),
    "binary": (PATH, BINARY_BODY, {HEADER: LENGTH}),
    "binary, lower case": (PATH, BINARY_BODY, {HEADER.lower(): LENGTH}),
    "binary and json": (PATH, ONE_BINARY.encode() + BINARY_BODY[len(BINARY_HEADER) :], {HEADER: str(len(ONE_BINARY))}),
    "json with header length": (PATH, JSON_BODY, {HEADER: str(len(JSON_BODY))}),
    "no output data": (
        "/v2/models/echo/infer",
        b'{"inputs":[{"name":"IN","shape":[0],"datatype":"BYTES","data":[]}]}',
        {},
    ),
    "version": ("/v2/models/simple/versions/1/infer", JSON_BODY, {}),
    "query": (PATH + "?a=/b", JSON_BODY, {}),
    "percent-encoded": ("/v2/models/%73imple/infer", JSON_BODY, {}),
    "any content type": (PATH, JSON_BODY, {"Content-Type": "text/plain"}),
    "unknown model": ("/v2/models/nosuch/infer", JSON_BODY, {}),
    "unknown model, other letters": ("/v2/models/m%C3%A4%20%ff/infer", JSON_BODY, {}),
    "unknown version": ("/v2/models/simple/versions/9/infer", JSON_BODY, {}),
    "version 0": ("/v2/models/simple/versions/0/infer", JSON_BODY, {}),
    "empty body": (PATH, b"", {}),
    "malformed": (PATH, b'{"inputs":', {}),
    "no object": (PATH, b"[]", {}),
    "wrong datatype": (PATH, first_input(datatype="FP32"), {}),
    "wrong shape": (PATH, first_input(shape=[2]), {}),
    "large batch": (PATH, first_input(shape=[9, 2], data=[0] * 18), {}),
    "missing input": (PATH, json_body(inputs=json.loads(JSON_BODY)["inputs"][:1]), {}),
    "unknown output": (PATH, json_body(outputs=[{"name": "OUTPUT9"}]), {}),
    "short": (PATH, BINARY_BODY[:-1], {HEADER: LENGTH}),
    "surplus": (PATH, BINARY_BODY + b"x", {HEADER: LENGTH}),
    "header length too large": (PATH, BINARY_BODY, {HEADER: str(len(BINARY_BODY) + 1)}),
    "header length negative": (PATH, BINARY_BODY, {HEADER: "-1"}),
    "header length no number": (PATH, BINARY_BODY, {HEADER: "abc"}),
    "header length endless": (PATH, BINARY_BODY, {HEADER: "9" * 5000}),
    "raw, of a model with two inputs": (PATH, BINARY_BODY, {HEADER: "0"}),
    "gzip": (PATH, gzip.compress(JSON_BODY, mtime=0), {"Content-Encoding": "gzip"}),
    "gzip, binary": (PATH, gzip.compress(BINARY_BODY, mtime=0), {"Content-Encoding": "GZIP", HEADER: LENGTH}),
    "deflate": (PATH, zlib.compress(JSON_BODY), {"Content-Encoding": "deflate"}),
    "identity": (PATH, JSON_BODY, {"Content-Encoding": "identity"}),
    "no gzip": (PATH, JSON_BODY, {"Content-Encoding": "gzip"}),
    "other coding": (PATH, JSON_BODY, {"Content-Encoding": "br"}),
    "answer in gzip": (PATH, JSON_BODY, {"Accept-Encoding": "deflate;q=0.5, gzip"}),
    "answer in deflate, binary": (PATH, BINARY_BODY, {"Accept-Encoding": "deflate", HEADER: LENGTH}),
    "binary without header length": (PATH, BINARY_HEADER, {}),
    "not UTF-8": (PATH, b'{"id":"\xff"}', {}),
    "lone surrogate": (PATH, b'{"id":"\\ud800"}', {}),
    "json too long": (PATH, JSON_BODY.ljust(MAX_JSON + 1), {HEADER: str(MAX_JSON + 1)}),
    "output that is no text": (
        "/v2/models/echo/infer",
        (text := b'{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}}]}')
        + b"\x01\0\0\0\xff",
        {HEADER: str(len(text))},
    ),
}


async def through_a_connection(on: Stage, head_and_body: list[bytes]) -> Answer:
    client = on.connect()
    client.send(*head_and_body)
    (answer,) = await client.receive()
    return answer


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """Over a loaded server of its own. Making one takes a while."""
    server = server_over(tmp_path_factory.mktemp("repository"), PuppetLoader())
    asyncio.run(server.load())
    return create_app(server, HttpSettings(max_json=MAX_JSON))


async def through_the_application(app: FastAPI, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        # In place of httpx's own wishes; and the answer as it is on the wire.
        client.headers["Accept-Encoding"] = "identity"
        async with client.stream("POST", path, content=body, headers=headers) as found:
            content = b"".join([part async for part in found.aiter_raw()])
    return Answer(found.status_code, dict(found.headers), content)


@pytest.mark.parametrize(("path", "body", "headers"), REQUESTS.values(), ids=REQUESTS.keys())
async def test_all_paths_give_the_same_answer(
    app: FastAPI, tmp_path: Path, path: str, body: bytes, headers: dict[str, str]
) -> None:
    whole = wire(path, body, headers)
    async with stage(tmp_path) as on:
        plain = await through_a_connection(on, [whole[:20], whole[20:]])
        short = await through_a_connection(on, [whole])
        application = await through_the_application(app, path, body, headers)
    assert plain.content == short.content == application.content
    assert (plain.status == 200) == (b'"error"' not in plain.body)


def wire(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    whole = request("POST", path, body, X_Request_ID="a")
    for name, value in headers.items():
        whole = whole.replace(b"\r\n\r\n", f"\r\n{name}: {value}\r\n\r\n".encode(), 1)
    return whole


@pytest.mark.parametrize("name", ["json", "best class", "answer in gzip", "output that is no text"])
async def test_long_answers_are_written_on_a_thread(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path) as on:
        expected = await through_a_connection(on, [wire(*REQUESTS[name])])
        on.site.calls.limits = LoopLimits(elements=0)
        threads = Threads()
        assert await through_a_connection(on, [wire(*REQUESTS[name])]) == expected
    assert threads.work == ["_write_long"]


@pytest.mark.parametrize("limit", [0, 1_000_000], ids=["on a thread", "at once"])
async def test_an_answer_that_can_not_be_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    def broken(parts: object, encoding: str) -> bytes:
        raise MemoryError

    monkeypatch.setattr(compression, "encode", broken)
    async with stage(tmp_path, options=HttpSettings(max_json=MAX_JSON, limits=LoopLimits(elements=limit))) as on:
        answer = await through_a_connection(on, [wire(*REQUESTS["answer in gzip"])])
    assert (answer.status, answer.body) == (500, b'{"error":"unexpected MemoryError: "}')


async def test_the_answers_compared_are_of_all_kinds(app: FastAPI) -> None:
    answers = [await through_the_application(app, *asked) for asked in REQUESTS.values()]
    assert {answer.status for answer in answers} == {200, 400, 404, 501}
    assert {answer.headers["content-type"] for answer in answers} == {"application/json", "application/octet-stream"}


async def test_results_are_those_of_the_request_and_not_of_the_head(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        client = on.connect()
        for count in range(1, 5):
            data = np.full((2, 2), count, np.int32).tobytes()
            client.send(request("POST", PATH, BINARY_HEADER + data, Inference_Header_Content_Length=LENGTH))
            answer = (await client.receive(count))[-1]
            results = np.frombuffer(answer.body[int(answer.headers[HEADER.lower()]) :], np.int32)
            assert results.tolist() == [2 * count] * 2 + [0, 0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/%73imple/config?x=1"),
        ("GET", "/v2/models/nosuch"),
        ("GET", "/v2/models/simple/infer"),
        ("POST", "/v2/models/simple/infer/"),
        ("GET", "/openapi.json"),
    ],
)
async def test_the_application_s_answers_come_through_a_connection(
    app: FastAPI, tmp_path: Path, method: str, path: str
) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        expected = await client.request(method, path, headers={"X-Request-ID": "a"})
    async with stage(tmp_path, app) as on:
        found = await through_a_connection(on, [request(method, path, X_Request_ID="a")])
    headers = {**expected.headers, "date": found.headers["date"]}
    assert found == Answer(expected.status_code, headers, expected.content)


TEXTS = struct.pack("<I3s", 3, b"abc") * 40_000


@pytest.mark.parametrize(("count", "status"), [(40_000, 200), (39_999, 400)])
async def test_many_texts_are_read_and_written_on_threads(tmp_path: Path, count: int, status: int) -> None:
    given = {"name": "IN", "shape": [count], "datatype": "BYTES", "parameters": {"binary_data_size": len(TEXTS)}}
    header = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    async with stage(tmp_path) as on:
        threads = Threads()
        answer = await through_a_connection(
            on, [wire("/v2/models/echo/infer", header + TEXTS, {HEADER: str(len(header))})]
        )
    assert answer.status == status
    if status == 200:
        assert answer.body.endswith(TEXTS)
        assert threads.work == ["read_long_request", "_write_long"]
    else:
        assert b"unexpected number of string elements 40000" in answer.body
        assert threads.work == ["read_long_request"]
