"""The models that every server serves: the same ONNX files, one thread, one row a request."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from encoder import EncoderSize, write_model

ROOT = Path(__file__).resolve().parents[2]
THREADS = 1
"""Of ONNX Runtime, in every server."""
TOKENS = 32
ENCODER = EncoderSize(layers=4, width=256, heads=4, feed_forward=1024, sequence=128)
LAYERS = (784, 512, 256, 10)
"""The widths of the multi-layer perceptron."""

Tensor: TypeAlias = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float32]
DATATYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}
"""NumPy's names and those of the KServe protocol."""


@dataclass(frozen=True)
class Model:
    """`inputs` are the tensors of one request, the batch dimension first; `dims` are those of one row."""

    name: str
    inputs: Mapping[str, Tensor]
    dims: Mapping[str, Sequence[int]]
    outputs: Mapping[str, tuple[str, Sequence[int]]]
    """By name: data type and dims of one row."""
    write: Callable[[Path], object]

    def expected(self, file: Path) -> dict[str, Tensor]:
        """The outputs for `inputs`, computed without a server."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = THREADS
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        names = list(self.outputs)
        return dict(zip(names, session.run(names, dict(self.inputs)), strict=True))

    def config(self, backend: str) -> str:
        """config.pbtxt, as modserve and Triton read it."""
        lines = [f'name: "{self.name}"', f'backend: "{backend}"', "max_batch_size: 8"]
        for name, tensor in self.inputs.items():
            lines.append(_tensor_text("input", name, DATATYPES[str(tensor.dtype)], self.dims[name]))
        for name, (datatype, dims) in self.outputs.items():
            lines.append(_tensor_text("output", name, datatype, dims))
        lines.append("dynamic_batching { }")
        lines.append("instance_group [ { count: 1 kind: KIND_CPU } ]")
        lines.append(f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{THREADS}" }} }}')
        return "\n".join([*lines, ""])


def _tensor_text(kind: str, name: str, datatype: str, dims: Sequence[int]) -> str:
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] }} ]'


def _copy_simple(path: Path) -> None:
    shutil.copyfile(ROOT / "model_repository" / "simple" / "1" / "model.onnx", path)


def _write_mlp(path: Path) -> None:
    random = np.random.default_rng(0)
    nodes, weights, layer = [], [], "INPUT"
    for number, (width, units) in enumerate(pairwise(LAYERS)):
        weight = (random.standard_normal((width, units)) / np.sqrt(width)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"weight{number}"))
        weights.append(numpy_helper.from_array(np.zeros(units, np.float32), f"bias{number}"))
        last = number == len(LAYERS) - 2
        product = "OUTPUT" if last else f"product{number}"
        nodes.append(helper.make_node("Gemm", [layer, f"weight{number}", f"bias{number}"], [product]))
        if not last:
            layer = f"layer{number}"
            nodes.append(helper.make_node("Relu", [product], [layer]))
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("INPUT", LAYERS[0]), ("OUTPUT", LAYERS[-1]))
    ]
    graph = helper.make_graph(nodes, "mlp", values[:1], values[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def _write_encoder(path: Path) -> None:
    write_model(path, ENCODER, seed=0)


def _models() -> list[Model]:
    random = np.random.default_rng(1)
    ids = random.integers(0, ENCODER.vocabulary, (1, TOKENS)).astype(np.int64)
    row = np.arange(16, dtype=np.int32).reshape(1, 16)
    return [
        Model(
            "simple",
            {"INPUT0": row, "INPUT1": np.ones((1, 16), np.int32)},
            {"INPUT0": (16,), "INPUT1": (16,)},
            {"OUTPUT0": ("INT32", (16,)), "OUTPUT1": ("INT32", (16,))},
            _copy_simple,
        ),
        Model(
            "mlp",
            {"INPUT": random.random((1, LAYERS[0])).astype(np.float32)},
            {"INPUT": (LAYERS[0],)},
            {"OUTPUT": ("FP32", (LAYERS[-1],))},
            _write_mlp,
        ),
        Model(
            "encoder",
            {"input_ids": ids, "attention_mask": np.ones((1, TOKENS), np.int64)},
            {"input_ids": (-1,), "attention_mask": (-1,)},
            {"embedding": ("FP32", (ENCODER.width,))},
            _write_encoder,
        ),
    ]


MODELS: Mapping[str, Model] = {model.name: model for model in _models()}
DESCRIPTIONS = {
    "simple": "the sum and the difference of two INT32 [1, 16]",
    "mlp": f"a multi-layer perceptron, {'-'.join(map(str, LAYERS))}, FP32",
    "encoder": f"a text encoder, {ENCODER.layers} layers, {ENCODER.width} wide, one text of {TOKENS} tokens",
}


def write_files(folder: Path, models: Sequence[Model]) -> None:
    """`NAME.onnx` of each model, and models.json, which tells the programs in programs/ names and data types."""
    folder.mkdir(parents=True)
    for model in models:
        model.write(folder / f"{model.name}.onnx")
    description = {
        model.name: {
            "inputs": {name: str(tensor.dtype) for name, tensor in model.inputs.items()},
            "outputs": list(model.outputs),
        }
        for model in models
    }
    (folder / "models.json").write_text(json.dumps(description))


def write_repository(folder: Path, files: Path, models: Sequence[Model], program: Path | None = None) -> Path:
    """For modserve and Triton: models for an ONNX engine, or Python models of `program` and its onnx_models.py."""
    for model in models:
        version = folder / model.name / "1"
        version.mkdir(parents=True)
        (folder / model.name / "config.pbtxt").write_text(model.config("python" if program else "onnxruntime"))
        if program is None:
            shutil.copyfile(files / f"{model.name}.onnx", version / "model.onnx")
        else:
            shutil.copyfile(program, version / "model.py")
            shutil.copyfile(program.with_name("onnx_models.py"), version / "onnx_models.py")
    return folder
