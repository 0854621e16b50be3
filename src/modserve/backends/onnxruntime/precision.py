"""In which precision an ONNX model computes: the datatype of most of its weights."""

import mmap
from collections import Counter
from math import prod
from pathlib import Path

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import fields, integers

# Numbers of fields of onnx.proto (github.com/onnx/onnx).
_MODEL_GRAPH, _GRAPH_WEIGHT = 7, 5
_TENSOR_DIMENSIONS, _TENSOR_TYPE = 1, 2

_NAMES = {
    1: "fp32",
    2: "uint8",
    3: "int8",
    10: "fp16",
    11: "fp64",
    16: "bf16",
    17: "fp8",
    18: "fp8",
    19: "fp8",
    20: "fp8",
    21: "uint4",
    22: "int4",
    23: "fp4",
}
"""The datatypes that weights have. Others are those of shapes, indices and the like."""


def precision_of_file(path: Path) -> str:
    """As `precision`, of a file; fp32 for one that cannot be read."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            return precision(view)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return "fp32"


def precision(model: Buffer) -> str:
    """The precision that most weights of a serialised model have; fp32 for a model without weights, as trees are."""
    elements: Counter[str] = Counter()
    try:
        for field in fields(model):
            if field.number == _MODEL_GRAPH:
                for part in fields(model, field.start, field.end):
                    if part.number == _GRAPH_WEIGHT:
                        _count(model, part.start, part.end, elements)
    except (ValueError, IndexError):
        pass
    return elements.most_common(1)[0][0] if elements else "fp32"


def _count(model: Buffer, start: int, end: int, elements: Counter[str]) -> None:
    sizes, kind = [], 0
    for field in fields(model, start, end):
        if field.number == _TENSOR_DIMENSIONS:
            sizes += integers(model, field)
        elif field.number == _TENSOR_TYPE:
            kind = integers(model, field)[0]
    if kind in _NAMES:
        elements[_NAMES[kind]] += prod(sizes)
