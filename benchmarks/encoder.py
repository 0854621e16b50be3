"""Write a transformer encoder with random weights, as a model repository that this server and Triton both load.

The default size is that of BERT base, which makes a model worth benchmarking: heavy enough to want a batch, common
enough to compare. Nobody needs its answers, so nothing is downloaded; the same seed writes the same bytes.

    python benchmarks/encoder.py repository --layers 6
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = NDArray[np.float32] | NDArray[np.int64]

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8
WEIGHT_SCALE = 0.02  # the standard deviation that BERT starts from
MASKED = -1e4  # added to a score, leaves a probability of exactly zero


@dataclass(frozen=True, slots=True)
class EncoderSize:
    layers: int = field(default=12, metadata={"help": "transformer layers"})
    width: int = field(default=768, metadata={"help": "size of a hidden state and of the embedding"})
    heads: int = field(default=12, metadata={"help": "attention heads; they share the width"})
    feed_forward: int = field(default=3072, metadata={"help": "inner size of the feed-forward part"})
    sequence: int = field(default=128, metadata={"help": "longest sequence; shorter ones are welcome"})
    vocabulary: int = field(default=8192, metadata={"help": "number of token ids"})

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"{each.name} must be at least 1")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")


BERT_BASE = EncoderSize()


def write_repository(
    directory: Path, size: EncoderSize = BERT_BASE, *, max_batch_size: int = 16, seed: int = 0
) -> Path:
    """Write the model `encoder` into the model repository `directory` and return the model's folder.

    What lies there under that name is overwritten. The weights are drawn and written one by one, so the memory
    needed is that of the largest of them and not that of the model.
    """
    if max_batch_size < 1:
        raise ValueError("max_batch_size must be at least 1")
    folder = directory / "encoder"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config_text(size, max_batch_size), encoding="utf-8")
    write_model(folder / "1" / "model.onnx", size, seed)
    return folder


def config_text(size: EncoderSize, max_batch_size: int) -> str:
    return f"""\
# A transformer encoder with random weights, written by benchmarks/encoder.py.
# Sequences may have any length up to {size.sequence}; those of one request have the same, padded and masked.

name: "encoder"
platform: "onnxruntime_onnx"
max_batch_size: {max_batch_size}

input [
  {{
    name: "input_ids"
    data_type: TYPE_INT64
    dims: [ -1 ]
  }},
  {{
    name: "attention_mask"
    data_type: TYPE_INT64
    dims: [ -1 ]
  }}
]

output [
  {{
    name: "embedding"
    data_type: TYPE_FP32
    dims: [ {size.width} ]
  }}
]

