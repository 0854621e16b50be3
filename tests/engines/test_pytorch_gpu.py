"""PyTorch models on GPUs that only pretend: which stream waits for which, and what becomes of a GPU that fails."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fake_torch_cuda
from fake_torch_cuda import FakeGpus, Race
from modserve.backends.api import InstanceLostError, ModelSource, Placement
from modserve.backends.pytorch.backend import PyTorchBackend, PyTorchModel
from modserve.core.configuration.model_config import InstanceKind, ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.testing import config, instance_spec

CLASS = """
import torch

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, IN: torch.Tensor):
        self.calls += 1
        return {"OUT": IN * self.weight + self.calls * 0, "CALLS": self.calls}
"""
ROW = np.array([[1, 1, 1]], np.float32)


def described(**parameters: str) -> ModelConfig:
    return config(
        inputs=(TensorSpec("IN", dtypes.FP32, (-1, 3)),),
        outputs=(TensorSpec("OUT", dtypes.FP32, (-1, 3)), TensorSpec("CALLS", dtypes.FP32, (1,))),
        max_batch_size=0,
        runtime="model.py",
        parameters=parameters,
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    return fake_torch_cuda.install(monkeypatch)


def opened(path: Path, given: ModelConfig, device: int = 0) -> PyTorchModel:
    (path / "model.py").write_text(CLASS)
    placement = Placement(InstanceKind.GPU, device)
    return PyTorchBackend().open(ModelSource(given, 1, path / "model.pt", path, placements=(placement,)))


def made(model: PyTorchModel, given: ModelConfig, device: int = 0) -> Any:
    return model.instance(instance_spec(given, InstanceKind.GPU, device))


def test_the_fake_sees_a_stream_that_does_not_wait(gpus: FakeGpus) -> None:
    device = torch.device("cuda", 0)
    with gpus:
        tensor = torch.ones(3).to(device) * 2
        stream: Any = torch.cuda.Stream(device)
        with torch.cuda.stream(stream), pytest.raises(Race, match="has not waited"):
            tensor + 1
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            total = tensor + 1
            del tensor
            assert total.cpu().tolist() == [3, 3, 3]
    assert gpus.races == ["memory is freed while a stream uses it that its allocator does not know of"]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("parameters", [{}, {"PRECISION": "bf16"}, {"ENABLE_CACHE_CLEANING": "true"}], ids=str)
def test_an_instance_waits_for_its_weights_and_clients_for_outputs(
    tmp_path: Path, gpus: FakeGpus, parameters: dict[str, str], device: int
) -> None:
    given = described(**parameters)
    with gpus:
        model = opened(tmp_path, given, device)
        instances = [made(model, given, device) for _ in range(2)]
        gpus.events.clear()
        for instance in instances:
            for calls in (1, 2):
                outputs = instance.execute({"IN": ROW}, ("OUT", "CALLS"))
                assert outputs["OUT"].tolist() == [[1, 2, 3]]
                assert outputs["CALLS"].tolist() == [calls]
        once = ["to device", "to host", "to host"] + ["empty cache"] * ("ENABLE_CACHE_CLEANING" in parameters)
        assert gpus.events == once * 4
        assert model.report()["device"] == f"cuda:{device}"
        for instance in instances:
            instance.close()
        model.close()
        del instance, instances, model
    assert gpus.races == []


def test_what_a_failed_execution_has_begun_ends_before_the_weights_are_freed(tmp_path: Path, gpus: FakeGpus) -> None:
    given = described()
    with gpus:
        model = opened(tmp_path, given)
        instance = made(model, given)
        wrong = np.ones((1, 2), np.float32)
        with pytest.raises(ModserveError, match="pytorch refused the request") as caught:
            instance.execute({"IN": wrong}, ("OUT", "CALLS"))  # which has counted the call by then
        assert caught.value.code is Code.INTERNAL
        instance.close()
        model.close()
        del instance, model, caught
    assert gpus.events[-1] == "synchronize"
    assert gpus.races == []


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_a_gpu_that_fails_for_good_takes_its_instance_along(tmp_path: Path, gpus: FakeGpus, text: str) -> None:
    given = described()
    with gpus:
        model = opened(tmp_path, given)
        instance = made(model, given)
        gpus.failure = text
        with pytest.raises(InstanceLostError, match=f"the GPU has failed: {text.splitlines()[0]}") as caught:
            instance.execute({"IN": ROW}, ("OUT", "CALLS"))
        assert "the server must be started again" in caught.value.message
        instance.close()
        model.close()


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_a_gpu_that_is_full(tmp_path: Path, gpus: FakeGpus, text: str) -> None:
    given = described()
    with gpus:
        model = opened(tmp_path, given)
        instance = made(model, given)
        gpus.failure = text
        with pytest.raises(ModserveError, match="pytorch has not enough memory: CUDA") as caught:
            instance.execute({"IN": ROW}, ("OUT", "CALLS"))
        assert caught.value.code is Code.INTERNAL
        gpus.failure = ""
        assert instance.execute({"IN": ROW}, ("OUT", "CALLS"))["OUT"].tolist() == [[1, 2, 3]]
        instance.close()
        model.close()
