"""Models of the Hugging Face Hub: their places, and which of their files are fetched."""

import pytest

from modserve.core.files.remote_place import parse_place
from modserve.repository.remote.hub import select_files

SMALL = ["config.json", "tokenizer.json", "1_Pooling/config.json", "vocab.txt", "spiece.model"]
OTHERS = [
    "model.safetensors",
    "pytorch_model.bin",
    "tf_model.h5",
    "onnx/model_quantized.onnx",
    "onnx/model_O4.onnx",
    "openvino/openvino_model_qint8.xml",
    "README.md",
    "modeling_own.py",
    ".gitattributes",
    "a/b/c.json",
]


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["onnx/model.onnx", "openvino/openvino_model.xml"], ["onnx/model.onnx"]),
        (["model.onnx", "onnx/model.onnx"], ["model.onnx"]),
        (["onnx/model.onnx", "onnx/model.onnx_data", "onnx/model.onnx_data_1"], None),
        (["model.onnx", "model.onnx.data"], None),
        (["openvino/openvino_model.xml", "openvino/openvino_model.bin"], None),
        (["openvino_model.xml", "openvino_model.bin"], None),
        (["small.gguf"], None),
        (["a.gguf", "b.gguf"], []),
        ([], []),
        (["../model.onnx", "/model.onnx"], []),
    ],
)
def test_one_form_of_the_weights_is_fetched(models: list[str], expected: list[str] | None) -> None:
    chosen = select_files([*SMALL, *OTHERS, *models])
    assert chosen == {*SMALL, *(models if expected is None else expected)}


@pytest.mark.parametrize(
    ("text", "model", "revision"),
    [
        ("hf://org/name", "org/name", "main"),
        ("hf://bert-base-uncased", "bert-base-uncased", "main"),
        ("hf://org/name@v1.0", "org/name", "v1.0"),
        ("HF://org/name@refs/pr/3", "org/name", "refs/pr/3"),
    ],
)
def test_places(text: str, model: str, revision: str) -> None:
    place = parse_place(text)
    assert place is not None
    assert (place.scheme, place.bucket, place.prefix) == ("hf", model, revision)


@pytest.mark.parametrize(
    "text", ["hf://", "hf://a/b/c", "hf://a/../b", "hf://a b/c", "hf://org/name@", "hf://org/näme"]
)
def test_no_places(text: str) -> None:
    with pytest.raises(ValueError, match="expected hf://ORGANISATION/MODEL"):
        parse_place(text)
