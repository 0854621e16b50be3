"""A server whose models are answered by the test, and an HTTP client without a socket."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError
from modserve.core.loading import Blueprint, Listing
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor
from modserve.core.version import ModelId
from modserve.frontends.grpc.message_inflater import MessageInflater
from modserve.frontends.grpc.model_stream import InferStreams
from modserve.frontends.http.direct import DirectCalls
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.connection import HttpConnection
from modserve.frontends.http.wire.context import AsgiApp, HttpContext
from modserve.observability.logging import Logs
from modserve.pb import inference as pb
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.server.interface import Services
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, HttpSettings
from modserve.testing import config, write_model

MAX_JSON = 4096
SIMPLE = config(
    "simple",
    inputs=(TensorSpec("INPUT0", dtypes.INT32, (2,)), TensorSpec("INPUT1", dtypes.INT32, (2,))),
    outputs=(TensorSpec("OUTPUT0", dtypes.INT32, (2,)), TensorSpec("OUTPUT1", dtypes.INT32, (2,))),
)
ECHO = config(
    "echo",
    inputs=(TensorSpec("IN", dtypes.BYTES, (-1,)),),
    outputs=(TensorSpec("OUT", dtypes.BYTES, (-1,)),),
    max_batch_size=0,
)

MANY = config(
    "many",
    inputs=(TensorSpec("IN", dtypes.INT32, (1,)),),
    outputs=(TensorSpec("OUT", dtypes.INT32, (1,)),),
    max_batch_size=0,
    decoupled=True,
)
"""Give it to a loader, and its servable answers when told to: `respond` as often as you like."""


def sum_and_difference(inputs: Mapping[str, Array]) -> dict[str, Array]:
    first, second = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": first + second, "OUTPUT1": first - second}


def echo(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"OUT": inputs["IN"]}


class PuppetServable:
    """A model version; `automatic` ones answer in the next turn of the event loop, others when told to."""

    unready_reason: str | None = None

    def __init__(
        self, model_id: ModelId, model_config: ModelConfig, compute: Callable[[Mapping[str, Array]], dict[str, Array]]
    ) -> None:
        self.id = model_id
        self.config = model_config
        self.config_message = pb.ModelConfig(name=model_config.name).SerializeToString()
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.automatic = True
        self.submitted: list[Inflight] = []
        self._signature = Signature(model_config)
        self._compute = compute

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = self._signature.accept(request, sink, now_ns)
        self.submitted.append(inflight)
        if self.automatic:
            # As by an engine: in the context of no caller.
            asyncio.get_running_loop().call_soon(self.answer, inflight, context=Context())
        return inflight

    def answer(self, inflight: Inflight) -> None:
        results = self._compute({name: tensor.array for name, tensor in inflight.inputs.items()})
        outputs = {
            name: Tensor.from_array(results[name], self.config.outputs_by_name[name].datatype)
            for name in inflight.output_names
        }
        inflight.settle(InferenceResponse(self.id.name, self.id.version, outputs, inflight.request.id))

    def answer_all(self) -> None:
        """Answer everything that waits."""
        for inflight in list(self.submitted):
            if not inflight.settled:
                self.answer(inflight)

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass
class PuppetLoader:
    """Loads puppets; `failures` are raised by the load of a version, `problems` by the look at a model.

    Loading goes on when `go` is set.
    """

    models: Mapping[str, ModelConfig] = field(default_factory=lambda: {"simple": SIMPLE, "echo": ECHO})
    versions: Mapping[str, Sequence[int]] = field(default_factory=lambda: {"simple": (1, 3)})
    failures: dict[ModelId, Exception] = field(default_factory=dict)
    problems: dict[str, ModserveError] = field(default_factory=dict)
    loaded: dict[ModelId, PuppetServable] = field(default_factory=dict)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a version is asked for."""

    def __post_init__(self) -> None:
        self.go.set()

    async def inspect(self, listing: Listing) -> Blueprint:
        if listing.name in self.problems:
            raise self.problems[listing.name]
        return Blueprint(listing, listing.versions, load=partial(self.load, listing.name))

    async def load(self, name: str, path: Path, version: int) -> PuppetServable:
        self.begun.set()
        await self.go.wait()
        model_id = ModelId(name, version)
        if model_id in self.failures:
            raise self.failures[model_id]
        compute = echo if name == "echo" else sum_and_difference
        self.loaded[model_id] = PuppetServable(model_id, self.models[name], compute)
        return self.loaded[model_id]

    def forget(self, name: str) -> None:
        pass


