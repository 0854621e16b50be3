"""The models of benchmarks/gpu.py: random weights, written with nothing but modserve and NumPy, or PyTorch for its own.

`mlp` multiplies matrices, `conv` convolves an image; both as ONNX, and `mlp` as TorchScript with the same weights.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modserve.backends.onnxruntime.onnx_file import ATTRIBUTE_INTS, attribute, model, node, tensor, value
from modserve.core.wire.protobuf_wire import number_field

Weights = NDArray[np.float32]

INPUT, OUTPUT = "INPUT", "OUTPUT"
MOST_ROWS = 16
_FLOAT, _INTS = 1, 7
_OPSETS = {"": 13}


@dataclass(frozen=True)
class Sizes:
    layers: tuple[int, ...]
    """Of `mlp`: numbers of features, from the input's to the output's."""
    image: int
    """Pixels of a side of the image that `conv` takes."""
    channels: tuple[int, ...]
    """Of `conv`: from the image's on; each layer halves the sides."""


FULL = Sizes((1024, 4096, 4096, 1000), 224, (3, 64, 128, 256, 512))
SMALL = Sizes((32, 64, 16), 16, (3, 4, 8))


@dataclass(frozen=True)
class BenchmarkModel:
    name: str
    backend: str
    file: str
    item: tuple[int, ...]
    """Dims of the input, without rows."""
    features: int
    """Of the output."""
    weights: str
    """Models with the same have the same answers."""

    @property
    def input_bytes(self) -> int:
        """Of a request of one row."""
        return 4 * int(np.prod(self.item))

    @property
    def output_bytes(self) -> int:
        return 4 * self.features

    def request_array(self) -> Weights:
        """The row that all clients send."""
        return np.random.default_rng(7).standard_normal((1, *self.item)).astype(np.float32)


def models(sizes: Sizes, *, torch: bool) -> list[BenchmarkModel]:
    image = (sizes.channels[0], sizes.image, sizes.image)
    described = [
        BenchmarkModel("mlp", "onnxruntime", "model.onnx", sizes.layers[:1], sizes.layers[-1], "mlp"),
        BenchmarkModel("conv", "onnxruntime", "model.onnx", image, sizes.channels[-1], "conv"),
    ]
    if torch:
        described.append(BenchmarkModel("mlp_torch", "pytorch", "model.pt", sizes.layers[:1], sizes.layers[-1], "mlp"))
    return described


def config_text(described: BenchmarkModel, kind: str, instances: int) -> str:
    dims = ", ".join(map(str, described.item))
    gpus = " gpus: [ 0 ]" if kind == "KIND_GPU" else ""  # where the clients' memory is
    return (
        f'backend: "{described.backend}"\n'
        f"max_batch_size: {MOST_ROWS}\n"
        f'input {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        f'output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {described.features} ] }}\n'
        "dynamic_batching { }\n"
        f"instance_group {{ kind: {kind} count: {instances}{gpus} }}\n"
    )


def write_repository(
    folder: Path, described: Sequence[BenchmarkModel], sizes: Sizes, kind: str, instances: int
) -> Path:
    for each in described:
        version = folder / each.name / "1"
        version.mkdir(parents=True)
        (folder / each.name / "config.pbtxt").write_text(config_text(each, kind, instances))
        _WRITERS[each.name](version / each.file, sizes)
    return folder


def mlp_weights(sizes: Sizes) -> list[Weights]:
    return [_random((rows, columns), rows) for rows, columns in zip(sizes.layers, sizes.layers[1:], strict=False)]


def write_mlp(path: Path, sizes: Sizes) -> None:
    """Products with matrices, and ReLU between them."""
    nodes, initializers, last = [], [], INPUT
    weights = mlp_weights(sizes)
    for number, matrix in enumerate(weights):
        initializers.append(_weight(f"w{number}", matrix))
        final = number == len(weights) - 1
        product = OUTPUT if final else f"product{number}"
        nodes.append(node("MatMul", (last, f"w{number}"), product))
        if not final:
            last = f"relu{number}"
            nodes.append(node("Relu", (product,), last))
    ends = value(INPUT, (-1, sizes.layers[0])), value(OUTPUT, (-1, sizes.layers[-1]))
    path.write_bytes(model(nodes, initializers, ends, _OPSETS))


def write_conv(path: Path, sizes: Sizes) -> None:
    """Convolutions of 3 × 3 in steps of 2, with ReLU, and the mean of each channel of the last."""
    nodes, initializers, last = [], [], INPUT
    for number, (before, after) in enumerate(zip(sizes.channels, sizes.channels[1:], strict=False)):
        initializers.append(_weight(f"w{number}", _random((after, before, 3, 3), before * 9)))
        steps = _integers("strides", (2, 2)), _integers("pads", (1, 1, 1, 1))
        nodes.append(node("Conv", (last, f"w{number}"), f"conv{number}", steps))
        last = f"relu{number}"
        nodes.append(node("Relu", (f"conv{number}",), last))
    nodes += [node("GlobalAveragePool", (last,), "pooled"), node("Flatten", ("pooled",), OUTPUT)]
    ends = value(INPUT, (-1, sizes.channels[0], sizes.image, sizes.image)), value(OUTPUT, (-1, sizes.channels[-1]))
    path.write_bytes(model(nodes, initializers, ends, _OPSETS))


def write_mlp_torch(path: Path, sizes: Sizes) -> None:
    """`write_mlp` as TorchScript."""
    import torch

    layers: list[object] = []
    for matrix in mlp_weights(sizes):
        linear = torch.nn.Linear(*matrix.shape, bias=False)
        linear.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T))
        layers += [linear, torch.nn.ReLU()]
    module = torch.nn.Sequential(*layers[:-1]).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and Triton's models are often that
        torch.jit.trace(module, torch.zeros(1, sizes.layers[0])).save(str(path))


_WRITERS = {"mlp": write_mlp, "conv": write_conv, "mlp_torch": write_mlp_torch}


def _random(shape: tuple[int, ...], fan_in: int) -> Weights:
    """The same for the same shape; what comes out is about as large as what goes in."""
    drawn: Weights = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return drawn * np.float32((2 / fan_in) ** 0.5)


def _weight(name: str, array: Weights) -> bytes:
    return tensor(_FLOAT, array.shape, array.tobytes(), name)


def _integers(name: str, values: Iterable[int]) -> bytes:
    return attribute(name, b"".join(number_field(ATTRIBUTE_INTS, each) for each in values), _INTS)


def difference(expected: Weights, answer: Weights) -> float:
    """The largest difference of two answers, as a share of the largest value expected."""
    return float(np.max(np.abs(answer - expected)) / max(float(np.max(np.abs(expected))), 1e-12))
