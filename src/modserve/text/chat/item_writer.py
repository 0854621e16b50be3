"""What clients of ``responses`` get: a response with items, or the events in which it grows.

The events of a message are ``output_item.added``, ``content_part.added``, ``output_text.delta`` for each piece, and
``output_text.done``, ``content_part.done`` and ``output_item.done``, which have all of it. Those of a call of a tool
are ``output_item.added``, ``function_call_arguments.delta`` and ``.done``, and ``output_item.done``. Before them come
``response.created`` and ``response.in_progress``, at the end ``response.completed``, ``.incomplete`` or ``.failed``.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from modserve.core.errors import ModserveError

from ..openai_errors import error_body
from .choice import Alternatives, Delta, TextChoice, Usage
from .item_requests import ResponseRequest
from .logprobs import chat_logprobs
from .responses import Whole
from .tool_calls import ToolCall

_CODES: Mapping[int, str] = {429: "rate_limit_exceeded"}
"""HTTP status → code of a response that failed. Others are the server's."""


class ItemWriter:
    """Implements `OpenAIWriter` for ``responses``, which have one choice."""

    keeps_text = True
    """The last events have all of the text again."""

    def __init__(self, id: str, request: ResponseRequest) -> None:
        self._id = id
        self._text = request.chat.text
        self._begun_at = int(time.time())
        self._repeated = request.repeated
        self._number = 0
        self._items: list[dict[str, Any]] = []
        """Those that are complete."""
        self._message: _Message | None = None
        """The one that grows."""

    def delta(self, choice: TextChoice, delta: Delta) -> bytes:
        events = self._beginning()
        if delta.text or delta.logprobs:
            events += self._say(delta)
        if delta.calls:
            events += self._end_message("completed")
            for call in delta.calls:
                events += self._call(call)
        return events

    def end(self, choice: TextChoice) -> bytes:
        """Nothing: the last events follow with the usage."""
        return b""

    def done(self, choices: Sequence[TextChoice], usage: Usage) -> bytes:
        (choice,) = choices
        status = _status(choice)
        events = self._beginning()
        if not self._items and self._message is None:
            events += self._begin_message()
        events += self._end_message(status)
        return events + self._event(f"response.{status}", {"response": self._response(status, self._items, usage)})

    def failure(self, error: ModserveError, status: int, message: str) -> bytes:
        said = error_body(error, status, message)["error"]
        events = self._beginning()
        events += self._event("error", {"code": said["code"], "message": message, "param": said["param"]})
        failed = {"error": {"code": _CODES.get(status, "server_error"), "message": message}}
        response = self._response("failed", self._items, None) | failed
        return events + self._event("response.failed", {"response": response})

    def whole(self, wholes: Sequence[Whole], usage: Usage) -> bytes:
        (whole,) = wholes
        status, text, items = _status(whole.choice), whole.text, []
        if text or whole.logprobs or not whole.calls:
            part = _part(text, self._logprobs(whole.logprobs))
            items.append(_message_item(self._item_id("msg", 0), "completed" if whole.calls else status, [part]))
        for call in whole.calls:
            items.append(_call_item(self._item_id("fc", len(items)), self._item_id("call", len(items)), call))
        return orjson.dumps(self._response(status, items, usage))

    def _beginning(self) -> bytes:
        if self._number:
            return b""
        response = self._response("in_progress", [], None)
        events = self._event("response.created", {"response": response})
        return events + self._event("response.in_progress", {"response": response})

    def _say(self, delta: Delta) -> bytes:
        events = self._begin_message()
        assert self._message is not None, "it was begun: this is a bug"
        logprobs = self._logprobs(delta.logprobs)
        self._message.texts.append(delta.text)
        self._message.logprobs += logprobs
        said = {**self._message.place, "content_index": 0, "delta": delta.text, "logprobs": logprobs}
        return events + self._event("response.output_text.delta", said)

    def _begin_message(self) -> bytes:
        if self._message is not None:
            return b""
        index = len(self._items)
        self._message = message = _Message(self._item_id("msg", index), index)
        item = _message_item(message.id, "in_progress", [])
        events = self._event("response.output_item.added", {"output_index": index, "item": item})
        part = {**message.place, "content_index": 0, "part": _part("", [])}
        return events + self._event("response.content_part.added", part)

    def _end_message(self, status: str) -> bytes:
        message = self._message
        if message is None:
            return b""
        self._message, text = None, "".join(message.texts)
        place, part = {**message.place, "content_index": 0}, _part(text, message.logprobs)
        events = self._event("response.output_text.done", {**place, "text": text, "logprobs": message.logprobs})
        events += self._event("response.content_part.done", {**place, "part": part})
        return events + self._complete(_message_item(message.id, status, [part]))

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


class _Message:
    """A message that grows, the item `index` of its response."""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.place = {"item_id": id, "output_index": index}
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []


def _status(choice: TextChoice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _message_item(id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def _call_item(id: str, call_id: str, call: ToolCall) -> dict[str, Any]:
    said = {"call_id": call_id, "name": call.name, "arguments": call.arguments}
    return {"id": id, "type": "function_call", "status": "completed", **said}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
