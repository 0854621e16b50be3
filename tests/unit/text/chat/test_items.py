"""Requests of ``responses``: what becomes of items, and what is wrong with others."""

from typing import Any

import pytest

from modserve.text.chat.items import ResponseRequest, read_response_request
from modserve.text.openai_errors import RequestFieldError

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Köln"}'}


def read(**fields: Any) -> ResponseRequest:
    return read_response_request({"model": "m", "input": "hi", **fields})


def test_a_text() -> None:
    request = read()
    assert request.chat.messages == [{"role": "user", "content": "hi"}]
    assert (request.chat.text.choices, request.chat.text.sampling) == (1, {})
    assert request.repeated["text"] == {"format": {"type": "text"}}


def test_items_become_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "id": "x", "content": [{"type": "output_text", "text": "well"}]},
        CALL,
        {**CALL, "call_id": "c2", "arguments": "{"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        CALL,
    ]
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": {"invalid_arguments": "{"}}},
    ]
    assert read(input=items, instructions="be brief").chat.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "well", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
        {"role": "assistant", "content": "no", "tool_calls": calls[:1]},
    ]


def test_a_thought_is_of_the_message_or_call_behind_it() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "well"}]}
    other = {**thought, "content": [{"type": "reasoning_text", "text": "oh"}]}
    messages = read(input=[thought, answer, CALL, other, CALL, answer, thought]).chat.messages
    said = [(each.get("reasoning_content"), each["content"], len(each.get("tool_calls", ()))) for each in messages]
    assert said == [("hm", "well", 1), ("oh", "", 1), (None, "well", 0), ("hm", "", 0)]
    assert {each["role"] for each in messages} == {"assistant"}


def test_how_much_to_think_reaches_the_template() -> None:
    assert read(input="a", reasoning={"effort": "low", "summary": "auto"}).chat.template_arguments == {
        "reasoning_effort": "low"
    }
    assert read(input="a", reasoning={"effort": None}).chat.template_arguments == {}


def test_a_call_without_a_message_before_it() -> None:
    messages = read(input=[{"role": "user", "content": "a"}, CALL]).chat.messages
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["content"] == ""


def test_sampling_parameters() -> None:
    text = read(
        max_output_tokens=5, temperature=0, top_p=0.5, top_k=3, n=1, max_tokens=None, include=[], top_logprobs=2
    ).chat.text
    assert text.sampling == {"max_tokens": 5, "temperature": 0, "top_p": 0.5, "top_k": 3, "logprobs": 2}
    assert (text.choices, text.logprobs) == (1, 2)
    assert read(include=["message.output_text.logprobs"]).chat.text.logprobs == 0


def test_tools_are_as_templates_have_them() -> None:
    request = read(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False)
    function = {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert request.chat.tools.tools == [{"type": "function", "function": function}]
    assert request.chat.text.sampling == {"structured_outputs": {"json": {"type": "object"}}}
    assert request.repeated["tools"] == [WEATHER]
    assert request.repeated["tool_choice"] == {"type": "function", "name": "weather"}
    assert not request.chat.tools.parallel


@pytest.mark.parametrize(
    ("format", "structure"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_object", "schema": {"a": 1}}, {"json": {"a": 1}}),
        ({"type": "json_schema", "name": "x", "schema": {"a": 1}, "strict": True}, {"json": {"a": 1}}),
    ],
)
def test_formats(format: Any, structure: Any) -> None:
    request = read(text={"format": format, "verbosity": "low"})
    assert request.chat.text.sampling.get("structured_outputs") == structure
    assert request.repeated["text"] == {"format": format}


def test_what_openais_clients_send_of_storing_is_no_mistake() -> None:
    read(store=True, previous_response_id=None, background=False, conversation=None, metadata={"a": "b"})


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": None}, "input", "'input' is missing"),
        ({"input": 3}, "input", "'input' must be a string or an array of items, not the number 3"),
        ({"input": []}, "input", "'input' is empty"),
        ({"input": ["a"]}, "input[0]", "'input[0]' must be an object, not a string"),
        (
            {"input": [{"role": "tool", "content": "a"}]},
            "input[0].role",
            "'input[0].role' must be one of assistant, developer, system, user",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content", "'input[0].content' is missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "'input[0].content[0]' is no text: parts of the types input_text and output_text are supported",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
            "input[0].content[0].text",
            "'input[0].content[0].text' must be a string, not the number 1",
        ),
        ({"input": [{**CALL, "name": 1}]}, "input[0].name", "'input[0].name' must be a string"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].output", "'input[0].output' is missing"),
        (
            {"input": [{"type": "web_search_call"}]},
            "input[0].type",
            "'input[0].type' must be 'message', 'function_call', 'function_call_output' or 'reasoning'",
        ),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input[0]",
            "'input[0]' refers to an item of before, and nothing is stored: send the item itself",
        ),
        ({"instructions": 1}, "instructions", "'instructions' must be a string or an array of parts, not the number 1"),
        (
            {"previous_response_id": "resp_1"},
            "previous_response_id",
            "'previous_response_id' is not supported: nothing is stored, so send the whole conversation",
        ),
        ({"background": True}, "background", "'background' is not supported: responses are not stored"),
        ({"text": {"format": 3}}, "text.format", "'text.format' must be an object, not the number 3"),
        (
            {"text": {"format": {"type": "grammar"}}},
            "text.format.type",
            "'text.format.type' must be 'text', 'json_object' or 'json_schema'",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "'text.format' must have a 'schema', an object"),
        (
            {"text": {"format": {"type": "json_object"}}, "tools": [WEATHER], "tool_choice": "required"},
            "text.format",
            "'text.format' and 'tool_choice' exclude each other: each says what the text has to be",
        ),
        (
            {"tools": [{"type": "web_search"}]},
            "tools[0].type",
            "'tools[0].type' must be 'function': there are no other tools here",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "'tools[0].name' must be a string"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice",
            "'tool_choice' must be 'none', 'auto', 'required' or {'type': 'function', 'name': …}",
        ),
        (
            {"max_output_tokens": 0},
            "max_output_tokens",
            "'max_output_tokens' must be between 1 and 2147483647, not 0",
        ),
        ({"include": "x"}, "include", "'include' must be an array, not a string"),
    ],
)
def test_mistakes(fields: Any, param: str, message: str) -> None:
    with pytest.raises(RequestFieldError) as refusal:
        read(**fields)
    assert (refusal.value.param, refusal.value.message) == (param, message)
