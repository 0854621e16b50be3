"""The JSON bodies of HTTP calls other than inference."""

from collections.abc import Callable
from typing import TypeVar

from modserve.core.errors import invalid
from modserve.protocol.json import json_text
from modserve.protocol.json.json_text import JsonObject, JsonTypeError
from modserve.protocol.limits import LIMITS

T = TypeVar("T")
_TYPES: dict[type, str] = {bool: "boolean", str: "string", dict: "object"}


def read(
    body: bytes,
    most_parts: int | None = LIMITS.control_json_parts,
    origin: Callable[[int], int] = lambda position: position,
) -> JsonObject:
    """Return the object in `body`. Raises INVALID_ARG, where Triton answers a mistaken INTERNAL with the same text.

    `most_parts` is how many commas and opening brackets it may have, None for any number; `origin` that of
    `json_text.parse_any`.
    """
    if not body:
        raise invalid("failed to parse the request JSON buffer: The document is empty. at 0")
    if most_parts is not None and len(body) > most_parts:
        parts = sum(map(body.count, (b",", b"[", b"{")))
        if parts > most_parts:
            raise invalid(f"the request has {parts} values, lists and objects, at most {most_parts} are possible")
    document = json_text.parse_any(body, origin)
    if body.count(b"[") + body.count(b"{") >= json_text.MAX_DEPTH:  # few bodies have as many, and need a closer look
        _check_depth(document)
    return check_type(document, dict)


def _check_depth(document: object) -> None:
    """Check the nesting. Raises INVALID_ARG for values in 100 or more objects and arrays, one in the other."""
    level = [document]
    for _ in range(json_text.MAX_DEPTH):
        inner: list[object] = []
        for value in level:
            if type(value) is list:
                inner += value
            elif type(value) is dict:
                inner += value.values()
        level = inner
    if level:
        raise json_text.too_deep()


def check_type(value: object, expected: type[T], prefix: str = "") -> T:
    """Return `value`, which must be exactly an `expected`. Raises INVALID_ARG with a text that begins with `prefix`."""
    if type(value) is not expected:
        raise invalid(f"{prefix}{JsonTypeError(_TYPES[expected])}")
    return value


def check_unsigned(value: object, highest: int) -> int:
    """Return `value`, which must be a whole number of at most `highest`. Raises INVALID_ARG."""
    if type(value) is not int or not 0 <= value <= highest:
        raise invalid(str(JsonTypeError("unsigned-integer")))
    return value
