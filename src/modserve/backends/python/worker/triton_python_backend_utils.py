"""Module that a model.py imports as `triton_python_backend_utils`, with Triton's names and arguments."""

from typing import Any, Dict, Optional

import numpy as np

from .byte_tensors import deserialize_bytes_tensor, serialize_byte_tensor
from .dtypes import DTYPES, DataType, bfloat16, datatype_of
from .errors import TritonError, TritonModelException
from .model_config import ModelConfig
from .modules import model_directory as get_model_dir
from .request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from .response import InferenceResponse, InferenceResponseSender, ResponseIterator
from .server import Logger, LogLevel, Metric, MetricFamily, MetricKind, is_model_ready, load_model, unload_model
from .tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    **{f"TYPE_{name}": dtype.type for name, dtype in DTYPES.items()},
    "TYPE_BOOL": bool,
    "TYPE_STRING": np.object_,
}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a configuration's datatype, such as ``TYPE_FP32``. TYPE_BF16 needs imported ml_dtypes.

    Raises KeyError for others.
    """
    if triton_type_string == "TYPE_BF16":
        dtype = bfloat16()
        if dtype is not None:
            return dtype.type
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a number from 1 (BOOL) to 13 (BYTES), or 14 (BF16) with imported ml_dtypes; or None."""
    if data_type == DataType.BYTES:
        return np.object_
    if data_type == DataType.BF16:
        dtype = bfloat16()
        return None if dtype is None else dtype.type
    try:
        return DTYPES[DataType(data_type).name].type
    except (KeyError, ValueError):
        return None


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """Return the number of a numpy type or dtype, from 1 (BOOL) to 14 (BF16); None if it has none."""
    try:
        name = datatype_of(np.dtype(data_type))
    except TypeError:
        return None
    return None if name is None else int(DataType[name])


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """Return the input with this name; None if there is none."""
    return _find_by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """Return the output with this name; None if there is none."""
    return _find_by_name(inference_response.output_tensors(), name)


def _find_by_name(tensors: Any, name: str) -> Optional[Tensor]:
    for tensor in tensors:
        if tensor._name == name:
            return tensor  # type: ignore[no-any-return]
    return None


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return the configuration of an input in a model's configuration, a dict; None if there is no such input."""
    return _config(model_config, "input", name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return the configuration of an output in a model's configuration, a dict; None if there is no such output."""
    return _config(model_config, "output", name)


def _config(model_config: Dict[str, Any], kind: str, name: str) -> Optional[Dict[str, Any]]:
    for tensor in model_config.get(kind, ()):
        if tensor["name"] == name:
            return tensor  # type: ignore[no-any-return]
    return None


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Return whether a configuration, a dict, is of a decoupled model."""
    policy = model_config.get("model_transaction_policy", {})
    return bool(policy.get("decoupled", False))


__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
