"""The example that reads a page, its three networks on OpenVINO in place of ONNX Runtime: nothing else changes."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from served_examples import Example, load, prepared
from server_process import serving

pytest.importorskip("openvino")


def test_a_page_is_read_by_networks_on_another_engine(tmp_path: Path) -> None:
    folder = prepared("bls_pipeline")
    shutil.copytree(folder / "model_repository", tmp_path / "models")
    for network in ("detector", "orientation", "recogniser"):
        config = tmp_path / "models" / network / "config.pbtxt"
        config.write_text(
            config.read_text().replace("onnxruntime", "openvino") + 'default_model_filename: "model.onnx"\n'
        )
    with serving(tmp_path / "models") as server, ExitStack() as clients:
        page = Example(folder, server, load(folder / "client.py"), clients)
        lines = page.client.read(page.http(), page.client.draw(page.client.LINES, upside_down=1))
    assert [text.replace(" ", "") for text, _ in lines] == [line.replace(" ", "") for line in page.client.LINES]
    assert all(confidence > 0.9 for _, confidence in lines)
