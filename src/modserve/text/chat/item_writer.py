"""What clients of ``responses`` get: a response with items, or the events in which it grows.

The events of a message are ``output_item.added``, ``content_part.added``, ``output_text.delta`` for each piece, and
``output_text.done``, ``content_part.done`` and ``output_item.done``, which have all of it. A thought has the same ones
with ``reasoning_text``. Those of a call of a tool are ``output_item.added``, ``function_call_arguments.delta`` and
``.done``, and ``output_item.done``. Before them come ``response.created`` and ``response.in_progress``, at the end
``response.completed``, ``.incomplete`` or ``.failed``.
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

_MESSAGE, _REASONING = "message", "reasoning"
_PARTS: Mapping[str, str] = {_MESSAGE: "output_text", _REASONING: "reasoning_text"}
"""Type of an item that grows → type of its part, which is in the names of its events."""
_IDS: Mapping[str, str] = {_MESSAGE: "msg", _REASONING: "rs"}
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
        self._open: _OpenItem | None = None
        """The one that grows."""

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
        """Nothing: the last events follow with the usage."""
        return b""

    def done(self, choices: Sequence[TextChoice], usage: Usage) -> bytes:
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

    def whole(self, wholes: Sequence[Whole], usage: Usage) -> bytes:
        (whole,) = wholes
        status, text, items = _status(whole.choice), whole.text, []
        if whole.thought:
            part = _part(_REASONING, whole.thought, [])
            over = text or whole.calls
            items.append(_item(_REASONING, self._item_id("rs", 0), "completed" if over else status, [part]))
        if text or not (whole.calls or whole.thought) or (whole.logprobs and not whole.thought):
            part = _part(_MESSAGE, text, self._logprobs(whole.logprobs))
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
        """A piece of the item of this kind, which begins with it if another one or none was open."""
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
        part = {**opened.place, "content_index": 0, "part": _part(kind, "", [])}
        return events + self._event("response.content_part.added", part)

    def _end_open(self, status: str) -> bytes:
        opened = self._open
        if opened is None:
            return b""
        self._open, text = None, "".join(opened.texts)
        place, part = {**opened.place, "content_index": 0}, _part(opened.kind, text, opened.logprobs)
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
    """A message or a thought that grows, the item `index` of its response."""

    def __init__(self, kind: str, id: str, index: int) -> None:
        self.kind = kind
        self.id = id
        self.place: dict[str, Any] = {"item_id": id, "output_index": index}
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []


def _status(choice: TextChoice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
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
