"""The rules for inputs and outputs: by themselves, and against what the model has. The texts are Triton's."""

from collections.abc import Sequence
from typing import NamedTuple

from modserve.core.model_config import DescribedTensor, ModelDescription
from modserve.pb import inference as pb

from . import padding, ragged, sequences
from .problems import FieldPath, Problems

_VARIABLE = -1
_IMAGE_FORMATS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)


class _Fault(NamedTuple):
    path: FieldPath
    text: str
    detail: str = ""
    """What Triton does not say, for the end."""


def validate(
    side: str,
    tensors: Sequence[pb.ModelInput | pb.ModelOutput],
    message: pb.ModelConfig,
    problems: Problems,
    *,
    partial: bool,
) -> None:
    """The rules for all inputs or all outputs; `side` says which. As Triton's ``ValidateIOShape``."""
    names: set[str] = set()
    for index, tensor in enumerate(tensors):
        here: FieldPath = (side, index)
        faults = [*_missing(tensor, partial), *_shape_faults(tensor, message.max_batch_size, partial)]
        if tensor.name and tensor.name in names:
            faults.append(_Fault(("name",), "is specified more than once"))
        names.add(tensor.name)
        who = f"model {side} '{tensor.name}'" if tensor.name else f"model {side}"
        for path, text, detail in faults:
            problems.add((*here, *path), f"{who} {text} for {message.name}{detail}")
        known = bool(tensor.dims) or not partial
        if isinstance(tensor, pb.ModelInput) and tensor.format in _IMAGE_FORMATS and known and len(tensor.dims) != 3:
            problems.add((*here, "format"), f"model input NHWC/NCHW require 3 dims for {message.name}")


def _missing(tensor: pb.ModelInput | pb.ModelOutput, partial: bool) -> list[_Fault]:
    absent = {
        "name": not tensor.name,
        "data_type": tensor.data_type == pb.TYPE_INVALID and not partial,
        "dims": not tensor.dims and (not partial or tensor.HasField("reshape")),
    }
    return [_Fault((name,), f"must specify '{name}'") for name, is_absent in absent.items() if is_absent]


def _shape_faults(tensor: pb.ModelInput | pb.ModelOutput, max_batch_size: int, partial: bool) -> list[_Fault]:
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    faults = _size_faults("dims", dims, "dimension must be")
    if not tensor.HasField("reshape"):
        return faults
    faults += _size_faults("reshape", shape, "reshape dimensions must be")
    if not shape and max_batch_size == 0 and not partial:
        faults.append(
            _Fault(
                ("reshape",),
                "cannot have empty reshape for non-batching model as scalar tensors are not supported",
            )
        )
    if dims and not faults:
        fault = _reshape_fault(dims, shape)
        if fault:
            faults.append(_Fault(("reshape",), fault, f": {dims} and {shape}"))
    return faults


def _size_faults(field: str, sizes: Sequence[int], what: str) -> list[_Fault]:
    text = f"{what} integer >= 1, or {_VARIABLE} to indicate a variable-size dimension"
    path: FieldPath = (field,) if field == "dims" else (field, "shape")
    return [_Fault((*path, index), text) for index, size in enumerate(sizes) if size < 1 and size != _VARIABLE]


def _reshape_fault(dims: Sequence[int], shape: Sequence[int]) -> str:
    """Between variable dimensions both must have equally many elements: [2, 4, -1, 6] may become [8, -1, 1, 6]."""
    variable = dims.count(_VARIABLE), shape.count(_VARIABLE)
    if all(variable) and variable[0] != variable[1]:
        return "has different number of variable-size dimensions for dims and reshape"
    same = _element_counts(dims) == _element_counts(shape)
    return "" if same else "has different size for dims and reshape"


def _element_counts(sizes: Sequence[int]) -> list[int]:
    """The elements before, between and behind the variable dimensions."""
    counts = [1]
    for size in sizes:
        if size == _VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def compare(message: pb.ModelConfig, description: ModelDescription, problems: Problems, *, shapes: bool) -> None:
    """Adds where the configuration and the model differ, as the ONNX Runtime backend's instances do in Triton."""
    _compare_count(message, description, problems)
    _compare("input", message.input, description.inputs, message, problems, shapes)
    _compare("output", message.output, description.outputs, message, problems, shapes)
    sequences.compare(message, description, problems, shapes=shapes)
    ragged.compare(message, description, problems)


