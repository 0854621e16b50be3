"""JSON text to Python objects, with Triton's idea of what JSON is."""

import json
import re
import sys
from collections.abc import Callable
from typing import Final

import orjson

from modserve.core.errors import ModserveError, invalid
from modserve.core.tensors.tensor import Buffer

MIME_JSON = "application/json"
JsonObject = dict[str, object]

MAX_DEPTH = 100
"""Arrays within arrays: an element of `data` may be in 99, as Triton counts."""


class JsonTypeError(ValueError):
    """A JSON value of the wrong type; the text is Triton's, followed by what is wrong and where."""

    def __init__(self, is_not: str, expected: str = "", detail: str = "") -> None:
        super().__init__(
            f"attempt to access JSON non-{is_not} as {expected or is_not}" + (f": {detail}" if detail else "")
        )


def describe(value: object) -> str:
    """Describe a JSON value, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        text = json.dumps(value)
        return f"the number {text if len(text) <= 32 else text[:32] + '...'}"
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else "an object"


def type_error(key: str, is_not: str, value: object, owner: str = "", doing: str = "parse") -> ModserveError:
    """Return INVALID_ARG for the `value` of member `key`; `owner` names its object, if not the request."""
    place = f"'{key}' of {owner}" if owner else f"'{key}'"
    return unable(key, JsonTypeError(is_not, detail=f"{place} is {describe(value)}"), doing)


def unable(field: str, error: Exception, doing: str = "parse") -> ModserveError:
    """Return a field's error in Triton's wrapping; INVALID_ARG, where Triton answers a mistaken INTERNAL."""
    return invalid(f"Unable to {doing} '{field}': {error}")


def no_object(document: object) -> ModserveError:
    return unable("inputs", JsonTypeError("object", detail=f"the request body is {describe(document)}"))


def too_deep() -> ModserveError:
    return invalid(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def syntax_error(message: str, position: int, kind: str = "") -> ModserveError:
    hint = f": this is {kind}" if kind else ""
    return invalid(f"failed to parse the request JSON buffer: {message} at {position}{hint}")


_PICTURE = (
    "picture, not JSON: 'modserve infer MODEL @FILE' makes a tensor of it, and with the header "
    "'Inference-Header-Content-Length: 0' a model with one input of datatype BYTES gets the file itself"
)
_FORM = (
    "form, not JSON: send a JSON object; a file goes by itself, as with curl's --data-binary @FILE and the header "
    "'Inference-Header-Content-Length: 0', to a model with one input of datatype BYTES"
)
_KINDS: Final = (
    (re.compile(rb"\xff\xd8\xff"), f"a JPEG {_PICTURE}"),
    (re.compile(rb"\x89PNG"), f"a PNG {_PICTURE}"),
    (re.compile(rb"\x1f\x8b"), "gzip data: add the header 'Content-Encoding: gzip'"),
    (re.compile(rb"--[^\r\n]+\r\nContent-Disposition:", re.IGNORECASE), f"a multipart {_FORM}"),
    (re.compile(rb"[\w.%+-]+="), f"a {_FORM}"),
)
"""Contents often sent in place of JSON, by their first bytes."""


def _kind(text: bytes) -> str:
    return next((kind for begin, kind in _KINDS if begin.match(text)), "")


def parse_any(text: Buffer, origin: Callable[[int], int] = lambda position: position) -> object:
    """Parse the JSON value in `text`. Bare NaN, Infinity and -Infinity are numbers, as Triton's are.

    Raises INVALID_ARG. `origin` gives the position that messages name for a position in `text`, which may be a part of
    what the client sent.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_leniently(bytes(text), origin)


def parse_object(text: Buffer) -> JsonObject:
    """Parse the JSON object in `text`. Raises INVALID_ARG; NaN, Infinity and -Infinity are numbers, as Triton's are."""
    document = parse_any(text)
    if not isinstance(document, dict):
        raise no_object(document)
    return document


def _parse_leniently(text: bytes, origin: Callable[[int], int]) -> object:
    try:
        document = json.loads(text.decode())
        if b"\\u" in text:  # lone surrogates are no text: they could not be sent back
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError:
        raise invalid("failed to parse the request JSON buffer: The surrogate pair in string is invalid.") from None
    except json.JSONDecodeError as error:
        raise syntax_error(error.msg, origin(error.pos), _kind(text)) from None
    except UnicodeDecodeError as undecodable:
        raise syntax_error("invalid UTF-8", origin(undecodable.start), _kind(text)) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise invalid(f"failed to parse the request JSON buffer: a number has more than {digits} digits") from None
