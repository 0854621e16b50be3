"""ModelStreamInfer: one stream, whose client and whose models are the test."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from puppet_server import MANY, SIMPLE, PuppetLoader, PuppetServable, infer_streams, numbers, server_over
from rpc_calls import CallTable, FakeCall, call_table

from modserve.core.configuration.log_settings import AccessMode, AccessSettings
from modserve.core.errors import ModserveError, cancelled, internal, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.frontends import offload
from modserve.frontends.grpc import model_stream
from modserve.frontends.grpc.model_stream import InferStreams
from modserve.frontends.grpc.rpc import ClientDisconnectedError, ReadingStoppedError, Response
from modserve.observability.access_log import AccessLog, AccessLogEntry
from modserve.pb import inference as pb
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, LoopLimits
from modserve.testing import write_model
from work_threads import Threads

HARD = (("other", "x"), ("triton_grpc_error", "true"))
STOPPED = b"stopped"
STOPPING = "GRPC server is shutting down and has stopped accepting new requests."
NO_MODEL = "Request for unknown model: 'nosuch' is not found"


class Exchange(FakeCall):
    """Both ends of one RPC: what the handler sees of it, and the client's hands."""

    def __init__(
        self,
        server: LocalServer,
        streams: InferStreams,
        metadata: Any = (),
        table: CallTable | None = None,
        remaining: float | None = None,
    ) -> None:
        super().__init__(metadata=metadata, remaining=remaining)
        self.answers: list[pb.ModelStreamInferResponse] = []
        self.flowing = asyncio.Event()
        """The client takes answers."""
        self.flowing.set()
        self.gone = False
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.taken = 0
        table = table or call_table(server, streams)
        self.task = asyncio.ensure_future(table.serve(f"/{pb.SERVICE}/ModelStreamInfer", self))

    # The handler's side

    async def read(self) -> bytes | None:
        data = await self._requests.get()
        if data == STOPPED:
            raise ReadingStoppedError
        self.taken += data is not None
        return data

    async def write(self, message: Response) -> None:
        if self.gone:
            raise ClientDisconnectedError
        await self.flowing.wait()
        await super().write(message)
        self.answers.append(pb.ModelStreamInferResponse.FromString(self.written[-1]))

    def stop_reading(self) -> None:
        self._requests.put_nowait(STOPPED)

    # The client's side

    def send(self, *requests: pb.ModelInferRequest | bytes) -> None:
        for request in requests:
            self._requests.put_nowait(request if isinstance(request, bytes) else request.SerializeToString())

    def half_close(self) -> None:
        self._requests.put_nowait(None)

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the RPC ends."""
        async with asyncio.timeout(30):
            await self.task
        return self.code or grpc.StatusCode.OK, self.details

    @property
    def ids(self) -> list[str]:
        return [answer.infer_response.id for answer in self.answers]


async def turns() -> None:
    """Everything that can happen by itself has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


def asked(id: str, model: str = "simple", **parameters: bool) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id=id)
    for name, values in (("INPUT0", (1, 2)), ("INPUT1", (10, 10))):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 2])
        message.raw_input_contents.append(numbers(*values).tobytes())
    for key, value in parameters.items():
        message.parameters[key].bool_param = value
    return message


def refused(id: str, text: str = NO_MODEL) -> pb.ModelStreamInferResponse:
    """The answer to a request that no model took."""
    return pb.ModelStreamInferResponse(error_message=text, infer_response=pb.ModelInferResponse(id=id))


@pytest.fixture
def loader() -> PuppetLoader:
    return PuppetLoader({"simple": SIMPLE, "many": MANY})


@pytest.fixture
async def server(tmp_path: Path, loader: PuppetLoader) -> LocalServer:
    found = server_over(tmp_path, loader)
    await found.load()
    return found


@pytest.fixture
def simple(server: LocalServer, loader: PuppetLoader) -> PuppetServable:
    """Answers when told to."""
    servable = loader.loaded[ModelId("simple", 3)]
    servable.automatic = False
    return servable


@pytest.fixture
def streams(server: LocalServer) -> InferStreams:
    return infer_streams(server)


