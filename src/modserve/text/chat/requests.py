"""The requests of OpenAI's two calls that generate text, as values that cannot be wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .. import unknown_fields
from . import fields
from .contract import STRUCTURE
from .errors import field_error
from .messages import read_messages
from .tools import ToolChoice, read_tools

CHAT, COMPLETIONS = "chat/completions", "completions"
_MOST_PROMPTS: Final = 256
_USUAL_MAX_TOKENS: Final = 16
"""Of completions, as in OpenAI's API; how long chats are is up to the model."""

_CHAT_FIELDS = fields.COMMON | {
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "top_logprobs"),
    *("chat_template_kwargs", "reasoning_effort", "add_generation_prompt"),
}
_COMPLETION_FIELDS = fields.COMMON | {"prompt", "echo", "best_of", "suffix"}


@dataclass(init=False, slots=True)
class TextRequest:
    """What all calls have. There are `choices` for each prompt. Immutable.

    `logprobs` counts the alternatives of each token; None: nothing is to be said of them.
    """

    model: str
    stream: bool
    include_usage: bool
    choices: int
    sampling: Mapping[str, object]
    stops: tuple[str, ...]
    logprobs: int | None

    def __init__(
        self,
        model: str,
        stream: bool,
        include_usage: bool,
        choices: int,
        sampling: Mapping[str, object],
        stops: tuple[str, ...],
        logprobs: int | None,
    ) -> None:
        self.model = model
        self.stream = stream
        self.include_usage = include_usage
        self.choices = choices
        self.sampling = sampling
        self.stops = stops
        self.logprobs = logprobs

    @property
    def reports_usage(self) -> bool:
        return self.include_usage or not self.stream


class ChatRequest:
    __slots__ = ("add_generation_prompt", "messages", "template_arguments", "text", "tools")

    def __init__(
        self,
        text: TextRequest,
        messages: Sequence[Mapping[str, Any]],
        tools: ToolChoice,
        template_arguments: Mapping[str, Any],
        add_generation_prompt: bool = True,
    ) -> None:
        self.text = text
        self.messages = messages
        self.tools = tools
        self.template_arguments = template_arguments
        self.add_generation_prompt = add_generation_prompt


class CompletionRequest:
    __slots__ = ("echo", "prompts", "text")

    def __init__(self, text: TextRequest, prompts: tuple[str, ...], echo: bool) -> None:
        self.text = text
        self.prompts = prompts
        self.echo = echo


def read_chat(document: Mapping[str, Any]) -> ChatRequest:
    """The request of ``chat/completions``. Raises `RequestFieldError`."""
    unknown_fields.tell(CHAT, document, _CHAT_FIELDS)
    logprobs = fields.whole_number(document, "top_logprobs", 0, 20)
    if fields.boolean(document, "logprobs"):
        logprobs = logprobs or 0
    elif logprobs is not None:
        raise field_error("top_logprobs", "'top_logprobs' is for requests with 'logprobs': true")
    tools = read_tools(document)
    form = structure(tools, document.get("response_format"), "response_format", "json_schema")
    return ChatRequest(
        text_request(document, logprobs, form),
        read_messages(document),
        tools,
        template_arguments(document, document.get("reasoning_effort"), "reasoning_effort"),
        fields.boolean(document, "add_generation_prompt", True),
    )


def template_arguments(document: Mapping[str, Any], effort: object, field: str) -> Mapping[str, Any]:
    """What the chat template sees beside the conversation: how much to think, which `field` has, and what
    ``chat_template_kwargs`` have, which go before it."""
    arguments = fields.mapping(document, "chat_template_kwargs") or {}
    if effort is None:
        return arguments
    if type(effort) is not str:
        raise fields.wrong_type(field, "a string", effort)
    thinking = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **thinking, **arguments}


def read_completion(document: Mapping[str, Any]) -> CompletionRequest:
    """The request of ``completions``. Raises `RequestFieldError`."""
    unknown_fields.tell(COMPLETIONS, document, _COMPLETION_FIELDS)
    if document.get("max_tokens") is None and document.get("max_completion_tokens") is None:
        document = {**document, "max_tokens": _USUAL_MAX_TOKENS}
    text = text_request(document, fields.whole_number(document, "logprobs", 0, 20), {})
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


def text_request(
    document: Mapping[str, Any],
    logprobs: int | None,
    structure: Mapping[str, object],
    longest: str = "max_completion_tokens",
) -> TextRequest:
    """What all calls have. `structure` are further sampling parameters; `longest` names the field with the maximum."""
    stream = fields.boolean(document, "stream")
    sampling: dict[str, object] = {**fields.sampling(document, longest), **structure}
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


def structure(tools: ToolChoice, value: object, field: str, nested: str = "") -> Mapping[str, object]:
    """The sampling parameters for the form of the text: that of a required call, or the format `value` of `field`.

    `nested` is the member of the format that has the schema, if that is not the format itself.
    """
    format = _format(fields.mapping({field: value}, field), field, nested)
    if tools.schema is None:
        return {STRUCTURE: format} if format else {}
    if format:
        raise field_error(field, f"'{field}' and a required call of a tool exclude each other")
    return {STRUCTURE: {"json": tools.schema}}


def _format(format: Mapping[str, Any] | None, field: str, nested: str) -> Mapping[str, object]:
    """A format as the contract's `structured_outputs`; empty for plain text."""
    kind = "text" if format is None else format.get("type")
    if format is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise field_error(f"{field}.type", f"'{field}.type' must be 'text', 'json_object' or 'json_schema'")
    described = format.get(nested) if nested else format
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        where = f"{field}.{nested}" if nested else field
        raise field_error(where, f"'{where}' must have a 'schema', an object")
    return {"json": schema}
