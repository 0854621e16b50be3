"""The JSON form of tensor data (protocol: inference request and response JSON objects, ``data``).

Going in, `data` may be nested in any way; only its elements count, in order. Going out it is flat. The 16-bit float
types, which Triton refuses as JSON, are numbers like the others here.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count

import numpy as np
import orjson
from numpy.typing import NDArray

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid
from modserve.core.runtime.event_loop import yield_now
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, Tensor, encode_elements, format_shape
from modserve.protocol.json.json_text import MAX_DEPTH, JsonTypeError, describe, too_deep, type_error, unable
from modserve.protocol.json.long_array import LongArray

_MOST = 2**63 - 1
_AT_A_TIME = 32 * 1024
"""Elements that are written in one go, in which no other thread runs."""
_FEW = 256
"""Most elements for which the type of each is checked."""

_ELEMENT_TYPES: dict[str, set[type]] = {"bool": {bool}, "int": {int}, "float": {int, float}, "string": {str}}
"""The Python types that JSON elements of each `Datatype.json_kind` are parsed to."""

TAKES = {"bool": "true or false", "int": "integers", "float": "numbers", "string": "strings"}
"""Accepted values in messages, by `Datatype.json_kind`."""


def takes_null(config: ModelConfig) -> bool:
    """True if null is a missing value to a model, which is NaN in its tensors: to forests, as pandas writes it."""
    return config.backend == "fil"


def to_tensor(
    name: str, datatype: Datatype, shape: Shape, data: object, max_bytes: int = _MOST, nulls: bool = False
) -> Tensor:
    """Convert `data` to a tensor. With `nulls`, null is NaN in the float types.

    Raises INVALID_ARG for elements of the wrong type, number or range, and for more than `max_bytes` bytes of them.
    """
    if type(data) is not list:
        if isinstance(data, LongArray):
            return _from_pieces(name, datatype, shape, data, max_bytes, nulls)
        raise type_error("data", "array", data, f"input '{name}'")
    expected = _element_count(name, shape)
    _check_size(name, expected, datatype, max_bytes)
    flat, numbers = _flat(name, data, datatype, nulls)
    if len(flat) != expected:
        raise _wrong_count(name, len(flat), expected)
    if datatype is not dtypes.BYTES:
        return _make_tensor(datatype, shape, _numbers(name, datatype, flat) if numbers is None else numbers)
    texts, _ = _texts(name, flat, 0, max_bytes)
    return Tensor.from_raw(datatype, shape, texts)


def _flat(
    name: str, data: list[object], datatype: Datatype, nulls: bool, before: int = 0
) -> tuple[list[object], Array | None]:
    """Return the elements; many floats also as an array, where that is quick. `before` elements precede them."""
    flat, depth = _flatten(data)
    if len(flat) > _FEW and datatype.json_kind == "float" and (values := _doubles(flat)) is not None:
        with np.errstate(over="ignore"):
            return flat, values.astype(datatype.numpy)
    return _check_elements(name, flat, depth, datatype, nulls, before), None


def _from_pieces(name: str, datatype: Datatype, shape: Shape, data: LongArray, max_bytes: int, nulls: bool) -> Tensor:
    expected = _element_count(name, shape)
    _check_size(name, expected, datatype, max_bytes)
    if data.parts > 2 * expected + _FEW:  # too many of one or of both: nothing of it needs to be read
        raise _wrong_count(name, data.parts, expected, "elements and empty lists")
    # The shape says how many there should be, but not more memory is taken for that than the text could fill.
    room = expected if datatype.size and expected <= len(data) else 0
    array = np.empty(room, datatype.numpy)
    texts: list[bytes] = []
    count = size = 0
    for some in data.lists():
        flat, numbers = _flat(name, some, datatype, nulls, count)
        before, count = count, count + len(flat)
        if count > expected:  # how many they are is all that is still of interest
            continue
        if datatype is dtypes.BYTES:
            raw, size = _texts(name, flat, size, max_bytes)
            texts.append(raw)
        else:
            numbers = _numbers(name, datatype, flat, before) if numbers is None else numbers
            if room:
                array[before:count] = numbers
    if count != expected:
        raise _wrong_count(name, count, expected)
    if datatype is dtypes.BYTES:
        return Tensor.from_raw(datatype, shape, b"".join(texts))
    return _make_tensor(datatype, shape, array)


def _texts(name: str, flat: list[object], size: int, max_bytes: int) -> tuple[bytes, int]:
    """Return the raw form of texts, of which `size` bytes came before, and the size of all. Raises INVALID_ARG."""
    encode: Callable[[str], bytes] = str.encode
    try:
        elements = [encode(element) for element in flat if isinstance(element, str)]
    except UnicodeEncodeError:
        raise invalid(f"Unable to parse 'data': input '{name}' has a string with a lone surrogate escape") from None
    size += 4 * len(elements) + sum(map(len, elements))
    if size > max_bytes:
        raise _too_large(name, size, max_bytes)
    return encode_elements(elements), size


def _wrong_count(name: str, count: int, expected: int, unit: str = "elements") -> ModserveError:
    """Return INVALID_ARG with Triton's texts, of which it wraps only the second."""
    counts = f"input '{name}' has {count} {unit}, its shape {expected}"
    if count < expected:
        return invalid(f"Failed to parse 'data' field: shape does not match true shape: {counts}")
    return unable("data", ValueError(f"Shape does not match true shape of 'data' field: {counts}"))


