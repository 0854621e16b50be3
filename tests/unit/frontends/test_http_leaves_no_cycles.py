"""No request over HTTP leaves objects behind that only the garbage collector could free.

It counts objects, not bytes: a few of them may hold gigabytes for hours.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from puppet_server import (
    ECHO,
    JSON_BODY,
    MANY,
    SIMPLE,
    Client,
    PuppetLoader,
    PuppetServable,
    infer_binary,
    numbers,
    request,
    server_over,
)

from garbage import garbage_left
from modserve.core.errors import ModserveError, internal
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.frontends.http.direct import DirectCalls
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.streams import unless_disconnected
from modserve.frontends.http.wire.context import HttpContext
from modserve.frontends.offload import on_thread
from modserve.settings import HttpSettings

OPTIONS = HttpSettings(max_json=64 * 1024 * 1024)


@dataclass(frozen=True)
class Bench:
    site: HttpContext
    many: PuppetServable
    loader: PuppetLoader
    clients: list[Client] = field(default_factory=list)
    """Connections are not requests: they are kept until the end."""

    @contextlib.contextmanager
    def connected(self) -> Iterator[Client]:
        client = Client(self.site)
        self.clients.append(client)
        try:
            yield client
        finally:
            client.connection.abort()

    async def inflight(self) -> None:
        """Wait until the decoupled model has a request."""
        for _ in range(10_000):
            if self.many.submitted:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("no request came")

    def respond(self, value: int, final: bool = False) -> None:
        outputs = {"OUT": Tensor.from_array(numbers(value)[0])}
        self.many.submitted[-1].settle(InferenceResponse("many", 1, outputs), final)

    def forget(self) -> None:
        """What only the test holds on to."""
        for servable in self.loader.loaded.values():
            servable.submitted.clear()


@contextlib.asynccontextmanager
async def bench_over(repository: Path, by_port: bool) -> AsyncIterator[Bench]:
    loader = PuppetLoader({"simple": SIMPLE, "echo": ECHO, "many": MANY})
    server = server_over(repository, loader)
    await server.load()
    many = loader.loaded[ModelId("many", 1)]
    many.automatic = False
    async with asyncio.TaskGroup() as tasks:
        direct = DirectCalls(CallContext(server, OPTIONS))
        app, loop = create_app(server, OPTIONS, direct), asyncio.get_running_loop()
        site = HttpContext(server, app, tasks, loop, OPTIONS, True, direct if by_port else None)
        yield Bench(site, many, loader)
        for connection in list(site.connections):
            connection.abort()


Act = Callable[[Bench], Awaitable[None]]


def asking(status: int, *asked: bytes) -> Act:
    """Requests on one connection, of which the last is answered with `status`."""

    async def act(bench: Bench) -> None:
        with bench.connected() as client:
            for each in asked:
                client.send(each)
            answers = await client.receive(len(asked))
            assert answers[-1].status == status, answers[-1]

    return act


def streaming(call: str, *values: int, fail: bool = False) -> Act:
    body = json.dumps(
        {"IN": 1}
        if "generate" in call
        else {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}
    )

    async def act(bench: Bench) -> None:
        with bench.connected() as client:
            client.send(request(target=f"/v2/models/many/{call}", body=body.encode()))
            await bench.inflight()
            for value in values:
                bench.respond(value)
            if fail:
                bench.many.submitted[-1].settle(internal("the engine broke"))
            else:
                bench.many.submitted[-1].settle(None)
            await client.receive()

    return act


def cancelling(call: str, body: bytes) -> Act:
    """The client goes away while the model has its request."""

    async def act(bench: Bench) -> None:
        with bench.connected() as client:
            client.send(request(target=call, body=body))
            await bench.inflight()
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.many.submitted[-1].cancelled

    return act


def ints(values: list[int], **more: object) -> bytes:
    given = [
        {"name": name, "datatype": "INT32", "shape": [1, len(values)], "data": values} for name in ("INPUT0", "INPUT1")
    ]
    return json.dumps({"inputs": given, **more}).encode()


V2 = "/v2/models/simple"
BAD = b'{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"INT32","data":[1,"x"]}]}'
LARGE_BAD = b'{"parameters":{"x":[' + b"{}," * 100_000 + b'{}]},"inputs":[]}'
TWICE = b'{"inputs":[],"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT0"}]}'
ONE = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
GENERATE = b'{"INPUT0":[1,2],"INPUT1":[3,4]}'
PREDICT = b'{"instances":[{"INPUT0":[1,2],"INPUT1":[3,4]}]}'
MANY_PARTS = json.dumps({"instances": [{"INPUT0": [1, 2], "INPUT1": [3, 4]}] * 20}).encode()
ACTS: dict[str, Act] = {
    "an inference": asking(200, request(body=JSON_BODY)),
    "binary": asking(200, infer_binary()),
    "again and again": asking(200, infer_binary(), infer_binary(), infer_binary()),
    "bad JSON": asking(400, request(body=b"{")),
    "a wrong element": asking(400, request(body=BAD)),
    "refused by the model": asking(400, request(body=TWICE)),
    "no such model": asking(404, request(target="/v2/models/none/infer", body=JSON_BODY)),
    "bad JSON on a thread": asking(400, request(body=LARGE_BAD)),
    "a wrong shape, read on a thread": asking(400, request(body=ints([1] * 200_000))),
    "an answer with texts, written on a thread": asking(
        200,
        request(
            target="/v2/models/echo/infer",
            body=json.dumps(
                {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [40_000], "data": ["x"] * 40_000}]}
            ).encode(),
        ),
    ),
    "unsupported compression": asking(501, request(body=JSON_BODY, Content_Encoding="br")),
    "wrong compression": asking(400, request(body=JSON_BODY, Content_Encoding="gzip")),
    "an inference that fails": streaming("infer", fail=True),
    "an inference of a decoupled model": streaming("infer", 1),
    "with too many responses": streaming("infer", 1, 2, 3),
    "without a response": streaming("infer"),
    "a cancelled inference": cancelling("/v2/models/many/infer", ONE),
    "generate": asking(200, request(target=f"{V2}/generate", body=GENERATE)),
    "generate, refused": asking(400, request(target=f"{V2}/generate", body=b'{"INPUT0":"x"}')),
    "generate, refused on a thread": asking(
        400, request(target=f"{V2}/generate", body=b'{"INPUT0":[%b"x"]}' % (b"1," * 200_000))
    ),
    "generate, too many": streaming("generate", 1, 2),
    "generate, failed": streaming("generate", fail=True),
    "generate, cancelled": cancelling("/v2/models/many/generate", b'{"IN":1}'),
    "generate_stream": streaming("generate_stream", 1, 2, 3),
    "generate_stream, failed": streaming("generate_stream", 1, fail=True),
    "generate_stream, failed at once": streaming("generate_stream", fail=True),
    "generate_stream, refused": asking(400, request(target=f"{V2}/generate_stream", body=b'{"INPUT0":"x"}')),
    "generate_stream, cancelled": cancelling("/v2/models/many/generate_stream", b'{"IN":1}'),
    "infer_stream": streaming("infer_stream", 1, 2, 3),
    "infer_stream, failed": streaming("infer_stream", 1, fail=True),
    "infer_stream, failed at once": streaming("infer_stream", fail=True),
    "infer_stream, refused": asking(400, request(target=f"{V2}/infer_stream", body=BAD)),
    "infer_stream, refused on a thread": asking(400, request(target=f"{V2}/infer_stream", body=LARGE_BAD)),
    "infer_stream, cancelled": cancelling("/v2/models/many/infer_stream", ONE),
    "predict": asking(200, request(target="/v1/models/simple:predict", body=PREDICT)),
    "predict, in parts": asking(200, request(target="/v1/models/simple:predict", body=MANY_PARTS)),
    "predict, refused": asking(400, request(target="/v1/models/simple:predict", body=b'{"instances":[1]}')),
    "predict, refused by the model": asking(
        400, request(target="/v1/models/simple:predict", body=MANY_PARTS.replace(b"[3, 4]", b"[3]"))
    ),
    "predict, cancelled": cancelling("/v1/models/many:predict", b'{"instances":[1]}'),
    "by way of the application": asking(200, request(body=JSON_BODY, target=V2 + "/infer?x")),
    "live": asking(200, request("GET", "/v2/health/live")),
    "metadata": asking(200, request("GET", V2)),
    "an unknown path": asking(404, request("GET", "/nothing")),
    "a wrong load": asking(400, request(target="/v2/repository/models/simple/load", body=b"{")),
    "malformed HTTP": asking(400, b"nonsense\r\n\r\n"),
}


async def left_by(act: Act, repository: Path, by_port: bool) -> list[object]:
    async with bench_over(repository, by_port) as bench:

        async def once() -> None:
            await act(bench)
            bench.forget()
            for _ in range(20):
                await asyncio.sleep(0)

        return await garbage_of(once)


async def garbage_of(act: Callable[[], Awaitable[None]]) -> list[object]:
    """What only the garbage collector could free after `act`, which is done before, too: first times differ."""
    await act()
    await act()
    with garbage_left() as found:
        await act()
    return found


@pytest.mark.parametrize(
    ("name", "by_port"),
    [*((name, False) for name in ACTS), *((name, True) for name in ACTS if "generate" in name or "_stream" in name)],
)
async def test_a_request_leaves_no_cycle(name: str, by_port: bool, tmp_path: Path) -> None:
    left = await left_by(ACTS[name], tmp_path, by_port)
    assert not left, Counter(type(each).__qualname__ for each in left).most_common(30)


class _Waiting:
    """A request whose client stays."""

    async def receive(self) -> object:
        return await asyncio.get_running_loop().create_future()


async def _fail() -> None:
    await asyncio.sleep(0)
    raise internal("no")


def _fail_at_once() -> None:
    raise internal("no")


@pytest.mark.parametrize("helper", ["unless_disconnected", "on_thread"])
async def test_what_raises_leaves_no_cycle(helper: str) -> None:
    """Whoever catches the error keeps no frame that has it."""

    async def once() -> None:
        with contextlib.suppress(ModserveError):
            if helper == "unless_disconnected":
                await unless_disconnected(_Waiting(), _fail())  # type: ignore[arg-type]
            else:
                await on_thread(_fail_at_once)
        await asyncio.sleep(0)

    assert not await garbage_of(once)
