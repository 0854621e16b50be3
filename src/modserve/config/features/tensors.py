"""``max_batch_size``, ``input`` and ``output``. The texts are Triton's."""

from collections.abc import Iterable, Iterator, Sequence, Set

from modserve.core.configuration.model_config import DescribedTensor, ModelDescription, TensorSpec
from modserve.core.tensors.tensor import format_shape
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from . import padding, ragged, sequences
from .common import DATATYPES, VALID_SIZE, AnyTensor

_VARIABLE = -1
_IMAGE_FORMATS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)


def specs(
    message: pb.ModelConfig, description: ModelDescription | None
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and outputs that have a usable data type.

    A tensor that the model describes without any dimension has dims [1] in the configuration. With batching, an empty
    reshape says so; without batching, Triton forbids that reshape, so only the description tells. A tensor of unknown
    rank is a scalar only if its dims are [1].
    """
    scalars: set[str] = set()
    if description is not None and message.max_batch_size <= 0:
        described = (*description.inputs, *description.outputs)
        ones = {tensor.name for side in (message.input, message.output) for tensor in side if list(tensor.dims) == [1]}
        scalars = {each.name for each in described if not each.shape and (each.rank_known or each.name in ones)}
    return tuple(_specs(message.input, scalars)), tuple(_specs(message.output, scalars))


def _specs(tensors: Iterable[AnyTensor], scalars: set[str]) -> Iterator[TensorSpec]:
    for tensor in tensors:
        datatype = DATATYPES.get(tensor.data_type)
        if datatype is None:
            continue
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        yield TensorSpec(
            name=tensor.name,
            datatype=datatype,
            dims=tuple(tensor.dims),
            reshape=() if tensor.name in scalars else reshape,
            optional=isinstance(tensor, pb.ModelInput) and tensor.optional,
            ragged=ragged.is_ragged(tensor),
            label_filename=tensor.label_filename if isinstance(tensor, pb.ModelOutput) else "",
        )


# The rules by themselves


def validate(message: pb.ModelConfig, partial: bool) -> Faults:
    """Yield the faults that Triton's ``ValidateIOShape`` reports."""
    if message.max_batch_size < 0:
        yield ("max_batch_size",), f"'max_batch_size' must be non-negative value for {message.name}"
    sides: tuple[tuple[str, Sequence[AnyTensor]], ...] = (("input", message.input), ("output", message.output))
    for side, tensors in sides:
        names: set[str] = set()
        for index, tensor in enumerate(tensors):
            label = f"model {side} '{tensor.name}'" if tensor.name else f"model {side}"
            for path, text in _faults(tensor, names, message, partial):
                yield (side, index, *path), f"{label} {text}"
            names.add(tensor.name)
            is_image = isinstance(tensor, pb.ModelInput) and tensor.format in _IMAGE_FORMATS
            if is_image and len(tensor.dims) != 3 and (tensor.dims or not partial):
                yield (side, index, "format"), f"model input NHWC/NCHW require 3 dims for {message.name}"


def _faults(tensor: AnyTensor, names: set[str], message: pb.ModelConfig, partial: bool) -> Faults:
    model, reshaped = message.name, tensor.HasField("reshape")
    absent = {
        "name": not tensor.name,
        "data_type": tensor.data_type == pb.TYPE_INVALID and not partial,
        "dims": not tensor.dims and (not partial or reshaped),
    }
    yield from (((name,), f"must specify '{name}' for {model}") for name, is_absent in absent.items() if is_absent)
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    bad_dims = [index for index, size in enumerate(dims) if size < 1 and size != _VARIABLE]
    bad_shape = [index for index, size in enumerate(shape) if size < 1 and size != _VARIABLE]
    yield from ((("dims", index), f"dimension must be {VALID_SIZE} for {model}") for index in bad_dims)
    for index in bad_shape:
        yield ("reshape", "shape", index), f"reshape dimensions must be {VALID_SIZE} for {model}"
    if reshaped and not shape and message.max_batch_size == 0 and not partial:
        reason = "as scalar tensors are not supported"
        yield ("reshape",), f"cannot have empty reshape for non-batching model {reason} for {model}"
    elif reshaped and dims and not bad_dims and not bad_shape and (text := _reshape_fault(dims, shape)):
        yield ("reshape",), f"{text} for {model}: {dims} and {shape}"
    if tensor.name and tensor.name in names:
        yield ("name",), f"is specified more than once for {model}"


def _reshape_fault(dims: Sequence[int], shape: Sequence[int]) -> str:
    """Return the fault of a reshape. Counts between variable dimensions must agree: [2, 4, -1, 6] → [8, -1, 1, 6]."""
    variable = dims.count(_VARIABLE), shape.count(_VARIABLE)
    if all(variable) and variable[0] != variable[1]:
        return "has different number of variable-size dimensions for dims and reshape"
    same = _element_counts(dims) == _element_counts(shape)
    return "" if same else "has different size for dims and reshape"


def _element_counts(sizes: Sequence[int]) -> list[int]:
    """Return the numbers of elements before, between and behind the variable dimensions."""
    counts = [1]
    for size in sizes:
        if size == _VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


# Against the model


def server_inputs(message: pb.ModelConfig) -> Set[str]:
    """Return the names of the inputs that the server makes: controls, states and batch inputs."""
    return sequences.inputs(message).keys() | ragged.targets(message)


def compare(message: pb.ModelConfig, description: ModelDescription, shapes: bool) -> Faults:
    """Yield the differences that Triton's ONNX Runtime backend finds when it creates an instance."""
    yield from _count_faults(message, description)
    yield from _compare_side("input", message.input, description.inputs, message, shapes)
    yield from _compare_side("output", message.output, description.outputs, message, shapes)


def _count_faults(message: pb.ModelConfig, description: ModelDescription) -> Faults:
    """Triton counts no optional inputs; one for each batch input, kind of control, and state; and controls come first.

    It knows neither inputs that the model itself calls optional, which may be absent, nor masks that the server makes.
    """
    if not sequences.controls(message) <= {tensor.name for tensor in description.inputs}:
        return
    configured = {tensor.name for tensor in message.input} | server_inputs(message)
    optional = {tensor.name for tensor in description.inputs if tensor.optional}
    required = [tensor.name for tensor in description.inputs if not tensor.optional]
    uncounted = {tensor.name for tensor in message.input if tensor.optional} - optional - {padding.mask(message)}
    expected = len(message.input) - len(uncounted) + len(message.batch_input) + sequences.count_inputs(message)
    count = len(description.inputs)
    if expected + len(optional - configured) == count:
        return
    text = f"unable to load model '{message.name}', configuration expects {expected} inputs, model provides {count}"
    causes = {
        "missing in the configuration": [name for name in required if name not in configured],
        "optional in the configuration only": [name for name in required if name in uncounted],
    }
    yield ("input",), text + "".join(f"; {cause}: {', '.join(names)}" for cause, names in causes.items() if names)


def _compare_side(
    side: str, tensors: Sequence[AnyTensor], described: Sequence[DescribedTensor], message: pb.ModelConfig, shapes: bool
) -> Faults:
    by_name = {tensor.name: tensor for tensor in described}
    scattered = ragged.batch_outputs(message)
    for index, tensor in enumerate(tensors):
        here: FieldPath = (side, index)
        model_tensor = by_name.get(tensor.name)
        if model_tensor is None:
            if tensor.name:
                names = ", ".join(sorted(by_name))
                yield (*here, "name"), f"unexpected inference {side} '{tensor.name}', allowed {side}s are: {names}"
            continue
        if tensor.data_type in DATATYPES and DATATYPES[tensor.data_type] != model_tensor.datatype:
            configured, provided = pb.DataType.Name(tensor.data_type), model_tensor.datatype.config_name
            head = f"unable to load model '{message.name}', configuration expects datatype {configured}"
            yield (*here, "data_type"), f"{head} for {side} '{tensor.name}', model provides {provided}"
        shape_differs = ragged.is_ragged(tensor) or (side == "output" and tensor.name in scattered)
        if tensor.dims and shapes and not shape_differs and model_tensor.rank_known:
            field, dims = ("reshape", tensor.reshape.shape) if tensor.HasField("reshape") else ("dims", tensor.dims)
            text = _difference(list(dims), model_tensor, message, exact=side == "output")
            if text:
                yield (*here, field), text + _suggestion(list(dims), field, model_tensor, message.max_batch_size > 0)


def _difference(dims: list[int], tensor: DescribedTensor, message: pb.ModelConfig, *, exact: bool) -> str:
    """The difference between the dims of a configuration and the model's shape. Like Triton's ``CompareDimsSupported``.

    A variable dimension of the model takes any input. Of an output it promises nothing, so both must be the same.
    """
    shape, batching = tensor.shape, message.max_batch_size > 0
    label = f"model '{message.name}', tensor '{tensor.name}': "
    if not shape:  # A scalar is [1] in the configuration, or [] by a reshape.
        head = f"unable to load model '{message.name}', scalar tensor '{tensor.name}', should only provide 1 in the"
        tail = "model configuration when the model doesn't support batching. Model configuration provided:"
        return "" if all(size == 1 for size in dims) else f"{head} {tail} {format_shape(dims)}."
    if batching and shape[0] != _VARIABLE:
        return (
            f"{label}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {format_shape(shape)}"
        )
    full = [_VARIABLE, *dims] if batching else dims
    if len(full) == len(shape) and all(
        size == model_size or (model_size == _VARIABLE and not exact)
        for size, model_size in zip(full, shape, strict=True)
    ):
        return ""
    batch = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making"
    return (
        f"{label}the model expects {len(shape)} dimensions (shape {format_shape(shape)}) but the model configuration "
        f"specifies {len(full)} dimensions ({f'{batch} complete ' if batching else ''}shape {format_shape(full)})"
    )


def _suggestion(dims: list[int], field: str, tensor: DescribedTensor, batching: bool) -> str:
    """Return the text for dims that differ from the model's; empty where another field is to be changed."""
    shape = list(tensor.shape)
    if not shape or (batching and shape[0] != _VARIABLE):
        return ""
    sizes = ", ".join(map(str, shape[1:] if batching else shape))
    right = f"dims: [ {sizes} ]" if field == "dims" else f"reshape {{ shape: [ {sizes} ] }}"
    if not sizes:
        right = "dims: [ 1 ] reshape { }"
    if batching and len(dims) == len(shape):
        return f"; max_batch_size adds the batch dimension, so leave it out: {right}"
    if not batching and shape[0] == _VARIABLE and len(dims) == len(shape) - 1:
        return f"; write {right}, or a max_batch_size above 0, which adds the batch dimension"
    return f"; write {right}"
