"""What stands between a connection and the handlers: messages, statuses, bounds and the log."""

import asyncio
import gzip
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from puppet_server import MANY, SIMPLE, PuppetLoader, PuppetServable, infer_streams, server_over
from rpc_calls import CallTable, FakeCall, call_table
from test_grpc_service import asked
from test_grpc_stream import Exchange, turns
from test_grpc_stream import asked as stream_asked

from modserve.core.requests.memory import MemoryBudget
from modserve.core.version import ModelId
from modserve.frontends import offload
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.message_inflater import MessageInflater
from modserve.frontends.grpc.reflection import ReflectionService
from modserve.pb import inference as pb
from modserve.pb import reflection
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, LoopLimits

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INTERNAL = grpc.StatusCode.INTERNAL
INVALID = grpc.StatusCode.INVALID_ARGUMENT
REQUEST = asked().SerializeToString()


@pytest.fixture
def loader() -> PuppetLoader:
    return PuppetLoader({"simple": SIMPLE, "many": MANY})


@pytest.fixture
async def server(tmp_path: Path, loader: PuppetLoader) -> AsyncIterator[LocalServer]:
    found = server_over(tmp_path, loader)
    await found.load()
    yield found
    assert found.memory.held == 0


@pytest.fixture
def simple(server: LocalServer, loader: PuppetLoader) -> PuppetServable:
    return loader.loaded[ModelId("simple", 3)]


async def call(table: CallTable, rpc: str, *messages: bytes) -> FakeCall:
    made = FakeCall(*messages)
    await table.serve(f"/{pb.SERVICE}/{rpc}", made)
    return made


# Messages


@pytest.mark.parametrize("rpc", [name for name in pb.METHODS if name != "ModelStreamInfer"])
async def test_a_call_without_a_message(server: LocalServer, rpc: str) -> None:
    refused = await call(call_table(server), rpc)
    assert refused.code is INTERNAL
    assert refused.details == "the call ended without a request message; a unary call has exactly one"


