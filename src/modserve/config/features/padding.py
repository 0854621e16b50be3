"""Model parameters ``padding.*``: batches of requests with different lengths.

Some keys end with the name of a tensor, such as ``padding.axis.input_ids``.
"""

import math
import re
from collections.abc import Iterator, Mapping

from modserve.core.configuration.merging import Padding, PaddingPolicy
from modserve.core.tensors.dtypes import Datatype
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from ..text.suggest import did_you_mean
from .common import DATATYPES, AnyTensor
from .parameters import ParameterSetting, choice, fault, special_scheduling, values, whole_number

PREFIX = "padding."
AXIS, VALUE, UNPAD, MASK = "padding.axis.", "padding.value.", "padding.unpad.", "padding.mask"
_OF_TENSORS: Mapping[str, str] = {AXIS: "input", VALUE: "input", UNPAD: "output"}
"""Prefix of a key with a tensor name → ``input`` or ``output``, the kind of tensor."""

_SETTINGS: Mapping[str, ParameterSetting] = {
    "padding.policy": ParameterSetting("policy", choice(**{policy.value: policy for policy in PaddingPolicy})),
    "padding.multiple_of": ParameterSetting("multiple_of", whole_number(1, most=1_000_000)),
    "padding.buckets": ParameterSetting("buckets", whole_number(1)),
    "padding.relearn_every": ParameterSetting("relearn_every", whole_number(1)),
}
_BATCH_SIZES = "scheduling.batch_sizes"
_ELEMENTS = "scheduling.max_batch_elements"


def validate(message: pb.ModelConfig, partial: bool) -> Faults:
    settings = {key: value.string_value for key, value in message.parameters.items() if key.startswith(PREFIX)}
    for key, value in settings.items():
        yield from ((("parameters", key), text) for text in _faults(key, value, message, partial))
    ragged = [tensor.name for tensor in message.input if tensor.allow_ragged_batch]
    if settings:
        first = next(iter(settings))
        path: FieldPath = ("parameters", first)
        if not any(key.startswith(AXIS) for key in settings):
            yield path, f"parameter '{first}' needs '{AXIS}<input>', which says what is padded"
        if _lacks_batches(message, partial):
            yield path, f"parameter '{first}' needs a batch dimension: max_batch_size of 1 or more"
        others = special_scheduling(message)
        if ragged or message.batch_input or message.batch_output:
            others.append(f"allow_ragged_batch of input '{ragged[0]}'" if ragged else "batch_input and batch_output")
        yield from ((path, f"parameter '{first}' cannot be combined with {other}") for other in others)
    if _BATCH_SIZES in message.parameters:
        for text in _batch_sizes_faults(message, partial):
            yield ("parameters", _BATCH_SIZES), f"parameter '{_BATCH_SIZES}' {text}"
    if _ELEMENTS in message.parameters and not settings and not ragged:
        needs = (
            f"needs '{AXIS}<input>' or an input with allow_ragged_batch: other requests of a batch are of equal size"
        )
        yield ("parameters", _ELEMENTS), f"parameter '{_ELEMENTS}' {needs}"


def padding(message: pb.ModelConfig) -> Padding | None:
    by_tensor: dict[str, dict[str, str]] = {AXIS: {}, VALUE: {}, UNPAD: {}}
    for key, parameter in message.parameters.items():
        family, name = _split(key)
        if family:
            by_tensor[family][name] = parameter.string_value
    axes = {name: int(text) for name, text in by_tensor[AXIS].items() if text.isdecimal()}
    if not axes:
        return None
    mask_name = mask(message) or ""
    mask_input = next((tensor for tensor in message.input if tensor.name == mask_name), None)
    if mask_input is not None and -1 in mask_input.dims:
        axes.setdefault(mask_name, list(mask_input.dims).index(-1))
    unpad = {name: int(text) for name, text in by_tensor[UNPAD].items() if text.isdecimal()}
    return Padding(axes=axes, values=by_tensor[VALUE], mask=mask_name, unpad=unpad, **values(message, _SETTINGS))


def normalise(message: pb.ModelConfig) -> None:
    """Mark the mask as an optional input, visible to clients."""
    for tensor in message.input:
        if tensor.name == mask(message):
            tensor.optional = True


def mask(message: pb.ModelConfig) -> str | None:
    """Return the name of the mask; None if there is none."""
    return message.parameters[MASK].string_value if MASK in message.parameters else None


def _split(key: str) -> tuple[str, str]:
    """Split a key into its prefix and the tensor's name; both are empty for keys without one."""
    for family in _OF_TENSORS:
        if key.startswith(family) and len(key) > len(family):
            return family, key[len(family) :]
    return "", ""


