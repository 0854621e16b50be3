"""The request of ``responses``, in the form that needs no memory of earlier ones: all of the conversation is in it.

It is read as a chat. What would need something stored is refused; ``store`` itself, which OpenAI's clients leave at its
default of true, only says what may be done afterwards, and the response says that nothing is stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from . import fields, items
from .errors import field_error
from .requests import ChatRequest, structure, template_arguments, text_request
from .tools import read_flat_tools

_LONGEST = "max_output_tokens"
_LOGPROBS = "message.output_text.logprobs"
"""What ``include`` has for log probabilities."""

_TEXT_FIELDS = (fields.SAMPLING - {"n", "logprobs", "max_tokens", "max_completion_tokens"}) | {
    "model",
    "stream",
    _LONGEST,
}
_FIELDS = _TEXT_FIELDS | {
    *("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "include", "top_logprobs"),
    *("stream_options", "chat_template_kwargs", "reasoning"),
}
_REPEATED: Final[Mapping[str, object]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
"""Fields that a response repeats, and what it has for those that the request has not."""


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """`repeated` are the members of the response that say what was asked for."""

    chat: ChatRequest
    repeated: Mapping[str, object]


def read_response_request(document: Mapping[str, Any]) -> ResponseRequest:
    """Raises `RequestFieldError`."""
    fields.check_names(fields.RESPONSES, document, _FIELDS)
    form = fields.mapping(document, "text") or {}
    tools = read_flat_tools(document)
    text = text_request(
        {name: value for name, value in document.items() if name in _TEXT_FIELDS},
        _logprobs(document),
        structure(document, tools, form.get("format"), "text.format", ""),
        _LONGEST,
    )
    text = replace(text, include_usage=text.stream)
    reasoning = fields.mapping(document, "reasoning") or {}
    arguments = template_arguments(document, reasoning.get("effort"), "reasoning.effort")
    chat = ChatRequest(text, items.read_messages(document), tools, arguments)
    said = {name: default if (value := document.get(name)) is None else value for name, default in _REPEATED.items()}
    repeated = {**said, "text": {"format": form.get("format") or {"type": "text"}}}
    for name, value in repeated.items():
        _check_written(name, value)
    return ResponseRequest(chat, repeated)


def _check_written(name: str, value: object) -> None:
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise field_error(name, f"'{name}' cannot be repeated in the response: {error}") from None


def _logprobs(document: Mapping[str, Any]) -> int | None:
    top = fields.whole_number(document, "top_logprobs", 0, 20)
    include = document.get("include")
    if include is None:
        include = []
    if type(include) is not list:
        raise fields.wrong_type("include", "an array", include)
    return (top or 0) if top is not None or _LOGPROBS in include else None
