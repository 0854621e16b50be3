"""The response to ``:predict`` of KServe v1 and of TensorFlow Serving: `predictions` by rows, or `outputs` by name.

What a single output holds stands there without its name. Tensors are nested lists.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson

from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor

_BASE64 = "b64"
_BINARY_SUFFIX = "_bytes"
"""Suffix of the names of BYTES outputs that are sent as base64, as in TensorFlow Serving."""

_AT_A_TIME = 32 * 1024
"""Elements that are written in one go."""


def encode(parts: Sequence[Mapping[str, Tensor]], rows: bool) -> bytes:
    """Encode the body of a response, from the outputs of each of the `batches`.

    Raises INVALID_ARG for what JSON cannot carry, and for outputs that differ in their number of rows.
    """
    columns = {name: _column(name, [part[name] for part in parts]) for name in parts[0]}
    if rows:
        _check_rows(columns)
    # orjson writes the shortest text that gives the same float of the array's own size.
    finite = all(_finite(column) for column in columns.values())
    if len(columns) == 1:
        text = _text(next(iter(columns.values())), finite)
    elif rows:
        each = columns.values() if finite else map(_without_numpy, columns.values())
        text = _text([dict(zip(columns, row, strict=True)) for row in zip(*each, strict=True)], finite)
    else:
        members = (b"%b:%b" % (orjson.dumps(name), _text(column, finite)) for name, column in columns.items())
        text = b"{%b}" % b",".join(members)
    return b'{"%b":%b}' % (b"predictions" if rows else b"outputs", text)


def _column(name: str, tensors: Sequence[Tensor]) -> Any:
    """Return an output of all parts as one JSON-able value: an array of numbers, or nested lists of strings.

    Parts with rows of different shapes give a list of rows.
    """
    arrays = [_prepare_array(name, tensor) for tensor in tensors]
    if len(arrays) == 1:
        return _jsonable(arrays[0])
    if len({array.shape[1:] for array in arrays}) == 1:
        return _jsonable(np.concatenate(arrays))
    return [_jsonable(row) for row in chain.from_iterable(arrays)]


def _prepare_array(name: str, tensor: Tensor) -> Array:
    array = tensor.array
    datatype = tensor.datatype
    if datatype is dtypes.BYTES:
        written = np.empty(array.size, dtype=object)
        written[:] = _texts(name, array.reshape(-1).tolist())
        return written.reshape(array.shape)
    if datatype.json_kind == "float" and datatype.size < 4:
        with np.errstate(invalid="ignore"):  # widening a signalling NaN is no fault of anybody's
            array = array.astype(np.float32)
    return np.ascontiguousarray(array).reshape(array.shape)


def _texts(name: str, elements: list[bytes]) -> Sequence[object]:
    if name.endswith(_BINARY_SUFFIX):
        return [{_BASE64: base64.b64encode(element).decode()} for element in elements]
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        raise invalid(
            f"output '{name}' holds bytes that are not UTF-8: only outputs whose names end in '{_BINARY_SUFFIX}' are "
            "sent as base64 here, /v2/models/.../infer sends any as binary data"
        ) from None


def _jsonable(array: Array) -> Any:
    """Return a value that orjson takes: it takes arrays of numbers of one dimension and more."""
    return array.tolist() if array.ndim == 0 or array.dtype == object else array


def _finite(column: Any) -> bool:
    if isinstance(column, np.ndarray):
        return column.dtype.kind != "f" or bool(np.isfinite(column).all())
    if isinstance(column, list):
        return all(_finite(each) for each in column if not isinstance(each, (str, dict)))
    return not isinstance(column, float) or math.isfinite(column)


def _text(value: Any, finite: bool) -> bytes:
    """Return a value as JSON. If it is not `finite`, the library that has NaN and infinities as literals writes it.

    No other thread runs while a library writes: large arrays are written in pieces.
    """
    if isinstance(value, np.ndarray) and value.size > _AT_A_TIME:
        if len(value) == 1:
            return b"[%b]" % _text(value[0], finite)
        rows = max(1, _AT_A_TIME * len(value) // value.size)
        starts = range(0, len(value), rows)
        return b"[%b]" % b",".join([_text(value[start : start + rows], finite)[1:-1] for start in starts])
    if finite:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(_without_numpy(value), separators=(",", ":"), ensure_ascii=False).encode()


def _without_numpy(column: Any) -> Any:
    """Convert a column to values without numpy."""
    if isinstance(column, np.ndarray):
        return column.tolist()
    return [_without_numpy(each) for each in column] if isinstance(column, list) else column


def _check_rows(columns: Mapping[str, Any]) -> None:
    sizes = {name: len(column) if hasattr(column, "__len__") else None for name, column in columns.items()}
    if None in sizes.values() or len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' {'none' if size is None else size}" for name, size in sizes.items())
        raise invalid(
            f"the outputs do not have the same first dimension ({listed}), so they cannot be given as 'predictions': "
            "ask with 'inputs' (column format)"
        )
