"""Inferences that are served without coroutine, task or future, and large ones, which are not copied more than once."""

import asyncio
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from native_client import SERVICE, SUM, Client, Port, call_block, client_fixture, framed, outputs, port_fixture, request

from http2_client import Transport, Wire, data, headers
from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Array, Tensor
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.grpc_port import GrpcPort
from modserve.frontends.http2.policies import Policies
from modserve.frontends.http2.stream import Chunk
from modserve.pb import inference as pb
from work_threads import Threads

INFER = SERVICE + "ModelInfer"
LARGE = 16 << 20
LONG_ID = "i" * 20_000


def puppets_wait(port: Port) -> None:
    for puppet in port.loader.loaded.values():
        puppet.automatic = False


def puppets_respond(port: Port) -> None:
    for puppet in port.loader.loaded.values():
        puppet.answer_all()


async def submitted(port: Port) -> Inflight:
    """The one request, when its model has it."""
    while not (requests := [each for puppet in port.loader.loaded.values() for each in puppet.submitted]):  # noqa: ASYNC110  # a turn, no time
        await asyncio.sleep(0)
    (inflight,) = requests
    return inflight


def with_id(text: str) -> bytes:
    message = pb.ModelInferRequest.FromString(request())
    message.id = text
    return message.SerializeToString()


def without_handler(port: Port) -> None:
    """What reaches the handler fails."""

    async def handler(message: Any, call: Any) -> ModserveError:
        return invalid("the handler")

    port.rpcs[INFER] = port.rpcs[INFER]._replace(handler=handler)


async def test_a_plain_request_needs_no_handler(client: Client, port: Port) -> None:
    without_handler(port)
    for message in (request(), with_id("one"), with_id(LONG_ID)):
        answer = await client.ask("ModelInfer", framed(message))
        assert (answer.status, outputs(answer.messages[0])[0]) == (0, SUM)
    assert port.dispatcher.calls == 0


async def test_others_have_the_handler(client: Client, port: Port) -> None:
    without_handler(port)
    typed = pb.ModelInferRequest(model_name="simple")
    typed.inputs.add(name="INPUT0", datatype="INT32", shape=(1, 2)).contents.int_contents.extend((1, 2))
    sorted_out = pb.ModelInferRequest.FromString(request())
    sorted_out.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 1
    for message in (typed, sorted_out, pb.ModelInferRequest()):
        assert (await client.ask("ModelInfer", framed(message.SerializeToString()))).text == "the handler"


@pytest.mark.parametrize(
    ("message", "status"),
    [(request("nothing"), 5), (request() + pb.ModelInferRequest(model_version="x").SerializeToString(), 3)],
)
async def test_failures(client: Client, port: Port, message: bytes, status: int) -> None:
    assert (await client.ask("ModelInfer", framed(message))).status == status
    assert port.dispatcher.calls == 0


async def test_a_message_counts_while_it_is_served(client: Client, port: Port) -> None:
    puppets_wait(port)
    message = with_id(LONG_ID)
    stream = client.call("ModelInfer", framed(message))
    await asyncio.sleep(0)
    assert (port.held, port.dispatcher.calls) == (len(message), 1)
    puppets_respond(port)
    assert (await client.answer(stream)).status == 0
    assert (port.held, port.dispatcher.calls) == (0, 0)


@pytest.mark.parametrize("end", ["reset", "deadline", "connection"])
async def test_a_client_that_goes(client: Client, port: Port, end: str) -> None:
    puppets_wait(port)
    more = (("grpc-timeout", "1m"),) if end == "deadline" else ()
    stream = client.call("ModelInfer", framed(with_id(LONG_ID)), more=more)
    inflight = await submitted(port)
    assert (port.held, port.dispatcher.calls, inflight.settled) == (len(with_id(LONG_ID)), 1, False)
    if end == "reset":
        client.wire.send(b"\0\0\4\3\0" + stream.to_bytes(4, "big") + b"\0\0\0\x08")
    elif end == "connection":
        client.wire.connection.connection_lost(None)
    else:
        assert (await client.answer(stream)).status == 4
    assert (port.held, port.dispatcher.calls) == (0, 0)
    assert inflight.cancelled  # so its queue lets go of it
    assert inflight.settled
    assert not client.wire.connection.streams
    assert len(port.port.deadlines) == 0
    puppets_respond(port)
    for puppet in port.loader.loaded.values():
        puppet.submitted.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    assert sys.getrefcount(inflight) == 2  # ours, and that of the question: nobody else has it any more
    assert len(client.look()[stream].fields if stream in client.answers else []) <= 1


