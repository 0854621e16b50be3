"""Every field of the two requests: what comes of it, and what is said of a wrong one."""

from typing import Any

import pytest

from modserve.text.chat import fields
from modserve.text.chat.requests import ChatRequest, CompletionRequest, read_chat, read_completion
from modserve.text.openai_errors import RequestFieldError

USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}},
}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def chat(**fields: Any) -> ChatRequest:
    return read_chat({"model": "m", "messages": [USER], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return read_completion({"model": "m", "prompt": "hi", **fields})


def test_defaults() -> None:
    request = chat()
    text = request.text
    assert (text.model, text.stream, text.include_usage, text.choices, text.stops) == ("m", False, False, 1, ())
    assert (text.sampling, text.logprobs) == ({}, None)
    assert request.messages == [USER]
    assert (request.tools.tools, request.template_arguments, request.add_generation_prompt) == ((), {}, True)
    plain = completion()
    assert (plain.prompts, plain.echo, plain.text.sampling) == (("hi",), False, {"max_tokens": 16})


@pytest.mark.parametrize(
    ("said", "sampling"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 1.5, "top_p": 0.5, "min_p": 0.1}, {"temperature": 1.5, "top_p": 0.5, "min_p": 0.1}),
        ({"top_k": 4, "seed": -3}, {"top_k": 4, "seed": -3}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6, "max_tokens": 5}, {"max_tokens": 6}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2, "frequency_penalty": 2}),
        ({"repetition_penalty": 1.1, "ignore_eos": True}, {"repetition_penalty": 1.1, "ignore_eos": True}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"stop": ["x", "yz"]}, {"stop": ["x", "yz"]}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
        (dict.fromkeys(sorted(fields.SAMPLING)), {}),
        ({"stop": [], "logit_bias": {}, "stop_token_ids": [], "bad_words": []}, {}),
        ({"min_tokens": 3, "stop_token_ids": [5]}, {"min_tokens": 3, "stop_token_ids": [5]}),
        ({"bad_words": ["x"], "allowed_token_ids": [1]}, {"bad_words": ["x"], "allowed_token_ids": [1]}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
        ({"spaces_between_special_tokens": False}, {"spaces_between_special_tokens": False}),
        ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
        ({"structured_outputs": {"regex": "a"}}, {"structured_outputs": {"regex": "a"}}),
        ({"structured_outputs": {"json": None}, "guided_json_object": False}, {}),
        ({"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"guided_json": {}}, {"structured_outputs": {"json": {}}}),
        ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}}),
        ({"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}),
        ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"guided_grammar": "root ::= 'a'"}, {"structured_outputs": {"grammar": "root ::= 'a'"}}),
    ],
)
def test_sampling(said: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert chat(**said).text.sampling == sampling
    assert completion(**said).text.sampling == {"max_tokens": 16} | sampling


def test_stops_are_for_us_too() -> None:
    assert chat(stop=["a", "b"]).text.stops == ("a", "b")


def test_stops_before_the_least_number_of_tokens_are_for_the_model() -> None:
    text = chat(stop="a", min_tokens=2).text
    assert (text.stops, text.sampling) == ((), {"stop": ["a"], "min_tokens": 2})
    assert chat(stop="a", min_tokens=0).text.stops == ("a",)


def test_streams_choices_and_log_probabilities() -> None:
    text = chat(stream=True, stream_options={"include_usage": True}, n=3, logprobs=True, top_logprobs=4).text
    assert (text.stream, text.include_usage, text.choices, text.logprobs) == (True, True, 3, 4)
    assert text.sampling == {"logprobs": 4}
    assert chat(logprobs=True).text.sampling == {"logprobs": 0}
    assert chat(logprobs=False).text.logprobs is None
    assert completion(logprobs=2).text.logprobs == 2


@pytest.mark.parametrize(
    ("response_format", "structure"),
    [
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_object", "schema": SCHEMA}, {"json": SCHEMA}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}, {"json": SCHEMA}),
    ],
)
def test_response_format(response_format: dict[str, Any], structure: dict[str, Any]) -> None:
    for text in (chat(response_format=response_format).text, completion(response_format=response_format).text):
        assert text.sampling["structured_outputs"] == structure
        assert text.structure_field == "response_format"
    assert chat(response_format={"type": "text"}).text.sampling == {}


def test_messages_are_as_templates_have_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = chat(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    ).messages
    assert [message["content"] for message in messages] == ["a\nb", None, "2", "no"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert messages[2]["tool_call_id"] == "1"


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": 1, "b": "c', {"invalid_arguments": '{"a": 1, "b": "c'}),
        ("add 1", {"invalid_arguments": "add 1"}),
        ("[1]", {"invalid_arguments": [1]}),
        ([1], {"invalid_arguments": [1]}),
        ({"a": 1}, {"a": 1}),
        ("null", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_arguments_of_a_past_call_are_an_object_whatever_the_model_wrote(written: object, arguments: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": written}}
    messages = chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}]).messages
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": arguments}


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ({}, {}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
    ],
)
def test_how_much_to_think_reaches_the_template(said: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert chat(**said).template_arguments == arguments


def test_a_thought_of_before_reaches_the_template() -> None:
    message = {"role": "assistant", "content": "3", "reasoning_content": "1 + 2"}
    assert chat(messages=[USER, message]).messages[1] == message


def test_tools() -> None:
    assert chat(tools=[TOOL]).tools.parameters == {"add": TOOL["function"]["parameters"]}
    assert chat(tools=[TOOL]).tools.schema is None
    assert chat(tools=[TOOL], tool_choice="none").tools.tools == ()
    assert chat(tools=[TOOL], parallel_tool_calls=False).tools.parallel is False
    assert chat(tools=[], tool_choice="auto").tools.tools == ()
    only = chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}})
    assert only.text.sampling == {"structured_outputs": {"json": TOOL["function"]["parameters"]}}
    required = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).tools.schema
    assert required is not None
    assert (required["type"], required["maxItems"]) == ("array", 1)
    items: Any = required["items"]
    assert items["anyOf"][0]["properties"]["name"] == {"enum": ["add"]}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_references_of_required_tools_lead_into_their_own_schemas() -> None:
    paint = {
        "type": "object",
        "$defs": {"Colour": {"enum": ["#/red", {"$ref": "#/data"}]}, "enum": {"$ref": "#"}},
        "properties": {
            "of": {"$ref": "#/$defs/Colour"},
            "enum": {"anyOf": [{"$ref": "#/properties/of"}, {"const": {"$ref": "#/data"}}]},
            "$ref": {"type": "string"},
            "other": {"$ref": "https://example.com/schema#/x"},
        },
    }
    tools = [tool("paint", parameters=paint), TOOL]
    schema: Any = chat(tools=tools, tool_choice="required").tools.schema
    called = [each["properties"]["parameters"] for each in schema["items"]["anyOf"]]
    assert called == [{"$ref": "#/$defs/tool0"}, TOOL["function"]["parameters"]]
    assert schema["$defs"] == {
        "tool0": {
            "type": "object",
            "$defs": {
                "Colour": {"enum": ["#/red", {"$ref": "#/data"}]},
                "enum": {"$ref": "#/$defs/tool0"},
            },
            "properties": {
                "of": {"$ref": "#/$defs/tool0/$defs/Colour"},
                "enum": {"anyOf": [{"$ref": "#/$defs/tool0/properties/of"}, {"const": {"$ref": "#/data"}}]},
                "$ref": {"type": "string"},
                "other": {"$ref": "https://example.com/schema#/x"},
            },
        }
    }
    assert tools[0] == tool("paint", parameters=paint), "templates have it as it was sent"
    only: Any = chat(tools=tools, tool_choice=tool("paint")).tools.schema
    assert only == paint


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {}}], ids=["absent", "null", "empty"])
def test_a_function_without_parameters_gets_none(parameters: dict[str, Any]) -> None:
    tools = [tool("now", **parameters)]
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    schema: Any = chat(tools=tools, tool_choice="required").tools.schema
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == none
    assert chat(tools=tools, tool_choice=tool("now")).tools.schema == none
    assert chat(tools=tools).tools.tools == [tool("now", **parameters)]


