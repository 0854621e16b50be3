"""ONNX models that are made on the spot."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("ai.onnx.contrib", 1))


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
    return dict(zip(("start", "openvino"), blocks, strict=True))
