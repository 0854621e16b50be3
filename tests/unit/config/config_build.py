"""Finishing configurations without an engine."""

import re
from pathlib import Path

import pytest

from modserve import config
from modserve.core.configuration.model_config import DescribedTensor, ModelDescription
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype

PATH = Path("repository/foo/config.pbtxt")

ONE_EACH = """
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


def tensor(name: str, *shape: int, datatype: Datatype = dtypes.FP32) -> DescribedTensor:
    return DescribedTensor(name, datatype, shape)


def described(*tensors: DescribedTensor, default_max_batch_size: int = 4) -> ModelDescription:
    """A model whose inputs are those called IN…, and whose outputs are the others."""
    return ModelDescription(
        tuple(each for each in tensors if each.name.startswith("IN")),
        tuple(each for each in tensors if not each.name.startswith("IN")),
        default_max_batch_size,
    )


def finish(
    text: str,
    description: ModelDescription | None = None,
    *,
    gpu_count: int = 0,
    auto_complete: bool = True,
    backend: str = "onnxruntime",
) -> config.Complete:
    if backend and "platform" not in text and "backend" not in text:
        text += f'\nbackend: "{backend}"'
    return config.finish(
        config.parse(text, PATH, "foo"),
        description,
        default_cpu_instances=2,
        default_model_filename="model.onnx",
        gpu_count=gpu_count,
        auto_complete=auto_complete,
    )


def problems(
    text: str,
    description: ModelDescription | None = None,
    *,
    gpu_count: int = 0,
    auto_complete: bool = True,
    backend: str = "onnxruntime",
) -> list[str]:
    """The headlines of the report, each without the path."""
    with pytest.raises(ModserveError) as caught:
        finish(text, description, gpu_count=gpu_count, auto_complete=auto_complete, backend=backend)
    assert caught.value.code is Code.INVALID_ARG
    return re.findall(rf"^{re.escape(str(PATH))}: ?(.*)$", caught.value.message, re.MULTILINE)
