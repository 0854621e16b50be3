"""The members of a body, by their types. Unknown ones are ignored, as OpenAI and TEI do; null is as good as absent."""

from collections.abc import Mapping, Sequence
from typing import Any

from modserve.text.openai_errors import RequestFieldError
from modserve.text.tokenizer import Text

from .text_calls import TextOptions

_DIRECTIONS = {"right": False, "left": True}


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestFieldError(f"'{name}' must be true or false", name)
    return value


def whole_number(body: Mapping[str, Any], name: str) -> int | None:
    """Return a number of 1 or more; None if the body has none."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RequestFieldError(f"'{name}' must be a whole number of 1 or more", name)
    return value


def text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestFieldError(f"'{name}' must be a string", name)
    return value


def require_text(body: Mapping[str, Any], name: str) -> str:
    value = text(body, name)
    if value is None:
        raise RequestFieldError(f"'{name}' is missing: a string", name)
    return value


def texts(body: Mapping[str, Any], name: str) -> list[str]:
    """Return the strings of a list."""
    value = body.get(name)
    if not isinstance(value, list):
        raise RequestFieldError(f"'{name}' must be a list of strings", name)
    return [_string(each, f"{name}[{place}]") for place, each in enumerate(value)]


def one_or_more(body: Mapping[str, Any], name: str) -> tuple[list[str], bool]:
    """Return the texts of a string or a list of strings, and whether it was a list."""
    value = body.get(name)
    if isinstance(value, str):
        return [value], False
    if not isinstance(value, list):
        raise RequestFieldError(f"'{name}' must be a string, or a list of strings", name)
    return texts(body, name), True


def sequences(body: Mapping[str, Any], name: str) -> tuple[list[Text], bool]:
    """Return texts and pairs of them, in the form of TEI's ``/predict``, and whether there may be several.

    A string, ``[text]`` and ``[text, pair]`` are one; ``[[text], [text, pair], …]`` are several.
    """
    value = body.get(name)
    if isinstance(value, str):
        return [value], False
    form = f"'{name}' must be a string, a pair of strings, or a list of lists of one or two strings"
    if not isinstance(value, list):
        raise RequestFieldError(form, name)
    if value and all(isinstance(each, str) for each in value) and len(value) <= 2:
        return [_sequence(value, name)], False
    if not all(isinstance(each, list) for each in value):
        raise RequestFieldError(form, name)
    return [_sequence(each, f"{name}[{place}]") for place, each in enumerate(value)], True


def options(body: Mapping[str, Any]) -> TextOptions:
    """Read ``truncate``, ``truncation_direction`` and ``prompt_name`` as TEI does."""
    direction = text(body, "truncation_direction") or "right"
    if direction.lower() not in _DIRECTIONS:
        raise RequestFieldError("'truncation_direction' must be Left or Right", "truncation_direction")
    truncate = None if body.get("truncate") is None else flag(body, "truncate", True)
    return TextOptions(truncate, _DIRECTIONS[direction.lower()], text(body, "prompt_name"))


def _sequence(parts: Sequence[Any], where: str) -> Text:
    strings = [_string(each, where) for each in parts]
    if not 1 <= len(strings) <= 2:
        raise RequestFieldError(f"'{where}' has {len(strings)} strings, and may have one or two", where)
    return strings[0] if len(strings) == 1 else (strings[0], strings[1])


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestFieldError(f"'{where}' must be a string", where)
    return value
