"""The requests of OpenAI's two calls that generate text, as values that cannot be wrong.

The messages of a conversation, as chat templates have them.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from . import fields
from .errors import field_error
from .fields import STRUCTURE
from .tools import ToolChoice, read_tools

INVALID: Final = "invalid_arguments"
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def read_messages(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages of ``chat/completions``. Raises `RequestFieldError`."""
    messages = document.get("messages")
    if messages is None:
        raise field_error("messages", "'messages' is missing")
    if type(messages) is not list:
        raise fields.wrong_type("messages", "an array", messages)
    if not messages:
        raise field_error("messages", "'messages' is empty")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(where: str, message: object) -> Mapping[str, Any]:
    """Return a message as templates have it: its content is one text, arguments of calls are objects."""
    if not isinstance(message, dict):
        raise fields.wrong_type(where, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise field_error(f"{where}.role", f"'{where}.role' must be one of {known}")
    read = {**message, "content": _content(f"{where}.content", message.get("content"))}
    thought = message.get("reasoning_content")
    if thought is not None and type(thought) is not str:
        raise fields.wrong_type(f"{where}.reasoning_content", "a string", thought)
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
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise field_error(where, f"'{where}' must have a 'function' with a 'name'")
    return past_call(where, call, function, ".function")


def past_call(where: str, call: Mapping[str, Any], function: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """A call that a model has made before: `call` with the name and the arguments of `function`, which is at `place`.

    Templates take an object for the arguments. Any other text of a model, or one without its end, becomes the
    member `INVALID` of one: the conversation goes on, and the model sees it. Raises `RequestFieldError`.
    """
    name, arguments = function.get("name"), function.get("arguments")
    if type(name) is not str:
        raise field_error(f"{where}{place}.name", f"'{where}{place}.name' must be a string")
    if isinstance(arguments, str):
        with contextlib.suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments or "null")
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        arguments = {INVALID: arguments}
    return {**call, "function": {**(function if place else {}), "name": name, "arguments": arguments}}


_MOST_PROMPTS: Final = 256
_USUAL_MAX_TOKENS: Final = 16
"""Default for completions, as in OpenAI's API; the length of chats is up to the model."""

CONTINUE: Final = "continue_final_message"

_CHAT_FIELDS = fields.COMMON | {
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "top_logprobs"),
    *("chat_template_kwargs", "reasoning_effort", "add_generation_prompt", CONTINUE),
}
_COMPLETION_FIELDS = fields.COMMON | {"prompt", "echo", "best_of", "response_format"}


class TextForm(NamedTuple):
    """The form of the text: `rule` is the contract's `structured_outputs`, which `field` of the request asks for.

    Both are empty for plain text.
    """

    field: str = ""
    rule: Mapping[str, object] = {}


@dataclass(init=False, slots=True)
class TextRequest:
    """Fields of all calls. There are `choices` for each prompt. Immutable, but for an empty `model`, which stands for
    the only one until that is known.

    `logprobs` counts the alternatives of each token; None: nothing is to be said of them. `stops` end the text in the
    server, too. `structure_field` names the field that holds the text to a form; empty for none.
    """

    model: str
    stream: bool
    include_usage: bool
    choices: int
    sampling: Mapping[str, object]
    stops: tuple[str, ...]
    logprobs: int | None
    structure_field: str

    def __init__(
        self,
        model: str,
        stream: bool,
        include_usage: bool,
        choices: int,
        sampling: Mapping[str, object],
        stops: tuple[str, ...],
        logprobs: int | None,
        structure_field: str,
    ) -> None:
        self.model = model
        self.stream = stream
        self.include_usage = include_usage
        self.choices = choices
        self.sampling = sampling
        self.stops = stops
        self.logprobs = logprobs
        self.structure_field = structure_field

    @property
    def reports_usage(self) -> bool:
        return self.include_usage or not self.stream


class ChatRequest:
    """`continued` is the text of the last message if the model is to go on with it; else empty."""

    __slots__ = ("add_generation_prompt", "continued", "messages", "template_arguments", "text", "tools")

    def __init__(
        self,
        text: TextRequest,
        messages: Sequence[Mapping[str, Any]],
        tools: ToolChoice,
        template_arguments: Mapping[str, Any],
        add_generation_prompt: bool = True,
        continued: str = "",
    ) -> None:
        self.text = text
        self.messages = messages
        self.tools = tools
        self.template_arguments = template_arguments
        self.add_generation_prompt = add_generation_prompt
        self.continued = continued


class CompletionRequest:
    __slots__ = ("echo", "prompts", "text")

    def __init__(self, text: TextRequest, prompts: tuple[str, ...], echo: bool) -> None:
        self.text = text
        self.prompts = prompts
        self.echo = echo


def read_chat(document: Mapping[str, Any]) -> ChatRequest:
    """Return the request of ``chat/completions``. Raises `RequestFieldError`."""
    fields.check_names(fields.CHAT, document, _CHAT_FIELDS)
    logprobs = fields.whole_number(document, "top_logprobs", 0, 20)
    if fields.boolean(document, "logprobs"):
        logprobs = logprobs or 0
    elif logprobs is not None:
        raise field_error("top_logprobs", "'top_logprobs' is for requests with 'logprobs': true")
    tools, messages = read_tools(document), read_messages(document)
    continued = _read_continuation(document, messages[-1])
    return ChatRequest(
        text_request(document, logprobs, structure(document, tools)),
        messages,
        tools,
        template_arguments(document, document.get("reasoning_effort"), "reasoning_effort"),
        fields.boolean(document, "add_generation_prompt", not continued),
        continued,
    )


