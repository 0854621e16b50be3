"""Calls of tools in the text of a model, in the forms that chat templates teach models.

=========================================  ==========================================================
``<tool_call>{…}</tool_call>``              Hermes, Qwen, SmolLM; with a list, several calls
``[TOOL_CALLS][{…}, …]``                    Mistral
``<|python_tag|>{…}``, or ``{…}`` alone     Llama 3
=========================================  ==========================================================

An object has ``name`` and ``arguments`` (or ``parameters``). What is not such a call stays text.
"""

from dataclasses import dataclass
from typing import NamedTuple

import orjson

from .stops import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_WHOLE = ("[TOOL_CALLS]", "<|python_tag|>", "{")
"""With one of these at the beginning, all of the text is calls."""


class ToolCall(NamedTuple):
    """`arguments` is JSON."""

    name: str
    arguments: str


@dataclass(slots=True)
class Split:
    """What new text came to: text for the client, and calls that are complete."""

    text: str
    calls: list[ToolCall]


class ToolCalls:
    """Divides a text that comes in pieces into text and calls.

    `names` are those of the tools that may be called: whatever names another one is text.
    """

    __slots__ = ("_after_call", "_begun", "_held", "_names", "_whole")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""
        self._begun = False
        self._after_call = False
        """White space is no text."""
        self._whole = False
        """All of the text may be one call: it is held to its end."""

    def feed(self, text: str, final: bool = False) -> Split:
        """What can be said of the text by now; with `final`, of all of it."""
        held = self._held + text
        split = Split("", [])
        if not self._begun:
            held = held.lstrip() if held.lstrip().startswith(_WHOLE) else held
            begin = held.strip()
            if not final and (not begin or any(mark.startswith(begin) and begin != mark for mark in _WHOLE)):
                self._held = held
                return split
            self._begun = True
            self._whole = held.startswith(_WHOLE)
        if self._whole:
            self._held = "" if final else held
            if final:
                split.calls = self._read(_without_mark(held))
                split.text = "" if split.calls else held
            return split
        self._held = self._divide(held, split, final)
        return split

    def _divide(self, text: str, split: Split, final: bool) -> str:
        """Add to `split`; returns what has to wait."""
        while True:
            if self._after_call:
                text = text.lstrip()
                self._after_call = not text
            before, mark, rest = text.partition(OPEN)
            if not mark:
                kept = 0 if final else overlap(before, OPEN)
                split.text += before[: len(before) - kept]
                return before[len(before) - kept :]
            inner, close, after = rest.partition(CLOSE)
            if not close and not final:
                split.text += _before_call(before)
                return OPEN + rest
            calls = self._read(inner)
            if calls:
                split.calls += calls
                split.text += _before_call(before)
                self._after_call = True
            else:
                split.text += before + OPEN + inner + close
            text = after

    def _read(self, text: str) -> list[ToolCall]:
        """The calls in JSON; none if it is anything else."""
        try:
            value = orjson.loads(text.strip())
        except orjson.JSONDecodeError:
            return []
        calls = []
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                return []
            inner = each.get("function")
            call = inner if isinstance(inner, dict) else each
            name = call.get("name")
            if not isinstance(name, str) or name not in self._names:
                return []
            arguments = call.get("arguments", call.get("parameters", {}))
            calls.append(ToolCall(name, arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()))
        return calls


def _before_call(text: str) -> str:
    """Line breaks before a call belong to it."""
    return text.rstrip() if not text.strip() else text


def _without_mark(text: str) -> str:
    for mark in _WHOLE[:-1]:
        if text.startswith(mark):
            return text.removeprefix(mark).removesuffix("<|eom_id|>")
    return text
