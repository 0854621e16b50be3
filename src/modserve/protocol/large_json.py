"""Large JSON requests: the numbers of their tensors go straight into numpy arrays, by simdjson.

A short cut beside `http_infer.parse`. What it does not understand, and all that is wrong, is left to that.
"""

from typing import Any

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


def parse(text: Buffer) -> dict[str, Any] | None:
    """The request object in `text`, with flat arrays of 64-bit numbers as the `data` of its numeric inputs.

    None if that is to be read in the other way: small, no such object, or anything else that is wrong with it.
    """
    if simdjson is None or len(text) < _LARGE:
        return None
    body = bytes(text)
    try:
        document = simdjson.Parser().parse(body)
        if not isinstance(document, simdjson.Object) or _deep(body):
            return None
        return {
            key: [*map(_input, document[key])] if key == "inputs" else _plain(document[key]) for key in _keys(document)
        }
    except (ValueError, TypeError, AttributeError, RuntimeError):
        return None


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