def _make_tensor(datatype: Datatype, shape: Shape, numbers: Array) -> Tensor:
    try:
        return Tensor(datatype, shape, None, numbers.reshape(shape))
    except ValueError:  # a shape beyond numpy's limits, with dimensions in hundreds or near 2^63: no model has it
        return Tensor.from_raw(datatype, shape, numbers.tobytes())


def from_tensor(name: str, tensor: Tensor) -> bytes:
    """Return the flat JSON array of a tensor's elements; NaN and infinities are bare literals, as Triton writes them.

    Raises INVALID_ARG for BYTES that are no UTF-8 text, which JSON cannot carry.
    """
    flat = tensor.array.reshape(-1)
    datatype = tensor.datatype
    if datatype is dtypes.BYTES:
        try:
            return _write_array(flat, lambda some: orjson.dumps([element.decode() for element in some.tolist()]))
        except UnicodeDecodeError:
            raise invalid(
                f"output '{name}' holds bytes that are not UTF-8, which JSON cannot carry; "
                "ask for it with the output parameter 'binary_data': true"
            ) from None
    if datatype.json_kind == "float":
        # Widened, so that a float32 0.1 prints as Triton prints it: 0.10000000149011612.
        with np.errstate(invalid="ignore"):  # widening a signalling NaN is no fault of anybody's
            flat = flat.astype(np.float64)
        if not np.isfinite(flat).all():
            return _write_array(flat, _with_literals)
    return _write_array(flat, _numbers_text)


def _write_array(flat: Array, write: Callable[[Array], bytes]) -> bytes:
    """Return the elements as one JSON array; `write` makes one of some of them."""
    if len(flat) <= _AT_A_TIME:
        return write(flat)
    parts: list[bytes] = []
    for start in range(0, len(flat), _AT_A_TIME):
        yield_now()
        parts.append(write(flat[start : start + _AT_A_TIME])[1:-1])
    return b"[%b]" % b",".join(parts)


def _numbers_text(flat: Array) -> bytes:
    return orjson.dumps(np.ascontiguousarray(flat), option=orjson.OPT_SERIALIZE_NUMPY)


def _with_literals(flat: NDArray[np.float64]) -> bytes:
    """Write NaN and infinities as literals. The JSON library writes null: a number stands in for Infinity."""
    infinite = np.isinf(flat)
    if not infinite.any():
        return _numbers_text(flat).replace(b"null", b"NaN")
    # Written with one digit before the point, its text is a part of no other number's but its negative's.
    stand_in = next(number for digits in count(1) if not (np.abs(flat) == (number := float(f"1.{digits}e300"))).any())
    text = _numbers_text(np.where(infinite, np.copysign(stand_in, flat), flat))
    return text.replace(orjson.dumps(stand_in), b"Infinity").replace(b"null", b"NaN")


def _element_count(name: str, shape: Shape) -> int:
    count = math.prod(shape)
    if count > _MOST:
        raise invalid(
            f"invalid shape for input '{name}': shape {format_shape(shape)} causes total element count to exceed "
            f"maximum size of {_MOST}"
        )
    return count


def _check_size(name: str, count: int, datatype: Datatype, max_bytes: int) -> None:
    size = count * datatype.size
    if size > _MOST:
        raise invalid(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({datatype.size}) "
            f"exceeds maximum allowed size ({_MOST})"
        )
    if size > max_bytes:
        raise _too_large(name, size, max_bytes)


def _too_large(name: str, size: int, max_bytes: int) -> ModserveError:
    return invalid(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {max_bytes} "
        "bytes. Use --http-max-input-size to increase the limit."
    )


def element_count(data: object) -> int:
    """Count the elements of `data`, nested in any way. Raises INVALID_ARG for data nested too deeply."""
    if not isinstance(data, list):
        return 1
    flat, depth = _flatten(data)
    return sum(1 for _ in _leaves(flat, depth)) if list in map(type, flat) else len(flat)


