"""What docs/engines/onnxruntime.md shows and names loads. The configuration for OpenVINO is tried with accelerators."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from model_packages import unpacked
from onnx import TensorProto, helper
from onnx_repository import copied, page_configs, write

from modserve import InferenceServer, Settings, config
from modserve.backends.api import Placement
from modserve.backends.onnxruntime.providers import choose_providers
from modserve.core.configuration.model_config import InstanceKind

EXTENSIONS = "onnxruntime-extensions==0.15.2"
ENDS = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
CONFIGS = {
    **page_configs(),
    "sessions": """
max_batch_size: 8
instance_group { count: 3 kind: KIND_CPU }
parameters { key: "share_session_between_instances" value { string_value: "false" } }
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
""",
    "operators": """
max_batch_size: 0
model_operations { op_library_filename: "libextensions.so" }
""",
    "gpu": """
backend: "onnxruntime"
max_batch_size: 8
instance_group { kind: KIND_GPU }
optimization { execution_accelerators {
  gpu_execution_accelerator: [
    {
      name: "tensorrt"
      parameters { key: "precision_mode" value: "FP16" }
      parameters { key: "max_workspace_size_bytes" value: "1073741824" }
      parameters { key: "trt_engine_cache_enable" value: "1" }
      parameters { key: "trt_engine_cache_path" value: "/var/cache/tensorrt" }
    },
    { name: "cuda" parameters { key: "cudnn_conv_use_max_workspace" value: "0" } }
  ]
} }
""",
}
RELU = helper.make_node("Relu", ["IN"], ["OUT"])


@pytest.mark.parametrize("name", ["start", "sessions"])
async def test_on_the_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    write(tmp_path, name, [RELU], ENDS[:1], ENDS[1:], CONFIGS[name])
    async with InferenceServer(Settings(model_repository=(tmp_path,))) as server:
        response = await server.infer(name, {"IN": np.array([[1, -1, 2, -2]], np.float32)})
    assert response.outputs["OUT"].array.tolist() == [[1, 0, 2, 0]]
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_operators(tmp_path: Path) -> None:
    texts = [helper.make_tensor_value_info(name, TensorProto.STRING, [None]) for name in ("IN", "OUT")]
    node = helper.make_node("StringUpper", ["IN"], ["OUT"], domain="ai.onnx.contrib")
    file = write(tmp_path, "upper", [node], texts[:1], texts[1:], CONFIGS["operators"])
    (library,) = (unpacked(EXTENSIONS) / "onnxruntime_extensions").glob("_extensions_pydll*.so")
    copied(library, file.parents[1] / "libextensions.so")  # beside the versions
    async with InferenceServer(Settings(model_repository=(tmp_path,))) as server:
        response = await server.infer("upper", {"IN": np.array([[b"abc"]], object)})
    assert response.outputs["OUT"].array.tolist() == [[b"ABC"]]


def test_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it goes without one: what ONNX Runtime is asked for."""
    providers = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    given = config.parse(CONFIGS["gpu"], Path("config.pbtxt"), "model").provisional()
    assert choose_providers(given, Placement(InstanceKind.GPU, 1)) == [
        (
            providers[0],
            {
                "trt_fp16_enable": "1",
                "trt_max_workspace_size": "1073741824",
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": "/var/cache/tensorrt",
                "device_id": "1",
            },
        ),
        (providers[1], {"cudnn_conv_use_max_workspace": "0", "device_id": "1"}),
    ]
