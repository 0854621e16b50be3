"""The input of ``responses``: a text or a list of items, which become the messages of a conversation.

==========================  ===================================================================
``message``, or no `type`   a message with a text or a list of parts with texts
``function_call``           a call made by the model: part of the assistant's message
``function_call_output``    a message of the tool
``reasoning``               the model's thought before the next item; omitted without text
==========================  ===================================================================

Requests of ``responses`` are stateless: each contains the whole conversation.

A request is read as a chat. Fields that need stored data are refused, except ``store``, which OpenAI's clients leave at
its default of true: it only permits later use, and the response states that nothing is stored.

Responses of ``responses``: a response with items, or the events in which it grows.

The events of a message are ``output_item.added``, ``content_part.added``, ``output_text.delta`` for each piece, and
``output_text.done``, ``content_part.done`` and ``output_item.done`` with the complete text. A thought has the same
events with ``reasoning_text``. A tool call has ``output_item.added``, ``function_call_arguments.delta`` and ``.done``,
and ``output_item.done``. Before them come ``response.created`` and ``response.in_progress``, at the end
``response.completed``, ``.incomplete`` or ``.failed``.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from modserve.core.errors import ModserveError
from modserve.text.openai_errors import error_body

from . import fields
from .choice import Alternatives, Delta, TextChoice, Usage
from .errors import field_error
from .requests import ChatRequest, past_call, structure, template_arguments, text_request
from .responses import CollectedChoice, chat_logprobs
from .tools import ToolCall, read_flat_tools

_ROLES = ("assistant", "developer", "system", "user")
_TEXTS = {"input_text": "text", "output_text": "text", "reasoning_text": "text", "text": "text", "refusal": "refusal"}
"""Type of a part → its member with the text."""


def read_messages(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return ``instructions`` and ``input`` as messages. Raises `RequestFieldError`."""
    messages: list[Mapping[str, Any]] = []
    instructions, items = document.get("instructions"), document.get("input")
    if instructions is not None:
        messages.append({"role": "system", "content": _text("instructions", instructions)})
    if items is None:
        raise field_error("input", "'input' is missing")
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if type(items) is not list:
        raise fields.wrong_type("input", "a string or an array of items", items)
    if not items:
        raise field_error("input", "'input' is empty")
    for index, item in enumerate(items):
        _add(messages, f"input[{index}]", item)
    return messages


