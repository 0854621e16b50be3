"""Requests of OpenAI's API, as bytes, and what their responses say of tokens and times."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ..destination import Destination
from .http import LONGEST_ERROR, Heads, HttpSlots, HttpStreamSlot
from .inputs import PreparedRequest
from .slots import Endpoint, ResponseListener, clock
from .text_measures import TAG_WIDTH, TextCounter, TextResponse

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}
"""Path of each value of ``--openai``."""
_GAP = "@" * TAG_WIDTH
"""Placeholder in a body for a number of each request's own, so that none begins like one before it."""
_DATA, _DONE = b"data:", b"[DONE]"
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')


@dataclass(frozen=True, slots=True)
class OpenAiCalls:
    """OpenAI calls. `kind` is a key of PATHS, `extra` are further body fields; embeddings send `batch_size` texts."""

    kind: str
    model: str
    output_tokens: int
    extra: Mapping[str, Any]
    batch_size: int = 1

    @property
    def streams(self) -> bool:
        return self.kind != "embeddings"

    def body(self, texts: Sequence[str], **fields: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model}
        if self.kind == "embeddings":
            body |= {"input": list(texts), "encoding_format": "base64"}
        else:
            (prompt,) = texts
            body |= {"messages": [{"role": "user", "content": prompt}]} if self.kind == "chat" else {"prompt": prompt}
            body |= {"max_tokens": self.output_tokens, "stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in (body | dict(self.extra) | fields).items() if value is not None}

    def prompt_tokens(self, response: bytes) -> int:
        """Return the prompt tokens of a non-streaming response; 0 if it does not report them."""
        match = _PROMPT_TOKENS.search(response)
        return int(match[1]) if match else 0

    def requests(
        self, endpoint: Endpoint, server: Destination, prompts: Sequence[str], *, numbered: bool
    ) -> list[PreparedRequest]:
        """Return a request per prompt or batch of prompts; `numbered` ones begin with a gap for `TextCounter.tag`."""
        lines = [f"POST {server.address.prefix}{PATHS[self.kind]} HTTP/1.1", f"Host: {endpoint.authority}"]
        lines += ["Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in server.access.headers.items()]
        size = self.batch_size
        batches = [
            [prompts[(start + row) % len(prompts)] for row in range(size)] for start in range(0, len(prompts), size)
        ]
        made = []
        for texts in batches:
            first = _GAP + texts[0] if numbered else texts[0]
            body = json.dumps(self.body([first, *texts[1:]])).encode()
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1")
            before, _, after = body.partition(_GAP.encode())
            made.append(PreparedRequest(head + before, after) if numbered else PreparedRequest(head + body))
        return made


class EventReader:
    """Server-sent events of chats and completions: one with text is a response."""

    def __init__(self, counter: TextCounter) -> None:
        self._counter = counter
        self.begin()

    def begin(self) -> None:
        self._response = TextResponse()
        self._error = ""
        self._is_done = False

    def read(self, line: bytes) -> bool:
        if not line.startswith(_DATA):
            return False
        text = line[len(_DATA) :].strip()
        if text == _DONE:
            self._is_done = True
            return False
        event = orjson.loads(text)
        if error := event.get("error"):
            self._error = str(error.get("message", error) if isinstance(error, dict) else error)[:LONGEST_ERROR]
            return False
        response = self._response
        if usage := event.get("usage"):
            response.input_tokens = usage.get("prompt_tokens") or 0
            response.output_tokens = usage.get("completion_tokens") or 0
        if not any(map(_has_text, event.get("choices") or ())):
            return False
        response.last = clock()
        response.first = response.first or response.last
        response.pieces += 1
        return True

    def end(self, start: int) -> str:
        if not (self._error or self._is_done):
            self._error = "the server's response is no stream of events" if not self._response.pieces else _ABORTED
        if not self._error:
            self._counter.add(self._response, start, clock())
        return self._error


_ABORTED = "the server aborted the stream"
_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("text")) if delta is None else any(delta.get(name) for name in _TEXTS)


class EmbeddingReader:
    """A body of vectors, of which only the count of tokens matters."""

    def __init__(self, counter: TextCounter) -> None:
        self._counter = counter
        self.begin()

    def begin(self) -> None:
        self._response = TextResponse()

    def read(self, line: bytes) -> bool:
        if match := _PROMPT_TOKENS.search(line):
            self._response.input_tokens = int(match[1])
        return False

    def end(self, start: int) -> str:
        self._counter.add(self._response, start, clock())
        return ""


def slots(endpoint: Endpoint, requests: Sequence[PreparedRequest], counter: TextCounter) -> HttpSlots:
    reader = EventReader if counter.streams else EmbeddingReader

    def make(
        endpoint: Endpoint, requests: Sequence[PreparedRequest], owner: ResponseListener, heads: Heads
    ) -> HttpStreamSlot:
        return HttpStreamSlot(endpoint, requests, owner, heads, reader(counter))

    return HttpSlots(endpoint, requests, make)