Open = Callable[..., Exchange]


@pytest.fixture
async def open_stream(server: LocalServer, streams: InferStreams) -> AsyncIterator[Open]:
    opened: list[Exchange] = []

    def begin(metadata: Any = (), remaining: float | None = None, **limits: int) -> Exchange:
        if limits:
            streams.options = GrpcSettings(limits=LoopLimits(**limits))
        opened.append(Exchange(server, streams, metadata, remaining=remaining))
        return opened[-1]

    yield begin
    for exchange in opened:
        exchange.task.cancel()
        with suppress(asyncio.CancelledError):
            await exchange.task


# Answers


@pytest.mark.parametrize(
    "request_", [asked("7"), asked("7", triton_enable_empty_final_response=True)], ids=["plain", "empty final"]
)
async def test_an_answer_says_that_it_is_final(
    open_stream: Open, simple: PuppetServable, request_: pb.ModelInferRequest
) -> None:
    simple.automatic = True
    exchange = open_stream()
    exchange.send(request_)
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    expected = pb.ModelInferResponse(
        model_name="simple",
        model_version="3",
        id="7",
        parameters={"triton_final_response": pb.InferParameter(bool_param=True)},
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name=name, datatype="INT32", shape=[1, 2])
            for name in ("OUTPUT0", "OUTPUT1")
        ],
        raw_output_contents=[numbers(11, 12).tobytes(), numbers(-9, -8).tobytes()],
    )
    assert exchange.answers == [pb.ModelStreamInferResponse(infer_response=expected)]


@pytest.mark.parametrize("remaining", [None, 60.0])
async def test_the_streams_deadline_is_that_of_its_requests(
    open_stream: Open, simple: PuppetServable, remaining: float | None
) -> None:
    now_ns = time.monotonic_ns()
    exchange = open_stream(remaining=remaining)
    exchange.send(asked("a"))
    await turns()
    (inflight,) = simple.submitted
    if remaining is None:
        assert inflight.deadline_ns == 0
    else:
        assert now_ns + 60 * 10**9 <= inflight.deadline_ns <= time.monotonic_ns() + 60 * 10**9


