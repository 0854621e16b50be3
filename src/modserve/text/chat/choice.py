"""A text choice of a response, assembled from the pieces that the model sends.

A text may begin with a thought, a reasoning block between two marks. Some chat templates end the prompt with the first
mark, and the text begins within the thought. A thought without an end extends over the whole text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from modserve.text.tokenizer import Tokenizer

from .contract import Piece
from .counting import TokenCount
from .fields import KEEP_STOP, STRUCTURE
from .requests import TextRequest
from .stops import TextEnd, overlap
from .tools import ToolCall, ToolCalls, ToolChoice

_MARKS: Final = {"<think>": "</think>", "[THINK]": "[/THINK]"}
"""Marks of thoughts: of Qwen3, DeepSeek-R1 and most others; of Mistral's models."""
_BEFORE, _BEGUN, _WITHIN, _BEHIND, _OVER = range(5)
"""States: before the first mark; after it, and after the second mark, both skipping white space; in the answer."""


def open_thought(prompt: str, continued: str = "") -> str:
    """Return the end mark of the thought left open by a prompt, or by its last message; empty if there is none."""
    for first, close in _MARKS.items():
        if prompt[-64:].rstrip().endswith(first) or (continued.startswith(first) and close not in continued):
            return close
    return ""


class Thoughts:
    """Divides a text into thought and answer. `close`: end mark of a thought that the prompt opens."""

    __slots__ = ("_close", "_held", "_place")

    def __init__(self, close: str = "") -> None:
        self._close = close
        self._place = _BEFORE
        self._held = ""

    @property
    def thinking(self) -> bool:
        """True within the thought."""
        return self._place in (_BEGUN, _WITHIN, _BEHIND)

    def feed(self, piece: str, final: bool) -> tuple[str, str]:
        """Return the text that is certainly thought by now, and the text that is certainly answer."""
        if self._place == _OVER:
            return "", piece
        text, self._held = self._held + piece, ""
        if self._place == _BEFORE:
            begin = text.lstrip()
            if not final and any(begin != mark and mark.startswith(begin) for mark in _MARKS):
                self._held = text
                return "", ""
            first = next(filter(begin.startswith, _MARKS), "")
            self._close = _MARKS.get(first, self._close)
            if not self._close:
                self._place = _OVER
                return "", text
            self._place = _BEGUN
            text = begin.removeprefix(first)
        thought = ""
        if self._place == _BEGUN:
            text = text.lstrip()
            self._place = _WITHIN if text else _BEGUN
        if self._place == _WITHIN:
            thought, close, rest = text.partition(self._close)
            kept = 0 if close or final else overlap(thought, self._close)
            thought = thought[: len(thought) - kept].rstrip()
            if not close:
                self._held = text[len(thought) :]
                return thought, ""
            self._place, text = _BEHIND, rest
        if self._place == _BEHIND:
            text = text.lstrip()
            self._place = _OVER if text else _BEHIND
        return thought, text


_FINISH_REASONS = frozenset({"stop", "length", "content_filter", "tool_calls"})

Alternatives = Sequence[dict[str, Any]]
"""Alternatives by token id for each token of a piece, the sampled one first."""


class Delta(NamedTuple):
    """Addition of a piece to the client's text."""

    text: str
    calls: Sequence[ToolCall] = ()
    logprobs: Alternatives | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    """Number of `completion_tokens` that certainly belong to thoughts."""

    @property
    def document(self) -> dict[str, Any]:
        thoughts = {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            **(thoughts if self.reasoning_tokens else {}),
        }


