"""OpenAI's calls that generate text, on a connection without a socket, over a model that speaks when told to."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from puppet_server import MAX_JSON, SIMPLE, Client, PuppetLoader, request, server_over

from garbage import garbage_left
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError, OverloadedError, internal, invalid
from modserve.core.requests.response import InferenceResponse
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.frontends.http.direct import DirectCalls
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.context import HttpContext
from modserve.protocol.restricted import http_restrictions
from modserve.resources.quotas import Quotas
from modserve.settings import HttpSettings, LoopLimits
from text_folders import write_folder
from work_threads import Threads

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content if message.content != 'shy' }}{% endfor %}"
    "{% if messages[0].content == 'odd' %}{{ raise_exception('secret: ' ~ messages[0].content) }}{% endif %}"
    "{% if messages[0].content == 'long' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}"
    "{{ tools | tojson if tools }}{{ '<think>\n' if reasoning_effort == 'high' }}"
)


def text(name: str, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, dtypes.BYTES, (1,), optional=optional)


def flag(name: str) -> TensorSpec:
    return TensorSpec(name, dtypes.BOOL, (1,), optional=True)


def number(name: str) -> TensorSpec:
    return TensorSpec(name, dtypes.UINT32, (-1,))


SPEAKER = ModelConfig(
    "speaker",
    "python",
    inputs=(
        text("text_input"),
        text("sampling_parameters", optional=True),
        *map(flag, ("stream", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens")),
    ),
    outputs=(text("text_output"), number("num_input_tokens"), number("num_output_tokens")),
    decoupled=True,
    parameters={"chat_template": TEMPLATE},
)
BARE = ModelConfig("bare", "python", inputs=SPEAKER.inputs, outputs=SPEAKER.outputs, decoupled=True)
FUNCTION = ModelConfig("function", "python", inputs=(text("prompt"),), outputs=(text("output"),), decoupled=True)
MESSAGES = ModelConfig("recite", "python", inputs=(text("messages"),), outputs=(text("output"),), decoupled=True)
WITH_WORDS = ModelConfig("words", "python", inputs=(text("prompt"),), outputs=(text("output"),), decoupled=True)
"""It counts nothing, and has a tokenizer."""
NAMES = ("speaker", "bare", "function", "recite", "words")
HI = [{"role": "user", "content": "hi"}]


async def eventually(fact: Callable[[], bool]) -> None:
    for _ in range(1000):
        if fact():
            return
        await asyncio.sleep(0)
    raise AssertionError("not true after 1000 turns of the event loop")


class Arrivals(list[Any]):
    """The requests of a model. `event` is set at each, which may come from a thread's work."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    def append(self, request: Any) -> None:
        super().append(request)
        self._event.set()