def _add(messages: list[Mapping[str, Any]], where: str, item: object) -> None:
    if not isinstance(item, dict):
        raise fields.wrong_type(where, "an object", item)
    kind = item.get("type") or "message"
    if kind == "message":
        message, last = _message(where, item), messages[-1] if messages else {}
        if message["role"] == "assistant" and _is_thought(last):
            message = {**messages.pop(), **message}
        messages.append(message)
    elif kind == "function_call":
        _add_call(messages, where, item)
    elif kind == "function_call_output":
        output = _text(f"{where}.output", item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "item_reference":
        raise field_error(where, f"'{where}' refers to an item of before, and nothing is stored: send the item itself")
    elif kind == "reasoning":
        if item.get("content"):
            thought = _text(f"{where}.content", item["content"])
            messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
    else:
        known = "'message', 'function_call', 'function_call_output' or 'reasoning'"
        raise field_error(f"{where}.type", f"'{where}.type' must be {known}")


def _is_thought(message: Mapping[str, Any]) -> bool:
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def _message(where: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise field_error(f"{where}.role", f"'{where}.role' must be one of {', '.join(_ROLES)}")
    return {"role": role, "content": _text(f"{where}.content", item.get("content"))}


def _add_call(messages: list[Mapping[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    """Add a call. Consecutive calls, and the assistant's text before them, form one message."""
    call = past_call(where, {"id": item.get("call_id"), "type": "function"}, item, "")
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _text(where: str, content: object) -> str:
    """Return a text, or the texts of parts, separated by line breaks."""
    if isinstance(content, str):
        return content
    if content is None:
        raise field_error(where, f"'{where}' is missing")
    if not isinstance(content, list):
        raise fields.wrong_type(where, "a string or an array of parts", content)
    return "\n".join(_part(f"{where}[{index}]", part) for index, part in enumerate(content))


def _part(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    member = _TEXTS.get(kind) if isinstance(kind, str) else None
    if not isinstance(part, dict) or member is None:
        raise field_error(where, f"'{where}' is no text: parts of the types input_text and output_text are supported")
    text = part.get(member)
    if not isinstance(text, str):
        raise fields.wrong_type(f"{where}.{member}", "a string", text)
    return text


_LONGEST = "max_output_tokens"
_LOGPROBS = "message.output_text.logprobs"
"""Value of ``include`` that requests log probabilities."""

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
"""Request fields repeated in the response, with their defaults."""


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request. `repeated`: request fields repeated in the response."""

    chat: ChatRequest
    repeated: Mapping[str, object]


def read_response_request(document: Mapping[str, Any]) -> ResponseRequest:
    """Read a request. Raises `RequestFieldError`."""
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
    chat = ChatRequest(text, read_messages(document), tools, arguments)
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


_MESSAGE, _REASONING = "message", "reasoning"
_PARTS: Mapping[str, str] = {_MESSAGE: "output_text", _REASONING: "reasoning_text"}
"""Type of a growing item → type of its part, which is in the names of its events."""
_IDS: Mapping[str, str] = {_MESSAGE: "msg", _REASONING: "rs"}
_CODES: Mapping[int, str] = {429: "rate_limit_exceeded"}
"""HTTP status → code of a failed response. Others are server errors."""


class ItemWriter:
    """Implements `OpenAIWriter` for ``responses``, with one choice."""

    keeps_text = True
    """The last events repeat the whole text."""

    def __init__(self, id: str, request: ResponseRequest) -> None:
        self._id = id
        self._text = request.chat.text
        self._begun_at = int(time.time())
        self._repeated = request.repeated
        self._number = 0
        self._items: list[dict[str, Any]] = []
        """Complete items."""
        self._open: _OpenItem | None = None
        """The growing item."""

    def delta(self, choice: TextChoice, delta: Delta) -> bytes:
        events = self._beginning()
        if delta.thought:
            events += self._say(_REASONING, delta.thought, None)
        if delta.text or delta.logprobs:
            events += self._say(_MESSAGE, delta.text, delta.logprobs)
        if delta.calls:
            events += self._end_open("completed")
            for call in delta.calls:
                events += self._call(call)
        return events

    def end(self, choice: TextChoice) -> bytes:
        """Return nothing: the last events follow with the usage."""
        return b""

    def finish(self, choices: Sequence[TextChoice], usage: Usage) -> bytes:
        (choice,) = choices
        status = _status(choice)
        events = self._beginning()
        if not self._items and self._open is None:
            events += self._begin(_MESSAGE)
        events += self._end_open(status)
        return events + self._event(f"response.{status}", {"response": self._response(status, self._items, usage)})

    def failure(self, error: ModserveError, status: int, message: str) -> bytes:
        said = error_body(error, status, message)["error"]
        events = self._beginning()
        events += self._event("error", {"code": said["code"], "message": message, "param": said["param"]})
        failed = {"error": {"code": _CODES.get(status, "server_error"), "message": message}}
        response = self._response("failed", self._items, None) | failed
        return events + self._event("response.failed", {"response": response})

    def whole(self, wholes: Sequence[CollectedChoice], usage: Usage) -> bytes:
        (whole,) = wholes
        status, text, items = _status(whole.choice), whole.text, []
        if whole.thought:
            part = _make_part(_REASONING, whole.thought, [])
            over = text or whole.calls
            items.append(_item(_REASONING, self._item_id("rs", 0), "completed" if over else status, [part]))
        if text or not (whole.calls or whole.thought) or (whole.logprobs and not whole.thought):
            part = _make_part(_MESSAGE, text, self._logprobs(whole.logprobs))
            id = self._item_id("msg", len(items))
            items.append(_item(_MESSAGE, id, "completed" if whole.calls else status, [part]))
        for call in whole.calls:
            items.append(_call_item(self._item_id("fc", len(items)), self._item_id("call", len(items)), call))
        return orjson.dumps(self._response(status, items, usage))

    def _beginning(self) -> bytes:
        if self._number:
            return b""
        response = self._response("in_progress", [], None)
        events = self._event("response.created", {"response": response})
        return events + self._event("response.in_progress", {"response": response})

    def _say(self, kind: str, text: str, logprobs: Alternatives | None) -> bytes:
        """Return a piece of an item of this kind; begin the item unless it is already open."""
        events = self._begin(kind)
        opened = self._open
        assert opened is not None, "it was begun: this is a bug"
        opened.texts.append(text)
        said = {**opened.place, "content_index": 0, "delta": text}
        if kind == _MESSAGE:
            said["logprobs"] = self._logprobs(logprobs)
            opened.logprobs += said["logprobs"]
        return events + self._event(f"response.{_PARTS[kind]}.delta", said)

    def _begin(self, kind: str) -> bytes:
        if self._open is not None and self._open.kind == kind:
            return b""
        events = self._end_open("completed")
        index = len(self._items)
        self._open = opened = _OpenItem(kind, self._item_id(_IDS[kind], index), index)
        item = _item(kind, opened.id, "in_progress", [])
        events += self._event("response.output_item.added", {"output_index": index, "item": item})
        part = {**opened.place, "content_index": 0, "part": _make_part(kind, "", [])}
        return events + self._event("response.content_part.added", part)

    def _end_open(self, status: str) -> bytes:
        opened = self._open
        if opened is None:
            return b""
        self._open, text = None, "".join(opened.texts)
        place, part = {**opened.place, "content_index": 0}, _make_part(opened.kind, text, opened.logprobs)
        said = {**place, "text": text}
        if opened.kind == _MESSAGE:
            said["logprobs"] = opened.logprobs
        events = self._event(f"response.{_PARTS[opened.kind]}.done", said)
        events += self._event("response.content_part.done", {**place, "part": part})
        return events + self._complete(_item(opened.kind, opened.id, status, [part]))

    def _call(self, call: ToolCall) -> bytes:
        index = len(self._items)
        item = _call_item(self._item_id("fc", index), self._item_id("call", index), call)
        place = {"item_id": item["id"], "output_index": index}
        growing = {"output_index": index, "item": {**item, "arguments": "", "status": "in_progress"}}
        events = self._event("response.output_item.added", growing)
        events += self._event("response.function_call_arguments.delta", {**place, "delta": call.arguments})
        said = {**place, "name": call.name, "arguments": call.arguments}
        return events + self._event("response.function_call_arguments.done", said) + self._complete(item)

    def _complete(self, item: dict[str, Any]) -> bytes:
        index = len(self._items)
        self._items.append(item)
        return self._event("response.output_item.done", {"output_index": index, "item": item})

    def _event(self, kind: str, members: Mapping[str, object]) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _response(self, status: str, items: Sequence[Mapping[str, Any]], usage: Usage | None) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._begun_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": reason,
            "model": self._text.model,
            "output": items,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            **self._repeated,
        }

    def _item_id(self, kind: str, index: int) -> str:
        return f"{kind}_{self._id}_{index}"

    def _logprobs(self, alternatives: Alternatives | None) -> list[dict[str, Any]]:
        top = self._text.logprobs
        return [] if top is None or not alternatives else chat_logprobs(alternatives, top)["content"]


class _OpenItem:
    """A growing message or thought, item `index` of its response."""

    def __init__(self, kind: str, id: str, index: int) -> None:
        self.kind = kind
        self.id = id
        self.place: dict[str, Any] = {"item_id": id, "output_index": index}
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []


def _status(choice: TextChoice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _make_part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    part = {"type": _PARTS[kind], "text": text}
    return part | {"annotations": [], "logprobs": logprobs} if kind == _MESSAGE else part


def _item(kind: str, id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant"} if kind == _MESSAGE else {"summary": []}
    return {"id": id, "type": kind, **said, "status": status, "content": content}


def _call_item(id: str, call_id: str, call: ToolCall) -> dict[str, Any]:
    said = {"call_id": call_id, "name": call.name, "arguments": call.arguments}
    return {"id": id, "type": "function_call", "status": "completed", **said}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