async def test_one_call_too_many(client: Client, port: Port) -> None:
    port.dispatcher.max_calls = 1
    puppets_wait(port)
    first = client.call("ModelInfer", framed(request()))
    await asyncio.sleep(0)
    assert (await client.ask("ModelInfer", framed(request()))).status == 14
    puppets_respond(port)
    assert (await client.answer(first)).status == 0
    assert port.dispatcher.calls == 0


class _Sink(Transport):
    """Takes everything, and keeps no more than the sizes of what it gets at once, and what of it is of `array`."""

    array: Array = np.empty(0, np.int32)

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self.sizes: list[int] = []
        self.of_array = 0

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, parts: Any) -> None:
        self.sizes.append(sum(map(len, parts)))
        self.of_array += sum(
            [len(part) for part in parts if np.shares_memory(np.frombuffer(part, np.uint8), self.array)]
        )


async def test_a_large_message_is_copied_once_each_way(port: Port) -> None:
    async def echo(message: Any, call: Any) -> list[Chunk]:
        return [b"\x32\x00", bytearray(message.raws[0])]  # as an engine makes a new array

    port.rpcs[INFER] = port.rpcs[INFER]._replace(handler=echo, direct=False)
    port.server.memory.limit = 4 * LARGE
    dispatcher = Dispatcher(port.server)
    wire = Wire(GrpcPort(asyncio.get_running_loop(), Policies(), dispatcher, port.rpcs))
    sink = wire.connection.sender.transport = _Sink(wire.connection)
    wire.connection.windows.left = 2 * LARGE
    wire.connection.windows.initial = 2 * LARGE
    head = pb.ModelInferRequest(model_name="simple")
    head.inputs.add(name="INPUT0", datatype="UINT8", shape=(1, LARGE))
    raw_key = b"\x3a" + b"\x80\x80\x80\x08"
    begin = head.SerializeToString() + raw_key
    piece = bytes(16_000)
    tracemalloc.start()
    try:
        size = len(begin) + LARGE
        wire.send(headers(1, call_block(INFER)), data(1, b"\0" + size.to_bytes(4, "big") + begin))
        sent = 0
        while sent < LARGE:
            part = piece[: LARGE - sent]
            sent += len(part)
            wire.send(data(1, part, end=sent == LARGE))
        del part
        while wire.connection.streams:  # noqa: ASYNC110  # a turn, no time
            await asyncio.sleep(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sink.sizes) > LARGE
    assert peak < 2.2 * LARGE


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_a_large_response_goes_out_as_it_is(port: Port, client: Client, name: str) -> None:
    """The engine's array is written without a copy, on no thread, and no more than a megabyte in a turn of the loop."""
    puppets_wait(port)
    port.server.memory.limit = 4 * LARGE
    threads = Threads()
    stream = client.call(name, framed(request()))
    client.wire.connection.windows.left = client.wire.connection.streams[stream].window = 2 * LARGE
    inflight = await submitted(port)
    sink = client.wire.connection.sender.transport = _Sink(client.wire.connection)
    sink.array = np.ones(LARGE // 4, np.int32)
    response = InferenceResponse("simple", 1, {"OUTPUT0": Tensor.from_array(sink.array)})
    turns: list[int] = []
    tracemalloc.start()
    try:
        inflight.settle(response)
        while client.wire.connection.streams:
            sent = sum(sink.sizes)
            await asyncio.sleep(0)
            turns.append(sum(sink.sizes) - sent)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert LARGE - sink.of_array < 4096  # short pieces are joined
    assert max(turns) < 1.1 * (4 << 20)
    assert len([size for size in turns if size]) >= LARGE >> 22
    assert max(sink.sizes) <= 1100 << 10
    assert threads.work == []
    assert peak < LARGE / 16
    del response
    await asyncio.sleep(0)
