"""ONNX Runtime on GPUs that only pretend: which session runs what, and what becomes of a GPU that fails."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from modserve.backends.api import InstanceLostError, ModelSource, Placement
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeModel
from modserve.core.configuration.model_config import InstanceKind, ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec

PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]
ROW = np.ones((1, 2), np.float32)


class FakeSession:
    """A session on one GPU, which returns its inputs; a GPU in `broken` fails with that text, for all sessions."""

    broken: Mapping[int, str] = {}

    def __init__(self, path: str, options: Any, *, providers: Sequence[Any], enable_fallback: int) -> None:
        self.gpu = int(providers[0][1]["device_id"])
        self.runs: list[Any] = []
        self._check()

    def _check(self) -> None:
        if self.gpu in self.broken:
            raise RuntimeError(self.broken[self.gpu])

    def get_providers(self) -> list[str]:
        return PROVIDERS

    def get_inputs(self) -> list[object]:
        return []

    get_outputs = get_overridable_initializers = get_inputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], options: Any) -> list[Array]:
        self._check()
        self.runs.append(options)
        return [feeds["IN0"] for _ in names]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    """Those that are made, on a machine with two GPUs."""
    made: list[FakeSession] = []

    def make(*arguments: Any, **more: Any) -> FakeSession:
        made.append(FakeSession(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(ort, "InferenceSession", make)
    monkeypatch.setattr(ort, "get_available_providers", lambda: PROVIDERS)
    monkeypatch.setattr("modserve.backends.onnxruntime.builds.why_unusable", lambda *_: "")
    monkeypatch.setattr("modserve.backends.onnxruntime.backend._gpu_devices", lambda: ["nvidia0", "nvidia1"])
    monkeypatch.setattr(FakeSession, "broken", {})
    return made


def described(**parameters: str) -> ModelConfig:
    inputs, outputs = (TensorSpec("IN0", dtypes.FP32, (2,)),), (TensorSpec("OUT0", dtypes.FP32, (2,)),)
    return config(inputs=inputs, outputs=outputs, max_batch_size=4, parameters=parameters)


def opened(folder: Path, given: ModelConfig, *gpus: int) -> OnnxRuntimeModel:
    (folder / "model.onnx").touch()
    placements = tuple(Placement(InstanceKind.GPU, gpu) for gpu in gpus)
    return OnnxRuntimeBackend().open(ModelSource(given, 1, folder / "model.onnx", folder, placements=placements))


def made(model: OnnxRuntimeModel, given: ModelConfig, gpu: int, index: int = 0) -> Any:
    return model.instance(instance_spec(given, InstanceKind.GPU, gpu, index))


def runs(sessions: list[FakeSession]) -> list[Any]:
    """The options of all executions."""
    return [options for session in sessions for options in session.runs]


def test_instances_run_in_sessions_of_their_own_on_their_own_gpu(tmp_path: Path, sessions: list[FakeSession]) -> None:
    given = described(**{"memory.enable_memory_arena_shrinkage": "cpu:0;gpu:1"})
    model = opened(tmp_path, given, 0, 1, 1)
    instances = [made(model, given, gpu, index) for index, gpu in enumerate((0, 1, 1))]
    for instance in instances:
        assert instance.execute({"IN0": ROW}, ("OUT0",))["OUT0"] is ROW
    assert [session.gpu for session in sessions] == [0, 1, 1]
    shrunk = [options.get_run_config_entry("memory.enable_memory_arena_shrinkage") for options in runs(sessions)]
    assert shrunk == ["cpu:0", "cpu:0;gpu:1", "cpu:0;gpu:1"]
    assert model.report()["device"] == "GPU 0, GPU 1"
    for instance in instances:
        instance.close()
    model.close()


@pytest.mark.parametrize(
    "text",
    [
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Add node. "
        "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 800",
        "BFCArena::AllocateRawInternal Available memory of 512 is smaller than requested bytes of 1024",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; file=cuda_allocator.cc ; expr=cudaMalloc(&p, size);",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=a ; expr=cublasCreate(&handle);",
        "CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cudnnCreate(&handle);",
    ],
)
def test_a_gpu_that_is_full(tmp_path: Path, sessions: list[FakeSession], text: str) -> None:
    given = described()
    instance = made(opened(tmp_path, given, 0), given, 0)
    FakeSession.broken = {0: text}
    with pytest.raises(ModserveError, match="onnxruntime has no memory for the request") as caught:
        instance.execute({"IN0": ROW}, ("OUT0",))
    assert (caught.value.code, isinstance(caught.value, InstanceLostError)) == (Code.INTERNAL, False)
    FakeSession.broken = {}
    assert instance.execute({"IN0": ROW}, ("OUT0",))["OUT0"] is ROW


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (700, "an illegal memory access was encountered"),
        (702, "the launch timed out and was terminated"),
        (710, "device-side assert triggered"),
        (716, "misaligned address"),
        (719, "unspecified launch failure"),
        (214, "uncorrectable ECC error encountered"),
        (220, "uncorrectable NVLink error detected during the execution"),
        (999, "unknown error"),
    ],
)
def test_a_gpu_that_fails_for_good(tmp_path: Path, sessions: list[FakeSession], code: int, text: str) -> None:
    """Its instance is lost, and so is the next one that the server makes, until the server starts again."""
    given = described()
    model = opened(tmp_path, given, 0, 1)
    instances = [made(model, given, gpu) for gpu in (0, 1)]
    FakeSession.broken = {0: f"CUDA failure {code}: {text} ; GPU=0 ; hostname=a ; expr=cudaStreamSynchronize(stream);"}
    with pytest.raises(InstanceLostError) as caught:
        instances[0].execute({"IN0": ROW}, ("OUT0",))
    assert caught.value.message == (
        f"the GPU has failed: CUDA failure {code}: {text}; CUDA runs nothing more in this process, so the server must "
        "be started again"
    )
    assert instances[1].execute({"IN0": ROW}, ("OUT0",))["OUT0"] is ROW
    instances[0].close()
    with pytest.raises(ModserveError, match=text):
        made(model, given, 0)


def test_errors_that_leave_a_gpu_usable(tmp_path: Path, sessions: list[FakeSession]) -> None:
    given = described()
    instance = made(opened(tmp_path, given, 0), given, 0)
    FakeSession.broken = {0: "CUDA failure 9: invalid configuration argument ; GPU=0 ; expr=cudaGetLastError();"}
    with pytest.raises(RuntimeError, match="invalid configuration argument") as caught:
        instance.execute({"IN0": ROW}, ("OUT0",))
    assert not isinstance(caught.value, ModserveError)