def _compare_count(message: pb.ModelConfig, description: ModelDescription, problems: Problems) -> None:
    """Triton counts no optional inputs, one for each batch input, kind of control and state, and controls come first.

    It knows neither inputs that the model itself calls optional, which may be left out, nor masks that the server
    fills in.
    """
    if not sequences.controls(message) <= {known.name for known in description.inputs}:
        return
    given = {tensor.name for tensor in message.input} | sequences.inputs(message).keys() | ragged.targets(message)
    optional = {known.name for known in description.inputs if known.optional}
    required = [known.name for known in description.inputs if not known.optional]
    uncounted = {tensor.name for tensor in message.input if tensor.optional} - optional - {padding.mask(message)}
    expected = len(message.input) - len(uncounted) + len(message.batch_input) + sequences.count_inputs(message)
    if expected + len(optional - given) == len(description.inputs):
        return
    text = (
        f"unable to load model '{message.name}', configuration expects {expected} inputs, model provides "
        f"{len(description.inputs)}"
    )
    faults = {
        "missing in the configuration": [name for name in required if name not in given],
        "optional in the configuration only": [name for name in required if name in uncounted],
    }
    details = (f"; {what}: {', '.join(names)}" for what, names in faults.items() if names)
    problems.add(("input",), text + "".join(details))


def _compare(
    side: str,
    tensors: Sequence[pb.ModelInput | pb.ModelOutput],
    described: Sequence[DescribedTensor],
    message: pb.ModelConfig,
    problems: Problems,
    shapes: bool,
) -> None:
    by_name = {known.name: known for known in described}
    scattered = ragged.batch_outputs(message)
    for index, tensor in enumerate(tensors):
        here: FieldPath = (side, index)
        known = by_name.get(tensor.name)
        if known is None:
            if tensor.name:
                allowed = ", ".join(sorted(by_name))
                problems.add(
                    (*here, "name"), f"unexpected inference {side} '{tensor.name}', allowed {side}s are: {allowed}"
                )
            continue
        if tensor.data_type in pb.DataType.values() and tensor.data_type != pb.TYPE_INVALID:
            written, provided = pb.DataType.Name(tensor.data_type), known.datatype.config_name
            if written != provided:
                problems.add(
                    (*here, "data_type"),
                    f"unable to load model '{message.name}', configuration expects datatype {written} for {side} "
                    f"'{tensor.name}', model provides {provided}",
                )
        other_shape = ragged.is_ragged(tensor) or (side == "output" and tensor.name in scattered)
        if tensor.dims and shapes and not other_shape:
            field, dims = ("reshape", tensor.reshape.shape) if tensor.HasField("reshape") else ("dims", tensor.dims)
            fault = _difference(list(dims), list(known.shape), message.max_batch_size > 0, exact=side == "output")
            if fault:
                problems.add((*here, field), fault.replace("<model>", message.name).replace("<tensor>", tensor.name))


def _difference(dims: list[int], model: list[int], batching: bool, *, exact: bool) -> str:
    """What is different between the dims of a configuration and the model's shape, as ``CompareDimsSupported``.

    A variable dimension of the model takes any input; of an output it promises nothing, so both must say the same.
    """
    who = "model '<model>', tensor '<tensor>': "
    if not model:  # A scalar is [1] in the configuration, or [] by a reshape.
        return "" if all(size == 1 for size in dims) else _SCALAR + f"{_show(dims)}."
    if batching and model[0] != _VARIABLE:
        return who + _NO_BATCH + _show(model)
    full = [_VARIABLE, *dims] if batching else dims
    if len(full) == len(model) and all(
        size == wanted or (wanted == _VARIABLE and not exact) for size, wanted in zip(full, model, strict=True)
    ):
        return ""
    return (
        f"{who}the model expects {len(model)} dimensions (shape {_show(model)}) but the model configuration specifies "
        f"{len(full)} dimensions ({_BATCH if batching else ''}shape {_show(full)})"
    )


_SCALAR = (
    "unable to load model '<model>', scalar tensor '<tensor>', should only provide 1 in the model configuration when "
    "the model doesn't support batching. Model configuration provided: "
)
_NO_BATCH = (
    "for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; "
    "but shape expected by the model is "
)
_BATCH = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete "


def _show(shape: Sequence[int]) -> str:
    """As Triton's ``ShapeToString``."""
    return f"[{','.join(map(str, shape))}]"
