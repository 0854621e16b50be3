"""The example models do what their configurations and the scripts that made them say."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from make_models import Digits, picture_of, resize_model, simple_model, split_digits

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODELS = [("simple", 1), ("digits", 1), ("digits", 2), ("digits_resize", 1)]
ACCURACY_FLOOR = {1: 0.95, 2: 0.98}

# Configuration type → ONNX Runtime's name for it.
TYPES = {
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_UINT8": "tensor(uint8)",
}


def load(name: str, version: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = REPOSITORY / name / str(version) / "model.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def config_without_comments(name: str) -> str:
    return re.sub(r"#.*", "", (REPOSITORY / name / "config.pbtxt").read_text(encoding="utf-8"))


def configured(name: str, section: str) -> dict[str, tuple[str, list[int]]]:
    """Name → type and dims, as the text of the section `input` or `output` lists them."""
    text = config_without_comments(name)
    body = text[re.search(rf"^{section} \[", text, re.MULTILINE).end() :]  # type: ignore[union-attr]
    body = body[: re.search(r"^\]", body, re.MULTILINE).start()]  # type: ignore[union-attr]
    tensors = re.findall(r'name: "(\w+)"\s+data_type: (\w+)\s+dims: \[([- \d,]+)\]', body)
    return {tensor: (TYPES[kind], [int(dim) for dim in dims.split(",")]) for tensor, kind, dims in tensors}


def in_graph(tensors: list[onnxruntime.NodeArg]) -> dict[str, tuple[str, list[int]]]:
    """The same of a graph: a dimension with a name is variable."""
    return {
        tensor.name: (tensor.type, [-1 if isinstance(size, str) else size for size in tensor.shape[1:]])
        for tensor in tensors
    }


@pytest.fixture(scope="module")
def digits() -> Digits:
    return split_digits()


def classify(version: int, digits: Digits) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    images = digits.test_images.astype(np.float32)
    label, probabilities = load("digits", version).run(["label", "probabilities"], {"image": images})
    return label, probabilities


@pytest.mark.parametrize(("name", "version"), MODELS)
def test_graph_agrees_with_config(name: str, version: int) -> None:
    session = load(name, version)

    assert f'name: "{name}"' in config_without_comments(name)
    assert in_graph(session.get_inputs()) == configured(name, "input")
    assert in_graph(session.get_outputs()) == configured(name, "output")


@pytest.mark.parametrize(("name", "version"), MODELS)
def test_batch_dimension_is_free(name: str, version: int) -> None:
    session = load(name, version)

    assert {tensor.shape[0] for tensor in session.get_inputs() + session.get_outputs()} == {"batch"}


@pytest.mark.parametrize("name", ["simple", "digits", "digits_resize"])
def test_folders_are_the_tested_versions(name: str) -> None:
    versions = {int(folder.name) for folder in (REPOSITORY / name).iterdir() if folder.is_dir()}

    assert versions == {version for model, version in MODELS if model == name}


@pytest.mark.parametrize("rows", [1, 8])
def test_simple_adds_and_subtracts(rows: int) -> None:
    first = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
    second = np.full((rows, 16), 3, np.int32)

    total, difference = load("simple", 1).run(["OUTPUT0", "OUTPUT1"], {"INPUT0": first, "INPUT1": second})

    np.testing.assert_array_equal(total, first + second, strict=True)
    np.testing.assert_array_equal(difference, first - second, strict=True)


@pytest.mark.parametrize(("name", "make"), [("simple", simple_model), ("digits_resize", resize_model)])
def test_script_still_writes_the_model_that_lies_there(name: str, make: Callable[[], onnx.ModelProto]) -> None:
    assert onnx.load(REPOSITORY / name / "1" / "model.onnx") == make()


def test_script_still_draws_the_picture_that_lies_there(digits: Digits) -> None:
    with Image.open(REPOSITORY / "digits_pipeline" / "seven.png") as picture:
        drawn = np.asarray(picture_of(7, digits), np.int16)
        assert np.abs(np.asarray(picture, np.int16) - drawn).max() <= 1, "versions of Pillow may round differently"


@pytest.mark.parametrize("scale", [3, 8, 20])
def test_photos_become_the_pictures_that_the_classifier_knows(scale: int, digits: Digits) -> None:
    pictures = digits.test_images[:16].reshape(-1, 8, 8)
    photos = np.rint(255 - pictures * (255 / 16)).astype(np.uint8).repeat(scale, axis=1).repeat(scale, axis=2)

    [image] = load("digits_resize", 1).run(["image"], {"photo": photos})
    [label] = load("digits", 2).run(["label"], {"image": image})

    assert image.shape == (16, 64)
    np.testing.assert_array_equal(label[:, 0], digits.test_labels[:16])


@pytest.mark.parametrize("version", [1, 2])
def test_digits_are_recognised(version: int, digits: Digits) -> None:
    label, _ = classify(version, digits)

    assert np.mean(label[:, 0] == digits.test_labels) >= ACCURACY_FLOOR[version]


def test_second_version_is_better(digits: Digits) -> None:
    errors = [np.count_nonzero(classify(version, digits)[0][:, 0] != digits.test_labels) for version in (1, 2)]

    assert errors[1] < errors[0]


@pytest.mark.parametrize("version", [1, 2])
def test_probabilities_are_probabilities(version: int, digits: Digits) -> None:
    label, probabilities = classify(version, digits)

    assert probabilities.min() >= 0
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), label[:, 0])


def test_one_label_for_each_digit() -> None:
    labels = (REPOSITORY / "digits" / "labels.txt").read_text(encoding="utf-8").splitlines()

    assert labels == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert 'label_filename: "labels.txt"' in config_without_comments("digits")


@pytest.mark.parametrize(("name", "version"), MODELS)
def test_files_are_small(name: str, version: int) -> None:
    assert (REPOSITORY / name / str(version) / "model.onnx").stat().st_size < 200_000