def test_prompts() -> None:
    assert completion(prompt=["a", "b"], echo=True, best_of=1).prompts == ("a", "b")
    assert completion(prompt="").prompts == ("",)


WRONG_BOTH: list[tuple[dict[str, Any], str, str]] = [
    ({"model": 5}, "model", "'model' must be a string, not the number 5"),
    ({"model": ""}, "model", "'model' is empty"),
    ({"stream": "yes"}, "stream", "'stream' must be a boolean, not a string"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "for requests with 'stream': true"),
    ({"stream": True, "stream_options": 1}, "stream_options", "must be an object, not the number 1"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage", "must be a boolean"),
    ({"n": 0}, "n", "'n' must be between 1 and 128, not 0"),
    ({"n": 1.0}, "n", "'n' must be a whole number"),
    ({"n": 129}, "n", "between 1 and 128"),
    ({"temperature": 2.1}, "temperature", "'temperature' must be between 0 and 2, not 2.1"),
    ({"temperature": "hot"}, "temperature", "'temperature' must be a number, not a string"),
    ({"temperature": True}, "temperature", "'temperature' must be a number, not a boolean"),
    ({"top_p": -1}, "top_p", "must be above 0 and at most 1"),
    ({"top_k": 1.5}, "top_k", "must be a whole number"),
    ({"max_tokens": 0}, "max_tokens", "between 1 and"),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "between 1 and"),
    ({"seed": 2**63}, "seed", "between"),
    ({"presence_penalty": 3}, "presence_penalty", "between -2 and 2"),
    ({"ignore_eos": 1}, "ignore_eos", "must be a boolean"),
    ({"logit_bias": []}, "logit_bias", "must be an object, not an array"),
    ({"stop": 1}, "stop", "must be a string or a list of strings, not the number 1"),
    ({"stop": ["a", None]}, "stop", "must be a string or a list of strings, not null"),
    ({"stop": ""}, "stop", "has an empty sequence"),
    ({"stop": ["a", "b" * 1001]}, "stop", "'stop' has a sequence of 1001 characters, at most 1000 are possible"),
    ({"stop": ["a"] * 17}, "stop", "'stop' has 17 sequences, at most 16 are possible"),
    ({"min_tokens": -1}, "min_tokens", "between 0 and"),
    ({"stop_token_ids": 5}, "stop_token_ids", "must be a list of token ids, not the number 5"),
    ({"stop_token_ids": [5, True]}, "stop_token_ids[1]", "must be a token id, not a boolean"),
    ({"bad_words": [1]}, "bad_words[0]", "must be a string, not the number 1"),
    ({"skip_special_tokens": 0}, "skip_special_tokens", "must be a boolean"),
    ({"structured_outputs": "a"}, "structured_outputs", "must be an object, not a string"),
    ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex", "exclude each other"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "and 'response_format'"),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, "response_format.value", "has no meaning"),
    ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema", "has no meaning"),
    ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format", "must have a 'schema'"),
]
WRONG_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "'messages' is missing"),
    ({"messages": {}}, "messages", "must be an array, not an object"),
    ({"messages": []}, "messages", "'messages' is empty"),
    ({"messages": ["hi"]}, "messages[0]", "must be an object, not a string"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", "must be one of assistant, developer"),
    ({"messages": [{"role": ["user"], "content": ""}]}, "messages[0].role", "must be one of assistant, developer"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content", "'messages[1].content' is missing"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a string or an array of parts"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "is no text"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "a string"),
    ({"reasoning_effort": 1}, "reasoning_effort", "must be a string, not the number 1"),
    (
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": {}}]},
        "messages[0].reasoning_content",
        "must be a string, not an object",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages[0].tool_calls", "must be an array"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", "'function'"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
        "messages[0].tool_calls[0].function.name",
        "must be a string",
    ),
    ({"logprobs": 1}, "logprobs", "must be a boolean"),
    ({"top_logprobs": 1}, "top_logprobs", "for requests with 'logprobs': true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object' or 'json_schema'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "must have a 'schema'"),
    ({"tools": {}}, "tools", "must be an array"),
    ({"tools": [1]}, "tools[0]", "must be an object"),
    ({"tools": [{"type": "search"}]}, "tools[0].type", "must be 'function'"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "must be an object, not null"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "must be a string"),
    ({"tools": [{"function": {"name": "f", "parameters": [1]}}]}, "tools[0].function.parameters", "an object"),
    ({"tools": [TOOL] * 1025}, "tools", "at most 1024"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "'none', 'auto', 'required'"),
    ({"tools": [TOOL], "tool_choice": {"function": {"name": "sub"}}}, "tool_choice", "not in 'tools'"),
    ({"tool_choice": "required"}, "tool_choice", "for requests with 'tools'"),
    (
        {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
        "exclude each other",
    ),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs", "must be an object"),
]
WRONG_COMPLETION: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "'prompt' is missing"),
    ({"prompt": []}, "prompt", "'prompt' is empty"),
    ({"prompt": [1, 2]}, "prompt", "has token ids"),
    ({"prompt": {}}, "prompt", "must be a string or a list of strings"),
    ({"prompt": ["a"] * 100, "n": 3}, "prompt", "100 prompts with 3 choices each"),
    ({"best_of": 4}, "best_of", "'best_of' is not supported"),
    ({"suffix": "x"}, "suffix", "'suffix' is not supported"),
    ({"echo": True, "logprobs": 1}, "logprobs", "with 'echo' is not supported"),
    ({"logprobs": True}, "logprobs", "must be a whole number"),
]


@pytest.mark.parametrize(("said", "param", "text"), [*WRONG_BOTH, *WRONG_CHAT])
def test_wrong_chats(said: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(RequestFieldError) as raised:
        chat(**said)
    assert (raised.value.param, text in raised.value.message) == (param, True), raised.value.message


@pytest.mark.parametrize(("said", "param", "text"), [*WRONG_BOTH, *WRONG_COMPLETION])
def test_wrong_completions(said: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(RequestFieldError) as raised:
        completion(**said)
    assert (raised.value.param, text in raised.value.message) == (param, True), raised.value.message