def flatten(data: list[object]) -> list[object]:
    """Return the elements of lists of one depth. Of others, only the outer lists are flattened."""
    return _flatten(data)[0]


def _flatten(data: list[object]) -> tuple[list[object], int]:
    """Return the first list with an element that is no list, and its elements' depth; elements are not checked."""
    depth = 1
    while data and type(data[0]) is list:
        if set(map(type, data)) != {list}:
            break
        data = list(chain.from_iterable(data))  # type: ignore[arg-type]  # just checked
        depth += 1
        if data and depth >= MAX_DEPTH:
            raise too_deep()
    return data, depth


def _doubles(flat: list[object]) -> NDArray[np.float64] | None:
    """Return numbers as an array; None if there are other values among them.

    To look at each element's type would take as long as all the rest.
    """
    try:
        values = np.frombuffer(struct.pack(f"{len(flat)}d", *flat), np.float64)
    except (struct.error, OverflowError):
        return None
    # A boolean would pass for a number, but for only two of them.
    suspects = np.flatnonzero((values == 0) | (values == 1)).tolist()
    return None if any(type(flat[index]) is bool for index in suspects) else values


def _check_elements(
    name: str, flat: list[object], depth: int, datatype: Datatype, nulls: bool, before: int
) -> list[object]:
    """Check the elements, of lists within `flat` as well. Raises INVALID_ARG for elements of the wrong type."""
    types = set(map(type, flat))
    if list in types:
        flat = list(_leaves(flat, depth))
        types = set(map(type, flat))
    allowed = _ELEMENT_TYPES[datatype.json_kind]
    if nulls and type(None) in types and datatype.json_kind == "float":
        flat = with_nan(flat)
        types.discard(type(None))
    if types - allowed:
        index = next(index for index, element in enumerate(flat) if type(element) not in allowed)
        raise unable("data", _wrong_element(name, datatype, before + index, flat[index]))
    return flat


def with_nan(flat: list[object]) -> list[object]:
    """Return the elements, with NaN in place of null."""
    return [math.nan if element is None else element for element in flat]


def _leaves(data: Iterable[object], depth: int) -> Iterator[object]:
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if depth + len(stack) > MAX_DEPTH:
                raise too_deep()
            if isinstance(element, list):
                stack.append(iter(element))
                break
            yield element
        else:
            stack.pop()


def _numbers(name: str, datatype: Datatype, flat: list[object], before: int = 0) -> Array:
    """Return the elements as an array; messages count them from `before` on."""
    if datatype.json_kind == "float":
        try:
            values = np.array(flat, dtype=np.float64)
        except OverflowError:
            index = next(index for index, number in enumerate(flat) if not _is_double(number))
            raise unable(
                "data", _wrong_element(name, datatype, before + index, flat[index], " up to 1.8e308")
            ) from None
        with np.errstate(over="ignore"):
            return values.astype(datatype.numpy)
    if datatype.json_kind == "bool":
        return np.frombuffer(bytes(flat), np.bool_)  # type: ignore[arg-type]
    try:
        # Quicker than numpy's own way, which is as strict.
        return np.frombuffer(struct.pack(f"{len(flat)}{datatype.numpy.char}", *flat), datatype.numpy)
    except struct.error:
        bounds = np.iinfo(datatype.numpy)
        index, value = next(
            (index, value)
            for index, value in enumerate(flat)
            if isinstance(value, int) and not bounds.min <= value <= bounds.max
        )
        raise invalid(
            f"Unable to parse 'data': element {before + index} of input '{name}' is {value}, "
            f"{datatype.name} takes {bounds.min} to {bounds.max}"
        ) from None


def _is_double(number: object) -> bool:
    try:
        float(number)  # type: ignore[arg-type]
    except OverflowError:
        return False
    return True


_TRITON_NAMES = {"bool": ("boolean", ""), "float": ("number", "double"), "string": ("string", "")}
"""Triton's, by `Datatype.json_kind`: of the JSON type, and of the one that it is read as."""


def _wrong_element(name: str, datatype: Datatype, index: int, element: object, bound: str = "") -> JsonTypeError:
    integer = "unsigned-integer" if datatype.numpy.kind == "u" else "signed-integer"
    is_not, expected = _TRITON_NAMES.get(datatype.json_kind, (integer, ""))
    takes = f"{datatype.name} takes {TAKES[datatype.json_kind]}{bound}"
    return JsonTypeError(is_not, expected, f"element {index} of input '{name}' is {describe(element)}, but {takes}")
