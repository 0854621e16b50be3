"""Texts to all-MiniLM-L6-v2 in the forms of other engines: OpenVINO, as optimum writes it, and TorchScript."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rows import FORMS
from minilm_folder import minilm
from numpy.typing import NDArray
from server_process import serving
from test_text import WORDS, Bare
from wire import http

from modserve.backends.catalogue import BY_BACKEND

_TORCHSCRIPT = """
backend: "pytorch"
max_batch_size: 8
input { name: "INPUT__0" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "INPUT__1" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 384 ] }
dynamic_batching { }
parameters { key: "padding.axis.INPUT__0" value { string_value: "0" } }
parameters { key: "padding.mask" value { string_value: "INPUT__1" } }
parameters { key: "padding.unpad.OUTPUT__0" value { string_value: "0" } }
"""


def embeddings(port: int, model: str) -> NDArray[Any]:
    body = json.dumps({"model": model, "input": list(WORDS)}).encode()
    answer = http(port, "POST", "/v1/embeddings", body)
    assert answer.status == 200, answer.body
    return np.array([each["embedding"] for each in json.loads(answer.body)["data"]])


def expected() -> NDArray[Any]:
    bare = Bare(minilm(), "onnx/model.onnx")
    return np.array([bare.embed(text) for text in WORDS])


def files_beside(folder: Path) -> None:
    """All but the model."""
    shutil.copytree(minilm(), folder, ignore=shutil.ignore_patterns("onnx"))


@pytest.mark.skipif(not BY_BACKEND["openvino"].installed, reason="openvino is not installed")
@pytest.mark.parametrize("below", ["", "openvino"])
def test_openvino(tmp_path: Path, below: str) -> None:
    import openvino

    files_beside(tmp_path / "snapshot")
    network = openvino.convert_model(minilm() / "onnx" / "model.onnx")
    openvino.save_model(network, tmp_path / "snapshot" / below / "openvino_model.xml", compress_to_fp16=False)
    with serving(options=[str(tmp_path / "snapshot")]) as server:
        np.testing.assert_allclose(embeddings(server.http_port, "snapshot"), expected(), atol=1e-5)
        config = json.loads(http(server.http_port, "GET", "/v2/models/snapshot/config").body)
    assert (config["backend"], config["parameters"]["padding.multiple_of"]["string_value"]) == ("openvino", "8")


@pytest.mark.skipif(not BY_BACKEND["pytorch"].installed, reason="pytorch is not installed")
def test_torchscript(tmp_path: Path) -> None:
    version = tmp_path / "models" / "script" / "1"
    files_beside(version)
    shutil.copy(FORMS["minilm_torchscript"].path(), version / "model.pt")
    (version.parent / "config.pbtxt").write_text(_TORCHSCRIPT)
    with serving(tmp_path / "models") as server:
        np.testing.assert_allclose(embeddings(server.http_port, "script"), expected(), atol=1e-5)
