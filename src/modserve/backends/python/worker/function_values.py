"""Conversion between a model's arrays and the values that a function takes and returns."""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .dtypes import base_array
from .errors import TritonModelException
from .fields import NUMPY_TYPES, Field

Arrays = Mapping[str, Any]
"""Arrays by the names of the tensors."""


class InvalidInputError(ValueError):
    """A client sent something that the model cannot use; it gets the text, as an error of its own making (400)."""


class OutputError(ValueError):
    """A returned value that contradicts the function's declaration."""


def arguments(fields: Sequence[Field], arrays: Arrays, row: Optional[int] = None) -> Dict[str, Any]:
    """Return the keyword arguments of the function: for all rows, or for the one `row`. Raises InvalidInputError."""
    return {
        field.key: _value(field, arrays[field.name] if row is None else arrays[field.name][row])
        for field in fields
        if field.name in arrays
    }


def _value(field: Field, array: Any) -> Any:
    if field.form == "array":
        return np.array(_texts(field, array), np.str_).reshape(array.shape) if field.element else array
    values = _texts(field, array) if issubclass(field.element, str) else _elements(field.element, array)
    if field.form == "list":
        return values
    if len(values) != 1:
        raise InvalidInputError(f"input '{field.name}' has shape {list(array.shape)}, expected a single value")
    return values[0]


def _elements(element: Any, array: Any) -> List[Any]:
    flat = array.reshape(-1)
    return list(flat.astype(element)) if issubclass(element, np.generic) and element is not np.bytes_ else flat.tolist()


def _texts(field: Field, array: Any) -> List[str]:
    try:
        return [each.decode() if isinstance(each, bytes) else str(each) for each in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"input '{field.name}' is not UTF-8: {error}") from None


def by_name(fields: Sequence[Field], returned: Any) -> Dict[str, Any]:
    """Return a function's result as values by the names of the outputs. Raises OutputError."""
    if isinstance(returned, Mapping):
        values = {field.name: returned[field.key] for field in fields if field.key in returned}
        unknown = sorted(str(key) for key in returned if key not in {field.key for field in fields})
        missing = [field.key for field in fields if field.key not in returned]
        if unknown or missing:
            what = (
                f"has no {_list_names(missing)}"
                if missing
                else f"has {_list_names(unknown)}, which it does not declare"
            )
            raise OutputError(
                f"the dict it returned {what}; its outputs are {_list_names([each.key for each in fields])}"
            )
        return values
    if len(fields) == 1 and not _is_tuple_of_one(returned):
        return {fields[0].name: returned}
    if not isinstance(returned, (tuple, list)) or len(returned) != len(fields):
        count = f" of {len(returned)}" if isinstance(returned, (tuple, list)) else ""
        raise OutputError(
            f"it returned a {type(returned).__name__}{count}, expected a tuple of {len(fields)} or a dict: its outputs "
            f"are {_list_names([each.key for each in fields])}"
        )
    return {field.name: value for field, value in zip(fields, returned)}


def _is_tuple_of_one(returned: Any) -> bool:
    """Return True for a tuple as the one output of a model, and not as an array."""
    if not isinstance(returned, tuple) or len(returned) != 1:
        return False
    return hasattr(returned, "_fields") or isinstance(returned[0], np.ndarray)


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def output(field: Field, value: Any, rows: Optional[int], batching: bool) -> Any:
    """Return the array of an output.

    It has `rows` rows before the declared shape; any number of them for None in a model that batches; and no such
    dimension in one that does not. Raises OutputError.
    """
    shape = (*([-1 if rows is None else rows] if batching else []), *field.shape)
    try:
        if isinstance(value, np.ndarray):
            array = value if type(value) is np.ndarray else base_array(value, f"output '{field.name}'")
        else:
            array = np.asarray(value, object if field.datatype == "BYTES" else None)
    except ValueError as error:
        raise OutputError(f"output '{field.name}' is not an array: {error}") from None
    except TritonModelException as error:
        raise OutputError(str(error)) from None
    array = _convert_type(field, array)
    if _fits(array.shape, shape):
        return array
    if all(each == 1 for each in field.shape) and _fits(array.shape, shape[: len(shape) - len(field.shape)]):
        return array.reshape(array.shape + field.shape)  # single values need no dimension of their own
    text = f"output '{field.name}' has shape {list(array.shape)}, expected {list(shape)}"
    if batching and rows is not None and array.ndim and array.shape[0] != rows:
        text += f": the inputs have {rows} row{'s' if rows != 1 else ''}, and the output {array.shape[0]}"
    elif batching and array.ndim == len(field.shape):
        text += ", the first dimension being the batch"
    raise OutputError(text)


def _fits(shape: Tuple[int, ...], expected: Tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(most in (-1, each) for each, most in zip(shape, expected))


def _convert_type(field: Field, array: Any) -> Any:
    """Convert the array to the type of the output, if no value changes but by rounding. Raises OutputError."""
    if field.datatype == "BYTES":
        return _as_bytes(field, array)
    expected = np.dtype(NUMPY_TYPES[field.datatype])
    if array.dtype == expected:
        return array
    if array.size == 0 and array.dtype == np.float64:  # an empty list
        return array.astype(expected)
    problem = f"output '{field.name}' has the type {array.dtype}, expected {field.datatype} ({expected})"
    whole = array.dtype.kind in "iu" and expected.kind in "iu"
    if not whole and (array.dtype.kind in "OUSV" or not np.can_cast(array.dtype, expected, "same_kind")):
        raise OutputError(problem)
    converted = array.astype(expected)
    if whole and not np.array_equal(converted, array):
        raise OutputError(f"{problem}, which cannot hold all of its values")
    return converted


def _as_bytes(field: Field, array: Any) -> Any:
    result = np.empty(array.size, np.object_)
    for number, each in enumerate(array.reshape(-1).tolist()):
        if isinstance(each, str):
            each = each.encode()
        if not isinstance(each, bytes):
            raise OutputError(f"output '{field.name}' contains a {type(each).__name__}, expected str or bytes")
        result[number] = each
    return result.reshape(array.shape)


def stack_rows(field: Field, values: Sequence[Any]) -> Any:
    """Stack an output's rows, each from a call of its own, into one array. Raises OutputError."""
    rows = [output(field, value, None, batching=False) for value in values]
    if len({row.shape for row in rows}) > 1:
        shapes = sorted({str(list(row.shape)) for row in rows})
        raise OutputError(f"output '{field.name}' has rows of different shapes in one request: {' and '.join(shapes)}")
    return np.stack(rows) if rows else np.empty((0, *field.shape), NUMPY_TYPES[field.datatype])