class TextChoice:
    """A text being generated. `calls`: number of its tool calls so far.

    `counts`: token counts of the text and its thought, for a model that does not count itself; this needs a
    `tokenizer`. `tools`: None unless the request is a chat. `close`: end mark of a thought that the prompt opens.
    """

    def __init__(
        self,
        index: int,
        request: TextRequest,
        tools: ToolChoice | None = None,
        tokenizer: Tokenizer | None = None,
        close: str = "",
    ) -> None:
        self.index = index
        self.calls = 0
        self.counts = [] if tokenizer is None else [TokenCount(tokenizer), TokenCount(tokenizer)]
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self._thought_tokens = 0
        self._most = request.sampling.get("max_tokens")
        self._reason: str | None = None
        self._end = TextEnd(request.stops, request.sampling.get(KEEP_STOP) is True)
        self._tools = tools if tools is not None and tools.tools else None
        self._parser = (
            None if self._tools is None or self._tools.schema is not None else ToolCalls(self._tools.parameters)
        )
        # Structured output begins with its first token, without a thought.
        self._thoughts = None if tools is None else Thoughts("" if STRUCTURE in request.sampling else close)
        self._forced: list[str] = []
        """The text of a required call, which is the whole text."""

    @property
    def over(self) -> bool:
        """True if further output of the model is not part of the text."""
        return self._end.reached

    def add(self, piece: Piece, final: bool) -> Delta:
        """Add a piece; return its addition for the client."""
        if self._end.reached:
            return Delta("")
        if piece.finish_reason is not None:
            self._reason = piece.finish_reason
        if piece.input_tokens is not None:
            self.input_tokens = piece.input_tokens
        if piece.output_tokens is not None:
            self.output_tokens = (self.output_tokens or 0) + piece.output_tokens
        text = self._end.feed(piece.text, final)
        if self.counts:
            self.counts[0].add(text)
        return self._divide(text, final or self._end.reached, piece)

    @property
    def written(self) -> int | None:
        """Number of generated tokens; None if they are not counted."""
        return self.counts[0].total() if self.counts else self.output_tokens

    @property
    def thought_tokens(self) -> int:
        """Number of thought tokens; if the model counts, without pieces that end a thought and begin the answer."""
        return self.counts[1].total() if self.counts else self._thought_tokens

    @property
    def finish_reason(self) -> str:
        """Reason for the end, in OpenAI's words."""
        reason = "stop" if self._end.reached else self._reason
        if reason is None and self.output_tokens is not None and self.output_tokens == self._most:
            reason = "length"
        if self.calls and reason != "length":
            return "tool_calls"
        return reason if reason in _FINISH_REASONS else "stop"

    def _divide(self, text: str, final: bool, piece: Piece) -> Delta:
        thought, logprobs = "", piece.logprobs
        if self._thoughts is not None:
            was_thinking = self._thoughts.thinking
            thought, text = self._thoughts.feed(text, final)
            if not text and (was_thinking or self._thoughts.thinking):
                logprobs = None  # only for the answer
                self._thought_tokens += piece.output_tokens or 0
            if thought and self.counts:
                self.counts[1].add(thought)
        if self._tools is None:
            return Delta(text, (), logprobs, thought)
        if self._parser is not None:
            split = self._parser.feed(text, final)
            text, calls = split.text, split.calls
        else:
            self._forced.append(text)
            text, calls = ("", []) if not final else _read_forced_calls(self._tools, "".join(self._forced))
        if not self._tools.parallel:
            calls = calls[: max(0, 1 - self.calls)]
        self.calls += len(calls)
        return Delta(text, calls, logprobs, thought)


def _read_forced_calls(tools: ToolChoice, text: str) -> tuple[str, list[ToolCall]]:
    """Return the text and the calls of a model that was constrained to the schema of calls."""
    if tools.only:
        return "", [ToolCall(tools.only, text.strip())]
    try:
        value = orjson.loads(text)
        calls = [ToolCall(call["name"], orjson.dumps(call.get("parameters", {})).decode()) for call in value]
    except (ValueError, TypeError, KeyError, AttributeError):
        return text, []
    return "", calls


def usage_of(choices: Sequence[TextChoice], per_prompt: int) -> Usage:
    """Return the token counts of a request, with `per_prompt` choices for each prompt.

    0 for a model that does not count: OpenAI's clients add the numbers up and fail on null.
    """
    read = [choice.input_tokens or 0 for choice in choices[::per_prompt]]
    written = sum([choice.written or 0 for choice in choices])
    return Usage(sum(read), written, sum([choice.thought_tokens for choice in choices]))
