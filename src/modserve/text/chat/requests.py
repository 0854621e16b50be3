"""The requests of OpenAI's two calls that generate text, as values that cannot be wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from . import fields
from .errors import field_error

CHAT, COMPLETIONS = "chat/completions", "completions"
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_MOST_TOOLS = 1024
_MOST_PROMPTS: Final = 256
_USUAL_MAX_TOKENS: Final = 16
"""Of completions, as in OpenAI's API; how long chats are is up to the model."""

_CHAT_FIELDS = fields.COMMON | {
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "top_logprobs"),
    *("chat_template_kwargs", "add_generation_prompt"),
}
_COMPLETION_FIELDS = fields.COMMON | {"prompt", "echo", "best_of", "suffix"}


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What both calls have. `logprobs` counts the alternatives of each token; None: nothing is to be said of them."""

    model: str
    stream: bool
    include_usage: bool
    choices: int
    """For each prompt."""
    sampling: Mapping[str, object]
    stops: tuple[str, ...]
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the tools the model may, or has to, call."""

    tools: Sequence[Mapping[str, Any]] = ()
    required: bool = False
    only: str = ""
    """The one function to call."""
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """What the text has to be so that it is a call; None if it may be anything."""
        functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}
        if self.only:
            return {"type": "object", **functions[self.only]}
        if not self.required:
            return None
        calls = [
            {
                "type": "object",
                "properties": {"name": {"enum": [name]}, "parameters": parameters},
                "required": ["name", "parameters"],
            }
            for name, parameters in functions.items()
        ]
        most = {} if self.parallel else {"maxItems": 1}
        return {"type": "array", "minItems": 1, "items": {"anyOf": calls}, **most}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    text: TextRequest
    messages: Sequence[Mapping[str, Any]]
    tools: ToolChoice = ToolChoice()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    text: TextRequest
    prompts: tuple[str, ...]
    echo: bool


def read_chat(document: Mapping[str, Any]) -> ChatRequest:
    """The request of ``chat/completions``. Raises `RequestFieldError`."""
    fields.tell_ignored(CHAT, document, _CHAT_FIELDS)
    logprobs = fields.whole_number(document, "top_logprobs", 0, 20)
    if fields.boolean(document, "logprobs"):
        logprobs = logprobs or 0
    elif logprobs is not None:
        raise field_error("top_logprobs", "'top_logprobs' is for requests with 'logprobs': true")
    tools = _tools(document)
    structure = _structure(document)
    if structure and tools.schema is not None:
        raise field_error("response_format", "'response_format' and a required call of a tool exclude each other")
    if tools.schema is not None:
        structure = {"json": tools.schema}
    return ChatRequest(
        _text_request(document, logprobs, {"structured_outputs": structure} if structure else {}),
        _messages(document),
        tools,
        fields.mapping(document, "chat_template_kwargs") or {},
        fields.boolean(document, "add_generation_prompt", True),
    )


def read_completion(document: Mapping[str, Any]) -> CompletionRequest:
    """The request of ``completions``. Raises `RequestFieldError`."""
    fields.tell_ignored(COMPLETIONS, document, _COMPLETION_FIELDS)
    if document.get("max_tokens") is None and document.get("max_completion_tokens") is None:
        document = {**document, "max_tokens": _USUAL_MAX_TOKENS}
    text = _text_request(document, fields.whole_number(document, "logprobs", 0, 20), {})
    best_of = fields.whole_number(document, "best_of", 1, fields.MOST_CHOICES)
    if best_of not in (None, 1, text.choices):
        raise field_error("best_of", "'best_of' is not supported: ask for 'n' choices and take the best of them")
    if document.get("suffix"):
        raise field_error("suffix", "'suffix' is not supported")
    prompt = document.get("prompt")
    if prompt is None:
        raise field_error("prompt", "'prompt' is missing")
    prompts = prompt if type(prompt) is list else [prompt]
    if not prompts:
        raise field_error("prompt", "'prompt' is empty")
    for each in prompts:
        if type(each) is int or type(each) is list:
            raise field_error("prompt", "'prompt' has token ids, which are not supported: send texts")
        if type(each) is not str:
            raise fields.wrong_type("prompt", "a string or a list of strings", each)
    if len(prompts) * text.choices > _MOST_PROMPTS:
        raise field_error(
            "prompt", f"{len(prompts)} prompts with {text.choices} choices each: more than {_MOST_PROMPTS}"
        )
    echo = fields.boolean(document, "echo")
    if echo and text.logprobs is not None:
        raise field_error(
            "logprobs", "'logprobs' with 'echo' is not supported: nothing is known of the prompt's tokens"
        )
    return CompletionRequest(text, tuple(prompts), echo)