def server_over(
    repository: Path, loader: PuppetLoader, logs: Logs | None = None, memory: MemoryBudget | None = None
) -> LocalServer:
    """Nothing is loaded yet."""
    for name in loader.models:
        write_model(repository, name, versions=tuple(str(version) for version in loader.versions.get(name, (1,))))
    manager = ModelManager(ModelTable(), loader, 8)
    services = Services(logs=logs, memory=MemoryBudget() if memory is None else memory)
    return LocalServer(manager, repositories_at([repository]), services, name="modserve")


def infer_streams(server: LocalServer, options: GrpcSettings = GrpcSettings()) -> InferStreams:  # noqa: B008  # frozen
    return InferStreams(server, options, MessageInflater(server.memory, 0, options.limits))


class MockTransport(asyncio.Transport):
    """Keeps what is written. As with a socket, the connection is lost one turn after it was closed."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.extra: dict[str, object] = {"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 8000)}
        super().__init__(self.extra)
        self.protocol = protocol
        self.written = bytearray()
        self.writes = 0
        self.reading = True
        self.eof = False
        self.unsent = 0
        """Bytes in the write buffer, as the test has them."""
        self.closing = False
        self.lost = False
        self._changed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, f"written after the end: {bytes(data)!r}"
        self.written += data
        self.writes += 1
        self._changed.set()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            self._changed.set()
            asyncio.get_running_loop().call_soon(self.lose)

    def lose(self) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self.protocol.connection_lost(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be written, or for the end."""
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> tuple[int, bytes, dict[str, str]]:
        """All that does not depend on the connection."""
        kept = ("content-type", "content-length", "inference-header-content-length")
        return self.status, self.body, {name: value for name, value in self.headers.items() if name in kept}


class Client:
    """The other end of a connection."""

    def __init__(self, site: HttpContext, peer: object = ("192.0.2.1", 1234)) -> None:
        self.connection = HttpConnection(site)
        self.transport = MockTransport(self.connection)
        self.transport.extra["peername"] = peer
        self.connection.connection_made(self.transport)
        self._answers: list[Answer] = []
        self._read = 0

    def send(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self.connection.data_received(chunk)

    @property
    def answers(self) -> list[Answer]:
        """The complete answers so far."""
        rest = bytes(self.transport.written[self._read :])
        while (parsed := _parse(rest)) is not None:
            answer, rest = parsed
            self._answers.append(answer)
        self._read = len(self.transport.written) - len(rest)
        return list(self._answers)

    async def receive(self, count: int = 1) -> list[Answer]:
        """The answers, when there are as many."""
        await self.transport.until(lambda: len(self.answers) >= count or self.transport.closing)
        return self.answers


class PortTransport(httpx.AsyncBaseTransport):
    """Sends each request over a connection of its own to a port that runs calls `direct`, without a socket."""

    def __init__(self, direct: DirectCalls) -> None:
        self._direct = direct
        self._app = create_app(direct.context.server, direct.context.options, direct)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        context, loop = self._direct.context, asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            site = HttpContext(context.server, self._app, tasks, loop, context.options, True, self._direct)
            client = Client(site)
            try:
                lines = b"".join(b"%b: %b\r\n" % header for header in request.headers.raw)
                first = b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
                client.send(first + lines + b"\r\n" + await request.aread())
                answer = (await client.receive())[-1]
            finally:
                client.connection.abort()
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)


