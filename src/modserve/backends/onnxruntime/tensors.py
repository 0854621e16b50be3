"""Tensors of ONNX Runtime: their v2 datatypes, and the conversion from and to numpy arrays."""

import ctypes
import re
from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort

from modserve.core.configuration.model_config import DescribedTensor
from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array

from ..tensors import object_array, texts_of

Value: TypeAlias = Any
"""An `ort.OrtValue`."""

_ELEMENT_TYPES: dict[str, Datatype] = {
    **{datatype.numpy.name: datatype for datatype in dtypes.BY_NAME.values() if datatype is not dtypes.BF16},
    "bfloat16": dtypes.BF16,  # by name: asking for its NumPy type imports ml_dtypes
    "float": dtypes.FP32,
    "double": dtypes.FP64,
    "string": dtypes.BYTES,
}
"""ONNX Runtime's names are NumPy's, but for these."""
_BFLOAT16_ONNX_TYPE = 16

_ADVICE = (
    (
        r"map\(",
        "skl2onnx writes such outputs for classifiers: convert the model again with options={'zipmap': "
        "False} to get the probabilities as a tensor",
    ),
    (r"seq\(tensor", "ConcatFromSequence or SequenceAt, as the graph's last node, converts it to a tensor"),
    (r"sparse_tensor", "the model must take and return dense tensors"),
    (
        r"tensor\((float[48]|u?int[24])",
        "a Cast node at the end or beginning of the graph converts it to FP16 or INT8",
    ),
)
"""Remedies for unsupported types, by a pattern of the type's name."""


def describe(argument: ort.NodeArg, unranked: Collection[str] = (), *, optional: bool = False) -> DescribedTensor:
    """Describe an input or output of a session. Raises INVALID_ARG if it is no tensor of a v2 datatype.

    `unranked`: names without a shape in the file, which ONNX Runtime reports as if they were scalars.
    """
    match = re.fullmatch(r"(optional\()?tensor\((\w+)\)\)?", argument.type)
    datatype = _ELEMENT_TYPES.get(match[2]) if match else None
    if match is None or datatype is None:
        advice = next((f"; {text}" for pattern, text in _ADVICE if re.search(pattern, argument.type)), "")
        what = f"tensor '{argument.name}' of the ONNX graph is a {argument.type}"
        raise invalid(f"{what}, which has no v2 datatype{advice}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in argument.shape)
    symbols = tuple(size if isinstance(size, str) else "" for size in argument.shape)
    rank_known = bool(shape) or argument.name not in unranked
    return DescribedTensor(argument.name, datatype, shape, optional or match[1] is not None, symbols, rank_known)


def to_bfloat16(array: Array) -> Value:
    """Return a bfloat16 array as a value over the same memory."""
    bits = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16_ONNX_TYPE)


def to_array(value: Value) -> Array:
    if value.element_type() != _BFLOAT16_ONNX_TYPE:
        array: Array = value.numpy()
        return array
    shape = value.shape()
    count = int(np.prod(shape))
    if not count:
        return np.empty(shape, dtype=dtypes.BF16.numpy)
    # The copy frees the value's memory from having to outlive the array.
    data = ctypes.string_at(value.data_ptr(), count * 2)
    return np.frombuffer(data, dtype=dtypes.BF16.numpy).reshape(shape)


def decode_texts(name: str, array: Array) -> Array:
    """Decode BYTES elements to text, which ONNX strings are. Raises INVALID_ARG if they are not UTF-8."""
    return object_array(texts_of(name, array), array.shape)
