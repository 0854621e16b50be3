"""Where long bodies are read, and what they take of the server's memory."""

import asyncio
import functools
import gzip
import hashlib
import json
import logging
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from puppet_server import JSON_BODY, Answer, Client, PuppetLoader, request, server_over

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.memory import MemoryBudget
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor, digest_ahead
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire import body as incoming_body
from modserve.frontends.http.wire.context import HttpContext
from modserve.frontends.offload import RequestMemory, on_thread
from modserve.protocol.control import repository
from modserve.protocol.http import v1_predict_request
from modserve.settings import HttpSettings
from work_threads import Threads

OPTIONS = HttpSettings(max_json=64 * 1024 * 1024)
MEGABYTE = 1024 * 1024


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpContext]:
    server = server_over(tmp_path, PuppetLoader(), memory=MemoryBudget(64 * MEGABYTE))
    await server.load()
    async with asyncio.TaskGroup() as tasks:
        site = HttpContext(server, create_app(server, OPTIONS), tasks, asyncio.get_running_loop(), OPTIONS)
        yield site
        assert server.memory.held == 0
        for connection in list(site.connections):
            connection.abort()


async def ask(site: HttpContext, target: str, body: bytes, **headers: str) -> Answer:
    client = Client(site)
    client.send(request(target=target, body=body, **headers))
    (answer,) = await client.receive()
    client.connection.abort()
    for _ in range(50):  # a stream ends behind its last message
        await asyncio.sleep(0)
    return answer


LOOP, THREAD = "the event loop's thread", "another thread"


def spied(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[tuple[str, bool]]:
    """Where each call of a function was, and whether what it got is long."""
    function: Callable[..., Any] = getattr(module, name)
    loops_thread, calls = threading.get_ident(), list[tuple[str, bool]]()

    @functools.wraps(function)
    def spy(*args: Any, **kwargs: Any) -> Any:
        long = any(isinstance(arg, bytes | bytearray | memoryview) and len(arg) >= LONG for arg in args)
        calls.append((LOOP if threading.get_ident() == loops_thread else THREAD, long))
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, spy)
    return calls


def texts(size: int) -> bytes:
    """A request of about so many bytes with one text."""
    given = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["x" * size]}
    return json.dumps({"inputs": [given]}).encode()


LONG = 400 * 1024
CALLS = {
    "infer": ("/v2/models/echo/infer", orjson, "loads", texts(LONG), texts(10)),
    "infer_stream": ("/v2/models/echo/infer_stream", orjson, "loads", texts(LONG), texts(10)),
    "predict": (
        "/v1/models/echo:predict",
        v1_predict_request,
        "decode",
        json.dumps({"inputs": ["x" * LONG]}).encode(),
        b'{"inputs":["x"]}',
    ),
    "generate": (
        "/v2/models/echo/generate",
        orjson,
        "loads",
        json.dumps({"IN": "x" * LONG}).encode(),
        b'{"IN":"x"}',
    ),
    "load": (
        "/v2/repository/models/echo/load",
        repository,
        "load_json",
        b'{"parameters":{"config":"%b"}}' % (b"x" * LONG),
        b'{"parameters":{"config":"x"}}',
    ),
}


READERS = {
    "infer": "read_long_request",
    "infer_stream": "read_long_request",
    "predict": "_read",
    "generate": "_decode_long",
    "load": "load_json",
}
"""What reads them on the thread."""


@pytest.mark.parametrize("call", CALLS)
async def test_long_bodies_are_read_on_a_thread(call: str, site: HttpContext, monkeypatch: pytest.MonkeyPatch) -> None:
    target, module, name, long, short = CALLS[call]
    threads, calls = Threads(), spied(monkeypatch, module, name)
    await ask(site, target, long)
    assert set(calls) - {(THREAD, False)} == {(THREAD, True)}
    assert threads.work == [READERS[call]]
    calls.clear()
    await ask(site, target, short)
    assert set(calls) == {(LOOP, False)}
    assert threads.work == [READERS[call]]


