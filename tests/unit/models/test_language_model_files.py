"""What a file, or a folder, of a language model is for `modserve serve`."""

from pathlib import Path

import pytest

from modserve.models.loading.one_file import model_file


@pytest.mark.parametrize(
    ("files", "path", "filename", "backend"),
    [
        (["smol.Q4_1.gguf", "README.md"], "", "smol.Q4_1.gguf", "openvino_genai"),
        (["smol.Q4_1.gguf"], "smol.Q4_1.gguf", "smol.Q4_1.gguf", "openvino_genai"),
        (["openvino_model.xml", "openvino_detokenizer.xml"], "", "openvino_model.xml", "openvino_genai"),
        (
            ["openvino_model.xml", "openvino_detokenizer.xml"],
            "openvino_model.xml",
            "openvino_model.xml",
            "openvino_genai",
        ),
        (["openvino_model.xml"], "openvino_model.xml", "openvino_model.xml", "openvino"),
        (["model.onnx", "smol.gguf"], "", "model.onnx", "onnxruntime"),
    ],
)
def test_what_it_is(tmp_path: Path, files: list[str], path: str, filename: str, backend: str) -> None:
    folder = tmp_path / "smol"
    folder.mkdir()
    for file in files:
        (folder / file).touch()
    model = model_file(folder / path, [])
    assert (model.folder, model.filename, model.backend) == (folder, filename, backend)
    assert model.in_repository is False
