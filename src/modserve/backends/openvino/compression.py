"""Compression of the weights of matrix products to 8 bits, in a graph that is not compiled yet.

A matrix becomes integers, with a scale for each group of elements of a column. OpenVINO recognises this form and keeps
8 bits for an element in memory. With DYNAMIC_QUANTIZATION_GROUP_SIZE it rounds the other factor, too, and multiplies in
8 bits. Convolutions, embeddings and recurrent layers stay as they are.
"""

from typing import Any

import numpy as np

from modserve.core.tensors.tensor import Array

from .library import ov

GROUP = 64
"""Elements that share a scale. Columns that do not consist of such groups have one scale."""
_SMALLEST = 4096
"""Elements of a matrix that is worth it."""
_LARGEST_NUMBER = 127


def compress_weights(model: Any) -> int:
    """Compress all constant matrices that are factors of products, in place. Returns their number."""
    opset = ov.opset13
    compressed: dict[str, Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        source = node.input_value(1).get_node()
        weights = _weights(source)
        if weights is None:
            continue
        transposed = bool(node.get_attributes().get("transpose_b"))
        key = f"{source.get_name()} {transposed}"
        if key not in compressed:
            numbers, scales = quantise(weights, axis=1 if transposed else 0)
            product = opset.multiply(opset.convert(opset.constant(numbers), "f32"), opset.constant(scales))
            whole = np.array(weights.shape, np.int64)
            compressed[key] = product if numbers.ndim == 2 else opset.reshape(product, opset.constant(whole), False)
        node.input(1).replace_source_output(compressed[key].output(0))
    return len(compressed)


def quantise(weights: Array, axis: int) -> tuple[Array, Array]:
    """Return INT8 numbers and FP32 scales with nearly the FP32 matrix `weights` as product; groups lie along `axis`.

    Both have one axis more where the matrix is divided into groups; reshaping the product to the matrix undoes it.
    """
    length = weights.shape[axis]
    if length % GROUP == 0 and length > GROUP:
        rows, columns = weights.shape
        weights = weights.reshape(rows, -1, GROUP) if axis else weights.reshape(-1, GROUP, columns)
        axis *= 2
        axis = axis or 1
    scales = np.abs(weights).max(axis=axis, keepdims=True) / np.float32(_LARGEST_NUMBER)
    scales[scales == 0] = 1
    return np.rint(weights / scales).astype(np.int8), scales.astype(np.float32)


def _weights(node: Any) -> Array | None:
    """Return a constant matrix as FP32, also one that the graph has in FP16; None for any other node."""
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or node.get_element_type() not in (ov.Type.f32, ov.Type.f16):
        return None
    if len(node.get_output_shape(0)) != 2 or np.prod(node.get_output_shape(0)) < _SMALLEST:
        return None
    weights = np.asarray(node.data, np.float32)
    return weights if np.isfinite(weights).all() else None
