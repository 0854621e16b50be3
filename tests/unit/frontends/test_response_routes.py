"""OpenAI's ``responses``, on a connection without a socket, over a model that speaks when told to."""

import json
import re
from typing import Any

import pytest
from test_chat_routes import Models, Talk, talk_to
from test_chat_routes import models as models
from test_chat_routes import talk as talk
from test_chat_routes import way as way

from modserve.core.errors import internal
from modserve.settings import HttpSettings

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "K"}}</tool_call>'
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


async def ask(talk: Talk, path: str = "/v1/responses", **fields: Any) -> None:
    await talk.post(path, {"model": "speaker", "input": "hi", **fields})
    await talk.taken(1)


async def events(talk: Talk) -> list[Any]:
    answer = await talk.answer()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    pairs = re.findall(r"event: (.*)\ndata: (.*)\n\n", answer.body.decode())
    read = [json.loads(data) for _, data in pairs]
    assert [event["type"] for event in read] == [name for name, _ in pairs]
    assert [event["sequence_number"] for event in read] == list(range(len(read)))
    return read


@pytest.mark.parametrize("prefix", ["", "/openai"])
async def test_a_whole_answer(talk: Talk, prefix: str) -> None:
    await ask(talk, f"{prefix}/v1/responses", instructions="brief", temperature=0.5, store=True, metadata={"a": "b"})
    assert talk.inputs()["text_input"] == b"<system>brief<user>hi"
    assert json.loads(talk.inputs()["sampling_parameters"]) == {"temperature": 0.5}
    talk.say("Hello")
    talk.say(" you", final=True)
    document = json.loads((await talk.answer()).body)
    id = document.pop("id").removeprefix("resp_")
    assert document.pop("created_at") > 1_600_000_000
    part = {"type": "output_text", "text": "Hello you", "annotations": [], "logprobs": []}
    message = {"id": f"msg_{id}_0", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    assert document == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": "speaker",
        "output": [message],
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
        "instructions": "brief",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


async def test_a_stream(talk: Talk) -> None:
    await ask(talk, stream=True, max_output_tokens=2)
    assert talk.inputs()["stream"]
    talk.say("Hello")
    await talk.written(b'"Hello"')
    talk.say(" you")
    talk.end()
    read = await events(talk)
    assert [event["type"] for event in read] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert read[0]["response"]["status"] == "in_progress"
    assert [event["delta"] for event in read[4:6]] == ["Hello", " you"]
    assert read[6]["text"] == "Hello you"
    assert {event["item_id"] for event in read[3:8]} == {read[2]["item"]["id"]}
    last = read[-1]["response"]
    assert last["output"] == [read[-2]["item"]]
    assert last["output"][0]["content"][0]["text"] == "Hello you"
    assert (last["incomplete_details"], last["usage"]["total_tokens"]) == ({"reason": "max_output_tokens"}, 5)


async def test_calls_of_tools(talk: Talk) -> None:
    await ask(talk, tools=[WEATHER])
    talk.say(f"Well {CALL}{CALL}", final=True)
    message, first, second = json.loads((await talk.answer()).body)["output"]
    assert message["content"][0]["text"] == "Well "
    assert (first["type"], first["name"], first["arguments"]) == ("function_call", "weather", '{"city":"K"}')
    assert first["call_id"] != second["call_id"]


async def test_only_a_call_of_a_tool(talk: Talk) -> None:
    await ask(talk, tools=[WEATHER])
    talk.say(CALL, final=True)
    (call,) = json.loads((await talk.answer()).body)["output"]
    assert call["type"] == "function_call"


async def test_calls_of_tools_in_a_stream(talk: Talk) -> None:
    await ask(talk, tools=[WEATHER], stream=True)
    talk.say("Well ")
    talk.say(CALL)
    talk.say("and", final=True)
    read = await events(talk)
    assert [(event["type"].removeprefix("response."), event.get("output_index")) for event in read[2:-1]] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("output_text.delta", 0),
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("function_call_arguments.delta", 1),
        ("function_call_arguments.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("content_part.added", 2),
        ("output_text.delta", 2),
        ("output_text.done", 2),
        ("content_part.done", 2),
        ("output_item.done", 2),
    ]
    assert [item["type"] for item in read[-1]["response"]["output"]] == ["message", "function_call", "message"]
    assert read[9]["delta"] == read[10]["arguments"] == '{"city":"K"}'


async def test_a_thought(talk: Talk) -> None:
    await ask(talk, tools=[WEATHER])
    talk.say(f"<think>\nHm.\n</think>\n\nWell {CALL}", final=True)
    thought, message, call = json.loads((await talk.answer()).body)["output"]
    assert (thought["type"], thought["summary"], thought["status"]) == ("reasoning", [], "completed")
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert (message["content"][0]["text"], call["type"]) == ("Well ", "function_call")


async def test_a_thought_that_is_cut(talk: Talk) -> None:
    await ask(talk, max_output_tokens=1)
    talk.say("<think>Hm", final=True)
    response = json.loads((await talk.answer()).body)
    (thought,) = response["output"]
    assert (thought["type"], thought["status"], response["status"]) == ("reasoning", "incomplete", "incomplete")


async def test_a_thought_in_a_stream(talk: Talk) -> None:
    await ask(talk, stream=True)
    for piece in ("<think>", "Hm", ".\n</think>", "\n\nWell"):
        talk.say(piece)
    talk.say(".", final=True)
    read = await events(talk)
    assert [(event["type"].removeprefix("response."), event.get("output_index")) for event in read[2:-1]] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
    ]
    assert read[6]["text"] == "Hm."
    assert [item["type"] for item in read[-1]["response"]["output"]] == ["reasoning", "message"]


async def test_an_empty_text_is_a_message(talk: Talk) -> None:
    await ask(talk, stream=True)
    talk.end()
    read = await events(talk)
    assert read[-1]["type"] == "response.completed"
    assert read[-1]["response"]["output"][0]["content"][0]["text"] == ""


async def test_a_failure_within_a_stream(talk: Talk) -> None:
    await ask(talk, stream=True)
    talk.say("Hello")
    talk.end(internal("lost its voice"))
    *_, error, failed = await events(talk)
    assert (error["type"], error["message"]) == ("error", "lost its voice")
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "lost its voice"}
    assert failed["response"]["status"] == "failed"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_it(talk: Talk, stream: bool) -> None:
    await ask(talk, stream=stream)
    talk.end(internal("lost its voice"))
    assert await talk.error() == (
        500,
        {"message": "lost its voice", "type": "server_error", "param": None, "code": None},
    )


async def test_a_mistake(talk: Talk) -> None:
    await talk.post("/v1/responses", {"model": "speaker", "input": "hi", "previous_response_id": "resp_1"})
    status, error = await talk.error()
    assert (status, error["param"]) == (400, "previous_response_id")


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_kept_of_a_text_counts_as_memory(models: Models, stream: bool) -> None:
    """The last events have all of the text again; a model need not end."""
    async with talk_to(models.with_options(HttpSettings())) as talk:
        talk.memory.limit = 1_000_000
        try:
            await ask(talk, stream=stream)
            for number in range(4):
                talk.say(f"{number}" + "x" * 300_000)
                if stream and number < 2:
                    await talk.written(f'"delta":"{number}'.encode())
            answer = await talk.answer()
        finally:
            talk.memory.limit = 0
    assert b"the server is out of memory for requests" in answer.body
    assert (answer.status, b"response.failed" in answer.body) == ((200, True) if stream else (503, False))