@pytest.mark.parametrize("call", ["infer", "infer_stream", "predict"])
async def test_what_is_long_is_known_when_it_is_inflated(
    call: str, site: HttpContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some hundred bytes may become megabytes; and what is long may be short once more."""
    target, module, name, long, short = CALLS[call]
    threads, calls = Threads(), spied(monkeypatch, module, name)
    packed = gzip.compress(long)
    assert len(packed) < 2048
    assert (await ask(site, target, packed, Content_Encoding="gzip")).status == 200
    assert set(calls) - {(THREAD, False)} == {(THREAD, True)}
    assert threads.work == [READERS[call]]
    calls.clear()
    assert (await ask(site, target, gzip.compress(short), Content_Encoding="gzip")).status == 200
    assert set(calls) == {(LOOP, False)}
    assert threads.work == [READERS[call]]


@pytest.mark.parametrize(
    ("call", "encoding"),
    [
        ("infer", ""),
        ("infer", "gzip"),
        ("infer_stream", "gzip"),
        ("predict", ""),
        ("predict", "gzip"),
        ("generate", ""),
    ],
)
async def test_what_they_become_counts(call: str, encoding: str, site: HttpContext) -> None:
    target, _, _, body, _ = CALLS[call]
    memory = site.server.memory
    headers = {"Content_Encoding": encoding} if encoding else {}
    sent = gzip.compress(body) if encoding else body
    assert (await ask(site, target, sent, **headers)).status == 200
    assert memory.peak >= len(body)
    assert memory.held == 0

    memory.take(memory.limit - 10_000)
    answer = await ask(site, target, sent, **headers)
    memory.give_back(memory.limit - 10_000)
    assert answer.status == 503
    assert b"the server is out of memory for requests" in answer.body


async def test_elements_count_before_they_are_objects(site: HttpContext) -> None:
    """Two hundred thousand empty objects are 70 MB."""
    for target, body in (
        ("/v1/models/echo:predict", b'{"inputs":[%b]}'),
        ("/v2/models/echo/generate", b'{"IN":[%b]}'),
    ):
        answer = await ask(site, target, body % b",".join([b"{}"] * 200_000))
        assert answer.status == 503, target
        assert b"the server allows 67108864 bytes for all requests together" in answer.body


async def test_short_bodies_take_nothing(site: HttpContext) -> None:
    assert (await ask(site, "/v2/models/simple/infer", JSON_BODY)).status == 200
    assert site.server.memory.peak == 0


async def test_long_tensors_of_a_cached_model_are_hashed_on_a_thread(
    site: HttpContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of their response is made of them."""
    hashed = spied(monkeypatch, hashlib, "blake2b")
    header = json.dumps(
        {"inputs": [{"name": "IN", "datatype": "UINT8", "shape": [LONG], "parameters": {"binary_data_size": LONG}}]}
    ).encode()
    servable = site.server.model("simple")
    for cached in (False, True):
        monkeypatch.setattr(servable, "config", replace(servable.config, cached=cached))
        answer = await ask(
            site, "/v2/models/simple/infer", header + bytes(LONG), Inference_Header_Content_Length=str(len(header))
        )
        assert answer.status == 400  # by then it has been read
        assert [where for where, _ in hashed] == [THREAD] * cached


def test_a_long_tensor_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = Tensor.from_raw(dtypes.UINT8, (LONG,), bytes(LONG))
    digest_ahead([tensor], LONG - 1)
    monkeypatch.setattr(hashlib, "blake2b", None)
    assert len(tensor.digest()) == 32


async def test_a_request_that_is_over_takes_no_more() -> None:
    budget = MemoryBudget(100)
    memory = RequestMemory(budget, asyncio.get_running_loop())
    await on_thread(memory.take, 60)
    assert budget.held == 60
    with pytest.raises(ModserveError, match="out of memory"):
        await on_thread(memory.take, 50)
    memory.release()
    memory.release()
    with pytest.raises(ModserveError) as caught:
        await on_thread(memory.take, 1)
    assert (caught.value.code, budget.held) == (Code.CANCELLED, 0)


FAILURES: dict[str, tuple[str, bytes, str]] = {
    "bad JSON": ("/v2/models/simple/infer", b"{", "model 'simple', status 400: failed to parse"),
    "of a version": ("/v2/models/simple/versions/3/infer", b"{", "model 'simple', version 3, status 400: failed to"),
    "refused by its model": (
        "/v2/models/simple/infer",
        b'{"id":"a\\nb","inputs":[]}',
        r"model 'simple', request id 'a\nb', status 400: [request id: a\nb] expected 2 inputs",
    ),
    "no model": ("/v2/models/a%C2%85b/infer", b"{}", r"model 'a\x85b', status 404: Request for unknown model"),
    "on a thread": ("/v2/models/echo/infer", texts(LONG)[:-1], "model 'echo', version 1, status 400: failed to parse"),
    "generate": ("/v2/models/simple/generate", b"{", "model 'simple', status 400: failed to parse"),
    "infer_stream": ("/v2/models/simple/infer_stream", b"{", "model 'simple', status 400: failed to parse"),
    "predict": ("/v1/models/simple/versions/3:predict", b"{", "model 'simple', version 3, status 400: failed to"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_each_failed_request_is_logged_once(
    name: str, site: HttpContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "modserve.observability.failures")
    target, body, text = FAILURES[name]
    assert (await ask(site, target, body)).status >= 400
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith("observability.failures")]
    assert line.startswith(f"HTTP request failed, {text}"), line


async def test_texts_take_memory_before_they_are_counted(site: HttpContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of empty ones are 64 bytes each to an engine; what cannot be had is not looked at."""
    counts = spied(monkeypatch, Tensor, "count_elements")
    size = 4 * 2_000_000
    given = {"name": "IN", "datatype": "BYTES", "shape": [size // 4], "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [given]}).encode()
    answer = await ask(
        site, "/v2/models/echo/infer", header + bytes(size), Inference_Header_Content_Length=str(len(header))
    )
    assert answer.status == 503
    assert counts == []


@pytest.mark.parametrize("length", [17, 0], ids=["announced", "in chunks"])
async def test_a_body_that_is_too_long_to_join(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(incoming_body, "_LONG_BODY", 10)
    incoming = incoming_body.IncomingBody()
    for piece in (b"0123", b"4567", b"89abc", b"def", b"g"):
        incoming.add(piece, max(0, length - incoming.size - len(piece)))
    assert incoming.size == 17
    assert (incoming.take(), incoming.size) == (b"0123456789abcdefg", 0)
    incoming.add(b"next", 0)
    assert incoming.take() == b"next"


async def test_a_long_body_is_in_memory_once_and_only_as_far_as_it_has_come() -> None:
    length, piece = 64 * MEGABYTE, bytes(MEGABYTE)
    incoming = incoming_body.IncomingBody()
    tracemalloc.start()
    try:
        for missing in range(length - MEGABYTE, -1, -MEGABYTE):
            incoming.add(piece, missing)
        body = incoming.take()
        assert tracemalloc.get_traced_memory()[1] < length + MEGABYTE
    finally:
        tracemalloc.stop()
    assert body == bytes(length)


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 2**63])
async def test_a_body_that_there_is_no_memory_for(site: HttpContext, length: int) -> None:
    """It is refused when much of it has come, also where the memory budget has no limit."""
    site.server.memory.limit = 0
    client = Client(site)
    head = request("PUT", "/v2/models/echo/infer", Content_Length=str(length), Inference_Header_Content_Length="2")
    client.send(head.replace(b"PUT", b"POST"), b"{}")
    assert not client.transport.written
    client.send(bytes(MEGABYTE))
    (answer,) = await client.receive()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    client.connection.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("announced", [64, 0])
async def test_a_long_body_that_nobody_reads_is_freed_by_halves(
    monkeypatch: pytest.MonkeyPatch, announced: int
) -> None:
    monkeypatch.setattr(incoming_body, "_LONG_BODY", 10)
    incoming = incoming_body.IncomingBody()
    incoming.add(bytes(32), announced and announced - 32)
    incoming.add(bytes(32), 0)
    body = incoming._long
    assert body is not None
    incoming.drop(asyncio.get_running_loop())
    assert incoming.size == 0
    sizes = []
    for _ in range(5):
        sizes.append(len(body.getvalue()))
        await asyncio.sleep(0)
    assert sizes == [31, 14, 6, 6, 6]
