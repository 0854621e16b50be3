"""Responses in OpenAI's format: a document, or server-sent events.

Also log probabilities of vLLM's backend, in OpenAI's two formats.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from modserve.core.errors import ModserveError

from .choice import Alternatives, Delta, TextChoice, Usage
from .errors import error_event
from .requests import TextRequest
from .tools import ToolCall

_LEAST = -9999.0
"""Replacement for minus infinity, as in OpenAI's API: JSON has none."""
_TOP_BITS, _WITHIN = 0xC0, 0x80
"""First two bits of a UTF-8 byte that continues a character."""


def chat_logprobs(alternatives: Alternatives, top: int) -> dict[str, Any]:
    """Return `logprobs` of a choice of ``chat/completions``."""
    content = []
    for token in alternatives:
        entries = list(token.values())
        if not entries:
            continue
        likely = sorted(entries, key=_rank)[:top]
        content.append({**_entry(entries[0]), "top_logprobs": [_entry(each) for each in likely]})
    return {"content": content, "refusal": None}


def completion_logprobs(alternatives: Alternatives, top: int, offset: int) -> tuple[dict[str, Any], int]:
    """Return `logprobs` of a choice of ``completions`` after `offset` characters of text, and the offset after it."""
    tokens, values, best, offsets = [], [], [], []
    for token in alternatives:
        entries = list(token.values())
        if not entries:
            continue
        tokens.append(_mark_token(entries[0]))
        values.append(_value(entries[0]))
        best.append({_mark_token(each): _value(each) for each in sorted(entries, key=_rank)[:top]})
        begun = [byte & _TOP_BITS != _WITHIN for byte in _bytes(entries[0])]  # for each byte: begins a character
        offsets.append(offset if not begun or begun[0] else max(0, offset - 1))
        offset += sum(begun)
    said = {"tokens": tokens, "token_logprobs": values, "top_logprobs": best if top else None, "text_offset": offsets}
    return said, offset


