"""generate, generate_stream and infer_stream on a connection without a socket, over models that answer when told to."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from puppet_server import ECHO, JSON_BODY, MANY, MAX_JSON, SIMPLE, Client, PuppetLoader, PuppetServable, request
from puppet_server import server_over as build

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.frontends.http.direct import DirectCalls
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.context import HttpContext
from modserve.settings import HttpSettings, LoopLimits
from work_threads import Threads

EVENTS = "text/event-stream; charset=utf-8"
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
ASK = b'{"IN": 1, "id": "q"}'
INFER = b'{"id":"q","inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
OPTIONS = HttpSettings(max_json=MAX_JSON, header_pattern=re.compile("(?i)^x-"))


class Models:
    """The loaded puppets behind an application. `direct` are the calls that the port runs by itself, if it runs any."""

    def __init__(self, app: FastAPI, direct: DirectCalls | None, loader: PuppetLoader) -> None:
        self.app = app
        self.direct = direct
        self.many = loader.loaded[ModelId("many", 1)]
        self.simple = loader.loaded[ModelId("simple", 3)]


@pytest.fixture(scope="module", params=["port", "application"])
def models(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Models:
    loader = PuppetLoader({"simple": SIMPLE, "echo": ECHO, "many": MANY})
    server = build(tmp_path_factory.mktemp("repository"), loader)
    asyncio.run(server.load())
    direct = DirectCalls(CallContext(server, OPTIONS))
    found = Models(create_app(server, OPTIONS, direct), direct if request.param == "port" else None, loader)
    found.many.automatic = False
    return found


async def eventually(fact: Callable[[], bool]) -> None:
    for _ in range(1000):
        if fact():
            return
        await asyncio.sleep(0)
    raise AssertionError("not true after 1000 turns of the event loop")


class Talk:
    """A connection, and the last request that reached the decoupled model on it."""

    def __init__(self, site: HttpContext, many: PuppetServable) -> None:
        self.client = Client(site)
        self.memory = site.server.memory
        self._many = many

    async def ask(self, call: str, body: bytes = ASK, model: str = "many", **headers: str) -> None:
        self.client.send(request(target=f"/v2/models/{model}/{call}", body=body, **headers))
        if model == "many":
            await self.taken()

    async def taken(self) -> None:
        """Wait until the model has a request."""
        await eventually(lambda: bool(self._many.submitted))

    @property
    def inflight(self) -> Any:
        return self._many.submitted[-1]

    def respond(self, value: int, final: bool = False) -> None:
        self.inflight.settle(response(value), final)

    async def written(self, text: bytes) -> None:
        await self.client.transport.until(lambda: text in self.client.transport.written)

    async def answer(self) -> tuple[int, str, bytes]:
        (answer,) = await self.client.receive()
        return answer.status, answer.headers["content-type"], answer.body


def response(*values: int, **parameters: str) -> InferenceResponse:
    outputs = {"OUT": Tensor.from_array(np.array(values, np.int32))}
    return InferenceResponse("many", 1, outputs, "q", parameters)


@pytest.mark.parametrize("ending", ["read", "gone"])
async def test_responses_that_wait_for_a_slow_client_count_as_memory(talk: Talk, ending: str) -> None:
    memory = talk.memory
    await talk.ask("generate_stream")
    talk.respond(0)
    await talk.written(b'"OUT":0')
    talk.client.transport.protocol.pause_writing()
    for value in range(1, 6):
        talk.respond(value, final=value == 5)
    await eventually(lambda: memory.held >= 4 * 4)
    if ending == "read":
        talk.client.transport.protocol.resume_writing()
        await talk.written(b'"OUT":5')
    else:
        talk.client.transport.protocol.connection_lost(None)
    await eventually(lambda: memory.held == 0)


@pytest.fixture
async def talk(models: Models) -> AsyncIterator[Talk]:
    models.many.submitted.clear()
    async with asyncio.TaskGroup() as tasks:
        server, loop = models.app.state.streams.server, asyncio.get_running_loop()
        site = HttpContext(server, models.app, tasks, loop, OPTIONS, True, models.direct)
        yield Talk(site, models.many)
        for connection in list(site.connections):
            connection.abort()
        with contextlib.suppress(AssertionError):
            await eventually(lambda: all(inflight.settled for inflight in models.many.submitted))
        left = [inflight for inflight in models.many.submitted if not inflight.settled]
        for inflight in left:
            inflight.cancel()
    assert not left, "requests outlive their clients"


def error(message: str) -> bytes:
    return json.dumps({"error": message}, separators=(",", ":")).encode()


def generated(value: int) -> bytes:
    return b'{"OUT":%d,"id":"q","model_name":"many","model_version":"1"}' % value


def inferred(value: int, final: bytes) -> bytes:
    return (
        b'{"id":"q","model_name":"many","model_version":"1","parameters":{"triton_final_response":%b},"outputs":['
        b'{"name":"OUT","datatype":"INT32","shape":[1],"data":[%d]}]}' % (final, value)
    )


END = b'{"id":"q","model_name":"many","model_version":"1","parameters":{"triton_final_response":true},"outputs":[]}'


def events(*texts: bytes) -> bytes:
    return b"".join(b"data: " + text + b"\n\n" for text in texts)


# generate


@pytest.mark.parametrize("version", ["", "versions/1/"])
@pytest.mark.parametrize("final", [True, False], ids=["final", "then-the-end"])
async def test_generate(talk: Talk, version: str, final: bool) -> None:
    await talk.ask(f"{version}generate")
    talk.respond(7, final)
    talk.inflight.settle(None)
    assert await talk.answer() == (200, "application/json", generated(7))


async def test_generate_on_a_model_that_is_not_decoupled(talk: Talk) -> None:
    await talk.ask("generate", b'{"INPUT0": [1, 2], "INPUT1": [10, 10]}', model="simple")
    text = b'{"OUTPUT0":[11,12],"OUTPUT1":[-9,-8],"model_name":"simple","model_version":"3"}'
    assert await talk.answer() == (200, "application/json", text)


@pytest.mark.parametrize("count", [0, 2])
async def test_generate_with_another_number_of_responses(talk: Talk, count: int) -> None:
    await talk.ask("generate")
    for value in range(count):
        talk.respond(value)
    talk.inflight.settle(None)
    assert await talk.answer() == (400, "application/json", error(NOT_ONE))


async def test_generate_stops_a_model_at_its_second_response(talk: Talk) -> None:
    await talk.ask("generate")
    talk.respond(1)
    talk.respond(2)
    assert (await talk.answer())[0] == 400
    assert talk.inflight.cancelled


@pytest.mark.parametrize("before", [0, 1], ids=["alone", "after-a-response"])
async def test_generate_with_a_failure(talk: Talk, before: int) -> None:
    await talk.ask("generate")
    for value in range(before):
        talk.respond(value)
    talk.inflight.settle(internal("no luck"), True)
    assert await talk.answer() == (500, "application/json", error("no luck"))


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
async def test_what_becomes_of_the_keys(talk: Talk, call: str) -> None:
    await talk.ask(call, b'{"IN": 5, "id": "q", "foo": "bar", "parameters": {"k": 1}}', X_User="me", Accept="*/*")
    talk.respond(1, final=True)
    assert (await talk.answer())[0] == 200
    assert talk.inflight.request.parameters == {"id": "q", "foo": "bar", "k": 1, "X-User": "me"}
    assert talk.inflight.inputs["IN"].array.tolist() == [5]


CALLS = pytest.mark.parametrize("call", ["generate", "generate_stream"])


@CALLS
@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "message"),
    [
        ("nosuch", b"{}", {}, 404, "Request for unknown model: 'nosuch' is not found"),
        (
            "many/versions/7",
            b"{}",
            {},
            404,
            "Request for unknown model: 'many' version 7 is not found",
        ),
        (
            "simple",
            b'{"INPUT0": [1, 2]}',
            {},
            400,
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) "
            "['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s).",
        ),
        (
            "simple",
            b"{}",
            {"Content_Encoding": "gzip"},
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
        ("simple", b"", {}, 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
    ids=["model", "version", "input", "coding", "empty"],
)
async def test_a_refused_request(
    talk: Talk, call: str, model: str, body: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    await talk.ask(call, body, model, **headers)
    assert await talk.answer() == (status, "application/json", error(message))


@pytest.mark.parametrize("call", ["generate", "generate_stream", "infer_stream"])
async def test_another_method(talk: Talk, call: str) -> None:
    talk.client.send(request("GET", f"/v2/models/many/{call}"))
    (answer,) = await talk.client.receive()
    assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")


# generate_stream


async def test_responses_leave_as_they_come(talk: Talk) -> None:
    await talk.ask("generate_stream")
    assert not talk.client.transport.written
    talk.respond(1)
    await talk.written(events(generated(1)))
    assert talk.client.answers == []
    talk.respond(2)
    await talk.written(events(generated(2)))
    talk.inflight.settle(None)
    assert await talk.answer() == (200, EVENTS, events(generated(1), generated(2)))
    assert talk.client.answers[0].headers["transfer-encoding"] == "chunked"
    assert talk.client.answers[0].headers["cache-control"] == "no-cache"


async def test_no_response_at_all(talk: Talk) -> None:
    await talk.ask("generate_stream")
    talk.inflight.settle(None)
    assert await talk.answer() == (200, EVENTS, b"")


async def test_the_connection_is_used_again(talk: Talk) -> None:
    for count in (1, 2):
        await talk.ask("generate_stream", b'{"INPUT0": [1, 2], "INPUT1": [10, 10]}', model="simple")
        assert len(await talk.client.receive(count)) == count
    first, second = talk.client.answers
    assert (
        first.body
        == second.body
        == events(b'{"OUTPUT0":[11,12],"OUTPUT1":[-9,-8],"model_name":"simple","model_version":"3"}')
    )


async def test_the_first_answer_says_the_status(talk: Talk) -> None:
    await talk.ask("generate_stream")
    talk.inflight.settle(invalid("no luck"), True)
    assert await talk.answer() == (400, EVENTS, events(error("no luck")))


async def test_later_failures_are_in_the_stream(talk: Talk) -> None:
    await talk.ask("generate_stream")
    talk.respond(1)
    talk.inflight.settle(internal("now and then"), False)
    talk.respond(2)
    talk.inflight.settle(internal("no luck"), True)
    expected = events(generated(1), error("now and then"), generated(2), error("no luck"))
    assert await talk.answer() == (200, EVENTS, expected)


async def test_a_response_that_can_not_be_written(talk: Talk) -> None:
    await talk.ask("generate_stream", b'{"IN": 1}')
    talk.respond(1)
    broken = replace(response(2), outputs={"OUT": Tensor.from_array(np.array([b"\xff"]))})
    talk.inflight.settle(broken, False)
    talk.respond(3, final=True)
    first, second, third, end = (await talk.answer())[2].split(b"\n\n")
    assert (first, third, end) == (b"data: " + generated(1), b"data: " + generated(3), b"")
    assert b"not UTF-8" in second


@pytest.mark.parametrize("call", ["generate", "generate_stream", "infer_stream"])
@pytest.mark.parametrize("answers", [0, 1])
async def test_a_client_that_leaves_cancels_its_request(models: Models, talk: Talk, call: str, answers: int) -> None:
    await talk.ask(call, INFER if call == "infer_stream" else ASK)
    for value in range(answers):
        talk.respond(value)
        if call != "generate":
            await talk.written(b'"id":"q"')
    talk.client.transport.close()
    await eventually(lambda: talk.inflight.cancelled and not models.app.state.streams.open)


async def test_a_client_that_does_not_read(talk: Talk) -> None:
    """Nothing is written to it, and what it leaves behind is cancelled all the same."""
    await talk.ask("generate_stream")
    talk.respond(1)
    await talk.written(events(generated(1)))
    talk.client.connection.pause_writing()
    for value in range(2, 50):
        talk.respond(value)
    for _ in range(100):
        await asyncio.sleep(0)
    assert events(generated(3)) not in talk.client.transport.written
    talk.client.connection.resume_writing()
    await talk.written(events(generated(49)))
    talk.client.connection.pause_writing()
    talk.respond(50)
    talk.client.transport.close()
    await eventually(lambda: talk.inflight.cancelled)


async def test_a_client_of_http_1_0_reads_to_the_end(talk: Talk) -> None:
    head = b"POST /v2/models/many/generate_stream HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    talk.client.send(head % len(ASK) + ASK)
    await talk.taken()
    talk.respond(1)
    talk.respond(2, final=True)
    await talk.client.transport.until(lambda: talk.client.transport.closing)
    head, _, body = bytes(talk.client.transport.written).partition(b"\r\n\r\n")
    assert body == events(generated(1), generated(2))
    assert [text in head for text in (b"Connection: close", b"chunked", b"keep-alive")] == [True, False, False]


async def test_the_end_of_the_servers_time(models: Models, talk: Talk) -> None:
    await talk.ask("infer_stream", INFER)
    talk.respond(1)
    await talk.written(b'"data":[1]')
    models.app.state.streams.stop()
    body = (await talk.answer())[2]
    assert body.startswith(events(inferred(1, b"false")))
    assert json.loads(body.split(b"data: ")[-1]) == {
        "error": "the server stopped before the request was answered to its end",
        "id": "q",
        "parameters": {"triton_final_response": True},
    }
    assert talk.inflight.cancelled


# infer_stream


@pytest.mark.parametrize("version", ["", "versions/1/"])
@pytest.mark.parametrize(
    ("accept", "content_type", "before", "after"),
    [
        ("*/*", EVENTS, b"data: ", b"\n\n"),
        ("application/x-ndjson", "application/x-ndjson", b"", b"\n"),
    ],
    ids=["events", "lines"],
)
async def test_infer_stream(
    talk: Talk, version: str, accept: str, content_type: str, before: bytes, after: bytes
) -> None:
    await talk.ask(f"{version}infer_stream", INFER, Accept=accept)
    talk.respond(1)
    await talk.written(before + inferred(1, b"false") + after)
    talk.respond(2, final=True)
    texts = inferred(1, b"false"), inferred(2, b"true")
    assert await talk.answer() == (200, content_type, b"".join(before + text + after for text in texts))


@pytest.mark.parametrize("count", [0, 1])
async def test_an_end_that_comes_alone_is_told(talk: Talk, count: int) -> None:
    await talk.ask("infer_stream", INFER)
    for _ in range(count):
        talk.respond(1)
    talk.inflight.settle(None)
    assert await talk.answer() == (200, EVENTS, events(*[inferred(1, b"false")] * count, END))


async def test_infer_stream_takes_binary_data(talk: Talk) -> None:
    """Beyond the limit on JSON, too; the answer is JSON, whatever is asked."""
    header = (
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":%d}}],'
        b'"parameters":{"binary_data_output":true}}' % (4 + 2 * MAX_JSON)
    )
    data = (2 * MAX_JSON).to_bytes(4, "little") + b"x" * (2 * MAX_JSON)
    await talk.ask("infer_stream", header + data, "echo", Inference_Header_Content_Length=str(len(header)))
    status, content_type, body = await talk.answer()
    assert (status, content_type) == (200, EVENTS)
    (output,) = json.loads(body.removeprefix(b"data: "))["outputs"]
    assert output == {"name": "OUT", "datatype": "BYTES", "shape": [1], "data": ["x" * 2 * MAX_JSON]}


async def test_a_raw_request(talk: Talk) -> None:
    await talk.ask("infer_stream", b"\x05\x00\x00\x00", Inference_Header_Content_Length="0")
    assert talk.inflight.inputs["IN"].array.tolist() == [5]
    talk.inflight.settle(replace(response(1), id=""), True)
    assert b'"data":[1]' in (await talk.answer())[2]


async def test_classification_on_a_stream(talk: Talk) -> None:
    wanted = b'"outputs":[{"name":"OUT","parameters":{"classification":1}}],"inputs"'
    await talk.ask("infer_stream", INFER.replace(b'"inputs"', wanted))
    talk.inflight.settle(response(3, 9), True)
    assert b'"data":["9:1"]' in (await talk.answer())[2].replace(b"9.000000", b"9")


async def test_a_failure_before_the_first_response(talk: Talk) -> None:
    await talk.ask("infer_stream", INFER)
    talk.inflight.settle(internal("no luck"), True)
    assert await talk.answer() == (500, "application/json", error("no luck"))


async def test_a_failure_first_that_does_not_end_it(talk: Talk) -> None:
    await talk.ask("infer_stream", INFER)
    talk.inflight.settle(internal("now and then"), False)
    talk.respond(1, final=True)
    first = b'{"error":"now and then","id":"q","parameters":{"triton_final_response":false}}'
    assert await talk.answer() == (500, EVENTS, events(first, inferred(1, b"true")))


@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "message"),
    [
        ("nosuch", b"{}", {}, 404, "Request for unknown model: 'nosuch' is not found"),
        (
            "simple",
            b"{}",
            {},
            400,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs': the request has none",
        ),
        ("simple", JSON_BODY, {"Content_Encoding": "br"}, 501, "Unsupported compression type"),
    ],
    ids=["model", "body", "coding"],
)
async def test_a_refused_infer_stream(
    talk: Talk, model: str, body: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    await talk.ask("infer_stream", body, model, **headers)
    assert await talk.answer() == (status, "application/json", error(message))


class Trace:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.on, self.verbose = True, False
        self.told: list[str] = []

    def sample(self, servable: PuppetServable, headers: object = None, tenant: str = "") -> "Trace":
        assert servable.id.name == "many"
        return self

    def on_submit(self, *what: object) -> None:
        self.told.append("submitted")

    def on_settle(self, outcome: Outcome, final: bool, timing: object) -> None:
        self.told.append("final" if final else "settled")

    def stamp(self, activity: str, ns: int = 0) -> None:
        self.told.append(activity)

    def end(self) -> None:
        self.told.append("end")


async def test_a_traced_stream(models: Models, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    monkeypatch.setattr(models.app.state.streams.server, "tracer", trace)
    await talk.ask("generate_stream")
    talk.respond(1)
    talk.respond(2, final=True)
    await talk.answer()
    start, end = "HTTP_SEND_START", "HTTP_SEND_END"
    sending = [start, start, end] if models.direct else [start, end, start, end]  # the port sends both together
    await eventually(lambda: "end" in trace.told)
    assert trace.told == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "submitted",
        "settled",
        "final",
        *sending,
        "end",
    ]


def test_the_document_has_them(models: Models) -> None:
    paths = models.app.openapi()["paths"]
    for version in ("", "/versions/{version}"):
        for call in ("generate", "generate_stream", "infer_stream"):
            assert set(paths[f"/v2/models/{{model}}{version}/{call}"]) == {"post"}
    content = paths["/v2/models/{model}/infer_stream"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"text/event-stream", "application/x-ndjson"}


@pytest.fixture
async def writers(models: Models, monkeypatch: pytest.MonkeyPatch) -> Threads:
    """The threads on which answers are written, all of which count as long."""
    monkeypatch.setattr(models.app.state.streams, "limits", LoopLimits(elements=0))
    return Threads()


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        ("generate", ASK, generated(1)),
        ("generate_stream", ASK, events(generated(1))),
        ("infer_stream", INFER, events(inferred(1, b"true"))),
    ],
)
async def test_long_answers_are_written_on_a_thread(
    talk: Talk, writers: Threads, call: str, body: bytes, expected: bytes
) -> None:
    await talk.ask(call, body)
    talk.respond(1, final=True)
    assert (await talk.answer())[2] == expected
    assert writers.work == ["encode" if call == "generate" else "message_of"]


async def test_long_messages_are_sent_in_parts(models: Models, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.app.state.streams, "limits", LoopLimits(part=10))
    await talk.ask("generate_stream")
    steps: list[int] = []
    flow = talk.inflight.flow
    monkeypatch.setattr(flow, "on_progress", lambda: steps.append(1))
    talk.respond(1, final=True)
    message = events(generated(1))
    assert (await talk.answer())[2] == message
    parts = -(-len(message) // 10)
    assert len(steps) == parts if models.direct is None else len(steps) > parts  # the port's head is one, too


def broken_error() -> ModserveError:
    made = internal("")
    made.message = None  # type: ignore[assignment]
    return made


def broken_response() -> InferenceResponse:
    return InferenceResponse("many", 1, {"OUT": None}, "q")  # type: ignore[dict-item]


@pytest.mark.parametrize("outcome", [broken_error, broken_response])
@pytest.mark.parametrize("call", ["infer", "generate", "generate_stream", "infer_stream"])
async def test_an_outcome_that_cannot_be_read_ends_the_call(
    talk: Talk, call: str, outcome: Callable[[], ModserveError | InferenceResponse]
) -> None:
    body = b'{"IN": [5]}'
    if call.startswith("infer"):
        body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[5]}]}'
    await talk.ask(call, body)
    talk.inflight.settle(outcome(), True)
    await talk.client.transport.until(
        lambda: talk.client.transport.closing or b"HTTP/1.1 500" in talk.client.transport.written
    )
