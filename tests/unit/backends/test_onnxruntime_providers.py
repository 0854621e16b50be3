"""Execution providers: by name, with Triton's options, and refused where ONNX Runtime would go on without them."""

from typing import Any

import onnxruntime as ort
import pytest

from modserve.backends.api import Placement
from modserve.backends.onnxruntime import builds
from modserve.backends.onnxruntime.options import warnings
from modserve.backends.onnxruntime.providers import check, choose_providers
from modserve.core.configuration.model_config import Accelerator, InstanceKind, ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.testing import config

CPU, GPU = Placement(InstanceKind.CPU), Placement(InstanceKind.GPU, 3)
BUILD = [
    f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "OpenVINO", "Xnnpack", "CoreML", "Dnnl", "ROCM", "CPU")
]
CUDA = ("CUDAExecutionProvider", {"device_id": "3"})


@pytest.fixture(autouse=True)
def build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that has nearly everything."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: BUILD)


def accelerated(*names: str, on_cpu: tuple[str, ...] = (), **parameters: str) -> ModelConfig:
    return config(
        gpu_accelerators=tuple(Accelerator(name, parameters) for name in names),
        cpu_accelerators=tuple(Accelerator(name, parameters) for name in on_cpu),
    )


def refused(config: ModelConfig, placement: Placement = CPU) -> str:
    with pytest.raises(ModserveError) as caught:
        choose_providers(config, placement)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize("listed", ["cpu", "xnnpack,cpu"])
def test_a_gpu_needs_a_provider_that_runs_there(listed: str) -> None:
    model = config(parameters={"execution_providers": listed})
    assert "has an instance on GPU 3, but parameter 'execution_providers' has no provider" in refused(model, GPU)
    assert choose_providers(config(parameters={"execution_providers": "openvino"}), GPU)


# Which, and in which order


@pytest.mark.parametrize(
    ("config", "placement", "expected"),
    [
        (config(), CPU, []),
        (config(), GPU, ["CUDA"]),
        (accelerated("cuda"), GPU, ["CUDA"]),
        (accelerated("tensorrt"), GPU, ["Tensorrt", "CUDA"]),
        (accelerated("tensorrt", "cuda"), GPU, ["Tensorrt", "CUDA"]),
        (accelerated("tensorrt"), CPU, []),
        (accelerated("tensorrt", on_cpu=("openvino",)), GPU, ["Tensorrt", "CUDA", "OpenVINO"]),
        (accelerated("tensorrt", on_cpu=("openvino",)), CPU, ["OpenVINO"]),
        (accelerated(on_cpu=("XNNPACK", "xnnpack", "cpu")), CPU, ["Xnnpack"]),
        (accelerated(on_cpu=("CoreMLExecutionProvider",)), CPU, ["CoreML"]),
        (accelerated(on_cpu=("onednn",)), CPU, ["Dnnl"]),
        (config(parameters={"execution_providers": "xnnpack, dnnl"}), CPU, ["Xnnpack", "Dnnl"]),
        (config(parameters={"execution_providers": "ROCM;cpu"}), GPU, ["ROCM"]),
        (config(parameters={"execution_providers": ""}), GPU, ["CUDA"]),
    ],
    ids=str,
)
def test_order(config: ModelConfig, placement: Placement, expected: list[str]) -> None:
    names = [name.removesuffix("ExecutionProvider") for name, _ in choose_providers(config, placement)]
    assert names == expected


def test_the_gpu_is_that_of_the_instance() -> None:
    parameters = {"execution_providers": "rocm,openvino"}
    assert dict(choose_providers(config(parameters=parameters), GPU))["ROCMExecutionProvider"] == {"device_id": "3"}
    assert choose_providers(config(parameters={"execution_providers": "cuda"}), CPU) == [("CUDAExecutionProvider", {})]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tensorflow", "; did you mean 'tensorrt'?"),
        ("xnpack", "; did you mean 'xnnpack'?"),
        ("", ""),
        ("abracadabra", ""),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    message = refused(accelerated(on_cpu=(name,)))
    assert message == (
        f"model 'model': unknown Execution Accelerator '{name}' is requested; this build of ONNX Runtime has: "
        f"tensorrt, cuda, openvino, xnnpack, coreml, dnnl, rocm, cpu{hint}"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cuda", "; onnxruntime-gpu has it"),
        ("tensorrt", "; onnxruntime-gpu has it"),
        ("openvino", "; onnxruntime-openvino has it"),
        ("rocm", "; onnxruntime-rocm has it"),
        ("xnnpack", ""),
    ],
)
def test_providers_that_the_build_lacks(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    message = refused(config(parameters={"execution_providers": name}))
    assert message.startswith(
        f"model 'model' asks for '{name}', but this build of ONNX Runtime (onnxruntime {ort.__version__}: "
        "CPUExecutionProvider) has no "
    )
    assert message.endswith(f"ExecutionProvider{hint}")


def test_two_ways_to_say_it() -> None:
    both = config(parameters={"execution_providers": "dnnl"}, cpu_accelerators=(Accelerator("openvino"),))
    assert "parameter 'execution_providers' and optimization.execution_accelerators" in refused(both)


# Options


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {}),
        ({"precision_mode": "FP32"}, {}),
        ({"precision_mode": "FP16"}, {"trt_fp16_enable": "1"}),
        ({"precision_mode": "BF16"}, {"trt_bf16_enable": "1"}),
        (
            {"precision_mode": "INT8", "int8_calibration_table_name": "t", "int8_use_native_calibration_table": "true"},
            {
                "trt_int8_enable": "1",
                "trt_int8_calibration_table_name": "t",
                "trt_int8_use_native_calibration_table": "true",
            },
        ),
        ({"max_workspace_size_bytes": "1073741824"}, {"trt_max_workspace_size": "1073741824"}),
        (
            {"trt_engine_cache_enable": "1", "trt_engine_cache_path": "/cache", "trt_tactic_sources": ""},
            {"trt_engine_cache_enable": "1", "trt_engine_cache_path": "/cache"},
        ),
        ({"trt_of_next_year": "1"}, {"trt_of_next_year": "1"}),
    ],
    ids=str,
)
def test_options_of_tensorrt(parameters: dict[str, str], expected: dict[str, str]) -> None:
    assert choose_providers(config(gpu_accelerators=(Accelerator("tensorrt", parameters),)), GPU)[0] == (
        "TensorrtExecutionProvider",
        {**expected, "device_id": "3"},
    )


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"precision_mode": "FP8"}, "unsupported precision mode 'FP8' is requested, expected one of FP32, FP16, BF16"),
        (
            {"precision": "FP16"},
            "unknown parameter 'precision' is provided for TensorRT Execution Accelerator; did you mean "
            "'precision_mode'?",
        ),
        ({"cache": "1"}, "'cache' is provided for TensorRT Execution Accelerator; those of ONNX Runtime begin with"),
    ],
    ids=str,
)
def test_options_that_tensorrt_does_not_have(parameters: dict[str, str], words: str) -> None:
    assert words in refused(config(gpu_accelerators=(Accelerator("tensorrt", parameters),)), GPU)


