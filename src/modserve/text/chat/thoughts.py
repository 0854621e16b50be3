"""What a model thinks before it answers, in a text that comes in pieces.

A thought is between two marks at the beginning of the text. Some chat templates end the prompt with the first one, and
the text begins within the thought. One that has no end is all that there is.
"""

from typing import Final

from .stops import overlap

_MARKS: Final = {"<think>": "</think>", "[THINK]": "[/THINK]"}
"""Marks of Qwen3, DeepSeek-R1 and most others; of Mistral's models."""
_BEFORE, _BEGUN, _WITHIN, _BEHIND, _OVER = range(5)
"""Before the first mark; behind it, and behind the other one, where white space is left out; in the answer."""


def open_thought(prompt: str, continued: str = "") -> str:
    """The mark that will end the thought in which a prompt ends, or the message at its end; empty if there is none."""
    for first, close in _MARKS.items():
        if prompt[-64:].rstrip().endswith(first) or (continued.startswith(first) and close not in continued):
            return close
    return ""


class Thoughts:
    """Divides a text into thought and answer. `close` is the mark of the thought in which its prompt ends."""

    __slots__ = ("_close", "_held", "_place")

    def __init__(self, close: str = "") -> None:
        self._close = close
        self._place = _BEFORE
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Neither before the thought nor in the answer."""
        return self._place in (_BEGUN, _WITHIN, _BEHIND)

    def feed(self, piece: str, final: bool) -> tuple[str, str]:
        """What is certainly thought, and what is certainly answer by now."""
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