def _read_continuation(document: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Return the text of the last message, if that is to be continued (vLLM's ``continue_final_message``)."""
    if not fields.boolean(document, CONTINUE):
        return ""
    if document.get("add_generation_prompt"):
        raise field_error(CONTINUE, f"'{CONTINUE}' and 'add_generation_prompt' exclude each other")
    text = last["content"]
    if not text or not text.strip():
        raise field_error(CONTINUE, f"'{CONTINUE}': the last message has no text")
    return str(text)


def template_arguments(document: Mapping[str, Any], effort: object, field: str) -> Mapping[str, Any]:
    """Arguments of the chat template beside the conversation: how much to think, which `field` has, and what
    ``chat_template_kwargs`` have, which go before it."""
    arguments = fields.mapping(document, "chat_template_kwargs") or {}
    if effort is None:
        return arguments
    if type(effort) is not str:
        raise fields.wrong_type(field, "a string", effort)
    thinking = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **thinking, **arguments}


def read_completion(document: Mapping[str, Any]) -> CompletionRequest:
    """Return the request of ``completions``. Raises `RequestFieldError`."""
    fields.check_names(fields.COMPLETIONS, document, _COMPLETION_FIELDS)
    if document.get("max_tokens") is None and document.get("max_completion_tokens") is None:
        document = {**document, "max_tokens": _USUAL_MAX_TOKENS}
    logprobs = fields.whole_number(document, "logprobs", 0, 20)
    text = text_request(document, logprobs, structure(document, ToolChoice()))
    best_of = fields.whole_number(document, "best_of", 1, fields.MOST_CHOICES)
    if best_of not in (None, 1, text.choices):
        raise field_error("best_of", "'best_of' is not supported: ask for 'n' choices and take the best of them")
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


def text_request(
    document: Mapping[str, Any],
    logprobs: int | None,
    structure: TextForm,
    longest: str = "max_completion_tokens",
) -> TextRequest:
    """Read the fields of all calls. `longest` names the field with the maximum."""
    stream = fields.boolean(document, "stream")
    sampling: dict[str, object] = fields.sampling(document, longest)
    if structure.rule:
        sampling[STRUCTURE] = structure.rule
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    stops = () if sampling.get("min_tokens") else fields.stops(document)  # what counts tokens knows when a stop counts
    return TextRequest(
        "" if document.get("model") is None else fields.text(document, "model"),
        stream,
        fields.stream_usage(document, stream),
        fields.whole_number(document, "n", 1, fields.MOST_CHOICES) or 1,
        sampling,
        stops,
        logprobs,
        structure.field,
    )


def structure(
    document: Mapping[str, Any],
    tools: ToolChoice,
    format: object = None,
    field: str = "response_format",
    nested: str = "json_schema",
) -> TextForm:
    """Return the form that one field of the request holds the text to: a required call, a format, or vLLM's own fields.

    `format` is the value of `field` where that is not a member of the request; its member `nested` has the schema, if
    that is not the format itself.
    """
    forms: list[TextForm] = []
    if tools.schema is not None:
        forms.append(TextForm("tool_choice", {"json": tools.schema}))
    format = document.get(field) if format is None else format
    rule = _format(fields.mapping({field: format}, field), field, nested)
    if rule:
        forms.append(TextForm(field, rule))
    for name, member in fields.FORMS.items():
        rule = {member: document.get(name)} if member else fields.mapping(document, name) or {}
        if any(value is not None and value is not False for value in rule.values()):
            forms.append(TextForm(name, rule))
    if len(forms) > 1:
        one, other = forms[0].field, forms[1].field
        raise field_error(other, f"'{other}' and '{one}' exclude each other: each says what the text has to be")
    return forms[0] if forms else TextForm()


def _format(format: Mapping[str, Any] | None, field: str, nested: str) -> Mapping[str, object]:
    """Return a format as the contract's `structured_outputs`; empty for plain text."""
    kind = "text" if format is None else format.get("type")
    if format is None:
        return {}
    if kind in ("text", "json_object"):
        for name, value in format.items():
            if value is not None and name != "type" and (name != "schema" or kind == "text"):
                raise field_error(
                    f"{field}.{name}",
                    f"'{field}.{name}' has no meaning for the type '{kind}': 'json_schema' has schemas",
                )
    if kind == "text":
        return {}
    described = format.get(nested) if nested and kind == "json_schema" else format
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind == "json_object" and schema is None:
        return {"json_object": True}
    if kind not in ("json_object", "json_schema"):
        raise field_error(f"{field}.type", f"'{field}.type' must be 'text', 'json_object' or 'json_schema'")
    if not isinstance(schema, dict):
        where = f"{field}.{nested}" if nested and kind == "json_schema" else field
        raise field_error(where, f"'{where}' must have a 'schema', an object")
    return {"json": schema}
