"""What a model thinks before it answers, in a text that comes in pieces.

A thought is between ``<think>`` and ``</think>`` at the beginning of the text, as Qwen3, DeepSeek-R1 and others write
it. Some chat templates end the prompt with the first mark, and the text begins within the thought. One that has no end
is all that there is.
"""

from .stops import overlap

OPEN, CLOSE = "<think>", "</think>"
_BEFORE, _BEGUN, _WITHIN, _BEHIND, _OVER = range(5)
"""Before the first mark; behind it, and behind the other one, where white space is left out; in the answer."""


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends within a thought."""
    return prompt[-64:].rstrip().endswith(OPEN)


class Thoughts:
    """Divides a text into thought and answer. `opened`: its prompt ends within the thought."""

    __slots__ = ("_held", "_opened", "_place")

    def __init__(self, opened: bool) -> None:
        self._opened = opened
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
            if not final and begin != OPEN and OPEN.startswith(begin):
                self._held = text
                return "", ""
            if not self._opened and not begin.startswith(OPEN):
                self._place = _OVER
                return "", text
            self._place = _BEGUN
            text = begin.removeprefix(OPEN)
        thought = ""
        if self._place == _BEGUN:
            text = text.lstrip()
            self._place = _WITHIN if text else _BEGUN
        if self._place == _WITHIN:
            thought, close, rest = text.partition(CLOSE)
            kept = 0 if close or final else overlap(thought, CLOSE)
            thought = thought[: len(thought) - kept].rstrip()
            if not close:
                self._held = text[len(thought) :]
                return thought, ""
            self._place, text = _BEHIND, rest
        if self._place == _BEHIND:
            text = text.lstrip()
            self._place = _OVER if text else _BEHIND
        return thought, text