def test_options_of_cuda() -> None:
    """The model's own parameters are the older way, and override as they do in Triton."""
    given = config(
        gpu_accelerators=(
            Accelerator("cuda", {"cudnn_conv_use_max_workspace": "0", "gpu_mem_limit": "1", "device_id": "9"}),
        ),
        parameters={"gpu_mem_limit": "4096", "cudnn_conv_algo_search": "1", "do_copy_in_default_stream": "1"},
    )
    assert choose_providers(given, GPU) == [
        (
            "CUDAExecutionProvider",
            {
                "cudnn_conv_use_max_workspace": "0",
                "gpu_mem_limit": "4096",
                "device_id": "3",
                "cudnn_conv_algo_search": "HEURISTIC",
                "do_copy_in_default_stream": "1",
            },
        )
    ]


@pytest.mark.parametrize(("name", "key"), [("cuda", "enable_cuda_graph"), ("tensorrt", "trt_cuda_graph_enable")])
def test_no_graphs_are_recorded(name: str, key: str) -> None:
    """With inputs in memory that differs from request to request, they would give the first responses again."""
    given = config(gpu_accelerators=(Accelerator(name, {key: "1"}),))
    assert all(options == {"device_id": "3"} for _, options in choose_providers(given, GPU))
    (warning,) = warnings(given, gpus=4)
    assert warning.startswith(f"model 'model': parameter '{key}' of accelerator '{name}' has no effect: no CUDA graphs")


def test_openvino_keeps_to_the_threads_of_the_instances() -> None:
    (chosen,) = choose_providers(accelerated(on_cpu=("openvino",)), CPU, threads=3, sharing=2)
    assert chosen[1] == {"device_type": "CPU", "num_of_threads": "6", "num_streams": "2"}
    (chosen,) = choose_providers(accelerated(on_cpu=("openvino",), num_of_threads="1", cache_dir="/c"), CPU, 3, 2)
    assert chosen[1] == {"device_type": "CPU", "num_of_threads": "1", "num_streams": "2", "cache_dir": "/c"}
    (chosen,) = choose_providers(accelerated(on_cpu=("openvino",), device_type="GPU"), CPU, 3, 2)
    assert chosen[1] == {"device_type": "GPU"}


def test_xnnpack_keeps_to_the_threads_of_an_instance() -> None:
    assert choose_providers(accelerated(on_cpu=("xnnpack",)), CPU, threads=3, sharing=2) == [
        ("XnnpackExecutionProvider", {"intra_op_num_threads": "3"})
    ]


# Whether they are used


class FakeSession:
    def __init__(self, *providers: str) -> None:
        self.providers = list(providers)

    def get_providers(self) -> list[str]:
        return self.providers


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []

    def why(provider: str, options: dict[str, str]) -> str:
        asked.append((provider, options))
        return "libcublas is not there"

    monkeypatch.setattr(builds, "why_unusable", why)
    return asked


def test_a_gpu_that_cannot_be_used(reasons: list[Any]) -> None:
    with pytest.raises(ModserveError) as caught:
        check(FakeSession("CPUExecutionProvider"), [CUDA], config(), GPU)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith(
        "model 'model' has an instance on GPU 3, but ONNX Runtime runs it on the CPU: its CUDA provider could not be "
        "used (libcublas is not there). Are the CUDA and cuDNN libraries"
    )
    assert reasons == [CUDA]


def test_a_provider_that_cannot_be_used(reasons: list[Any]) -> None:
    providers: Any = [("TensorrtExecutionProvider", {}), CUDA]
    with pytest.raises(ModserveError) as caught:
        check(FakeSession("CUDAExecutionProvider", "CPUExecutionProvider"), providers, config(), GPU)
    assert caught.value.message == (
        "model 'model' asks for 'tensorrt', but ONNX Runtime could not use its TensorrtExecutionProvider (libcublas is "
        "not there), and would run the model without it. Are the libraries and the device that it needs there?"
    )


def test_all_is_well(reasons: list[Any]) -> None:
    check(FakeSession("CUDAExecutionProvider", "CPUExecutionProvider"), [CUDA], config(), GPU)
    assert reasons == []