def _parse(data: bytes) -> tuple[Answer, bytes] | None:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        assert not data, f"half a head: {data!r}"
        return None
    first, *lines = head.decode().split("\r\n")
    protocol, status, _ = first.split(" ", 2)
    assert protocol == "HTTP/1.1"
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while True:
            size_text, end, rest = rest.partition(b"\r\n")
            if not end:
                return None
            size = int(size_text, 16)
            body, rest = body + rest[:size], rest[size + 2 :]
            if not size:
                break
    elif int(status) >= 200:
        size = int(headers["content-length"])
        if len(rest) < size:
            return None
        body, rest = rest[:size], rest[size:]
    return Answer(int(status), headers, body), rest


async def plain_app(scope: Any, receive: Any, send: Any) -> None:
    """An application that says what it was asked."""
    message = await receive()
    query, body = scope["query_string"].decode("latin-1"), message["body"].decode("latin-1")
    text = f"{scope['method']} {scope['path']} ? {query} = {body}"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text.encode()})


@dataclass(frozen=True)
class Stage:
    """A loaded server, and the site that connections belong to."""

    server: LocalServer
    site: HttpContext
    loader: PuppetLoader

    @property
    def simple(self) -> PuppetServable:
        """The version that answers."""
        return self.loader.loaded[ModelId("simple", 3)]

    def connect(self) -> Client:
        return Client(self.site)


@contextlib.asynccontextmanager
async def stage(
    repository: Path,
    app: AsgiApp | None = plain_app,
    *,
    automatic: bool = True,
    options: HttpSettings = HttpSettings(max_json=MAX_JSON),  # noqa: B008  # frozen
) -> AsyncIterator[Stage]:
    """A site whose tasks have ended when the block has; without an `app`, that of the REST surface."""
    loader = PuppetLoader()
    server = server_over(repository, loader)
    await server.load()
    for servable in loader.loaded.values():
        servable.automatic = automatic
    async with asyncio.TaskGroup() as tasks:
        found: AsgiApp = create_app(server, options) if app is None else app
        site = HttpContext(server, found, tasks, asyncio.get_running_loop(), options)
        site.turns.seconds = math.inf  # so that no test depends on how fast the machine is
        yield Stage(server, site, loader)
        for connection in list(site.connections):
            connection.abort()


def request(
    method: str = "POST",
    target: str = "/v2/models/simple/infer",
    body: bytes = b"",
    version: str = "1.1",
    **headers: str,
) -> bytes:
    """A request as clients write it; underscores in header names stand for hyphens."""
    lines = [f"{method} {target} HTTP/{version}", "Host: localhost"]
    if method == "POST" and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def numbers(*values: int) -> Array:
    return np.array([values], np.int32)


JSON_BODY = (
    b'{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"INT32","data":[1,2]},'
    b'{"name":"INPUT1","shape":[1,2],"datatype":"INT32","data":[10,10]}]}'
)
JSON_ANSWER = (
    b'{"model_name":"simple","model_version":"3","outputs":['
    b'{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[11,12]},'
    b'{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,-8]}]}'
)
BINARY_HEADER = (
    b'{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"INT32","parameters":{"binary_data_size":8}},'
    b'{"name":"INPUT1","shape":[1,2],"datatype":"INT32","parameters":{"binary_data_size":8}}],'
    b'"parameters":{"binary_data_output":true}}'
)
BINARY_BODY = BINARY_HEADER + numbers(1, 2).tobytes() + numbers(10, 10).tobytes()
BINARY_ANSWER_HEADER = (
    b'{"model_name":"simple","model_version":"3","outputs":['
    b'{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},'
    b'{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}'
)
BINARY_ANSWER = BINARY_ANSWER_HEADER + numbers(11, 12).tobytes() + numbers(-9, -8).tobytes()


def infer(body: bytes = JSON_BODY, **headers: str) -> bytes:
    return request(body=body, **headers)


def infer_binary(**headers: str) -> bytes:
    return request(body=BINARY_BODY, Inference_Header_Content_Length=str(len(BINARY_HEADER)), **headers)