class Talk:
    """A connection, and the requests that have reached the models."""

    def __init__(self, context: HttpContext, loader: PuppetLoader) -> None:
        self.context = context
        self.client = Client(context)
        self.memory = context.server.memory
        self._models = [loader.loaded[ModelId(name, 1)] for name in NAMES]
        self._arrival = asyncio.Event()
        for model in self._models:
            model.submitted = Arrivals(self._arrival)

    @property
    def inflights(self) -> list[Any]:
        return [inflight for model in self._models for inflight in model.submitted]

    async def chat(self, count: int = 1, /, path: str = "/v1/chat/completions", **fields: Any) -> None:
        """Send a request, and wait until as many calls of models are there."""
        await self.post(path, {"model": "speaker", "messages": HI, **fields})
        await self.taken(count)

    async def taken(self, count: int) -> None:
        """Wait until as many calls of models are there."""
        async with asyncio.timeout(30):
            while len(self.inflights) < count:
                self._arrival.clear()
                await self._arrival.wait()

    async def post(self, path: str, body: Any, **headers: str) -> None:
        self.client.send(request(target=path, body=json.dumps(body).encode(), **headers))

    def say(self, piece: str, final: bool = False, *, index: int = 0, read: int = 3, wrote: int = 1) -> None:
        inflight = self.inflights[index]
        name = inflight.request.model_name
        output = "text_output" if name in ("speaker", "bare") else "output"
        outputs = {output: Tensor.from_array(np.array([piece.encode()], object))}
        if output == "text_output":
            outputs["num_input_tokens"] = Tensor.from_array(np.array([read], np.uint32))
            outputs["num_output_tokens"] = Tensor.from_array(np.array([wrote], np.uint32))
        inflight.settle(InferenceResponse(name, 1, outputs), final)

    def end(self, error: ModserveError | None = None, *, index: int = 0) -> None:
        self.inflights[index].settle(error, True)

    async def written(self, text: bytes) -> None:
        await self.client.transport.until(lambda: text in self.client.transport.written)

    async def answer(self) -> Any:
        (answer,) = await self.client.receive()
        return answer

    async def events(self) -> list[Any]:
        """The data of the events of the response; ``[DONE]`` is the text."""
        answer = await self.answer()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        data = re.findall(r"data: (.*)\n\n", answer.body.decode())
        return [each if each == "[DONE]" else json.loads(each) for each in data]

    async def error(self) -> tuple[int, Any]:
        answer = await self.answer()
        return answer.status, json.loads(answer.body)["error"]

    def inputs(self, index: int = 0) -> dict[str, Any]:
        return {name: tensor.array.reshape(-1)[0] for name, tensor in self.inflights[index].inputs.items()}


@pytest.fixture(scope="module", params=["port", "application"])
def way(request: pytest.FixtureRequest) -> str:
    """Who runs the calls: the port itself, or the application behind it, which is all that there is in another one."""
    return str(request.param)


