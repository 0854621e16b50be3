"""Program that quantises the matrix products of an ONNX model to 8-bit integers with ONNX Runtime.

    python quantization_program.py MODEL TARGET

Weights are quantised here, with a scale for each column; activations are quantised at run time. A separate process,
since it needs several copies of the model and holds the interpreter lock for seconds. Convolutions are skipped: with
dynamic quantisation they take several times as long.
"""

import logging
import sys
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM")
_RESULTS = frozenset({"MatMulInteger", "QAttention", "DynamicQuantizeLSTM"})
_MOST_BYTES = 2_000_000_000
"""Limit of a protobuf message: 2 GiB."""


def quantise(source: Path, target: Path) -> None:
    """Quantise a model. Raises ValueError if there is nothing to quantise or the model is too large."""
    model = onnx.load(source)
    if sum(len(each.raw_data) for each in model.graph.initializer) > _MOST_BYTES:
        raise ValueError("its weights have more than 2 GB")
    _make_initializers(model.graph)
    quantize_dynamic(model, target, op_types_to_quantize=list(OPERATORS), per_channel=True, weight_type=QuantType.QInt8)
    if not any(node.op_type in _RESULTS for node in onnx.load(target).graph.node):
        raise ValueError(f"it has no {', '.join(OPERATORS[:-1])} or {OPERATORS[-1]} with constant FP32 weights")


def _make_initializers(graph: onnx.GraphProto) -> None:
    """Convert Constant nodes to initializers: the quantisation finds weights only there."""
    for node in [each for each in graph.node if each.op_type == "Constant"]:
        (attribute, *others) = node.attribute
        if attribute.name == "value" and not others:
            graph.initializer.add().CopyFrom(attribute.t)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # advice on changes to the model
    try:
        quantise(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # of any library; the server shows the last line
        sys.exit(" ".join(str(error).split()) or type(error).__name__)
