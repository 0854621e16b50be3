"""OpenVINO with weights of 8 bits: which matrices, how near the results are, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from openvino_models import configured, named, op, opened, parameter, run, save, save_one

from modserve.backends.openvino.compression import GROUP, compress_weights, quantise
from modserve.backends.openvino.library import core, ov
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.tensor import Array
from modserve.testing import instance_spec

INT8 = {"WEIGHT_COMPRESSION": "int8"}
RANDOM = np.random.default_rng(0)


def matrix(rows: int, columns: int, kind: type = np.float32) -> Array:
    return RANDOM.standard_normal((rows, columns)).astype(kind)


def error(output: Array, expected: Array) -> float:
    return float(np.abs(output - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("length", "groups"), [(4 * GROUP, 4), (GROUP, 1), (GROUP + 8, 1), (3, 1)])
def test_numbers_and_scales(axis: int, length: int, groups: int) -> None:
    weights = matrix(length, 5) if axis == 0 else matrix(5, length)
    numbers, scales = quantise(weights, axis)
    assert (numbers.dtype, scales.dtype) == (np.int8, np.float32)
    assert scales.size == 5 * groups
    again = (numbers * scales).reshape(weights.shape)
    assert (np.abs(again - weights) <= np.abs(weights).max() / 127).all()
    assert np.abs(numbers).max() == 127


def test_columns_of_zeros() -> None:
    numbers, scales = quantise(np.zeros((4, 2), np.float32), 0)
    assert not numbers.any()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("length", [256, 200])
def test_products_are_nearly_the_same(tmp_path: Path, transposed: bool, kind: type, length: int) -> None:
    weights = matrix(96, length, kind) if transposed else matrix(length, 96, kind)

    def network(x: Any) -> Any:
        constant = op.constant(weights)
        return op.matmul(x, op.convert(constant, "f32") if kind is np.float16 else constant, False, transposed)

    path = save_one(tmp_path / "model.xml", network, [-1, length])
    x = RANDOM.standard_normal((4, length)).astype(np.float32)
    exact, compressed = run(path, {"X": x})["Y"], run(path, {"X": x}, like=configured(parameters=INT8))["Y"]
    assert 1e-4 < error(compressed, exact) < 0.03


def test_weights_of_two_products_are_compressed_once(tmp_path: Path) -> None:
    weights, small = op.constant(matrix(64, 64)), op.constant(matrix(64, 4))
    x = parameter("X", [-1, 64])
    sum = op.add(op.matmul(x, weights, False, False), op.matmul(op.relu(x), weights, False, False))
    path = save(tmp_path / "model.xml", [named(op.matmul(sum, small, False, False), "Y")], [x])
    model = core().read_model(str(path))
    assert compress_weights(model) == 1
    kinds = [node.get_element_type() for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert kinds.count(ov.Type.i8) == 1


def test_what_the_engine_says(tmp_path: Path) -> None:
    path = save_one(tmp_path / "model.xml", lambda x: op.matmul(x, op.constant(matrix(64, 64)), False, False), [-1, 64])
    model = opened(path, configured(parameters=INT8))
    model.instance(instance_spec(configured(parameters=INT8)))
    assert model.report()["precision"] == "int8"
    model.close()


@pytest.mark.parametrize(
    "network",
    [
        lambda x: op.relu(x),
        lambda x: op.matmul(x, op.constant(matrix(64, 8)), False, False),
        lambda x: op.matmul(x, x, False, True),
        lambda x: op.matmul(x, op.constant(np.full((64, 64), np.inf, np.float32)), False, False),
    ],
    ids=["no product", "a small matrix", "no constant", "infinite"],
)
def test_nothing_to_compress(tmp_path: Path, network: Any) -> None:
    path = save_one(tmp_path / "model.xml", network, [-1, 64])
    with pytest.raises(
        ModserveError, match="'WEIGHT_COMPRESSION' has nothing to compress: the file has no large constant matrix"
    ) as caught:
        opened(path, configured(parameters=INT8))
    assert caught.value.code is Code.INVALID_ARG