class Models(NamedTuple):
    """What `talk_to` takes."""

    direct: DirectCalls
    loader: PuppetLoader
    way: str

    def with_options(self, options: HttpSettings) -> "Models":
        return self._replace(direct=DirectCalls(CallContext(self.direct.context.server, options)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, way: str) -> Models:
    loader = PuppetLoader(
        {
            "speaker": SPEAKER,
            "bare": BARE,
            "function": FUNCTION,
            "recite": MESSAGES,
            "words": WITH_WORDS,
            "simple": SIMPLE,
        }
    )
    repository = tmp_path_factory.mktemp("repository")
    server = server_over(repository, loader)
    write_folder(repository / "words" / "1")
    asyncio.run(server.load())
    for name in NAMES:
        loader.loaded[ModelId(name, 1)].automatic = False
    return Models(DirectCalls(CallContext(server, HttpSettings(max_json=MAX_JSON))), loader, way)


@contextlib.asynccontextmanager
async def talk_to(models: Models) -> AsyncIterator[Talk]:
    direct, options = models.direct, models.direct.context.options
    async with asyncio.TaskGroup() as tasks:
        app = create_app(direct.context.server, options, direct)
        by_port = direct if models.way == "port" else None
        loop = asyncio.get_running_loop()
        context = HttpContext(direct.context.server, app, tasks, loop, options, True, by_port)
        made = Talk(context, models.loader)
        yield made
        for connection in list(context.connections):
            connection.abort()
        with contextlib.suppress(AssertionError):
            await eventually(lambda: all(inflight.settled for inflight in made.inflights))
        left = [inflight for inflight in made.inflights if not inflight.settled]
        for inflight in left:
            inflight.cancel()
    assert not left, "requests outlive their clients"
    assert made.memory.held == 0


@pytest.fixture
async def talk(models: Models) -> AsyncIterator[Talk]:
    async with talk_to(models) as made:
        yield made


@pytest.mark.parametrize("prefix", ["", "/openai"])
async def test_a_whole_answer(talk: Talk, prefix: str) -> None:
    await talk.chat(1, f"{prefix}/v1/chat/completions", temperature=0.5)
    assert talk.inputs()["text_input"] == b"<user>hi"
    assert (talk.inputs()["stream"], talk.inputs()["exclude_input_in_output"]) == (False, True)
    assert json.loads(talk.inputs()["sampling_parameters"]) == {"temperature": 0.5}
    talk.say("Hello")
    talk.say(" you", final=True)
    answer = await talk.answer()
    document = json.loads(answer.body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert document.pop("id").startswith("chatcmpl-")
    assert document.pop("created") > 1_600_000_000
    assert document == {
        "object": "chat.completion",
        "model": "speaker",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello you", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


async def test_a_stream(talk: Talk) -> None:
    await talk.chat(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    assert talk.inputs()["stream"]
    talk.say("Hello")
    await talk.written(b'"Hello"')
    talk.say(" you")
    talk.end()
    events = await talk.events()
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events[:-1]}) == 1
    choices = [event["choices"][0] for event in events[:-2]]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " you"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert [event["usage"] for event in events[:-2]] == [None] * 4
    assert (events[-2]["choices"], events[-2]["usage"]["total_tokens"], events[-1]) == ([], 5, "[DONE]")


USAGE = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
"""Of a prompt of one word, with the two tokens that the tokenizer adds, and a text of three words."""


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_a_model_that_does_not_count(talk: Talk, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    await talk.chat(model="words", messages=[{"role": "user", "content": "hello"}], stream=stream, **options)
    talk.say("the ca")
    talk.say("t sat")
    talk.end()
    usage = (await talk.events())[-2]["usage"] if stream else json.loads((await talk.answer()).body)["usage"]
    assert usage == USAGE


async def test_tokens_of_each_prompt_and_choice(talk: Talk) -> None:
    """A prompt counts once, for all of its choices."""
    await talk.chat(4, "/v1/completions", model="words", prompt=["cat", "the dog ran"], n=2)
    for index in range(4):
        talk.say("mat " * (index + 1), final=True, index=index)
    usage = json.loads((await talk.answer()).body)["usage"]
    assert usage == {"prompt_tokens": 3 + 5, "completion_tokens": 10, "total_tokens": 18}


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_responses(talk: Talk, stream: bool) -> None:
    await talk.chat(1, "/v1/responses", model="words", input="hello", stream=stream)
    talk.say("the cat sat", final=True)
    body = json.loads((await talk.answer()).body) if not stream else (await talk.events())[-1]["response"]
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (3, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_long_texts_are_counted_on_threads(talk: Talk, stream: bool) -> None:
    """A stream counts what it writes as it goes."""
    threads = Threads()
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    await talk.chat(1, "/v1/completions", model="words", prompt="cat " * 600, stream=stream, **options)
    for _ in range(50):
        talk.say("mat " * 100)
    talk.end()
    usage = (await talk.events())[-2]["usage"] if stream else json.loads((await talk.answer()).body)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (602, 5000)
    assert ("count_prompts" in threads.work, "_encode_whole" in threads.work) == (True, not stream)


async def test_a_tokenizer_that_cannot_be_used_counts_nothing(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once."""
    folder = models.direct.context.server.folder(ModelId("function", 1))
    assert folder is not None
    (folder / "tokenizer.json").write_text("{")
    fresh = models._replace(direct=DirectCalls(models.direct.context))
    async with talk_to(fresh) as made:
        for index in range(2):
            made.client = Client(made.context)
            await made.chat(index + 1, model="function")
            made.say("hello", final=True, index=index)
            usage = json.loads((await made.answer()).body)["usage"]
            assert usage == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert line.startswith("the tokens of model 'function' are not counted: 'tokenizer.json' of the model cannot be")


async def test_completions(talk: Talk) -> None:
    await talk.chat(2, "/v1/completions", prompt=["a", "b"], echo=True)
    talk.say("2", final=True, index=1, read=1)
    talk.say("1", final=True)
    document = json.loads((await talk.answer()).body)
    assert document["object"] == "text_completion"
    assert [(choice["index"], choice["text"]) for choice in document["choices"]] == [(0, "a1"), (1, "b2")]
    assert document["usage"] == {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}


async def test_the_choices_of_a_stream_come_as_they_are_made(talk: Talk) -> None:
    await talk.chat(2, "/v1/completions", prompt="a", n=2, seed=5, stream=True)
    seeds = [json.loads(talk.inputs(index)["sampling_parameters"])["seed"] for index in (0, 1)]
    assert seeds == [5, 6]
    talk.say("x", index=1)
    await talk.written(b'"x"')
    talk.say("y", final=True, index=0)
    await talk.written(b'"y"')
    talk.say("z", final=True, index=1)
    choices = [event["choices"][0] for event in (await talk.events())[:-1]]
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices] == [
        (1, "x", None),
        (0, "y", None),
        (0, "", "stop"),
        (1, "z", None),
        (1, "", "stop"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_ends_the_generation(talk: Talk, stream: bool) -> None:
    await talk.chat(model="function", stop="END", stream=stream)
    talk.say("one E")
    talk.say("ND two")
    answer = await talk.answer()
    assert b"one " in answer.body
    assert b"two" not in answer.body
    assert b'"finish_reason":"stop"' in answer.body
    await eventually(lambda: talk.inflights[0].settled)


async def test_calls_of_tools_in_a_stream(talk: Talk) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    await talk.chat(stream=True, tools=[tool])
    assert b'"name": "add"' in talk.inputs()["text_input"]
    talk.say("<tool_call>")
    talk.say('{"name": "add", "arguments": {"a": 1}}</tool_')
    talk.say("call>", final=True)
    choices = [event["choices"][0] for event in (await talk.events())[:-1]]
    (call,) = next(choice["delta"]["tool_calls"] for choice in choices if "tool_calls" in choice["delta"])
    assert (call["index"], call["type"]) == (0, "function")
    assert call["function"] == {"name": "add", "arguments": '{"a":1}'}
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("opened", [True, False])
async def test_a_thought_in_a_stream(talk: Talk, opened: bool) -> None:
    await talk.chat(stream=True, reasoning_effort="high" if opened else "low")
    assert talk.inputs()["text_input"].endswith(b"<think>\n") == opened
    for piece in ("" if opened else "<think>", "One", " two\n</thi", "nk>\n\nThree"):
        talk.say(piece)
    talk.say(".", final=True)
    choices = [event["choices"][0] for event in (await talk.events())[:-1]]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "One"},
        {"reasoning_content": " two"},
        {"content": "Three"},
        {"content": "."},
        {},
    ]


@pytest.mark.parametrize(
    ("text", "thought", "content"),
    [("One</think>\n\nTwo", "One", "Two"), ("One tw", "One tw", ""), ("</think>Two", None, "Two")],
)
async def test_a_thought_in_a_whole_response(talk: Talk, text: str, thought: str | None, content: str) -> None:
    await talk.chat(reasoning_effort="high", max_tokens=1)
    talk.say(text, final=True)
    (choice,) = json.loads((await talk.answer()).body)["choices"]
    assert (choice["message"].get("reasoning_content"), choice["message"]["content"]) == (thought, content)
    assert choice["finish_reason"] == "length"


async def test_tokens_of_a_thought(talk: Talk) -> None:
    await talk.chat(stream=True, stream_options={"include_usage": True})
    for piece in ("<think>", "One", "</think>", "Two", ""):
        talk.say(piece, final=not piece, wrote=2)
    usage = (await talk.events())[-2]["usage"]
    assert (usage["completion_tokens"], usage["completion_tokens_details"]) == (10, {"reasoning_tokens": 6})


async def test_tokens_of_a_thought_without_an_answer(talk: Talk) -> None:
    await talk.chat(path="/v1/responses", input="hi", reasoning={"effort": "high"})
    talk.say("One", final=True)
    usage = json.loads((await talk.answer()).body)["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (1, {"reasoning_tokens": 1})


async def test_tokens_of_a_thought_that_the_server_counts(talk: Talk) -> None:
    await talk.chat(model="words")
    talk.say("<think>hello world</think>hello", final=True)
    usage = json.loads((await talk.answer()).body)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("It is", b"<user>hi<assistant>It is"),
        (" It is \n", b"<user>hi<assistant> It is \n"),
        ("<think>One", b"<user>hi<assistant><think>One"),
    ],
)
async def test_the_last_message_is_continued(talk: Talk, content: str, prompt: bytes) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    await talk.chat(messages=messages, continue_final_message=True, reasoning_effort="high")
    assert talk.inputs()["text_input"] == prompt  # without what the template has behind it
    talk.say(" two</think>3", final=True)
    message = json.loads((await talk.answer()).body)["choices"][0]["message"]
    thinks = content.startswith("<think>")
    assert (message.get("reasoning_content"), message["content"]) == (
        ("two", "3") if thinks else (None, " two</think>3")
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"add_generation_prompt": True}, "'continue_final_message' and 'add_generation_prompt' exclude each other"),
        ({"messages": [{"role": "user", "content": " "}]}, "'continue_final_message': the last message has no text"),
        (
            {"model": "recite"},
            "'continue_final_message' is not for model 'recite', which takes messages",
        ),
        (
            {"messages": [{"role": "user", "content": "shy"}]},
            "'continue_final_message': the chat template leaves the last message out, or changes it",
        ),
    ],
)
async def test_a_last_message_that_cannot_be_continued(talk: Talk, fields: dict[str, Any], message: str) -> None:
    body = {"model": "speaker", "messages": HI, "continue_final_message": True, **fields}
    await talk.post("/v1/chat/completions", body)
    status, error = await talk.error()
    assert (status, error["param"], error["message"]) == (400, "continue_final_message", message)


async def test_a_last_message_is_continued_without_a_template(talk: Talk) -> None:
    messages = [*HI, {"role": "assistant", "content": "It is"}]
    await talk.chat(model="function", messages=messages, continue_final_message=True)
    assert talk.inputs()["prompt"] == b"user: hi\nassistant: It is"


async def test_completions_are_given_as_they_are(talk: Talk) -> None:
    await talk.chat(path="/v1/completions", prompt="a<think>")
    talk.say("b</think>c", final=True)
    assert json.loads((await talk.answer()).body)["choices"][0]["text"] == "b</think>c"


async def test_prompts_without_a_template(talk: Talk) -> None:
    await talk.chat(1, model="function")
    assert talk.inputs(0) == {"prompt": b"hi"}
    talk.say("", final=True)
    await talk.answer()
    await talk.chat(2, model="function", messages=[{"role": "system", "content": "be"}, *HI])
    assert talk.inputs(1) == {"prompt": b"system: be\nuser: hi\nassistant:"}


async def test_a_model_that_takes_messages(talk: Talk) -> None:
    await talk.chat(1, model="recite")
    assert json.loads(talk.inputs(0)["messages"]) == HI


NESTED = {"function": {"name": "f", "arguments": "[" * 300 + "]" * 300}}
"""A call of a tool whose arguments orjson reads, and does not write."""
FAILURES: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "nosuch"}, 404, "model", "Request for unknown model: 'nosuch' is not found"),
    ({"model": "simple"}, 400, None, "model 'simple' does not generate text"),
    ({"model": "bare"}, 400, None, "model 'bare' has no chat template: put chat_template.jinja"),
    ({"model": "function", "tools": [{"function": {"name": "f"}}]}, 400, "tools", "takes no tools"),
    (
        {"model": "function", "response_format": {"type": "json_object"}},
        400,
        "response_format",
        "held to 'response_format'",
    ),
    ({"logprobs": True}, 400, "logprobs", "model 'speaker' gives no log probabilities"),
    ({"messages": [{"role": "user", "content": "odd"}]}, 400, None, "refuses the messages: secret: odd"),
    ({"messages": []}, 400, "messages", "'messages' is empty"),
    *(
        ({"model": name, "messages": [{"role": "assistant", "tool_calls": [NESTED]}]}, 400, None, "cannot be handed to")
        for name in ("speaker", "recite")
    ),
]


@pytest.mark.parametrize(("fields", "status", "param", "message"), FAILURES)
async def test_failures(
    talk: Talk,
    fields: dict[str, Any],
    status: int,
    param: str | None,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    await talk.post("/v1/chat/completions", {"model": "speaker", "messages": HI, **fields})
    got, error = await talk.error()
    assert (got, error["param"], message in error["message"]) == (status, param, True), error
    assert error["type"] == "invalid_request_error"
    assert error["code"] == ("model_not_found" if status == 404 else None)
    assert f"status {status}" in caplog.text
    assert "secret" not in caplog.text


SCHEMA = {"type": "json_schema", "schema": {"type": "objekt"}}
FORMS: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "text.format": {"text": {"format": SCHEMA}, "input": "hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("param", FORMS)
async def test_a_schema_that_the_engine_cannot_compile(talk: Talk, param: str, stream: bool) -> None:
    path = "/v1/responses" if param == "text.format" else "/v1/chat/completions"
    await talk.chat(1, path, stream=stream, **FORMS[param])
    talk.end(invalid("sampling parameter 'structured_outputs.json' cannot be compiled: Unsupported type 'objekt'"))
    status, error = await talk.error()
    message = f"'{param}' cannot be compiled: Unsupported type 'objekt'"
    assert (status, error["param"], error["message"]) == (400, param, message)


TOO_LONG = "text_input has 9000 tokens, but the model's context ('max_model_len') has 8192"
REFUSALS: list[tuple[str, dict[str, Any], str, str, str | None, str]] = [
    ("chat/completions", {}, TOO_LONG, "messages", "context_length_exceeded", TOO_LONG),
    ("completions", {"prompt": "a"}, TOO_LONG, "prompt", "context_length_exceeded", TOO_LONG),
    ("responses", {"input": "a"}, TOO_LONG, "input", "context_length_exceeded", TOO_LONG),
    ("responses", {"input": "a"}, "sampling parameter 'max_tokens' is 0", "max_output_tokens", None, "is 0"),
    ("chat/completions", {}, "sampling parameter 'logit_bias' is not supported", "logit_bias", None, "not supported"),
    *(
        (
            path,
            {**fields, field: value},
            f"sampling parameter 'structured_outputs.{member}' is bad",
            field,
            None,
            "is bad",
        )
        for path, fields in (("chat/completions", {}), ("completions", {"prompt": "a"}), ("responses", {"input": "a"}))
        for field, value, member in (("guided_regex", "(", "regex"), ("structured_outputs", {"json": 5}, "json"))
    ),
    (
        "completions",
        {"prompt": "a", "response_format": {"type": "json_object"}},
        "sampling parameter 'structured_outputs.json_object' is bad",
        "response_format",
        None,
        "is bad",
    ),
    (
        "chat/completions",
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        "sampling parameter 'structured_outputs.json' cannot be compiled: no",
        "tools",
        None,
        "'tools' cannot be compiled: no",
    ),
]


@pytest.mark.parametrize(("path", "fields", "said", "param", "code", "message"), REFUSALS)
async def test_what_an_engine_refuses_names_the_field_that_was_sent(
    talk: Talk, path: str, fields: dict[str, Any], said: str, param: str, code: str | None, message: str
) -> None:
    await talk.chat(1, f"/v1/{path}", **fields)
    talk.end(invalid(said))
    status, error = await talk.error()
    assert (status, error["param"], error["code"]) == (400, param, code)
    assert message.replace("text_input", f"'{param}'") in error["message"]


async def test_nothing_of_a_schema_is_in_the_log_or_among_the_failures(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    """The log leaves out what is too much in a second."""
    caplog.set_level("INFO")
    await talk.chat(1, "/v1/chat/completions", **FORMS["response_format"])
    talk.end(invalid("sampling parameter 'structured_outputs.json' cannot be compiled: no 'secret' in {...}"))
    assert "'secret'" in (await talk.error())[1]["message"]
    latest = talk.context.server.failure_log.recent.latest()
    assert any("'response_format' cannot be compiled" in each.message for each in latest)
    assert not any("secret" in each.message for each in latest)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "\\ud800"}', b"\xff"])
async def test_bodies_that_are_no_object(talk: Talk, body: bytes) -> None:
    talk.client.send(request(target="/v1/chat/completions", body=body))
    status, error = await talk.error()
    assert (status, error["type"]) == (400, "invalid_request_error")


async def test_a_failure_before_the_first_piece_has_its_status(talk: Talk) -> None:
    await talk.chat(stream=True)
    talk.end(OverloadedError("too many", 1_500_000_000, too_many=True))
    answer = await talk.answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert json.loads(answer.body)["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("count", [1, 2])
async def test_a_failure_after_the_first_piece_ends_the_stream(talk: Talk, count: int) -> None:
    await talk.chat(count, stream=True, n=count)
    talk.say("a")
    await talk.written(b'"a"')
    talk.inflights[0].settle(internal("out of words"), False)
    *_, last = await talk.events()
    assert last == {"error": {"message": "out of words", "type": "server_error", "param": None, "code": None}}
    await eventually(lambda: all(inflight.settled for inflight in talk.inflights))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_cancels_the_generation(talk: Talk, stream: bool, count: int) -> None:
    await talk.chat(count, stream=stream, n=count)
    talk.say("a", index=count - 1)
    if stream:
        await talk.written(b'"a"')
    talk.client.transport.lose()
    await eventually(lambda: all(inflight.settled for inflight in talk.inflights))


@pytest.mark.parametrize("model", ["speaker", "words"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_nobody_waits_for_count_for_the_tenant(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, stream: bool, count: int, model: str
) -> None:
    """By the model, or by the tokenizer: those that were read, and those that were written before the client left."""
    server: Any = talk.context.server
    monkeypatch.setattr(server, "tenant", Tenant("a"))
    monkeypatch.setattr(server, "quotas", Quotas())
    await talk.chat(count, model=model, messages=[{"role": "user", "content": "hello"}], stream=stream, n=count)
    talk.say("cat ", index=count - 1)
    if stream:
        await talk.written(b'"cat')
    talk.say("mat ", index=count - 1)
    talk.client.transport.lose()
    await eventually(lambda: all(inflight.settled for inflight in talk.inflights))
    await eventually(lambda: server.quotas.figures["a"].tokens > 0)
    assert server.quotas.figures["a"].tokens == 3 + 2
    assert (server.quotas.in_flight, server.quotas.figures["a"].results["accepted"]) == (0, 1)


async def test_a_request_that_ends_at_any_byte(talk: Talk) -> None:
    body = json.dumps({"model": "speaker", "messages": HI, "stream": True}).encode()
    whole = request(target="/v1/chat/completions", body=body)
    for end in range(len(whole)):
        client = Client(talk.context)
        client.send(whole[:end])
        client.transport.lose()
    await eventually(lambda: talk.memory.held == 0)
    assert talk.inflights == []


async def test_a_response_that_ends_at_any_write(talk: Talk) -> None:
    """The client goes away after each number of pieces: none is left speaking."""
    for count in range(6):
        client = talk.client = Client(talk.context)
        await talk.chat(count + 1, stream=True, stop="zzz")
        for piece in range(count):
            talk.say(f"piece{piece}", index=count)
            await talk.written(f"piece{piece}".encode())
        client.transport.lose()
        await eventually(lambda: all(inflight.settled for inflight in talk.inflights))


async def test_pieces_that_wait_for_a_slow_client_count_as_memory(talk: Talk) -> None:
    await talk.chat(stream=True)
    talk.say("first")
    await talk.written(b'"first"')
    talk.client.transport.protocol.pause_writing()
    for _ in range(5):
        talk.say("x" * 100)
    await eventually(lambda: talk.memory.held >= 400)
    talk.client.transport.protocol.resume_writing()
    talk.end()
    assert (await talk.events())[-1] == "[DONE]"


async def test_the_end_of_the_server_ends_streams(talk: Talk, models: Models) -> None:
    await talk.chat(stream=True)
    talk.say("first")
    await talk.written(b'"first"')
    models.direct.streams.stop()
    *_, last = await talk.events()
    assert "the server stopped" in last["error"]["message"]


async def test_a_deadline_and_a_request_id(talk: Talk) -> None:
    headers = {"X-Request-Timeout-Ms": "60000", "X-Request-Id": "mine"}
    await talk.post("/v1/chat/completions", {"model": "speaker", "messages": HI}, **headers)
    await talk.taken(1)
    assert talk.inflights[0].request.deadline_ns > 0
    talk.say("a", final=True)
    answer = await talk.answer()
    assert answer.headers["x-request-id"] == "mine"
    assert json.loads(answer.body)["id"] == "chatcmpl-mine"


async def test_a_long_body_is_read_on_a_thread(models: Models) -> None:
    options = HttpSettings(max_json=MAX_JSON, limits=LoopLimits(json=10))
    async with talk_to(models.with_options(options)) as talk:
        await talk.post("/v1/chat/completions", {"model": "speaker", "messages": HI})
        await talk.taken(1)
        assert talk.inputs()["text_input"] == b"<user>hi"
        talk.say("a", final=True)
        assert (await talk.answer()).status == 200


async def test_a_template_that_does_not_end_fails_its_conversation_alone(talk: Talk) -> None:
    await talk.post("/v1/chat/completions", {"model": "speaker", "messages": [{"role": "user", "content": "long"}]})
    status, error = await talk.error()
    assert (status, error["type"]) == (500, "server_error")
    assert error["message"] == "the chat template of model 'speaker' did not end within 2 s of CPU time"
    await talk.chat(1, model="speaker")
    assert talk.inputs()["text_input"] == b"<user>hi"


async def test_restricted(models: Models) -> None:
    options = HttpSettings(restrictions=http_restrictions({"inference": ("key", "open"), "metadata": ("key", "open")}))
    async with talk_to(models.with_options(options)) as talk:
        for number, path in enumerate(("chat/completions", "completions"), 1):
            await talk.post(f"/openai/v1/{path}", {})
            assert (await talk.client.receive(number))[-1].status == 403
        talk.client.send(request("GET", "/openai/v1/models"))
        assert (await talk.client.receive(3))[-1].status == 403


async def test_models(talk: Talk) -> None:
    for number, path in enumerate(
        ("/openai/v1/models", "/v1/models", "/openai/v1/models/speaker", "/v1/models/speaker")
    ):
        talk.client.send(request("GET", path))
        await talk.client.receive(number + 1)
    pure, union, one, both = (json.loads(answer.body) for answer in talk.client.answers)
    names = [model["id"] for model in pure["data"]]
    assert (pure["object"], names) == ("list", sorted(NAMES))
    assert union == {"models": [*sorted([*NAMES, "simple"])], **pure}
    assert (one["id"], one["object"], one["owned_by"]) == ("speaker", "model", "modserve")
    assert one["suggested_sampling"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 1024}
    assert both == {**both, **one, "name": "speaker", "ready": True}
    talk.client.send(request("GET", "/openai/v1/models/nosuch"))
    answer = (await talk.client.receive(5))[-1]
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/chat/completions", {"messages": HI}, sorted(NAMES)),
        ("/v1/completions", {"prompt": "hi"}, sorted({*NAMES} - {"recite"})),
    ],
)
async def test_one_of_several_models_must_be_named(
    talk: Talk, path: str, body: dict[str, Any], names: list[str]
) -> None:
    await talk.post(path, body)
    answer = await talk.answer()
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "model", None)
    shown = ", ".join(f"'{name}'" for name in names)
    assert error["message"] == f"'model' is missing; models that generate text are: {shown}"


async def test_nothing_is_left_to_the_garbage_collector(talk: Talk) -> None:
    async def once(stream: bool) -> None:
        talk.client = Client(talk.context)
        count = len(talk.inflights)
        await talk.chat(count + 1, stream=stream)
        talk.say("a", index=count)
        talk.say("b", final=True, index=count)
        await talk.answer()
        talk.client.transport.lose()
        await asyncio.sleep(0)

    for stream in (False, True):
        await once(stream)
        with garbage_left() as left:
            await once(stream)
        assert [type(each) for each in left if isinstance(each, Tensor | ModserveError | InferenceResponse)] == []
