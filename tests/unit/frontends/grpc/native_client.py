"""gRPC calls on connections of our own: frames by hand, over the real table of calls with puppets for models."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hpack import Decoder
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame
from puppet_server import MANY, SIMPLE, PuppetLoader, server_over

from http2_client import Wire, data, headers
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.memory import MemoryBudget
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.grpc_port import GrpcPort
from modserve.frontends.grpc.model_stream import InferStreams
from modserve.frontends.grpc.rpc import Rpc
from modserve.frontends.grpc.service import rpc_table
from modserve.frontends.http2.headers import block
from modserve.frontends.http2.policies import Policies
from modserve.pb import inference as pb
from modserve.settings import GrpcSettings

SERVICE = "/inference.GRPCInferenceService/"
VALUES = b"".join(value.to_bytes(4, "little") for value in (1, 2))


def request(model: str = "simple") -> bytes:
    message = pb.ModelInferRequest(model_name=model)
    names = ("INPUT0", "INPUT1") if model == "simple" else ("IN",)
    shape = (1, 2) if model == "simple" else (1,)
    for name in names:
        message.inputs.add(name=name, datatype="INT32", shape=shape)
        message.raw_input_contents.append(VALUES[: 4 * shape[-1]])
    return bytes(message.SerializeToString())


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


def call_block(path: str, *more: tuple[str, str], kind: str = "application/grpc", method: str = "POST") -> bytes:
    fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "a"), ("te", "trailers")]
    fields += [("content-type", kind), *more]
    return block([(name.encode(), value.encode()) for name, value in fields])


@dataclass
class Answer:
    """What came on a stream."""

    fields: list[dict[str, str]] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.fields[-1]["grpc-status"])

    @property
    def text(self) -> str:
        return self.fields[-1].get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], self.body
        while rest:
            size = 5 + int.from_bytes(rest[1:5], "big")
            found.append(rest[5:size])
            rest = rest[size:]
        return found


class Client:
    """Frames by hand."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.decoder = Decoder()
        self.answers: dict[int, Answer] = {}
        self._last = -1

    def call(
        self, name: str, *messages: bytes, more: tuple[tuple[str, str], ...] = (), end: bool = True, **options: str
    ) -> int:
        self._last += 2
        path = name if name.startswith("/") else SERVICE + name
        head = headers(self._last, call_block(path, *more, **options), end=end and not messages)
        body = b"".join(messages)
        self.wire.send(head, *([data(self._last, body, end=end)] if messages else []))
        return self._last

    def look(self) -> dict[int, Answer]:
        for each in self.wire.frames():
            answer = self.answers.setdefault(each.stream_id, Answer())
            if isinstance(each, HeadersFrame):
                answer.fields.append({str(name): str(value) for name, value in self.decoder.decode(each.data)})
            elif isinstance(each, DataFrame):
                answer.body += each.data
            elif isinstance(each, RstStreamFrame):
                answer.reset = each.error_code
            answer.ended = answer.ended or "END_STREAM" in each.flags
        return self.answers

    async def answer(self, stream: int) -> Answer:
        """When the stream has ended."""
        async with asyncio.timeout(10):
            while not ((answer := self.look().get(stream)) and answer.ended):  # noqa: ASYNC110  # a turn, no time
                await asyncio.sleep(0)
        return answer

    async def ask(self, name: str, *messages: bytes, **options: Any) -> Answer:
        return await self.answer(self.call(name, *messages, **options))


class Port:
    """A port over a server of puppets."""

    def __init__(self, server: Any, loader: PuppetLoader, **options: Any) -> None:
        settings = GrpcSettings()
        self.server = server
        self.loader = loader
        self.dispatcher = Dispatcher(server, settings.limits)
        streams = InferStreams(server, settings, self.dispatcher.inflater)
        self.rpcs: dict[str, Rpc] = dict(rpc_table(server, settings, self.dispatcher.inflater, streams))
        self.port = GrpcPort(asyncio.get_running_loop(), Policies(), self.dispatcher, self.rpcs, **options)

    def client(self) -> Client:
        return Client(Wire(self.port))

    def again(self, **options: Any) -> "Port":
        return Port(self.server, self.loader, **options)

    def handle(self, name: str, handler: Any) -> None:
        """Serve a call with another handler."""
        self.rpcs[SERVICE + name] = self.rpcs[SERVICE + name]._replace(handler=handler, direct=False)

    @property
    def held(self) -> int:
        return self.server.memory.held  # type: ignore[no-any-return]


def outputs(message: bytes) -> list[bytes]:
    return list(pb.ModelInferResponse.FromString(message).raw_output_contents)


SUM = b"".join(value.to_bytes(4, "little") for value in (2, 4))


def continuation(stream: int, rest: bytes) -> bytes:
    return len(rest).to_bytes(3, "big") + b"\x09\x04" + stream.to_bytes(4, "big") + rest


@pytest.fixture(name="port")
async def port_fixture(tmp_path: Path) -> AsyncIterator[Port]:
    models: dict[str, ModelConfig] = {"simple": SIMPLE, "many": MANY}
    loader = PuppetLoader(models=models)
    server = server_over(tmp_path, loader, memory=MemoryBudget(1_000_000))
    await server.load()
    made = Port(server, loader)
    yield made
    assert made.held == 0
    assert len(made.port.deadlines) == 0
    made.port.deadlines.close()


@pytest.fixture(name="client")
def client_fixture(port: Port) -> Client:
    return port.client()
