"""``max_batch_size``, ``input`` and ``output``. The texts are Triton's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from modserve.core import dtypes
from modserve.core.model_config import DescribedTensor, ModelConfig, ModelDescription, TensorSpec
from modserve.core.tensor import format_shape
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from . import ragged
from .feature import Context, Feature

DATATYPES = {pb.DataType.Value(row.config_name): row for row in dtypes.ALL}
VALID_SIZE = "integer >= 1, or -1 to indicate a variable-size dimension"
_VARIABLE = -1
_IMAGE_FORMATS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)

_Tensor = pb.ModelInput | pb.ModelOutput


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    """Leaves out tensors without a usable data type.

    A tensor that the model describes without any dimension has dims [1] in the configuration. With batching, an empty
    reshape says so; without batching, Triton forbids that reshape, so only the description tells.
    """
    scalars: set[str] = set()
    if context.description is not None and message.max_batch_size <= 0:
        described = (*context.description.inputs, *context.description.outputs)
        scalars = {tensor.name for tensor in described if not tensor.shape}
    return replace(
        config,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_specs(message.input, scalars)),
        outputs=tuple(_specs(message.output, scalars)),
    )


def _specs(tensors: Iterable[_Tensor], scalars: set[str]) -> Iterator[TensorSpec]:
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


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    """Like Triton's ``ValidateIOShape``."""
    if message.max_batch_size < 0:
        yield ("max_batch_size",), f"'max_batch_size' must be non-negative value for {message.name}"
    sides: tuple[tuple[str, Sequence[_Tensor]], ...] = (("input", message.input), ("output", message.output))
    for side, tensors in sides:
        names: set[str] = set()
        for index, tensor in enumerate(tensors):
            who = f"model {side} '{tensor.name}'" if tensor.name else f"model {side}"
            for path, text in _faults(tensor, names, message, context.partial):
                yield (side, index, *path), f"{who} {text}"
            names.add(tensor.name)
            is_image = isinstance(tensor, pb.ModelInput) and tensor.format in _IMAGE_FORMATS
            if is_image and len(tensor.dims) != 3 and (tensor.dims or not context.partial):
                yield (side, index, "format"), f"model input NHWC/NCHW require 3 dims for {message.name}"


def _faults(tensor: _Tensor, names: set[str], message: pb.ModelConfig, partial: bool) -> Faults:
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
    """Between variable dimensions both must have equally many elements: [2, 4, -1, 6] may become [8, -1, 1, 6]."""
    variable = dims.count(_VARIABLE), shape.count(_VARIABLE)
    if all(variable) and variable[0] != variable[1]:
        return "has different number of variable-size dimensions for dims and reshape"
    same = _element_counts(dims) == _element_counts(shape)
    return "" if same else "has different size for dims and reshape"


def _element_counts(sizes: Sequence[int]) -> list[int]:
    """The numbers of elements before, between and behind the variable dimensions."""
    counts = [1]
    for size in sizes:
        if size == _VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


# Against the model


def _compare(message: pb.ModelConfig, description: ModelDescription, shapes: bool) -> Faults:
    """The differences that Triton's ONNX Runtime backend finds when it creates an instance."""
    yield from _compare_side("input", message.input, description.inputs, message, shapes)
    yield from _compare_side("output", message.output, description.outputs, message, shapes)


def _compare_side(
    side: str, tensors: Sequence[_Tensor], described: Sequence[DescribedTensor], message: pb.ModelConfig, shapes: bool
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
            yield (
                (*here, "data_type"),
                f"unable to load model '{message.name}', configuration expects datatype "
                f"{pb.DataType.Name(tensor.data_type)} for {side} '{tensor.name}', model provides "
                f"{model_tensor.datatype.config_name}",
            )
        shape_differs = ragged.is_ragged(tensor) or (side == "output" and tensor.name in scattered)
        if tensor.dims and shapes and not shape_differs:
            field, dims = ("reshape", tensor.reshape.shape) if tensor.HasField("reshape") else ("dims", tensor.dims)
            text = _difference(list(dims), model_tensor, message, exact=side == "output")
            if text:
                yield (*here, field), text


def _difference(dims: list[int], tensor: DescribedTensor, message: pb.ModelConfig, *, exact: bool) -> str:
    """The difference between the dims of a configuration and the model's shape. Like Triton's ``CompareDimsSupported``.

    A variable dimension of the model takes any input. Of an output it promises nothing, so both must be the same.
    """
    shape, batching = tensor.shape, message.max_batch_size > 0
    who = f"model '{message.name}', tensor '{tensor.name}': "
    if not shape:  # A scalar is [1] in the configuration, or [] by a reshape.
        head = f"unable to load model '{message.name}', scalar tensor '{tensor.name}', should only provide 1 in the"
        tail = "model configuration when the model doesn't support batching. Model configuration provided:"
        return "" if all(size == 1 for size in dims) else f"{head} {tail} {format_shape(dims)}."
    if batching and shape[0] != _VARIABLE:
        return (
            f"{who}for the model to support batching the shape should have at least 1 dimension and the first "
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
        f"{who}the model expects {len(shape)} dimensions (shape {format_shape(shape)}) but the model configuration "
        f"specifies {len(full)} dimensions ({f'{batch} complete ' if batching else ''}shape {format_shape(full)})"
    )


FEATURE = Feature(validate=_validate, compare=_compare, convert=_convert)