dynamic_batching {{ }}
"""


def write_model(path: Path, size: EncoderSize, seed: int) -> None:
    graph = _EncoderGraph(size)
    graph.build()
    # Protobuf reads two messages written one after the other as one message with the repeated fields of both. So the
    # nodes come first and the weights follow, each as a model that has nothing but this one weight.
    with path.open("wb") as file:
        file.write(graph.without_weights().SerializeToString(deterministic=True))
        for name, array in graph.weights(np.random.default_rng(seed)):
            fragment = onnx.ModelProto()
            fragment.graph.initializer.append(numpy_helper.from_array(array, name))
            file.write(fragment.SerializeToString(deterministic=True))


def weights_of(size: EncoderSize, seed: int) -> dict[str, Array]:
    """The weights that `write_model` writes, by name; matrices are [inputs, outputs]."""
    graph = _EncoderGraph(size)
    graph.build()
    return dict(graph.weights(np.random.default_rng(seed)))


class _EncoderGraph:
    """The nodes of the encoder and, by name, what its weights shall be: a shape to fill at random, or values.

    Layers are post-norm, as BERT has them. A method that makes nodes takes names of tensors and returns the name of
    its result.
    """

    def __init__(self, size: EncoderSize) -> None:
        self._size = size
        self._nodes: list[onnx.NodeProto] = []
        self._random: dict[str, tuple[int, ...]] = {}
        self._constant: dict[str, Array] = {}

    def build(self) -> None:
        size = self._size
        mask = self._node("Cast", "attention_mask", to=TensorProto.FLOAT)
        hidden = self._embedded("input_ids")
        penalty = self._attention_penalty(mask)
        for number in range(size.layers):
            layer = f"layer{number}"
            attended = self._attention(hidden, penalty, f"{layer}.attention")
            hidden = self._normalised(self._node("Add", hidden, attended), f"{layer}.attention.norm")
            transformed = self._feed_forward(hidden, f"{layer}.feed_forward")
            hidden = self._normalised(self._node("Add", hidden, transformed), f"{layer}.feed_forward.norm")
        self._masked_mean(hidden, mask)

    def without_weights(self) -> onnx.ModelProto:
        tokens = ["batch", "sequence"]
        graph = helper.make_graph(
            nodes=self._nodes,
            name="encoder",
            inputs=[
                helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens),
                helper.make_tensor_value_info("attention_mask", TensorProto.INT64, tokens),
            ],
            outputs=[helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", self._size.width])],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="modserve"
        )

    def weights(self, random: np.random.Generator) -> Iterator[tuple[str, Array]]:
        yield from self._constant.items()
        for name, shape in self._random.items():
            array = random.standard_normal(shape, dtype=np.float32)
            array *= np.float32(WEIGHT_SCALE)
            yield name, array

    def _embedded(self, ids: str) -> str:
        """Token embedding plus position embedding, the latter cut to the length of this sequence."""
        size = self._size
        tokens = self._node("Gather", self._weight("tokens", size.vocabulary, size.width), ids)
        length = self._node("Shape", ids, start=1, end=2)
        zero = self._values("zero", np.array([0]))
        positions = self._node("Slice", self._weight("positions", size.sequence, size.width), zero, length, zero)
        return self._normalised(self._node("Add", tokens, positions), "embedding.norm")

    def _attention_penalty(self, mask: str) -> str:
        """[batch, 1, 1, sequence]: 0 for a token to look at, very negative for padding."""
        hidden = self._node("Sub", self._values("one", np.array(1, np.float32)), mask)
        penalty = self._node("Mul", hidden, self._values("masked", np.array(MASKED, np.float32)))
        return self._node("Unsqueeze", penalty, self._values("head_and_query_axes", np.array([1, 2])))

    def _attention(self, hidden: str, penalty: str, name: str) -> str:
        size = self._size
        head_width = size.width // size.heads
        split = self._values("split_heads", np.array([0, 0, size.heads, head_width]))
        merged = self._values("merge_heads", np.array([0, 0, size.width]))

        def heads(part: str, order: Sequence[int]) -> str:
            flat = self._dense(hidden, f"{name}.{part}", size.width, size.width)
            return self._node("Transpose", self._node("Reshape", flat, split), perm=order)

        query = heads("query", (0, 2, 1, 3))
        key = heads("key", (0, 2, 3, 1))
        value = heads("value", (0, 2, 1, 3))
        scale = self._values("score_scale", np.array(math.sqrt(head_width), np.float32))
        scores = self._node("Div", self._node("MatMul", query, key), scale)
        probabilities = self._node("Softmax", self._node("Add", scores, penalty), axis=-1)
        mixed = self._node("Transpose", self._node("MatMul", probabilities, value), perm=(0, 2, 1, 3))
        return self._dense(self._node("Reshape", mixed, merged), f"{name}.output", size.width, size.width)

    def _feed_forward(self, hidden: str, name: str) -> str:
        size = self._size
        wide = self._dense(hidden, f"{name}.up", size.width, size.feed_forward)
        return self._dense(self._gelu(wide), f"{name}.down", size.feed_forward, size.width)

    def _gelu(self, x: str) -> str:
        """x · (1 + erf(x / √2)) / 2; the Gelu operator came only with opset 20."""
        root = self._values("root_of_two", np.array(math.sqrt(2), np.float32))
        one = self._values("one", np.array(1, np.float32))
        half = self._values("half", np.array(0.5, np.float32))
        gate = self._node("Add", self._node("Erf", self._node("Div", x, root)), one)
        return self._node("Mul", self._node("Mul", x, gate), half)

    def _dense(self, x: str, name: str, inputs: int, outputs: int) -> str:
        product = self._node("MatMul", x, self._weight(f"{name}.weight", inputs, outputs))
        return self._node("Add", product, self._weight(f"{name}.bias", outputs))

    def _normalised(self, x: str, name: str) -> str:
        scale = self._values(f"{name}.scale", np.ones(self._size.width, np.float32))
        bias = self._values(f"{name}.bias", np.zeros(self._size.width, np.float32))
        return self._node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def _masked_mean(self, hidden: str, mask: str) -> str:
        """The mean over the tokens that are not padding. Where all of them are, zeros and no division by zero."""
        last = self._values("last_axis", np.array([-1]))
        sequence = self._values("sequence_axis", np.array([1]))
        kept = self._node("Mul", hidden, self._node("Unsqueeze", mask, last))
        total = self._node("ReduceSum", kept, sequence, keepdims=0)
        count = self._node("ReduceSum", mask, sequence, keepdims=1)
        at_least_one = self._node("Max", count, self._values("one", np.array(1, np.float32)))
        return self._node("Div", total, at_least_one, output="embedding")

    def _node(self, operator: str, *inputs: str, output: str = "", **attributes: int | float | Sequence[int]) -> str:
        output = output or f"{operator}_{len(self._nodes)}"
        node = helper.make_node(operator, inputs, [output], name=output)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self._nodes.append(node)
        return output

    def _weight(self, name: str, *shape: int) -> str:
        self._random[name] = shape
        return name

    def _values(self, name: str, array: Array) -> str:
        self._constant[name] = array
        return name


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a transformer encoder with random weights.")
    parser.add_argument("directory", type=Path, help="the model repository to write into")
    parser.add_argument("--max-batch-size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    for each in fields(EncoderSize):
        option = "--" + each.name.replace("_", "-")
        parser.add_argument(
            option, type=int, default=each.default, help=each.metadata["help"] + "; default: %(default)s"
        )
    options = parser.parse_args(arguments)
    try:
        size = EncoderSize(**{each.name: getattr(options, each.name) for each in fields(EncoderSize)})
        folder = write_repository(options.directory, size, max_batch_size=options.max_batch_size, seed=options.seed)
    except ValueError as error:
        parser.error(str(error))
    print(f"{folder}: {(folder / '1' / 'model.onnx').stat().st_size:,} bytes of model")


if __name__ == "__main__":
    main()