def _entry(token: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": _token(token), "logprob": _value(token), "bytes": list(_bytes(token))}


def _bytes(token: Mapping[str, Any]) -> bytes:
    """Return a token's bytes as reported by the model for a part of a character, otherwise the bytes of its text."""
    raw = token.get("bytes")
    if isinstance(raw, list) and all(type(byte) is int and 0 <= byte < 256 for byte in raw):
        return bytes(raw)
    return str(token.get("decoded_token") or "").encode(errors="replace")


def _token(token: Mapping[str, Any]) -> str:
    r"""Return the text of a token; for a part of a character with escaped bytes, such as ``\xf0\x9f``."""
    return _bytes(token).decode(errors="backslashreplace")


def _mark_token(token: Mapping[str, Any]) -> str:
    """Return a token in the format of ``completions``, which has no separate bytes."""
    text = _token(token)
    return text if text.encode() == _bytes(token) else f"bytes:{text}"


def _value(token: Mapping[str, Any]) -> float:
    value = token.get("logprob")
    return max(float(value), _LEAST) if isinstance(value, int | float) else _LEAST


def _rank(token: Mapping[str, Any]) -> float:
    rank = token.get("rank")
    return rank if isinstance(rank, int | float) else float("inf")


_DONE = b"data: [DONE]\n\n"


class CollectedChoice:
    """A complete choice, for a response without streaming."""

    def __init__(self, choice: TextChoice) -> None:
        self.choice = choice
        self.size = 0
        """Number of characters."""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.logprobs: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thought(self) -> str:
        return "".join(self._thoughts)

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._thoughts.append(delta.thought)
        self.size += len(delta.text) + len(delta.thought)
        self.calls += delta.calls
        self.logprobs += delta.logprobs or ()


class OpenAIWriter(Protocol):
    """Writes the responses of one request. Output for streams consists of complete events."""

    @property
    def keeps_text(self) -> bool:
        """True if a stream takes memory for its whole text."""

    def delta(self, choice: TextChoice, delta: Delta) -> bytes:
        """Write a piece's addition to a choice; empty if there is none."""

    def end(self, choice: TextChoice) -> bytes:
        """Write the end of a choice."""

    def finish(self, choices: Sequence[TextChoice], usage: Usage) -> bytes:
        """Write the end of a stream, after all choices have ended."""

    def failure(self, error: ModserveError, status: int, message: str) -> bytes:
        """Write the end of a failed stream: an error with its HTTP status, and its public `message`."""

    def whole(self, wholes: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """Return the document of a response without streaming."""


class _Events:
    """Events of one stream, with the common part `head`."""

    def __init__(self, id: str, kind: str, request: TextRequest) -> None:
        head = {"id": id, "object": kind, "created": int(time.time()), "model": request.model}
        self._before = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._with_usage = request.include_usage
        self._after = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"

    def choice(self, members: dict[str, Any]) -> bytes:
        return self._before + orjson.dumps(members) + self._after

    def finish(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return _DONE
        said = orjson.dumps(usage.document)
        return self._before + b'],"usage":' + said + b"}\n\n" + _DONE


class ChatWriter:
    """Implements `OpenAIWriter` for ``chat/completions``."""

    keeps_text = False

    def __init__(self, id: str, request: TextRequest) -> None:
        self._id = id
        self._request = request
        self._events = _Events(f"chatcmpl-{id}", "chat.completion.chunk", request)
        self._begun: set[int] = set()

    def delta(self, choice: TextChoice, delta: Delta) -> bytes:
        events = b""
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            events = self._event(choice, {"role": "assistant", "content": ""})
        if delta.thought:
            events += self._event(choice, {"reasoning_content": delta.thought})
        if delta.text or delta.logprobs:
            events += self._event(choice, {"content": delta.text}, self._logprobs(delta.logprobs))
        if delta.calls:
            first = choice.calls - len(delta.calls)
            calls = [{"index": first + n, **self._call(choice, first + n, call)} for n, call in enumerate(delta.calls)]
            events += self._event(choice, {"tool_calls": calls})
        return events

    def end(self, choice: TextChoice) -> bytes:
        return self._event(choice, {}, reason=choice.finish_reason)

    def finish(self, choices: Sequence[TextChoice], usage: Usage) -> bytes:
        return self._events.finish(usage)

    def failure(self, error: ModserveError, status: int, message: str) -> bytes:
        return error_event(error, status, message)

    def whole(self, wholes: Sequence[CollectedChoice], usage: Usage) -> bytes:
        choices = []
        for whole in wholes:
            text = whole.text
            message: dict[str, Any] = {"role": "assistant", "content": text or (None if whole.calls else "")}
            message["refusal"] = None
            if whole.thought:
                message["reasoning_content"] = whole.thought
            if whole.calls:
                calls = [self._call(whole.choice, index, call) for index, call in enumerate(whole.calls)]
                message["tool_calls"] = calls
            choices.append(
                {
                    "index": whole.choice.index,
                    "message": message,
                    "logprobs": self._logprobs(whole.logprobs),
                    "finish_reason": whole.choice.finish_reason,
                }
            )
        return _document(f"chatcmpl-{self._id}", "chat.completion", self._request, choices, usage)

    def _event(
        self, choice: TextChoice, delta: dict[str, Any], logprobs: object = None, reason: str | None = None
    ) -> bytes:
        members = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._events.choice(members)

    def _logprobs(self, alternatives: Alternatives | None) -> dict[str, Any] | None:
        top = self._request.logprobs
        return None if top is None or not alternatives else chat_logprobs(alternatives, top)

    def _call(self, choice: TextChoice, index: int, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{self._id}_{choice.index}_{index}", "type": "function", "function": function}


class CompletionWriter:
    """Implements `OpenAIWriter` for ``completions``. `echoes`: prompts to repeat, by choice; empty for none."""

    keeps_text = False

    def __init__(self, id: str, request: TextRequest, echoes: Sequence[str] = ()) -> None:
        self._id = id
        self._request = request
        self._events = _Events(f"cmpl-{id}", "text_completion", request)
        self._echoes = dict(enumerate(echoes))
        self._offsets: dict[int, int] = {}

    def delta(self, choice: TextChoice, delta: Delta) -> bytes:
        text = self._echoes.pop(choice.index, "") + delta.text
        if not text and not delta.logprobs:
            return b""
        return self._event(choice, text, self._logprobs(choice, delta.logprobs))

    def end(self, choice: TextChoice) -> bytes:
        return self._event(choice, "", reason=choice.finish_reason)

    def finish(self, choices: Sequence[TextChoice], usage: Usage) -> bytes:
        return self._events.finish(usage)

    def failure(self, error: ModserveError, status: int, message: str) -> bytes:
        return error_event(error, status, message)

    def whole(self, wholes: Sequence[CollectedChoice], usage: Usage) -> bytes:
        choices = [
            {
                "index": whole.choice.index,
                "text": self._echoes.get(whole.choice.index, "") + whole.text,
                "logprobs": self._logprobs(whole.choice, whole.logprobs),
                "finish_reason": whole.choice.finish_reason,
            }
            for whole in wholes
        ]
        return _document(f"cmpl-{self._id}", "text_completion", self._request, choices, usage)

    def _event(self, choice: TextChoice, text: str, logprobs: object = None, reason: str | None = None) -> bytes:
        members = {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._events.choice(members)

    def _logprobs(self, choice: TextChoice, alternatives: Alternatives | None) -> dict[str, Any] | None:
        top = self._request.logprobs
        if top is None or not alternatives:
            return None
        said, self._offsets[choice.index] = completion_logprobs(alternatives, top, self._offsets.get(choice.index, 0))
        return said


def _document(id: str, kind: str, request: TextRequest, choices: list[dict[str, Any]], usage: Usage) -> bytes:
    head = {"id": id, "object": kind, "created": int(time.time()), "model": request.model}
    return orjson.dumps({**head, "choices": choices, "usage": usage.document})
