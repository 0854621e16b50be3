"""The JSON form of tensor data (protocol: inference request and response JSON objects, ``data``).

Going in, `data` may be nested in any way; only its elements count, in order. Going out it is flat. The 16-bit float
types, which Triton refuses as JSON, are numbers like the others here.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np
import orjson

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.errors import ModserveError, invalid
from modserve.core.tensor import Array, Shape, Tensor, encode_elements

_ELEMENT_TYPES: dict[str, set[type]] = {"bool": {bool}, "int": {int}, "float": {int, float}, "string": {str}}
"""The Python types that JSON elements of each `Datatype.json_kind` are parsed to."""


class JsonTypeError(ValueError):
    """A JSON value of the wrong type; the text is Triton's."""

    def __init__(self, is_not: str, wanted: str) -> None:
        super().__init__(f"attempt to access JSON non-{is_not} as {wanted}")


def to_tensor(name: str, datatype: Datatype, shape: Shape, data: object) -> Tensor:
    """The tensor that `data` holds. Raises INVALID_ARG for elements of the wrong type, number or range."""
    if not isinstance(data, list):
        raise unable("data", JsonTypeError("array", "array"))
    flat = _flatten(data)
    expected = math.prod(shape)
    if set(map(type, flat)) - _ELEMENT_TYPES[datatype.json_kind]:
        raise unable("data", _wrong_element(datatype))
    if len(flat) != expected:
        text = "Shape does not match true shape of 'data' field"
        if len(flat) < expected:
            text = "Failed to parse 'data' field: shape does not match true shape"
        raise unable("data", ValueError(f"{text}: input '{name}' has {len(flat)} elements, its shape {expected}"))
    if datatype is dtypes.BYTES:
        return Tensor.from_raw(datatype, shape, encode_elements(_encoded(name, flat)))
    numbers = _numbers(name, datatype, flat)
    try:
        return Tensor(datatype, shape, None, numbers.reshape(shape))
    except ValueError:  # a shape beyond numpy's limits, with dimensions in hundreds or near 2^63: no model has it
        return Tensor.from_raw(datatype, shape, numbers.tobytes())


def unable(field: str, error: Exception, doing: str = "parse") -> ModserveError:
    """Triton's wrapping of what is wrong with a field; INVALID_ARG, where Triton answers a mistaken INTERNAL."""
    return invalid(f"Unable to {doing} '{field}': {error}")


def from_tensor(name: str, tensor: Tensor) -> bytes:
    """The flat JSON array of a tensor's elements; NaN and infinities are bare literals, as Triton writes them.

    Raises INVALID_ARG for BYTES that are no UTF-8 text, which JSON can not carry.
    """
    flat = tensor.array.reshape(-1)
    datatype = tensor.datatype
    if datatype is dtypes.BYTES:
        try:
            return orjson.dumps([element.decode() for element in flat.tolist()])
        except UnicodeDecodeError:
            raise invalid(
                f"output '{name}' holds bytes that are not UTF-8, which JSON can not carry; "
                "ask for it with the output parameter 'binary_data': true"
            ) from None
    if datatype.json_kind == "float":
        # Widened, so that a float32 0.1 prints as Triton prints it: 0.10000000149011612.
        with np.errstate(invalid="ignore"):  # widening a signalling NaN is no fault of anybody's
            flat = flat.astype(np.float64)
        if not np.isfinite(flat).all():
            return json.dumps(flat.tolist(), separators=(",", ":")).encode()
    return orjson.dumps(np.ascontiguousarray(flat), option=orjson.OPT_SERIALIZE_NUMPY)


def _flatten(data: list[object]) -> list[object]:
    while any(type(element) is list for element in data):
        if all(type(element) is list for element in data):
            data = list(chain.from_iterable(data))  # type: ignore[arg-type]  # just checked
        else:
            return list(_leaves(data))
    return data


def _leaves(data: Iterable[object]) -> Iterator[object]:
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if isinstance(element, list):
                stack.append(iter(element))
                break
            yield element
        else:
            stack.pop()


def _numbers(name: str, datatype: Datatype, flat: list[object]) -> Array:
    if datatype.json_kind == "float":
        try:
            values = np.array(flat, dtype=np.float64)
        except OverflowError:
            raise unable("data", JsonTypeError("number", "double")) from None
        with np.errstate(over="ignore"):
            return values.astype(datatype.numpy)
    try:
        return np.array(flat, dtype=datatype.numpy)
    except OverflowError:
        bounds = np.iinfo(datatype.numpy)
        index, value = next(
            (index, value)
            for index, value in enumerate(flat)
            if isinstance(value, int) and not bounds.min <= value <= bounds.max
        )
        raise invalid(
            f"Unable to parse 'data': element {index} of input '{name}' is {value}, "
            f"{datatype.name} takes {bounds.min} to {bounds.max}"
        ) from None


def _encoded(name: str, flat: list[object]) -> list[bytes]:
    encode: Callable[[str], bytes] = str.encode
    try:
        return [encode(element) for element in flat if isinstance(element, str)]
    except UnicodeEncodeError:
        raise invalid(f"Unable to parse 'data': input '{name}' has a string with a lone surrogate escape") from None


def _wrong_element(datatype: Datatype) -> JsonTypeError:
    if datatype.json_kind == "int":
        kind = "unsigned-integer" if datatype.numpy.kind == "u" else "signed-integer"
        return JsonTypeError(kind, kind)
    wanted = {"bool": "boolean", "float": "double", "string": "string"}[datatype.json_kind]
    return JsonTypeError("number" if wanted == "double" else wanted, wanted)