def _text_request(document: Mapping[str, Any], logprobs: int | None, structure: Mapping[str, object]) -> TextRequest:
    stream = fields.boolean(document, "stream")
    sampling: dict[str, object] = {**fields.sampling(document), **structure}
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    stops = sampling.get("stop", ())
    assert isinstance(stops, list | tuple), "so `fields.sampling` has it: this is a bug"
    return TextRequest(
        fields.text(document, "model"),
        stream,
        fields.stream_usage(document, stream),
        fields.whole_number(document, "n", 1, fields.MOST_CHOICES) or 1,
        sampling,
        tuple(stops),
        logprobs,
    )


def _messages(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = document.get("messages")
    if messages is None:
        raise field_error("messages", "'messages' is missing")
    if type(messages) is not list:
        raise fields.wrong_type("messages", "an array", messages)
    if not messages:
        raise field_error("messages", "'messages' is empty")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(where: str, message: object) -> Mapping[str, Any]:
    """A message as templates have it: its content is one text, arguments of calls are objects."""
    if not isinstance(message, dict):
        raise fields.wrong_type(where, "an object", message)
    role = message.get("role")
    if role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise field_error(f"{where}.role", f"'{where}.role' must be one of {known}")
    read = {**message, "content": _content(f"{where}.content", message.get("content"))}
    calls = message.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise fields.wrong_type(f"{where}.tool_calls", "an array", calls)
        read["tool_calls"] = [_past_call(f"{where}.tool_calls[{n}]", call) for n, call in enumerate(calls)]
    elif read["content"] is None:
        raise field_error(f"{where}.content", f"'{where}.content' is missing")
    return read


def _content(where: str, content: object) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if type(content) is not list:
        raise fields.wrong_type(where, "a string or an array of parts", content)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise field_error(
                f"{where}[{index}]", f"'{where}[{index}]' is no text: parts of the type text are supported"
            )
        if not isinstance(text, str):
            raise fields.wrong_type(f"{where}[{index}].text", "a string", text)
        texts.append(text)
    return "\n".join(texts)


def _past_call(where: str, call: object) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or type(function.get("name")) is not str:
        raise field_error(where, f"'{where}' must have a 'function' with a 'name'")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            raise field_error(f"{where}.function.arguments", f"'{where}.function.arguments' is no JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(document: Mapping[str, Any]) -> ToolChoice:
    tools, choice = document.get("tools"), document.get("tool_choice")
    if tools is not None and type(tools) is not list:
        raise fields.wrong_type("tools", "an array", tools)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise field_error("tool_choice", "'tool_choice' is for requests with 'tools'")
        return ToolChoice()
    if len(tools) > _MOST_TOOLS:
        raise field_error("tools", f"'tools' has {len(tools)} elements, at most {_MOST_TOOLS} are possible")
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    parallel = fields.boolean(document, "parallel_tool_calls", True)
    if choice in (None, "auto"):
        return ToolChoice(tools, parallel=parallel)
    if choice == "none":
        return ToolChoice()
    if choice == "required":
        return ToolChoice(tools, True, parallel=parallel)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        form = "'none', 'auto', 'required' or {'type': 'function', 'function': {'name': …}}"
        raise field_error("tool_choice", f"'tool_choice' must be {form}")
    if name not in {tool["function"]["name"] for tool in tools}:
        raise field_error("tool_choice", f"'tool_choice' names the function '{name[:100]}', which is not in 'tools'")
    return ToolChoice(tools, True, name, parallel)


def _check_tool(where: str, tool: object) -> None:
    if not isinstance(tool, dict):
        raise fields.wrong_type(where, "an object", tool)
    if tool.get("type", "function") != "function":
        raise field_error(f"{where}.type", f"'{where}.type' must be 'function'")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise fields.wrong_type(f"{where}.function", "an object", function)
    if type(function.get("name")) is not str or not function["name"]:
        raise field_error(f"{where}.function.name", f"'{where}.function.name' must be a string")
    if not isinstance(function.get("parameters") or {}, dict):
        raise fields.wrong_type(f"{where}.function.parameters", "an object", function["parameters"])


def _structure(document: Mapping[str, Any]) -> Mapping[str, object]:
    """``response_format`` as the contract's `structured_outputs`; empty for plain text."""
    chosen = fields.mapping(document, "response_format")
    kind = "text" if chosen is None else chosen.get("type")
    if chosen is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise field_error(
            "response_format.type", "'response_format.type' must be 'text', 'json_object' or 'json_schema'"
        )
    described = chosen.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise field_error(
            "response_format.json_schema", "'response_format.json_schema' must have a 'schema', an object"
        )
    return {"json": schema}
