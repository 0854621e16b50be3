"""Write the ONNX files of the example model repository, and a picture to send to it.

The classifiers are trained here, on the 1,797 real digits that come with scikit-learn. Seeds are fixed and one thread
computes, so the same library versions write the same bytes. The files beside them (config.pbtxt, labels.txt) are
written by hand.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # comes with scikit-learn

Floats: TypeAlias = NDArray[np.floating]
Labels: TypeAlias = NDArray[np.int64]

SEED = 0
SIDE = 8  # pixels
INK = 16.0  # the value of a fully inked pixel

# What ONNX Runtime 1.20, the oldest we support, reads without a question.
OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class Digits:
    """The pictures (raw pixel values) and their digits, half to learn from and half to be judged by."""

    train_images: Floats
    train_labels: Labels
    test_images: Floats
    test_labels: Labels


@dataclass(frozen=True, slots=True)
class Layer:
    """One dense layer: `x @ weights + bias`."""

    weights: Floats
    bias: Floats


@dataclass(frozen=True, slots=True)
class Classifier:
    """Dense layers with ReLU between them and softmax behind them, and how often they are right."""

    layers: Sequence[Layer]
    accuracy: float


def split_digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.5, random_state=SEED, stratify=labels
    )
    return Digits(train_images, train_labels, test_images, test_labels)


def train_regression(digits: Digits) -> Classifier:
    model = LogisticRegression(max_iter=1000).fit(digits.train_images / INK, digits.train_labels)
    return Classifier(
        layers=[Layer(model.coef_.T, model.intercept_)],
        accuracy=model.score(digits.test_images / INK, digits.test_labels),
    )


def train_network(digits: Digits) -> Classifier:
    model = MLPClassifier((128,), alpha=1e-3, max_iter=1000, random_state=SEED)
    images, labels = shifted_by_one_pixel(digits.train_images, digits.train_labels)
    model.fit(images / INK, labels)
    return Classifier(
        layers=[Layer(weights, bias) for weights, bias in zip(model.coefs_, model.intercepts_, strict=True)],
        accuracy=model.score(digits.test_images / INK, digits.test_labels),
    )


def shifted_by_one_pixel(images: Floats, labels: Labels) -> tuple[Floats, Labels]:
    """Each picture five times: as it is, and moved up, down, left and right. What leaves the frame is lost."""
    framed = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    corners = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    moved = [framed[:, top : top + SIDE, left : left + SIDE].reshape(images.shape) for top, left in corners]
    return np.concatenate(moved), np.tile(labels, len(corners))


def picture_of(digit: int, digits: Digits) -> Image.Image:
    """The first held-out picture of a digit: black ink on white paper, 160 x 160, in RGB as photos are."""
    index = int(np.flatnonzero(digits.test_labels == digit)[0])
    ink = digits.test_images[index].reshape(SIDE, SIDE) / INK
    paper = Image.fromarray(np.round(255 * (1 - ink)).astype(np.uint8))
    return paper.resize((SIDE * 20, SIDE * 20), Image.Resampling.BICUBIC).convert("RGB")


def simple_model() -> onnx.ModelProto:
    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 16])
        for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    }
    graph = helper.make_graph(
        nodes=[
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        name="simple",
        inputs=[tensors["INPUT0"], tensors["INPUT1"]],
        outputs=[tensors["OUTPUT0"], tensors["OUTPUT1"]],
    )
    return finished(graph)


def digits_model(classifier: Classifier) -> onnx.ModelProto:
    nodes = [helper.make_node("Div", ["image", "ink"], ["scaled"])]
    weights = [numpy_helper.from_array(np.array(INK, np.float32), "ink")]
    below = "scaled"
    for number, layer in enumerate(classifier.layers):
        if number > 0:
            nodes.append(helper.make_node("Relu", [below], [f"hidden{number}"]))
            below = f"hidden{number}"
        scores = f"scores{number}"
        nodes.append(helper.make_node("Gemm", [below, f"weights{number}", f"bias{number}"], [scores]))
        weights.append(numpy_helper.from_array(layer.weights.astype(np.float32, order="C"), f"weights{number}"))
        weights.append(numpy_helper.from_array(layer.bias.astype(np.float32), f"bias{number}"))
        below = scores
    nodes.append(helper.make_node("Softmax", [below], ["probabilities"], axis=-1))
    nodes.append(helper.make_node("ArgMax", [below], ["label"], axis=-1, keepdims=1))
    graph = helper.make_graph(
        nodes=nodes,
        name="digits",
        inputs=[helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", SIDE * SIDE])],
        outputs=[
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch", 1]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        initializer=weights,
    )
    return finished(graph)


def resize_model() -> onnx.ModelProto:
    """Grey pictures of any size, stretched to 64 x 64 and then averaged over fields of 8 x 8 pixels."""
    large, field = SIDE * 8, [8, 8]
    constants: dict[str, NDArray[Any]] = {
        "channel": np.array([1], np.int64),
        "first": np.array([0], np.int64),
        "second": np.array([1], np.int64),
        "target": np.array([1, large, large], np.int64),
        "rows": np.array([-1, SIDE * SIDE], np.int64),
        "white": np.array(255, np.float32),
        "to_ink": np.array(INK / 255, np.float32),
    }
    graph = helper.make_graph(
        nodes=[
            helper.make_node("Cast", ["photo"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["float", "channel"], ["framed"]),
            helper.make_node("Shape", ["photo"], ["shape"]),
            helper.make_node("Slice", ["shape", "first", "second"], ["batch_size"]),
            helper.make_node("Concat", ["batch_size", "target"], ["sizes"], axis=0),
            helper.make_node("Resize", ["framed", "", "", "sizes"], ["stretched"], mode="linear"),
            helper.make_node("AveragePool", ["stretched"], ["small"], kernel_shape=field, strides=field),
            helper.make_node("Sub", ["white", "small"], ["dark"]),
            helper.make_node("Mul", ["dark", "to_ink"], ["ink"]),
            helper.make_node("Reshape", ["ink", "rows"], ["image"]),
        ],
        name="digits_resize",
        inputs=[helper.make_tensor_value_info("photo", TensorProto.UINT8, ["batch", "height", "width"])],
        outputs=[helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", SIDE * SIDE])],
        initializer=[numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return finished(graph)


def finished(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="modserve"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path}: {path.stat().st_size:,} bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Write the ONNX files and the picture of the example model repository."
    )
    parser.add_argument(
        "--output", type=Path, default=Path("model_repository"), metavar="DIR", help="default: %(default)s"
    )
    output: Path = parser.parse_args(arguments).output

    save(simple_model(), output / "simple" / "1" / "model.onnx")
    save(resize_model(), output / "digits_resize" / "1" / "model.onnx")
    digits = split_digits()
    picture = output / "digits_pipeline" / "seven.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture_of(7, digits).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size:,} bytes")
    with threadpool_limits(limits=1):
        classifiers = [train_regression(digits), train_network(digits)]
    for version, classifier in enumerate(classifiers, start=1):
        save(digits_model(classifier), output / "digits" / str(version) / "model.onnx")
        print(f"digits, version {version}: {classifier.accuracy:.2%} of the held-out digits right")


if __name__ == "__main__":
    main()
