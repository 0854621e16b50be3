"""The models of `lifecycle.py`, and where they are: in folders, and in a bucket."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from buckets import KEYS, Bucket, Door, moto
from lifecycle_clients import Target

MODEL = "scaled"
"""Its version N returns N times its input, so that a response tells which version it is from."""
CANARY = "routed"
"""As `MODEL`, in Python, and version 2 is slow while there is a file `slow` beside the repository."""
SLOW_S = 0.8
LARGE = range(1, 7)
"""The large models: `large5` returns five times its input."""
LARGE_MB = 30
_CONFIG = """backend: "{backend}"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 8 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 8 ] }} ]
version_policy {{ all {{}} }}
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
"""
_THREAD = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }\n'
_CANARY = """import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.factor = int(args["model_version"])

    def execute(self, requests):
        if self.factor == 2 and pathlib.Path(SLOW).exists():
            time.sleep(SECONDS)
        inputs = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each * self.factor)]) for each in inputs]
"""


@dataclass
class Store:
    """A bucket, and the door between the server and it."""

    bucket: Bucket
    door: Door


@dataclass
class Site:
    """Where the models of a stage are, and what they return."""

    folder: Path
    targets: list[Target]
    repository: str = ""
    """For --model-repository; `folder` / "models" by default."""
    environment: Mapping[str, str] = field(default_factory=dict)
    store: Store | None = None

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def slow(self) -> Path:
        """While it is there, the canary is slow."""
        return self.folder / "slow"


def config(instances: int = 1, delay_us: int = 0, backend: str = "onnxruntime") -> bytes:
    """A config.pbtxt."""
    return _CONFIG.format(backend=backend, instances=instances, delay_us=delay_us).encode()


def model_of(factor: int) -> bytes:
    """y = factor * x."""
    value = numpy_helper.from_array(np.array([factor], np.float32), "factor")
    return _graph([helper.make_node("Mul", ["x", "factor"], ["y"])], value)


def large_model_of(factor: int) -> bytes:
    """The same for x from 0 to 999, with a table that the engine cannot make any smaller."""
    table = np.random.default_rng(factor).random(LARGE_MB * 1_000_000 // 4, dtype=np.float32)
    table[:1000] = factor
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    return _graph(nodes, numpy_helper.from_array(table, "table"))


def _graph(nodes: list[onnx.NodeProto], value: onnx.TensorProto) -> bytes:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [value])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


# The sites


@asynccontextmanager
async def one_model(folder: Path) -> AsyncIterator[Site]:
    site = Site(folder, [Target(MODEL, 1, {1})])
    write(site.models / MODEL, {"1/model.onnx": model_of(1), "config.pbtxt": config()})
    yield site


@asynccontextmanager
async def stable_and_canary(folder: Path) -> AsyncIterator[Site]:
    site = Site(folder, [Target(CANARY, 1, {2})])
    code = _CANARY.replace("SLOW", repr(str(site.slow))).replace("SECONDS", str(SLOW_S)).encode()
    files = {"1/model.py": code, "2/model.py": code, "config.pbtxt": config(4, backend="python") + _THREAD.encode()}
    write(site.models / CANARY, files)
    yield site


@asynccontextmanager
async def large_models(folder: Path) -> AsyncIterator[Site]:
    site = Site(folder, [Target(f"large{number}", number, {number}) for number in LARGE])
    for number in LARGE:
        write(site.models / f"large{number}", {"1/model.onnx": large_model_of(number), "config.pbtxt": config()})
    yield site


@asynccontextmanager
async def in_a_bucket(folder: Path) -> AsyncIterator[Site]:
    with moto() as url:
        bucket = Bucket(url, "models")
        bucket.put(f"repository/{MODEL}/1/model.onnx", model_of(1))
        bucket.put(f"repository/{MODEL}/config.pbtxt", config())
        door = Door(int(url.rpartition(":")[2]))
        try:
            repository = f"s3://127.0.0.1:{await door.start()}/models/repository"
            environment = {**KEYS, "XDG_CACHE_HOME": str(folder / "cache")}
            yield Site(folder, [Target(MODEL, 1, {1})], repository, environment, Store(bucket, door))
        finally:
            door.close()
