"""Program that writes an ONNX model with matrix products of 8-bit integers, by ONNX Runtime's own quantisation.

    python quantization_program.py MODEL TARGET

The weights are quantised now, a scale for each column; what they are multiplied with is quantised while the model runs.
It is a process of its own because it holds the model several times, and the interpreter for seconds.
Convolutions are left out: with quantisation at run time they take several times as long.
"""

import logging
import sys
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM")
_RESULTS = frozenset({"MatMulInteger", "QAttention", "DynamicQuantizeLSTM"})
_MOST_BYTES = 2_000_000_000
"""A message of protobuf has at most 2 GiB."""


def quantise(source: Path, target: Path) -> None:
    """Quantise a model. Raises ValueError if it has nothing to quantise, or is too large."""
    model = onnx.load(source)
    if sum(len(each.raw_data) for each in model.graph.initializer) > _MOST_BYTES:
        raise ValueError("its weights have more than 2 GB")
    _make_initializers(model.graph)
    quantize_dynamic(model, target, op_types_to_quantize=list(OPERATORS), per_channel=True, weight_type=QuantType.QInt8)
    if not any(node.op_type in _RESULTS for node in onnx.load(target).graph.node):
        raise ValueError(f"it has no {', '.join(OPERATORS[:-1])} or {OPERATORS[-1]} with constant FP32 weights")


def _make_initializers(graph: onnx.GraphProto) -> None:
    """Make initializers of the constants that are nodes, in which the quantisation does not look for weights."""
    for node in [each for each in graph.node if each.op_type == "Constant"]:
        (attribute, *others) = node.attribute
        if attribute.name == "value" and not others:
            graph.initializer.add().CopyFrom(attribute.t)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # advice for those who can change the model
    try:
        quantise(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # whatever the libraries raise; the last line is what the server shows
        sys.exit(" ".join(str(error).split()) or type(error).__name__)
