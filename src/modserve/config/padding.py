"""Requests of different lengths in one batch: model parameters whose keys begin with ``padding.``.

Some keys end in the name of a tensor, such as ``padding.axis.input_ids``.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.merging import Padding
from modserve.pb import inference as pb

from .extras import whole_number
from .problems import FieldPath, Problems

PREFIX = "padding."
AXIS, VALUE, UNPAD, MASK = "padding.axis.", "padding.value.", "padding.unpad.", "padding.mask"
_OF_TENSORS: Mapping[str, str] = {AXIS: "input", VALUE: "input", UNPAD: "output"}
"""Which key takes whose name."""


class _Number(NamedTuple):
    field: str
    read: Callable[[str], int]


_NUMBERS: Mapping[str, _Number] = {
    "padding.multiple_of": _Number("multiple_of", whole_number(1, most=1_000_000)),
    "padding.buckets": _Number("buckets", whole_number(1)),
    "padding.relearn_every": _Number("relearn_every", whole_number(1)),
}
_BATCH_SIZES = "scheduling.batch_sizes"
_ELEMENTS = "scheduling.max_batch_elements"
_WITHOUT_PADDING: tuple[Literal["sequence_batching", "ensemble_scheduling"], ...] = (
    "sequence_batching",
    "ensemble_scheduling",
)
_DATATYPES = {pb.DataType.Value(row.config_name): row for row in dtypes.ALL}

_Tensor = pb.ModelInput | pb.ModelOutput


def validate(message: pb.ModelConfig, problems: Problems, *, partial: bool) -> None:
    """Adds what is no setting, has no such value, or does not fit the tensors.

    `partial`: tensors that are not there may still be filled in, and are looked at then.
    """
    settings = {key: value.string_value for key, value in message.parameters.items() if key.startswith(PREFIX)}
    for key, text in settings.items():
        for fault in _faults(key, text, message, partial):
            problems.add(("parameters", key), fault)
    if settings and not any(key.startswith(AXIS) for key in settings):
        first = next(iter(settings))
        problems.add(("parameters", first), f"parameter '{first}' needs '{AXIS}<input>', which says what is padded")
    if settings:
        _fits_the_model(message, next(iter(settings)), problems, partial=partial)
    _batch_sizes(message, problems, partial=partial)
    if _ELEMENTS in message.parameters and not settings and not any(each.allow_ragged_batch for each in message.input):
        problems.add(
            ("parameters", _ELEMENTS),
            f"parameter '{_ELEMENTS}' needs '{AXIS}<input>' or an input with allow_ragged_batch: other requests of "
            "a batch are of equal size",
        )


def to_padding(message: pb.ModelConfig) -> Padding | None:
    """The settings, None if there are none; what can not be read is left out."""
    found: dict[str, dict[str, str]] = {AXIS: {}, VALUE: {}, UNPAD: {}}
    numbers: dict[str, int] = {}
    mask = ""
    for key, parameter in message.parameters.items():
        text = parameter.string_value
        family, name = _split(key)
        if family:
            found[family][name] = text
        elif key in _NUMBERS:
            try:
                numbers[_NUMBERS[key].field] = _NUMBERS[key].read(text)
            except ValueError:
                continue
        elif key == MASK:
            mask = text
    axes = {name: int(text) for name, text in found[AXIS].items() if text.isdecimal()}
    if not axes:
        return None
    given = next((each for each in message.input if each.name == mask), None)
    if given is not None and -1 in given.dims:
        axes.setdefault(mask, list(given.dims).index(-1))
    unpad = {name: int(text) for name, text in found[UNPAD].items() if text.isdecimal()}
    return Padding(axes=axes, values=found[VALUE], mask=mask, unpad=unpad, **numbers)


def make_mask_optional(message: pb.ModelConfig) -> None:
    """Clients need not give the mask, and are shown so."""
    for tensor in message.input:
        if tensor.name == mask(message):
            tensor.optional = True


def mask(message: pb.ModelConfig) -> str | None:
    """The name of the mask, if there is one."""
    return message.parameters[MASK].string_value if MASK in message.parameters else None


def _split(key: str) -> tuple[str, str]:
    """The family of a key that names a tensor, and the name."""
    for family in _OF_TENSORS:
        if key.startswith(family) and len(key) > len(family):
            return family, key[len(family) :]
    return "", ""


def _faults(key: str, text: str, message: pb.ModelConfig, partial: bool) -> Iterator[str]:
    family, name = _split(key)
    who = f"parameter '{key}'"
    if family:
        side = _OF_TENSORS[family]
        tensors: Mapping[str, _Tensor] = {each.name: each for each in getattr(message, side)}
        if not tensors and partial:
            return
        if name not in tensors:
            yield f"{who}: model '{message.name}' has no {side} '{name}'; {_near(name, tensors, f'{side}s')}"
        elif family == VALUE:
            yield from _value_faults(key, text, tensors[name], message)
        else:
            yield from (f"{who} {fault}" for fault in _axis_faults(text, side, tensors[name], partial))
    elif key == MASK:
        yield from (f"{who} {fault}" for fault in _mask_faults(text, message, partial))
    elif key in _NUMBERS:
        try:
            _NUMBERS[key].read(text)
        except ValueError as error:
            yield f"{who} is '{text}', expected {error}"
    else:
        known = [*_NUMBERS, MASK, *(f"{family}<{side}>" for family, side in _OF_TENSORS.items())]
        yield f"unknown parameter '{key}'; {_near(key, known, 'parameters')}"


def _near(name: str, known: Mapping[str, Any] | list[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8 if what == "parameters" else 0.6)
    return f"did you mean '{near[0]}'?" if near else f"known {what} are: {', '.join(known)}"


def _axis_faults(text: str, side: str, tensor: _Tensor, partial: bool) -> Iterator[str]:
    dims = list(tensor.dims)
    if not dims and partial:
        return
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) >= len(dims):
        yield (
            f"is '{text}', expected the number of one of the dims {dims} of {side} '{tensor.name}', the first being 0 "
            "(the batch dimension does not count)"
        )
    elif dims[int(text)] != -1:
        yield (
            f"is {text}, but that dimension of {side} '{tensor.name}' with dims {dims} has a fixed size, where "
            "padding needs a variable one (-1)"
        )
    if isinstance(tensor, pb.ModelInput):
        yield from (f"names {side} '{tensor.name}', which {fault}" for fault in _unpaddable(tensor))


def _unpaddable(tensor: pb.ModelInput) -> Iterator[str]:
    if tensor.allow_ragged_batch:
        yield "has allow_ragged_batch: its elements are joined without padding"
    if tensor.HasField("reshape"):
        yield "has a reshape: the model would not see the padded dimension"


def _value_faults(key: str, text: str, tensor: _Tensor, message: pb.ModelConfig) -> Iterator[str]:
    if f"{AXIS}{tensor.name}" not in message.parameters:
        yield f"parameter '{key}' needs '{AXIS}{tensor.name}', which says what is padded"
    datatype = _DATATYPES.get(tensor.data_type)
    expected = None if datatype is None else _expected(text, datatype)
    if expected is not None and datatype is not None:
        yield f"parameter '{key}' is '{text}', expected {expected} for data type {datatype.config_name}"


def _expected(text: str, datatype: Datatype) -> str | None:
    """What a value of this datatype looks like, if `text` is none."""
    if datatype.json_kind == "bool":
        return None if text in ("true", "false") else "true or false"
    if datatype.json_kind == "int":
        signed = datatype.numpy.kind == "i"
        bits = 8 * datatype.size - signed
        least, most = -(2**bits) if signed else 0, 2**bits - 1
        fits = re.fullmatch("-?[0-9]{1,20}", text) and least <= int(text) <= most
        return None if fits else f"a whole number from {least} to {most}"
    if datatype.json_kind == "float":
        try:
            number = float(text)
        except ValueError:
            return "a number"
        most = datatype.largest
        if not (abs(number) <= most or math.isnan(number) or "inf" in text.lower()):
            return f"a number from {-most:g} to {most:g}"
    return None


def _mask_faults(text: str, message: pb.ModelConfig, partial: bool) -> Iterator[str]:
    inputs = {each.name: each for each in message.input}
    if not inputs and partial:
        return
    mask = inputs.get(text)
    if mask is None:
        yield f"is '{text}', and model '{message.name}' has no such input; {_near(text, inputs, 'inputs')}"
        return
    if list(mask.dims).count(-1) != 1 and not (partial and not mask.dims):
        yield f"names input '{text}' with dims {list(mask.dims)}, where a mask needs one variable dimension (-1)"
    if mask.data_type == pb.TYPE_STRING:
        yield f"names input '{text}' of data type TYPE_STRING, where a mask needs numbers"
    if f"{VALUE}{text}" in message.parameters:
        yield f"names input '{text}', which is filled up with zeros: '{VALUE}{text}' can not be given"
    yield from (f"names input '{text}', which {fault}" for fault in _unpaddable(mask))


def _fits_the_model(message: pb.ModelConfig, first: str, problems: Problems, *, partial: bool) -> None:
    path: FieldPath = ("parameters", first)
    if _lacks_batches(message, partial):
        problems.add(path, f"parameter '{first}' needs a batch dimension: max_batch_size of 1 or more")
    for scheduling in _WITHOUT_PADDING:
        if message.HasField(scheduling):
            problems.add(path, f"parameter '{first}' can not be combined with {scheduling}")
    ragged = [each.name for each in message.input if each.allow_ragged_batch]
    if ragged or message.batch_input or message.batch_output:
        what = f"allow_ragged_batch of input '{ragged[0]}'" if ragged else "batch_input and batch_output"
        problems.add(path, f"parameter '{first}' can not be combined with {what}")


def _lacks_batches(message: pb.ModelConfig, partial: bool) -> bool:
    """Whether the model has no batch dimension, and none can be found out any more."""
    return message.max_batch_size <= 0 and not (partial and not (message.input and message.output))


def _batch_sizes(message: pb.ModelConfig, problems: Problems, *, partial: bool) -> None:
    if _BATCH_SIZES not in message.parameters:
        return
    path: FieldPath = ("parameters", _BATCH_SIZES)
    text = message.parameters[_BATCH_SIZES].string_value
    sizes = re.findall("[0-9]+", text)
    if sizes and int(sizes[-1]) != message.max_batch_size and message.max_batch_size > 0:
        problems.add(
            path,
            f"parameter '{_BATCH_SIZES}' is '{text}', and its last size must be max_batch_size, which is "
            f"{message.max_batch_size}",
        )
    if _lacks_batches(message, partial):
        problems.add(path, f"parameter '{_BATCH_SIZES}' needs a batch dimension: max_batch_size of 1 or more")
    if any(each.allow_ragged_batch for each in message.input) or message.batch_input or message.batch_output:
        problems.add(path, f"parameter '{_BATCH_SIZES}' can not be combined with ragged batching")