async def test_long_messages_are_read_on_threads(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def on_thread(work: Any, *args: Any) -> Any:
        done.append(work.__name__)
        return work(*args)

    monkeypatch.setattr(offload, "on_thread", on_thread)
    table = call_table(server, options=GrpcSettings(limits=LoopLimits(split=1, message=1)))
    for name, request in (("ModelInfer", REQUEST), ("ModelMetadata", b"\x0a\x06simple")):
        await call(table, name, request)
    assert done == ["_split", "parse"]


# Compression


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
async def test_every_kind_of_call_takes_compressed_messages(
    server: LocalServer, compress: Callable[[bytes], bytes]
) -> None:
    table = call_table(server)
    assert (await call(table, "ModelInfer", compress(REQUEST))).code is None
    assert (await call(table, "ServerLive", compress(b""))).code is None
    assert (await call(table, "ModelInfer", compress(b"\xff"))).code is INVALID
    exchange = Exchange(server, infer_streams(server), (), table)
    exchange.send(compress(REQUEST))
    exchange.half_close()
    assert (await exchange.ending())[0] is grpc.StatusCode.OK
    assert [answer.infer_response.model_name for answer in exchange.answers] == ["simple"]
    watch = FakeCall(compress(b""))
    watching = asyncio.ensure_future(table.serve("/grpc.health.v1.Health/Watch", watch))
    await turns()
    assert len(watch.written) == 1
    watching.cancel()
    reflecting = FakeCall(compress(b"\x3a\0"))
    await ReflectionService(["a"], MessageInflater(server.memory, 0, LoopLimits())).ServerReflectionInfo(reflecting)
    assert len(reflecting.written) == 1


async def test_compressed_messages_have_the_limit_of_the_port(server: LocalServer) -> None:
    table = call_table(server, dispatcher=Dispatcher(server, max_message=1_000))
    assert (await call(table, "ModelInfer", gzip.compress(bytes(2_000)))).code is RESOURCE_EXHAUSTED


# Bounds


async def test_no_more_calls_than_may_be_under_way(server: LocalServer, simple: PuppetServable) -> None:
    gate = Dispatcher(server, max_calls=2)
    table = call_table(server, dispatcher=gate)
    simple.automatic = False
    under_way = [asyncio.ensure_future(call(table, "ModelInfer", REQUEST)) for _ in range(2)]
    await turns()
    refused = await call(table, "ServerLive", b"")
    assert refused.code is UNAVAILABLE
    assert refused.details.startswith("too many calls: 2 are under way")
    assert gate.refused == 1
    simple.answer_all()
    await asyncio.gather(*under_way)
    assert (await call(table, "ServerLive", b"")).code is None


async def test_a_message_that_exceeds_the_server_s_memory(server: LocalServer, simple: PuppetServable) -> None:
    server.memory = MemoryBudget(2 * len(REQUEST) - 1)
    table = call_table(server)
    simple.automatic = False
    first = asyncio.ensure_future(call(table, "ModelInfer", REQUEST))
    await turns()
    assert server.memory.held == len(REQUEST)
    refused = await call(table, "ModelInfer", REQUEST)
    assert refused.code is RESOURCE_EXHAUSTED
    assert "out of memory for requests" in refused.details
    simple.answer_all()
    assert (await first).code is None
    assert server.memory.held == 0


async def test_a_stream_s_message_that_exceeds_the_server_s_memory(server: LocalServer, simple: PuppetServable) -> None:
    size = len(stream_asked("a").SerializeToString())
    server.memory = MemoryBudget(2 * size - 1)
    simple.automatic = False
    exchange = Exchange(server, infer_streams(server))
    exchange.send(stream_asked("a"), stream_asked("b"))
    exchange.half_close()
    await turns()
    assert server.memory.held == size
    simple.answer_all()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    texts = [answer.error_message for answer in exchange.answers]
    assert texts[0] == ""
    assert "out of memory for requests" in texts[1]


# The log


async def test_failed_requests_are_logged(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await call(call_table(server), "ModelInfer", asked("nosuch", model_version="2", id="7").SerializeToString())
    exchange = Exchange(server, infer_streams(server))
    exchange.send(stream_asked("x", model="nosuch"))
    exchange.half_close()
    await exchange.ending()
    first, second = (record.getMessage() for record in caplog.records if "request failed" in record.getMessage())
    assert first.startswith("gRPC request failed, model 'nosuch', version 2, request id '7', status NOT_FOUND: ")
    assert second.startswith("gRPC request failed, model 'nosuch', request id 'x', status NOT_FOUND: ")


# Reflection


@pytest.mark.parametrize(
    ("asked_for", "answer"),
    [
        ({"file_by_filename": "model_config.proto"}, ["model_config.proto"]),
        ({"file_containing_symbol": "inference.ModelInferRequest"}, ["grpc_service.proto", "model_config.proto"]),
        (
            {"file_containing_symbol": "inference.GRPCInferenceService.ModelInfer"},
            ["grpc_service.proto", "model_config.proto"],
        ),
        (
            {"file_containing_symbol": "grpc.reflection.v1alpha.ErrorResponse"},
            ["grpc/reflection/v1alpha/reflection.proto"],
        ),
    ],
)
def test_files_are_found(asked_for: dict[str, str], answer: list[str]) -> None:
    request = reflection.ServerReflectionRequest(host="here", **asked_for)  # type: ignore[arg-type]
    told = ReflectionService(["b", "a"], MessageInflater(MemoryBudget(), 0, LoopLimits())).respond(request)
    files = told.file_descriptor_response.file_descriptor_proto
    assert sorted(name for name in answer if any(name.encode() in file for file in files)) == sorted(answer)
    assert len(files) == len(answer)
    assert answer[0].encode() in files[0]
    assert (told.valid_host, told.original_request) == ("here", request)


def test_what_else_reflection_tells() -> None:
    service = ReflectionService(["b", "a"], MessageInflater(MemoryBudget(), 0, LoopLimits()))
    listed = service.respond(reflection.ServerReflectionRequest(list_services=""))
    assert [each.name for each in listed.list_services_response.service] == ["a", "b"]
    numbers = service.respond(
        reflection.ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelInferRequest")
    ).all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("inference.ModelInferRequest", [])


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (reflection.ServerReflectionRequest(), 3),
        (reflection.ServerReflectionRequest(file_by_filename="nosuch.proto"), 5),
        (reflection.ServerReflectionRequest(file_containing_symbol="nosuch"), 5),
        (reflection.ServerReflectionRequest(all_extension_numbers_of_type="nosuch"), 5),
        (
            reflection.ServerReflectionRequest(
                file_containing_extension=reflection.ExtensionRequest(
                    containing_type="inference.ModelInferRequest", extension_number=100
                )
            ),
            5,
        ),
    ],
)
def test_what_reflection_does_not_find(request_: reflection.ServerReflectionRequest, code: int) -> None:
    told = ReflectionService([], MessageInflater(MemoryBudget(), 0, LoopLimits())).respond(request_)
    assert told.error_response.error_code == code
    assert told.error_response.error_message
