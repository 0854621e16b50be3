"""Files of layers behind the pooling."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modserve.core.errors import ModserveError
from modserve.text.dense import ACTIVATIONS, DenseLayer, read_layer, read_tensors
from text_folders import safetensors

WEIGHT = np.array([[1.5, -2.0], [0.25, 3.0], [0.0, 1.0]], np.float32)


@pytest.mark.parametrize("datatype", [np.float64, np.float32, np.float16])
def test_datatypes(datatype: type[np.floating[Any]]) -> None:
    tensors = read_tensors(safetensors({"a": WEIGHT.astype(datatype), "b": WEIGHT[0]}), Path("x"))
    assert np.array_equal(tensors["a"], WEIGHT)
    assert np.array_equal(tensors["b"], WEIGHT[0])
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}


def test_bfloat16() -> None:
    upper: NDArray[np.uint16] = (WEIGHT.view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(read_tensors(safetensors({"a": upper}), Path("x"))["a"], WEIGHT)


def file(described: Any, data: bytes = b"1234") -> bytes:
    text = json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + data


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a file of safetensors"),
    "cut": (safetensors({"a": WEIGHT})[:-4], "not a file of safetensors"),
    "no JSON": (struct.pack("<Q", 4) + b"{{{{", "not a file of safetensors"),
    "nested": (struct.pack("<Q", 100_000) + b"[" * 100_000, "not a file of safetensors"),
    "a list": (file([1]), "not a file of safetensors"),
    "a number": (file({"a": 1}), "not a file of safetensors"),
    "no place": (file({"a": {"dtype": "F32", "shape": [1]}}), "it has no 'data_offsets'"),
    "integers": (file({"a": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}), "it has no 'I32', or does not"),
    "another shape": (file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), "not a file of safetensors"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name: str) -> None:
    content, why = BROKEN[name]
    with pytest.raises(ModserveError, match=rf"'model.safetensors' of the model cannot be used: .*{why}"):
        read_tensors(content, Path("folder/model.safetensors"))


def write(folder: Path, tensors: dict[str, NDArray[Any]], **config: Any) -> Path:
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_layer(tmp_path: Path) -> None:
    bias = np.array([1, 2, 3], np.float32)
    folder = write(tmp_path, {"linear.weight": WEIGHT, "linear.bias": bias}, activation_function="torch.nn.ReLU")
    layer = read_layer(folder)
    assert isinstance(layer, DenseLayer)
    vector = np.array([0.5, 4.0], np.float32)
    assert layer.apply(vector).tolist() == np.maximum(WEIGHT @ vector + bias, 0).tolist()


def test_tensors_that_are_none_of_a_layers(tmp_path: Path) -> None:
    for tensors in ({"weight": WEIGHT}, {"linear.weight": WEIGHT[0]}, {"linear.weight": WEIGHT, "linear.bias": WEIGHT}):
        with pytest.raises(ModserveError, match=r"expected 'linear\.weight' and perhaps 'linear\.bias', not '"):
            read_layer(write(tmp_path, tensors))


def test_activations() -> None:
    values = np.array([-2.0, 0.0, 0.5], np.float32)
    expected: dict[str, list[float]] = {
        "Identity": [-2.0, 0.0, 0.5],
        "ReLU": [0.0, 0.0, 0.5],
        "Sigmoid": [0.11920292, 0.5, 0.62245933],
        "Tanh": [-0.9640276, 0.0, 0.46211717],
    }
    assert ACTIVATIONS.keys() == expected.keys()
    for name, result in expected.items():
        assert np.allclose(ACTIVATIONS[name](values), result, atol=1e-7)
