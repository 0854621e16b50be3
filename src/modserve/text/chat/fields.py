"""The fields of OpenAI's requests: what each may be."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..openai_errors import RequestFieldError
from .errors import field_error

MOST_CHOICES: Final = 128
_MOST_STOPS = 16
_LONGEST_STOP = 1000
"""Characters: each piece of a text is compared with all beginnings of each stop sequence."""
STRUCTURE: Final = "structured_outputs"
"""The sampling parameter with the form of the text, which is named in refusals."""
GUIDED: Final[Mapping[str, str]] = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Older fields of vLLM → the member of `STRUCTURE` that they are."""
KEEP_STOP: Final = "include_stop_str_in_output"

_NUMBERS: dict[str, tuple[type, int | float, int | float]] = {
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "top_k": (int, -1, 2**31 - 1),
    "max_tokens": (int, 1, 2**31 - 1),
    "seed": (int, -(2**63), 2**63 - 1),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "repetition_penalty": (float, 0, 100),
}
"""Sampling parameters that are numbers: type, least, most. Some are vLLM's, which OpenAI has not.

The bounds are not just `float`, of which the compiled form would make floats: 2**63 - 1 is none.
"""

_ABOVE = frozenset({"top_p", "repetition_penalty"})
"""Numbers that must exceed their lower bound: at 0 an engine samples nothing, or divides by it."""

CONSTRAINTS: Final[Mapping[str, object]] = {
    "allowed_token_ids": [],
    "bad_words": [],
    "ignore_eos": False,
    "logit_bias": {},
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "stop_token_ids": [],
    STRUCTURE: {},
}
"""Parameters that a model has to know, or a text that ignores them looks right → the value that asks for nothing.

Of those that know them, engines refuse what they cannot do themselves.
"""

PARAMETERS: frozenset[str] = frozenset({*_NUMBERS, *CONSTRAINTS, "stop", KEEP_STOP})
"""Sampling parameters by the names that models have for them."""
SAMPLING: frozenset[str] = PARAMETERS | {*GUIDED, "n", "logprobs", "max_completion_tokens"}
COMMON: frozenset[str] = SAMPLING | {"model", "stream", "stream_options"}


def wrong_type(param: str, expected: str, value: object) -> RequestFieldError:
    return field_error(param, f"'{param}' must be {expected}, not {_kind(value)}")


def boolean(document: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = document.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise wrong_type(name, "a boolean", value)
    return value


def whole_number(document: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong_type(name, "a whole number", value)
    if not least <= value <= most:
        raise field_error(name, f"'{name}' must be between {least} and {most}, not {value}")
    return value


def mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not dict:
        raise wrong_type(name, "an object", value)
    return value


def text(document: Mapping[str, Any], name: str) -> str:
    """A text that has to be there."""
    value = document.get(name)
    if value is None:
        raise field_error(name, f"'{name}' is missing")
    if type(value) is not str:
        raise wrong_type(name, "a string", value)
    if not value:
        raise field_error(name, f"'{name}' is empty")
    return value


def stops(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop sequences."""
    value = document.get("stop")
    if value is None:
        return ()
    texts = value if type(value) is list else [value]
    if not all(type(each) is str for each in texts):
        raise wrong_type("stop", "a string or a list of strings", next(x for x in texts if type(x) is not str))
    if len(texts) > _MOST_STOPS:
        raise field_error("stop", f"'stop' has {len(texts)} sequences, at most {_MOST_STOPS} are possible")
    if "" in texts:
        raise field_error("stop", "'stop' has an empty sequence, which would end every text before it begins")
    longest = max(map(len, texts), default=0)
    if longest > _LONGEST_STOP:
        raise field_error(
            "stop", f"'stop' has a sequence of {longest} characters, at most {_LONGEST_STOP} are possible"
        )
    return tuple(texts)


def sampling(document: Mapping[str, Any], longest: str) -> dict[str, object]:
    """The sampling parameters in the names of the contract, without `n` and `logprobs`.

    `longest` names a field that means ``max_tokens`` and goes before it. Raises `RequestFieldError`.
    """
    values: dict[str, object] = {}
    for name, limits in _NUMBERS.items():
        value = document.get(name)
        if value is not None:
            values[name] = _number(name, value, *limits)
    most = document.get(longest)
    if most is not None:
        values["max_tokens"] = _number(longest, most, *_NUMBERS["max_tokens"])
    for name, read in _READERS.items():
        value = document.get(name)
        if value is not None and read(document, name) not in ([], {}):
            values[name] = value
    sequences = stops(document)
    if sequences:
        values["stop"] = list(sequences)
    return values


def _token_ids(document: Mapping[str, Any], name: str) -> object:
    return _list_of(int, "a list of token ids", document[name], name)


def _texts(document: Mapping[str, Any], name: str) -> object:
    return _list_of(str, "a list of strings", document[name], name)


def _list_of(kind: type, expected: str, value: object, name: str) -> object:
    if type(value) is not list:
        raise wrong_type(name, expected, value)
    for index, each in enumerate(value):
        if type(each) is not kind:
            raise wrong_type(f"{name}[{index}]", "a token id" if kind is int else "a string", each)
    return value


def _count(document: Mapping[str, Any], name: str) -> object:
    return whole_number(document, name, 0, 2**31 - 1)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str], object]]] = {
    "allowed_token_ids": _token_ids,
    "bad_words": _texts,
    "ignore_eos": boolean,
    KEEP_STOP: boolean,
    "logit_bias": mapping,
    "min_tokens": _count,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "stop_token_ids": _token_ids,
}
"""The other parameters → what reads a value that is there."""


def stream_usage(document: Mapping[str, Any], stream: bool) -> bool:
    """``stream_options.include_usage``."""
    options = mapping(document, "stream_options")
    if options is None:
        return False
    if not stream:
        raise field_error("stream_options", "'stream_options' is for requests with 'stream': true")
    return boolean(options, "include_usage")


def _number(name: str, value: object, kind: type, least: int | float, most: int | float) -> object:
    if type(value) is not int and not (kind is float and type(value) is float):
        raise wrong_type(name, "a whole number" if kind is int else "a number", value)
    assert isinstance(value, int | float), "one of these types: this is a bug"
    if name in _ABOVE and value <= least:
        raise field_error(name, f"'{name}' must be above {least} and at most {most}, not {value}")
    if not least <= value <= most:
        raise field_error(name, f"'{name}' must be between {least} and {most}, not {value}")
    return value


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), f"the number {value}" if isinstance(value, int | float) else "that")
