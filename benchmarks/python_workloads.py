"""The workloads of python_backend.py: repositories of its models, the clients' requests, and the right responses."""

import shutil
import struct
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import orjson
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import overhead
from modserve.pb import inference as pb
from overhead import ROOT, ServerProcess

MODELS = ROOT / "benchmarks" / "model_files"
NUMBERS = 100
"""Responses to a request of the decoupled model."""
LARGE = 4_000_000
"""Elements of FP32: 16 MB."""
_MODE = 'parameters {{ key: "EXECUTION_MODE" value {{ string_value: "{}" }} }}\n'
_DATATYPES = {"float32": "FP32", "int32": "INT32"}


@dataclass(frozen=True)
class Workload:
    """A model, what clients send it, and the elements that the right response has."""

    model: str
    title: str
    inputs: Mapping[str, NDArray[Any]]
    expected: NDArray[Any]
    stream: bool = False
    windows: int = 1
    """How many times as long a window is as those of the other models, so that enough requests are in it."""


def write_onnx(path: Path) -> None:
    """Three layers of 64, random weights: an engine that takes some microseconds."""
    weights = np.random.default_rng(0).normal(0, 0.2, (3, 64, 64)).astype(np.float32)
    nodes = []
    for layer in range(3):
        output = "OUTPUT0" if layer == 2 else f"layer{layer}"
        nodes += [
            helper.make_node(
                "MatMul", [f"layer{layer - 1}" if layer else "INPUT0", f"weights{layer}"], [f"sum{layer}"]
            ),
            helper.make_node("Relu", [f"sum{layer}"], [output]),
        ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in ("INPUT0", "OUTPUT0")]
    initializers = [numpy_helper.from_array(each, f"weights{layer}") for layer, each in enumerate(weights)]
    graph = helper.make_graph(nodes, "perceptron", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)


def write_repository(directory: Path, models: Sequence[str], mode: str = "") -> Path:
    """The models of these names, and those that they call. `mode` is their EXECUTION_MODE, if they are to name one."""
    for name in dict.fromkeys([*models, *(["add_sub"] if "bls" in models else [])]):
        shutil.copytree(MODELS / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        if name == "batched_add_sub":
            shutil.copytree(
                MODELS / "add_sub" / "1", directory / name / "1", ignore=shutil.ignore_patterns("__pycache__")
            )
        if mode:
            with (directory / name / "config.pbtxt").open("a") as config:
                config.write(_MODE.format(mode))
        if name == "onnx_inside":
            write_onnx(directory / name / "1" / "perceptron.onnx")
    return directory


def workloads() -> dict[str, Workload]:
    """By model."""
    a, b = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
    sums = np.concatenate([a + b, a - b])
    vectors, row = {"INPUT0": a, "INPUT1": b}, np.ones((1, 64), np.float32)
    with tempfile.TemporaryDirectory() as directory:
        write_onnx(path := Path(directory) / "perceptron.onnx")
        (activations,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"INPUT0": row})
    large = np.ones(LARGE, np.float32)
    each = [
        Workload("add_sub", "add and subtract", vectors, sums),
        Workload(
            "batched_add_sub", "add and subtract, batched", {name: each[None] for name, each in vectors.items()}, sums
        ),
        Workload("onnx_inside", "ONNX Runtime inside", {"INPUT0": row}, activations),
        Workload(
            "numbers",
            f"decoupled, {NUMBERS} responses",
            {"COUNT": np.array([NUMBERS], np.int32)},
            np.arange(NUMBERS, dtype=np.int32),
            stream=True,
        ),
        Workload("bls", "BLS: a model that calls add and subtract", vectors, sums),
        Workload("identity", "16 MB in and out", {"INPUT0": large}, large, windows=3),
    ]
    return {workload.model: workload for workload in each}


def http_body(workload: Workload) -> tuple[str, bytes, int | None]:
    """The verb of the path, the body, and the length of the JSON before binary tensors."""
    if workload.stream:
        return "generate_stream", orjson.dumps({name: array.tolist() for name, array in workload.inputs.items()}), None
    tensors: list[dict[str, object]] = [
        {
            "name": name,
            "datatype": _DATATYPES[array.dtype.name],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in workload.inputs.items()
    ]
    body, length = overhead.http_body(tensors, b"".join([array.tobytes() for array in workload.inputs.values()]))
    return "infer", body, length


def grpc_body(workload: Workload) -> tuple[str, bytes]:
    """The method, and a message as it goes over the wire."""
    tensor = pb.ModelInferRequest.InferInputTensor
    message = pb.ModelInferRequest(
        model_name=workload.model,
        inputs=[
            tensor(name=name, datatype=_DATATYPES[array.dtype.name], shape=list(array.shape))
            for name, array in workload.inputs.items()
        ],
        raw_input_contents=[array.tobytes() for array in workload.inputs.values()],
    ).SerializeToString()
    method = "ModelStreamInfer" if workload.stream else "ModelInfer"
    return method, b"\0" + struct.pack(">I", len(message)) + message


def check(target: ServerProcess, workload: Workload) -> None:
    """One request over HTTP. Raises SystemExit if the response is not the right one."""
    verb, body, length = http_body(workload)
    # Without a type, urllib sends a form's: Triton ends with a segmentation fault on reading 16 MB as one.
    headers = {"Content-Type": "application/json" if length is None else "application/octet-stream"}
    if length is not None:
        headers["Inference-Header-Content-Length"] = str(length)
    url = f"http://127.0.0.1:{target.http}/v2/models/{workload.model}/{verb}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            received: bytes = response.read()
    except OSError as error:  # HTTP's errors are some, too
        raise SystemExit(f"{url}: {error}") from error
    expected = workload.expected
    if workload.stream:
        lines = [line for line in received.splitlines() if line.startswith(b"data: ")]
        array = np.array([orjson.loads(line[6:])["NUMBER"] for line in lines], expected.dtype)
    else:
        array = np.frombuffer(received[-expected.nbytes :], expected.dtype)
    if array.size != expected.size or not np.allclose(array, expected.ravel(), rtol=1e-4):
        raise SystemExit(f"{url}: the response is not the right one: {received[:200]!r}")
