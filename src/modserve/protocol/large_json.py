"""Large JSON requests: the numbers of their tensors go straight into numpy arrays, by simdjson.

A short cut beside `http_infer.parse`. What it does not understand, and all that is wrong, is left to that.
"""

import random
from typing import Any, NamedTuple

import numpy as np

from modserve.core import dtypes
from modserve.core.tensor import Array, Buffer

from .json_data import MAX_DEPTH

simdjson: Any
try:
    import simdjson
except ImportError:  # there are no wheels for every platform
    simdjson = None

_LARGE = 32 * 1024
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]"))
_FLOAT, _SIGNED, _UNSIGNED = ("d", np.float64), ("i", np.int64), ("u", np.uint64)
"""simdjson's name of a type to read, and numpy's type."""
_MOST_STRINGS = 4096


class _StandIns(NamedTuple):
    """Numbers in place of the literals NaN and Infinity, which simdjson does not take, and how often they are."""

    nan: float
    infinity: float
    number: int


def parse(text: Buffer) -> dict[str, Any] | None:
    """The request object in `text`, with flat arrays of 64-bit numbers as the `data` of its numeric inputs.

    None if that is to be read in the other way: small, no such object, or anything else that is wrong with it.
    """
    if simdjson is None or len(text) < _LARGE:
        return None
    body = bytes(text)
    try:
        found = _parse(body)
        if found is not None:
            return found
        replaced = _without_literals(body)
        if replaced is None:
            return None
        body, stand_ins = replaced
        found = _parse(body)
        # They may stand for literals elsewhere than in tensors, or be digits of longer numbers: each is counted.
        return found if found is not None and _restore(found, stand_ins) == stand_ins.number else None
    except (ValueError, TypeError, AttributeError, RuntimeError):
        return None


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        document = simdjson.Parser().parse(body)
    except ValueError:
        return None
    if not isinstance(document, simdjson.Object) or _deep(body):
        return None
    return {key: [*map(_input, document[key])] if key == "inputs" else _plain(document[key]) for key in _keys(document)}


def _without_literals(body: bytes) -> tuple[bytes, _StandIns] | None:
    """The text with numbers for the literals; None without any, or if its strings are too many, or hard to tell."""
    if b"\\" in body or body.count(b'"') > 2 * _MOST_STRINGS:
        return None
    # Nobody can know these numbers, so that nobody means them.
    nan, infinity = (random.uniform(first, first + 1) * 1e300 for first in (1, 2))
    parts, count = body.split(b'"'), 0
    for index in range(0, len(parts), 2):
        part = parts[index]
        for initial, literal, number in ((b"N", b"NaN", nan), (b"I", b"Infinity", infinity)):
            if initial in part:  # a single byte is found far more quickly
                count += part.count(literal)
                part = part.replace(literal, b"%r" % number)
        parts[index] = part
    return (b'"'.join(parts), _StandIns(nan, infinity, count)) if count else None


def _restore(found: dict[str, Any], stand_ins: _StandIns) -> int:
    """Put NaN and infinities into the tensors; how many there are."""
    count = 0
    for given in found.get("inputs", ()):
        numbers = given.get("data")
        if not isinstance(numbers, np.ndarray) or numbers.dtype != np.float64:
            continue
        nan, infinite = numbers == stand_ins.nan, np.abs(numbers) == stand_ins.infinity
        here = int(nan.sum() + infinite.sum())
        if here:
            numbers = np.where(infinite, np.copysign(np.inf, numbers), numbers)
            numbers[nan] = np.nan
            given["data"] = numbers
            count += here
    return count


def _input(given: Any) -> dict[str, Any]:
    found = {key: _plain(given[key]) for key in _keys(given) if key != "data"}
    if "data" in given.keys():  # noqa: SIM118 - it is no dictionary
        found["data"] = _numbers(given["data"], found.get("datatype"))
    return found


def _keys(given: Any) -> list[str]:
    """Raises ValueError for keys that are there twice: the other way takes the last, this one the first."""
    keys = list(given.keys())
    if len(set(keys)) != len(keys):
        raise ValueError("a key is there twice")
    return keys


def _numbers(data: Any, datatype: object) -> Array | list[object]:
    known = dtypes.BY_NAME.get(datatype) if isinstance(datatype, str) else None
    if known is None or known.json_kind not in ("float", "int") or not isinstance(data, simdjson.Array):
        plain: list[object] = _plain(data)
        return plain
    name, numpy_type = _FLOAT if known.json_kind == "float" else _UNSIGNED if known.numpy.kind == "u" else _SIGNED
    return np.frombuffer(data.as_buffer(of_type=name), numpy_type)


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _deep(body: bytes) -> bool:
    """Whether arrays may be nested more deeply than is allowed; simdjson does not tell."""
    if body.count(b"[") < MAX_DEPTH:
        return False
    brackets = np.frombuffer(body.translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where(brackets == ord("["), 1, -1)
    return bool(np.cumsum(steps).max() >= MAX_DEPTH)
