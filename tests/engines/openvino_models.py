"""Small models for OpenVINO, written by itself, and what the tests do with them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modserve.backends.api import ModelSource
from modserve.backends.openvino.backend import OpenVinoBackend, OpenVinoModel
from modserve.backends.openvino.instance import OpenVinoInstance, OpenVinoStreams
from modserve.backends.openvino.library import ov
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec

op = ov.opset13
TYPES = {
    "boolean": dtypes.BOOL,
    "u8": dtypes.UINT8,
    "u16": dtypes.UINT16,
    "u32": dtypes.UINT32,
    "u64": dtypes.UINT64,
    "i8": dtypes.INT8,
    "i16": dtypes.INT16,
    "i32": dtypes.INT32,
    "i64": dtypes.INT64,
    "f16": dtypes.FP16,
    "bf16": dtypes.BF16,
    "f32": dtypes.FP32,
    "f64": dtypes.FP64,
}


def parameter(name: str, shape: list[int], kind: str = "f32") -> Any:
    made = op.parameter(shape, getattr(ov.Type, kind), name=name)
    made.output(0).set_names({name})
    return made


def named(node: Any, *names: str) -> Any:
    node.output(0).set_names(set(names))
    return node


def save(path: Path, results: list[Any], parameters: list[Any], sinks: list[Any] | None = None) -> Path:
    """An IR with full weights, ``.bin`` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arguments = [[op.result(each) for each in results], sinks, parameters] if sinks else [results, parameters]
    ov.save_model(ov.Model(*arguments, "model"), str(path), compress_to_fp16=False)
    return path


def save_sum(path: Path, shape: list[int] | None = None, kind: str = "f32") -> Path:
    """SUM = A + B."""
    a, b = (parameter(name, shape or [-1, 4], kind) for name in "AB")
    return save(path, [named(op.add(a, b), "SUM")], [a, b])


def save_one(path: Path, make: Callable[[Any], Any], shape: list[int], kind: str = "f32") -> Path:
    """Y = make(X)."""
    x = parameter("X", shape, kind)
    return save(path, [named(make(x), "Y")], [x])


def configured(
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
    *,
    datatype: Datatype = dtypes.FP32,
    parameters: Mapping[str, str] | None = None,
    max_batch_size: int = 0,
    **more: Any,
) -> ModelConfig:
    """The dims of tensors; without any, a configuration that the model has to complete."""
    return config(
        backend="openvino",
        inputs=tuple(TensorSpec(name, datatype, dims) for name, dims in (inputs or {}).items()),
        outputs=tuple(TensorSpec(name, datatype, dims) for name, dims in (outputs or {}).items()),
        max_batch_size=max_batch_size,
        parameters=parameters or {},
        **more,
    )


def opened(path: Path, like: ModelConfig | None = None, **more: Any) -> OpenVinoModel:
    return OpenVinoBackend().open(ModelSource(like or configured(), 1, path, path.parent, **more))


def instance(path: Path, like: ModelConfig | None = None, **more: Any) -> OpenVinoInstance:
    like = like or configured()
    made = opened(path, like, **more).instance(instance_spec(like))
    assert isinstance(made, OpenVinoInstance)
    return made


def streams(path: Path, like: ModelConfig, **more: Any) -> OpenVinoStreams:
    made = opened(path, like, **more).instance(instance_spec(like))
    assert isinstance(made, OpenVinoStreams)
    return made


def run(path: Path, inputs: Mapping[str, Array], *outputs: str, like: ModelConfig | None = None) -> dict[str, Array]:
    return dict(instance(path, like).execute(inputs, outputs or ("Y",)))


def ones(*shape: int, kind: type = np.float32) -> Array:
    return np.ones(shape, kind)