def _faults(key: str, text: str, message: pb.ModelConfig, partial: bool) -> Iterator[str]:
    family, name = _split(key)
    side = _OF_TENSORS.get(family, "input")
    tensors: Mapping[str, AnyTensor] = {tensor.name: tensor for tensor in getattr(message, side)}
    names = f"known {side}s are: {', '.join(tensors)}"
    if key in _SETTINGS:
        if unreadable := fault(key, text, _SETTINGS[key].read):
            yield unreadable
    elif family or key == MASK:
        if not tensors and partial:
            return
        who, tensor = f"parameter '{key}'", tensors.get(name if family else text)
        if tensor is None and family:
            hint = did_you_mean(name, tensors, names, cutoff=0.6)
            yield f"{who}: model '{message.name}' has no {side} '{name}'; {hint}"
        elif tensor is None:
            hint = did_you_mean(text, tensors, names, cutoff=0.6)
            yield f"{who} is '{text}', and model '{message.name}' has no such input; {hint}"
        elif isinstance(tensor, pb.ModelInput) and key == MASK:
            yield from (f"{who} names input '{text}'{clause}" for clause in _mask_faults(tensor, message, partial))
        elif family == VALUE:
            yield from (f"{who} {clause}" for clause in _value_faults(text, tensor, message))
        else:
            yield from (f"{who} {clause}" for clause in _axis_faults(text, side, tensor, partial))
    else:
        keys = [*_SETTINGS, MASK, *(f"{beginning}<{side}>" for beginning, side in _OF_TENSORS.items())]
        hint = did_you_mean(key, keys, f"known parameters are: {', '.join(keys)}")
        yield f"unknown parameter '{key}'; {hint}"


def _axis_faults(text: str, side: str, tensor: AnyTensor, partial: bool) -> Iterator[str]:
    dims = list(tensor.dims)
    if not dims and partial:
        return
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) >= len(dims):
        expected = f"the number of one of the dims {dims} of {side} '{tensor.name}'"
        yield f"is '{text}', expected {expected}, the first being 0 (the batch dimension does not count)"
    elif dims[int(text)] != -1:
        dimension = f"that dimension of {side} '{tensor.name}' with dims {dims}"
        yield f"is {text}, but {dimension} has a fixed size, where padding needs a variable one (-1)"
    if isinstance(tensor, pb.ModelInput):
        yield from (f"names {side} '{tensor.name}', which {clause}" for clause in _unpaddable(tensor))


def _unpaddable(tensor: pb.ModelInput) -> Iterator[str]:
    if tensor.allow_ragged_batch:
        yield "has allow_ragged_batch: its elements are joined without padding"
    if tensor.HasField("reshape"):
        yield "has a reshape: the model would not see the padded dimension"


def _value_faults(text: str, tensor: AnyTensor, message: pb.ModelConfig) -> Iterator[str]:
    if f"{AXIS}{tensor.name}" not in message.parameters:
        yield f"needs '{AXIS}{tensor.name}', which says what is padded"
    datatype = DATATYPES.get(tensor.data_type)
    expected = None if datatype is None else _describe_expected(text, datatype)
    if expected is not None and datatype is not None:
        yield f"is '{text}', expected {expected} for data type {datatype.config_name}"


def _describe_expected(text: str, datatype: Datatype) -> str | None:
    """Return a description of the datatype's values if `text` is not one of them, else None."""
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


def _mask_faults(tensor: pb.ModelInput, message: pb.ModelConfig, partial: bool) -> Iterator[str]:
    dims = list(tensor.dims)
    if dims.count(-1) != 1 and not (partial and not dims):
        yield f" with dims {dims}, where a mask needs one variable dimension (-1)"
    if tensor.data_type == pb.TYPE_STRING:
        yield " of data type TYPE_STRING, where a mask needs numbers"
    if f"{VALUE}{tensor.name}" in message.parameters:
        yield f", which is padded with zeros: '{VALUE}{tensor.name}' cannot be set"
    yield from (f", which {clause}" for clause in _unpaddable(tensor))


def _lacks_batches(message: pb.ModelConfig, partial: bool) -> bool:
    """Return True if the model has no batch dimension and the engine cannot add one."""
    return message.max_batch_size <= 0 and not (partial and not (message.input and message.output))


def _batch_sizes_faults(message: pb.ModelConfig, partial: bool) -> Iterator[str]:
    text = message.parameters[_BATCH_SIZES].string_value
    sizes = re.findall("[0-9]+", text)
    if sizes and int(sizes[-1]) != message.max_batch_size and message.max_batch_size > 0:
        yield f"is '{text}', and its last size must be max_batch_size, which is {message.max_batch_size}"
    if _lacks_batches(message, partial):
        yield "needs a batch dimension: max_batch_size of 1 or more"
    if any(tensor.allow_ragged_batch for tensor in message.input) or message.batch_input or message.batch_output:
        yield "cannot be combined with ragged batching"
