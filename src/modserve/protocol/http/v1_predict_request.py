"""The ``:predict`` bodies of KServe v1 and of TensorFlow Serving's REST API, which are one format.

Going in, ``instances`` is the row format (a list of values, or of objects by input name, one an instance) and
``inputs`` the column format (whole tensors, by input name or a single one). Tensors are nested lists.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError, invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, Tensor
from modserve.core.wire import base64_text
from modserve.protocol import limits
from modserve.protocol.json import cut_json, json_data, json_text, long_array
from modserve.protocol.json.cut_json import ArrayCutter, Take
from modserve.protocol.json.json_text import describe
from modserve.protocol.json.long_array import LongArray

SIGNATURE = "serving_default"
"""The name of the one signature each model has."""

_BASE64 = "b64"

_MOST_NAMES = 16
"""Most input names to search for in long bodies: each search reads the whole body."""

_ELEMENT_TYPES: dict[str, set[type]] = {"bool": {bool}, "int": {int}, "float": {int, float}, "string": {str, dict}}
_TAKES = {**json_data.TAKES, "string": 'strings, or {"b64": "<base64>"} for bytes of any kind'}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Content of a request: tensors by input name, and whether the response is in the row format."""

    inputs: Mapping[str, Tensor]
    rows: bool


def decode(config: ModelConfig, body: bytes) -> Prediction:
    """Decode the prediction that `body` asks of a model. In the row format the instances are the first dimension.

    Raises INVALID_ARG, naming the place in the body.
    """
    document = _parse(config, body)
    if not isinstance(document, dict):
        raise invalid(f"the request body must be an object with 'instances' or 'inputs', but is {describe(document)}")
    _check_signature(document.get("signature_name", ""))
    rows, columns = "instances" in document, "inputs" in document
    if rows and columns:
        raise invalid("the request has both 'instances' (row format) and 'inputs' (column format): give one of them")
    if rows:
        return Prediction(_from_rows(config, document["instances"]), True)
    if columns:
        return Prediction(_from_columns(config, document["inputs"]), False)
    keys = _quote(list(document)[:10]) or "no keys"
    raise invalid(f"Missing 'inputs' or 'instances' key: the request has {keys}")


def row_count(config: ModelConfig, inputs: Mapping[str, Tensor]) -> int:
    """Return the number of rows in the inputs; 1 for models without a batch dimension, and where inputs differ."""
    sizes = {tensor.shape[:1] for tensor in inputs.values()}
    return max([1, *next(iter(sizes))]) if config.batching and len(sizes) == 1 else 1