async def test_answers_leave_in_the_order_of_requests(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream()
    exchange.send(asked("a"), asked("b"), asked("bad", model="nosuch"), asked("c"))
    await turns()
    a, b, c = simple.submitted
    simple.answer(c)
    simple.answer(b)
    await turns()
    assert exchange.ids == []
    simple.answer(a)
    await turns()
    assert exchange.ids == ["a", "b", "bad", "c"]


async def test_an_answer_does_not_wait_for_later_requests(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream()
    exchange.send(asked("a"), asked("b"))
    await turns()
    simple.answer(simple.submitted[0])
    await turns()
    assert exchange.ids == ["a"]


async def test_the_classes_of_an_output(open_stream: Open, simple: PuppetServable) -> None:
    simple.automatic = True
    request = asked("a")
    output = request.outputs.add(name="OUTPUT0")
    output.parameters["classification"].int64_param = 1
    exchange = open_stream()
    exchange.send(request)
    await turns()
    (answer,) = exchange.answers
    assert answer.infer_response.raw_output_contents[0].endswith(b"12:1")


# Decoupled models


@pytest.fixture
def many(server: LocalServer, loader: PuppetLoader) -> PuppetServable:
    """A decoupled model, which answers when told to."""
    servable = loader.loaded[ModelId("many", 1)]
    servable.automatic = False
    return servable


def asked_many(id: str, **parameters: bool) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="many", id=id)
    message.inputs.add(name="IN", datatype="INT32", shape=[1])
    message.raw_input_contents.append(numbers(1).tobytes())
    for key, value in parameters.items():
        message.parameters[key].bool_param = value
    return message


def response(entry: Inflight, value: int) -> InferenceResponse:
    return InferenceResponse("many", 1, {"OUT": Tensor.from_array(numbers(value))}, entry.request.id)


def seen(exchange: Exchange) -> list[tuple[str, object, bool | None]]:
    """Of each answer: the id, the value or the error's text, and whether it was said to be final."""
    found: list[tuple[str, object, bool | None]] = []
    for answer in exchange.answers:
        given = answer.infer_response
        what = answer.error_message or [int.from_bytes(raw, "little") for raw in given.raw_output_contents]
        final = given.parameters["triton_final_response"].bool_param if given.parameters else None
        found.append((given.id, what, final))
    return found


async def test_many_responses_leave_as_they_come(
    open_stream: Open, simple: PuppetServable, many: PuppetServable
) -> None:
    exchange = open_stream()
    exchange.send(asked("first"), asked_many("a"), asked_many("b"), asked("last"))
    exchange.half_close()
    await turns()
    a, b = many.submitted
    b.settle(response(b, 1), final=False)
    a.settle(response(a, 2), final=False)
    b.settle(response(b, 3))
    a.settle(internal("one went wrong"), final=False)
    await turns()
    simple.answer(simple.submitted[1])
    a.settle(response(a, 4), final=False)
    await turns()
    before = [("b", [1], False), ("a", [2], False), ("b", [3], True), ("a", "one went wrong", False), ("a", [4], False)]
    assert seen(exchange) == before
    simple.answer(simple.submitted[0])
    await turns()
    assert exchange.ids[5:] == ["first", "last"]
    assert not exchange.task.done()
    a.settle(None)
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert len(exchange.answers) == 7


@pytest.mark.parametrize(
    ("wanted", "answers"),
    [(False, [("a", [1], False)]), (True, [("a", [1], False), ("a", [], True)])],
    ids=["not wanted", "wanted"],
)
async def test_the_empty_final_response(
    open_stream: Open, many: PuppetServable, wanted: bool, answers: list[Any]
) -> None:
    exchange = open_stream()
    exchange.send(asked_many("a", triton_enable_empty_final_response=wanted))
    exchange.half_close()
    await turns()
    (entry,) = many.submitted
    assert entry.request.parameters == {}
    entry.settle(response(entry, 1), final=False)
    entry.settle(None)
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert seen(exchange) == answers
    last = exchange.answers[-1].infer_response
    assert (last.model_name, last.model_version) == ("many", "1")


async def test_responses_that_come_while_the_request_is_given(
    open_stream: Open, simple: PuppetServable, many: PuppetServable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave, though a request before it is not answered."""
    submit = many.submit

    def answering(*given: Any) -> Inflight:
        entry = submit(*given)
        entry.settle(response(entry, 1), final=False)
        entry.settle(response(entry, 2))
        return entry

    monkeypatch.setattr(many, "submit", answering)
    exchange = open_stream()
    exchange.send(asked("first"), asked_many("a"))
    exchange.half_close()
    await turns()
    assert seen(exchange) == [("a", [1], False), ("a", [2], True)]
    simple.answer_all()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert exchange.ids == ["a", "a", "first"]


@pytest.mark.parametrize("seed", range(60))
async def test_no_answer_is_lost_however_things_fall_together(
    open_stream: Open, simple: PuppetServable, many: PuppetServable, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Requests, answers, readings and writings on threads, a slow client and half-closing, in a random order."""
    chance = random.Random(seed)
    outstanding = chance.choice((2, 5, 1024))

    async def on_thread(work: Callable[..., Any], *args: Any) -> Any:
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        return work(*args)

    monkeypatch.setattr(offload, "on_thread", on_thread)
    message = chance.choice((0, 1 << 20))

    count = chance.randrange(1, 25)
    kinds = [chance.choice(("plain", "typed", "many", "nosuch", "bytes")) for _ in range(count)]
    requests: dict[str, Callable[[str], pb.ModelInferRequest | bytes]] = {
        "plain": lambda name: asked(name),
        "typed": lambda name: typed(name),
        "many": lambda name: asked_many(name, triton_enable_empty_final_response=True),
        "nosuch": lambda name: asked(name, model="nosuch"),
        "bytes": lambda name: b"\xff\xff",
    }
    submit = many.submit

    def answering(*given: Any) -> Inflight:
        entry = submit(*given)
        for _ in range(chance.choice((0, 0, 1, 2))):
            entry.settle(response(entry, 0), final=False)
        if chance.random() < 0.2:
            entry.settle(None)
        return entry

    monkeypatch.setattr(many, "submit", answering)
    # Those with typed contents are read on a thread.
    exchange = open_stream(elements=1, outstanding=outstanding, message=message)
    to_send = list(enumerate(kinds))
    closed = False
    for _ in range(2000):
        waiting = [entry for entry in (*simple.submitted, *many.submitted) if not entry.settled]
        if not to_send and not closed and chance.random() < 0.3:
            exchange.half_close()
            closed = True
        if closed and not waiting and exchange.task.done():
            break
        match chance.randrange(4):
            case 0 if to_send:
                index, kind = to_send.pop(0)
                exchange.send(requests[kind](str(index)))
            case 1 if waiting:
                entry = chance.choice(waiting)
                if entry.request.model_name == "simple":
                    simple.answer(entry)
                elif chance.random() < 0.5:
                    entry.settle(response(entry, 1), final=False)
                else:
                    entry.settle(None)
            case 2:
                (exchange.flowing.clear if chance.random() < 0.3 else exchange.flowing.set)()
            case _:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    ordered = [str(index) for index, kind in enumerate(kinds) if kind in ("plain", "typed", "nosuch")]
    assert [name for name in exchange.ids if name in ordered] == ordered
    finals = [answer.infer_response for answer in exchange.answers if answer.infer_response.model_name == "many"]
    ended = {each.id for each in finals if each.parameters["triton_final_response"].bool_param}
    assert ended == {str(index) for index, kind in enumerate(kinds) if kind == "many"}


async def test_a_stream_that_ends_cancels_decoupled_requests(open_stream: Open, many: PuppetServable) -> None:
    exchange = open_stream()
    exchange.send(asked_many("a"))
    await turns()
    (entry,) = many.submitted
    entry.settle(response(entry, 1), final=False)
    await turns()
    exchange.task.cancel()
    with suppress(asyncio.CancelledError):
        await exchange.task
    assert entry.cancelled


@pytest.mark.parametrize("ending", ["read", "cancelled"])
async def test_responses_that_wait_for_a_slow_client_count_as_memory(
    open_stream: Open, server: LocalServer, many: PuppetServable, ending: str
) -> None:
    exchange = open_stream()
    exchange.flowing.clear()
    exchange.send(asked_many("a"))
    await turns()
    before = server.memory.held
    (entry,) = many.submitted
    for value in range(5):
        entry.settle(response(entry, value), final=value == 4)
    await turns()
    assert server.memory.held >= before + 5 * 4
    if ending == "read":
        exchange.flowing.set()
        exchange.half_close()
        await exchange.ending()
    else:
        exchange.task.cancel()
        with suppress(asyncio.CancelledError):
            await exchange.task
    assert server.memory.held == 0


# The end of a stream


async def test_a_stream_without_requests(open_stream: Open) -> None:
    exchange = open_stream()
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert exchange.answers == []


async def test_half_close_waits_for_what_is_outstanding(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream()
    exchange.send(asked("a"), asked("b"))
    exchange.half_close()
    await turns()
    assert not exchange.task.done()
    simple.answer_all()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert exchange.ids == ["a", "b"]


async def test_a_cancelled_rpc_cancels_its_requests_only(open_stream: Open, simple: PuppetServable) -> None:
    leaves, stays = open_stream(), open_stream()
    leaves.send(asked("a"), asked("b"), asked("c"))
    await turns()
    stays.send(asked("d"))
    await turns()
    simple.answer(simple.submitted[1])
    leaves.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves.task
    assert [(each.request.id, each.cancelled) for each in simple.submitted] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", False),
    ]
    assert leaves.answers == []


async def test_a_client_that_has_gone_while_answers_are_written(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream()
    exchange.send(asked("a"), asked("b"))
    await turns()
    exchange.gone = True
    simple.answer(simple.submitted[0])
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert simple.submitted[1].cancelled


async def test_shutdown(open_stream: Open, streams: InferStreams, simple: PuppetServable) -> None:
    idle, busy, closed = open_stream(), open_stream(), open_stream()
    busy.send(asked("a"))
    closed.send(asked("b"))
    closed.half_close()
    await turns()
    streams.stop()
    busy.send(asked("too late"))
    assert await idle.ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
    await turns()
    assert not busy.task.done()
    simple.answer_all()
    assert await busy.ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
    assert busy.ids == ["a"]
    assert await closed.ending() == (grpc.StatusCode.OK, "")
    assert closed.ids == ["b"]
    assert await open_stream().ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)


async def test_the_first_request_of_a_stream_is_on_its_way_when_the_server_stops(
    open_stream: Open, streams: InferStreams, simple: PuppetServable
) -> None:
    """As behind a gateway, which opens the stream before it has the request."""
    opened = open_stream()
    await turns()
    streams.retire()
    late = open_stream()
    await turns()
    assert streams.arriving() == 2
    for each in opened, late:
        each.send(asked("a"))
    await turns()
    assert streams.arriving() == 0
    for each in opened, late:
        each.send(asked("too late"))
    simple.answer_all()
    for each in opened, late:
        assert await each.ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
        assert each.ids == ["a"]
    assert len(simple.submitted) == 2


async def test_a_stream_that_has_been_idle_for_long_ends_when_the_server_stops(
    open_stream: Open, streams: InferStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_stream, "_YOUNG", 0.0)
    idle = open_stream()
    await turns()
    streams.retire()
    assert await idle.ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
    assert streams.arriving() == 0


async def test_a_young_stream_without_a_request_ends_with_the_server(open_stream: Open, streams: InferStreams) -> None:
    idle = open_stream()
    await turns()
    streams.retire()
    await turns()
    assert not idle.task.done()
    streams.stop()
    assert await idle.ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)


# Errors


def wrong_shape() -> pb.ModelInferRequest:
    request = asked("x")
    request.inputs[0].shape[:] = [9, 2]
    return request


def empty_final_of_another_type() -> pb.ModelInferRequest:
    request = asked("x")
    request.parameters["triton_enable_empty_final_response"].int64_param = 1
    return request


REFUSALS = {
    "unknown model": (asked("x", model="nosuch"), refused("x")),
    "wrong shape": (
        wrong_shape(),
        refused(
            "x",
            "[request id: x] input 'INPUT1' batch size does not match other inputs for 'simple': shapes begin with the "
            "number of rows, but that of 'INPUT0' is [9,2], and that of 'INPUT1' [1,2]",
        ),
    ),
    "reserved parameter": (
        asked("x", triton_other=True),
        refused(
            "x",
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            "with 'triton_' are allowed: triton_enable_empty_final_response",
        ),
    ),
    "empty final of another type": (
        empty_final_of_another_type(),
        refused("x", "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."),
    ),
    "no message": (b"\xff\xff", refused("", "Unable to parse request: 2 bytes are no inference.ModelInferRequest")),
}


@pytest.mark.parametrize(("request_", "answer"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refused_request_leaves_the_stream_open(
    open_stream: Open, simple: PuppetServable, request_: Any, answer: pb.ModelStreamInferResponse
) -> None:
    simple.automatic = True
    exchange = open_stream()
    exchange.send(request_, asked("good"))
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert exchange.answers[0] == answer
    assert exchange.answers[0].HasField("infer_response")
    assert exchange.ids[1:] == ["good"]


@pytest.mark.parametrize(
    ("error", "text"),
    [(unavailable("Request timeout expired"), "Request timeout expired"), (cancelled(), "Cancelled")],
    ids=["text", "empty text"],
)
async def test_a_request_that_fails_later_has_had_its_last_answer(
    open_stream: Open, simple: PuppetServable, error: ModserveError, text: str
) -> None:
    exchange = open_stream()
    exchange.send(asked("x"), asked("good"))
    await turns()
    simple.submitted[0].settle(error)
    simple.answer(simple.submitted[1])
    await turns()
    final = {"triton_final_response": pb.InferParameter(bool_param=True)}
    failed = pb.ModelInferResponse(model_name="simple", id="x", parameters=final)
    assert exchange.answers[0] == pb.ModelStreamInferResponse(error_message=text, infer_response=failed)
    assert exchange.ids == ["x", "good"]


async def test_what_nobody_foresaw_is_told_and_logged(
    open_stream: Open, simple: PuppetServable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> NoReturn:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(simple, "submit", broken)
    exchange = open_stream()
    exchange.send(asked("x"))
    await turns()
    assert exchange.answers == [refused("x", "unexpected ZeroDivisionError: oops")]
    assert "failed unexpectedly" in caplog.text


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [(HARD, True), ((("triton_grpc_error", "false"),), False), ((), False)],
    ids=["true", "false", "none"],
)
async def test_triton_grpc_error(open_stream: Open, simple: PuppetServable, metadata: Any, ends: bool) -> None:
    exchange = open_stream(metadata)
    exchange.send(asked("a"), asked("bad", model="nosuch"), asked("c"))
    await turns()
    assert not exchange.task.done()
    simple.answer(simple.submitted[0])
    if not ends:
        await turns()
        assert exchange.ids == ["a", "bad"]
        return
    assert await exchange.ending() == (grpc.StatusCode.NOT_FOUND, NO_MODEL)
    assert exchange.ids == ["a"]
    assert [each.cancelled for each in simple.submitted] == [False, True]


async def test_triton_grpc_error_of_a_request_that_fails_later(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream(HARD)
    exchange.send(asked("a"))
    await turns()
    simple.submitted[0].settle(internal("oops"))
    assert await exchange.ending() == (grpc.StatusCode.INTERNAL, "oops")


# Bounds


async def test_no_more_are_read_while_too_many_are_outstanding(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream(outstanding=2)
    exchange.send(*(asked(str(number)) for number in range(5)))
    exchange.half_close()
    await turns()
    assert exchange.taken == 2
    simple.answer(simple.submitted[1])
    await turns()
    assert exchange.taken == 2  # its answer waits for the first one's
    simple.answer(simple.submitted[0])
    await turns()
    assert exchange.taken == 4
    simple.answer_all()
    await turns()
    simple.answer_all()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert exchange.ids == ["0", "1", "2", "3", "4"]


async def test_nor_while_they_are_too_large(open_stream: Open, simple: PuppetServable) -> None:
    exchange = open_stream(outstanding_bytes=2 * len(asked("0").SerializeToString()) - 1)
    exchange.send(*(asked(str(number)) for number in range(3)))
    await turns()
    assert exchange.taken == 2
    simple.answer(simple.submitted[0])
    await turns()
    assert exchange.taken == 3


async def test_nor_while_the_client_takes_no_answers(open_stream: Open, simple: PuppetServable) -> None:
    simple.automatic = True
    exchange = open_stream(outstanding=2)
    exchange.flowing.clear()
    exchange.send(*(asked(str(number)) for number in range(5)))
    exchange.half_close()
    await turns()
    assert exchange.taken == 2
    exchange.flowing.set()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert len(exchange.answers) == 5


async def test_an_idle_stream_keeps_no_message(open_stream: Open, simple: PuppetServable) -> None:
    simple.automatic = True
    exchange = open_stream()
    message = asked("a").SerializeToString()
    exchange.send(message)
    await turns()
    assert exchange.ids == ["a"]
    simple.submitted.clear()
    assert sys.getrefcount(message) == 2  # ours, and that of the question
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")


async def test_long_answers_are_ranked_on_a_thread(open_stream: Open, simple: PuppetServable) -> None:
    threads = Threads()
    simple.automatic = True
    ranked, plain = asked("a"), asked("b")
    ranked.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 1
    exchange = open_stream(elements=0)
    exchange.send(ranked, plain)
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert exchange.ids == ["a", "b"]
    assert threads.work == ["message"]


# Requests that are read on a thread


def typed(id: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="simple", id=id)
    for name, values in (("INPUT0", (1, 2)), ("INPUT1", (10, 10))):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 2]).contents.int_contents.extend(values)
    return message


class Held:
    """Stands for the thread; goes on when told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def on_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        self.begun += 1
        await self.go.wait()
        return work(*args)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found = Held()
    monkeypatch.setattr(offload, "on_thread", found.on_thread)
    return found


async def test_long_requests_are_read_on_a_thread(open_stream: Open, simple: PuppetServable, held: Held) -> None:
    """Those of other streams are taken meanwhile, and those of the same stream in their order."""
    simple.automatic = True
    slow, other = open_stream(elements=1), open_stream()
    slow.send(asked("a"), typed("b"), asked("c"))
    slow.half_close()
    other.send(asked("d"))
    other.half_close()
    assert await other.ending() == (grpc.StatusCode.OK, "")
    assert (held.begun, slow.ids, other.ids) == (1, ["a"], ["d"])
    held.go.set()
    assert await slow.ending() == (grpc.StatusCode.OK, "")
    assert slow.ids == ["a", "b", "c"]
    assert slow.answers[1].infer_response.raw_output_contents == slow.answers[0].infer_response.raw_output_contents


async def test_a_long_request_that_is_wrong(open_stream: Open, held: Held) -> None:
    held.go.set()
    exchange = open_stream(elements=1)
    bad = typed("a")
    bad.inputs[0].contents.int_contents.append(3)
    exchange.send(bad, asked("b"))
    exchange.half_close()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert [bool(answer.error_message) for answer in exchange.answers] == [True, False]
    assert exchange.ids == ["a", "b"]


async def test_shutdown_while_a_request_is_read(
    open_stream: Open, streams: InferStreams, simple: PuppetServable, held: Held
) -> None:
    """It has come, and so have those behind it: they are answered."""
    exchange = open_stream(elements=1)
    exchange.send(asked("a"), typed("b"), asked("c"), asked("d"))
    await turns()
    streams.stop()
    exchange.send(asked("too late"))
    assert len(simple.submitted) == 1
    held.go.set()
    async with asyncio.timeout(30):
        while streams.arriving():
            await turns()
    assert not exchange.task.done()
    simple.answer_all()
    assert await exchange.ending() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
    assert [answer.error_message for answer in exchange.answers] == [""] * 4
    assert exchange.ids == ["a", "b", "c", "d"]


async def test_unloaded_while_a_request_is_read(tmp_path: Path, loader: PuppetLoader, held: Held) -> None:
    """The model takes it all the same, and is given back then."""
    write_model(tmp_path, "simple")
    manager = ModelManager(ModelTable(), loader, 8)
    server = LocalServer(manager, repositories_at([tmp_path]), name="modserve")
    await server.load()
    simple = loader.loaded[ModelId("simple", 1)]
    drained = asyncio.Event()

    async def drain() -> None:
        drained.set()

    vars(simple).update(drain=drain)
    exchange = Exchange(server, infer_streams(server, GrpcSettings(limits=LoopLimits(elements=1))))
    exchange.send(typed("a"))
    exchange.half_close()
    await turns()
    await manager.unload("simple", dependents=False)
    await turns()
    assert not drained.is_set()
    held.go.set()
    assert await exchange.ending() == (grpc.StatusCode.OK, "")
    assert [answer.error_message for answer in exchange.answers] == [""]
    await turns()
    assert drained.is_set()


class Entries(AccessLog):
    """Has the bytes and the number of the responses of each request."""

    def __init__(self) -> None:
        super().__init__(AccessSettings(AccessMode.ALL), start=False)
        self.responses: dict[str, tuple[int, int]] = {}

    def add(self, entry: AccessLogEntry) -> None:
        self.responses[entry.id] = entry.sent, entry.responses


async def test_the_access_log_has_the_responses_of_each_request(
    server: LocalServer, open_stream: Open, simple: PuppetServable
) -> None:
    server.access_log = log = Entries()
    simple.automatic = True
    exchange = open_stream()
    exchange.send(asked("7"), asked("8", "nosuch"))
    exchange.half_close()
    await exchange.ending()
    sizes = {answer.infer_response.id: answer.ByteSize() for answer in exchange.answers}
    assert log.responses == {
        "7": (sizes["7"], 1),
        "8": (sizes["8"], 1),
    }