def batches(config: ModelConfig, inputs: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """Split `inputs` into parts of at most the model's max_batch_size. Inputs that do not fit together stay whole."""
    size, most = row_count(config, inputs), config.max_batch_size
    if not config.batching or size <= most:
        yield inputs
        return
    for start in range(0, size, most):
        stop = min(start + most, size)
        yield {
            name: Tensor(each.datatype, (stop - start, *each.shape[1:]), None, each.array[start:stop])
            for name, each in inputs.items()
        }


def memory(body: bytes) -> int:
    """Estimate the bytes that reading `body` takes, besides its own."""
    if limits.count_parts(body) > limits.LIMITS.parsed_parts:
        return limits.MOST_TENSOR_BYTES * len(body)
    return limits.estimate_size(body)


def _parse(config: ModelConfig, body: bytes) -> object:
    """Parse `body`. If it has many values, long lists of numbers become a `LongArray`."""
    if len(body) <= limits.LIMITS.parsed_parts or limits.count_parts(body) <= limits.LIMITS.parsed_parts:
        return json_text.parse_any(body)
    names = [orjson.dumps(name) for name in config.inputs_by_name] if len(config.inputs) <= _MOST_NAMES else []
    cutter = ArrayCutter(
        tuple({b'"instances"', b'"inputs"', *names}), long_array.find_numbers, _place_lists, _check_parts
    )
    return cut_json.parse(body, cutter)


def _place_lists(document: dict[str, object], take: Take) -> None:
    for key in ("instances", "inputs"):
        if (array := take(document.get(key))) is not None:
            document[key] = array
    inputs = document.get("inputs")
    if isinstance(inputs, dict):
        for name, value in inputs.items():
            if (array := take(value)) is not None:
                inputs[name] = array


def _check_parts(parts: Iterable[bytes], others: Iterable[LongArray]) -> None:
    count = sum(map(limits.count_parts, parts)) + sum(array.parts for array in others)
    limits.check_parts(count, " beside whole tensors of numbers")


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of an input's elements in the body, by their index in the tensor.

    `key` is the member of the body; `member` names the input where the body does, behind the first `outer` indices.
    """

    key: str
    outer: int = 0
    member: str = ""

    def of(self, index: int, shape: Shape) -> str:
        """Return the place of the element with this index among all elements of a tensor."""
        positions = [f"[{each}]" for each in np.unravel_index(index, shape)]
        return self.key + "".join([*positions[: self.outer], self.member, *positions[self.outer :]])


def _check_signature(name: object) -> None:
    if name is None or name in ("", SIGNATURE):
        return
    if not isinstance(name, str):
        raise invalid(f"'signature_name' must be a string, but is {describe(name)}")
    raise invalid(
        f'Serving signature name: "{name}" not found in signature def: each model has one signature, "{SIGNATURE}"'
    )


def _from_rows(config: ModelConfig, instances: object) -> dict[str, Tensor]:
    if not isinstance(instances, list | LongArray):
        raise invalid(f"'instances' must be a list, but is {describe(instances)}")
    if not instances:
        raise invalid("No values in 'instances' list: give at least one instance")
    if isinstance(instances, LongArray) or not any(map(_names_inputs, instances)):
        spec = _only_input(config, "'instances' is a list of values", "a list of objects")
        return {spec.name: _tensor(config, _Place("instances"), spec, instances)}
    objects = [_names_inputs(each) for each in instances]
    if not all(objects):
        other = objects.index(not objects[0])
        raise invalid(
            f"instances[{other}] is {describe(instances[other])} where instances[0] is {describe(instances[0])}: "
            "give either objects by input name or values, not both"
        )
    names = instances[0].keys()
    for index, instance in enumerate(instances):
        if instance.keys() != names or not index:
            _check_names(config, instance.keys(), f"instances[{index}]")
            for name in [*names, *instance]:
                if (name in names) != (name in instance):
                    raise invalid(
                        f"input '{name}' is in some of the instances only: see instances[0] and instances[{index}]"
                    )
    return {
        name: _tensor(
            config,
            _Place("instances", 1, f"['{name}']"),
            config.inputs_by_name[name],
            [each[name] for each in instances],
        )
        for name in names
    }


def _from_columns(config: ModelConfig, inputs: object) -> dict[str, Tensor]:
    if not isinstance(inputs, dict) or not _names_inputs(inputs):
        if isinstance(inputs, list) and any(isinstance(each, dict) and "datatype" in each for each in inputs):
            raise invalid(
                "'inputs' is a list of tensors of the v2 protocol, whose requests go to "
                f"/v2/models/{config.name}/infer: give an object with the keys {_quote(config.inputs_by_name)}"
            )
        spec = _only_input(config, "'inputs' is one value", "an object")
        return {spec.name: _tensor(config, _Place("inputs"), spec, inputs)}
    _check_names(config, inputs.keys(), "'inputs'")
    return {
        name: _tensor(config, _Place("inputs", 0, f"['{name}']"), config.inputs_by_name[name], value)
        for name, value in inputs.items()
    }


def _names_inputs(value: object) -> bool:
    """True if a value is an object by input name, and not an encoding of bytes."""
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: dict[str, object]) -> bool:
    return len(value) == 1 and isinstance(value.get(_BASE64), str)


def _only_input(config: ModelConfig, values: str, by_name: str) -> TensorSpec:
    """Return the input that needs no name: a model's only one, or only required one. The rest is for the message."""
    required = [spec for spec in config.inputs if not spec.optional]
    candidates = config.inputs if len(config.inputs) == 1 else required
    if len(candidates) != 1:
        raise invalid(
            f"{values}, but model '{config.name}' has {len(config.inputs)} inputs: give {by_name} with the keys "
            f"{_quote(config.inputs_by_name)}"
        )
    return candidates[0]


def _check_names(config: ModelConfig, names: Any, place: str) -> None:
    for name in names:
        if name not in config.inputs_by_name:
            raise invalid(
                f"{place} has the key '{name}', which is not an input of model '{config.name}': its inputs are "
                f"{_quote(config.inputs_by_name)}"
            )
    for spec in config.inputs:
        if spec.name not in names and not spec.optional:
            raise invalid(f"{place} lacks the key '{spec.name}', a required input of model '{config.name}'")


def _tensor(config: ModelConfig, place: _Place, spec: TensorSpec, data: object) -> Tensor:
    nulls = json_data.takes_null(config) and spec.datatype.json_kind == "float"
    if isinstance(data, LongArray):
        return _from_pieces(place, spec, data, nulls)
    shape, flat = _flat(place, data)
    datatype = spec.datatype
    if nulls:
        flat = json_data.with_nan(flat)
    _check_types(place, spec, shape, flat)
    if datatype is dtypes.BYTES:
        return Tensor(datatype, shape, None, _bytes(place, spec, shape, flat))
    return Tensor(datatype, shape, None, _numbers(place, spec, shape, flat).reshape(shape))


def _from_pieces(place: _Place, spec: TensorSpec, data: LongArray, nulls: bool) -> Tensor:
    """Convert cut-out lists to a tensor: check their lengths first, and then their elements."""
    try:
        shape = data.shape()
    except long_array.UnevenError as error:
        raise _uneven(place, error.element) from None
    if len(shape) > limits.LIMITS.rank:
        raise _too_deep(place)
    total = math.prod(shape)
    array = np.empty(total, spec.datatype.numpy)
    count = 0
    for some, parts in zip(data.lists(), data.parts_of_lists(), strict=True):
        flat = json_data.flatten(some)
        if len(flat) != parts:  # some of which are empty lists
            raise _uneven(place, count)
        if nulls:
            flat = json_data.with_nan(flat)
        _check_types(place, spec, shape, flat, count)
        array[count : count + len(flat)] = _numbers(place, spec, shape, flat, count)
        count += parts
    return Tensor(spec.datatype, shape, None, array.reshape(shape))


def _uneven(place: _Place, element: int) -> ModserveError:
    return invalid(
        f"the lists in {place.of(0, ())} are not nested evenly, see element {element}: lists of one depth must "
        "have one length"
    )


def _too_deep(place: _Place) -> ModserveError:
    return invalid(f"the lists in '{place.key}' are nested more than {limits.LIMITS.rank} deep")


def _check_types(place: _Place, spec: TensorSpec, shape: Shape, flat: list[Any], before: int = 0) -> None:
    """Check the elements. Raises INVALID_ARG for a wrong type. `before` elements precede these."""
    wrong = set(map(type, flat)) - _ELEMENT_TYPES[spec.datatype.json_kind]
    if wrong:
        index = next(index for index, element in enumerate(flat) if type(element) in wrong)
        raise _wrong_element(place.of(before + index, shape), spec, flat[index])


def _flat(place: _Place, data: object) -> tuple[Shape, list[Any]]:
    """Return the shape of nested lists, and their elements in order. Raises INVALID_ARG if they are no tensor."""
    shape: tuple[int, ...] = ()
    level: list[Any] = [data]
    while True:
        types = set(map(type, level))
        if list not in types:
            return shape, level
        if len(types) > 1:
            other = next(i for i, each in enumerate(level) if isinstance(each, list) != isinstance(level[0], list))
            raise invalid(
                f"{place.of(other, shape)} is {describe(level[other])} where "
                f"{place.of(0, shape)} is {describe(level[0])}: lists must be nested evenly"
            )
        if len(set(map(len, level))) > 1:
            length = len(level[0])
            other = next(index for index, each in enumerate(level) if len(each) != length)
            raise invalid(
                f"{place.of(other, shape)} has {len(level[other])} elements where "
                f"{place.of(0, shape)} has {length}: lists of one depth must have one length"
            )
        if len(shape) == limits.LIMITS.rank:
            raise _too_deep(place)
        shape = (*shape, len(level[0]))
        level = list(chain.from_iterable(level))
        if not level:
            return shape, level


def _numbers(place: _Place, spec: TensorSpec, shape: Shape, flat: list[Any], before: int = 0) -> Array:
    """Convert numbers to an array. Raises INVALID_ARG for one out of range. `before` elements precede these."""
    datatype = spec.datatype
    wide = datatype.json_kind == "float"
    try:
        values = np.array(flat, dtype=np.float64 if wide else datatype.numpy)
    except OverflowError:
        index, bounds = _out_of_range(datatype, flat)
        raise invalid(
            f"{place.of(before + index, shape)} is {describe(flat[index])}, but input '{spec.name}' of "
            f"datatype {datatype.name} takes {bounds}"
        ) from None
    with np.errstate(over="ignore"):
        return values.astype(datatype.numpy, copy=False)


def _out_of_range(datatype: Datatype, flat: list[Any]) -> tuple[int, str]:
    if datatype.json_kind == "int":
        bounds = np.iinfo(datatype.numpy)
        index = next(index for index, value in enumerate(flat) if not bounds.min <= value <= bounds.max)
        return index, f"{bounds.min} to {bounds.max}"
    return next(index for index, value in enumerate(flat) if not _fits_double(value)), "numbers of up to 1.8e308"


def _fits_double(value: Any) -> bool:
    try:
        return math.isfinite(float(value)) or isinstance(value, float)
    except OverflowError:
        return False


def _bytes(place: _Place, spec: TensorSpec, shape: Shape, flat: list[Any]) -> Array:
    array = np.empty(len(flat), dtype=object)
    for index, element in enumerate(flat):
        if isinstance(element, str):
            array[index] = element.encode()
        elif _is_base64(element):
            try:
                array[index] = base64_text.decode(element[_BASE64])
            except ValueError as error:
                raise invalid(f"{place.of(index, shape)} is not valid base64: {error}") from None
        else:
            raise _wrong_element(place.of(index, shape), spec, element)
    return array.reshape(shape)


def _wrong_element(place: str, spec: TensorSpec, element: object) -> ModserveError:
    return invalid(
        f"{place} is {describe(element)}, but input '{spec.name}' of datatype {spec.datatype.name} takes "
        f"{_TAKES[spec.datatype.json_kind]}"
    )


def _quote(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
