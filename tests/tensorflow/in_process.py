"""The TensorFlow backend in process, for tests of single models."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models  # noqa: F401 - imports TensorFlow, whose warnings are errors otherwise

from modserve.backends.api import ModelSource
from modserve.backends.tensorflow.backend import TensorFlowBackend
from modserve.backends.tensorflow.engine import TensorFlowModel
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec

X: Array = np.arange(8, dtype=np.float32).reshape(2, 4)

backend = functools.cache(TensorFlowBackend)
"""There is one in a process."""


def bare(**parameters: str) -> ModelConfig:
    """A configuration that names no tensors."""
    return config(inputs=(), outputs=(), backend="tensorflow", parameters=parameters)


def opened(path: Path, written: ModelConfig | None = None, **more: Any) -> TensorFlowModel:
    source = ModelSource(written or bare(), 1, path, path.parents[1], **more)
    model = backend().open(source)
    assert isinstance(model, TensorFlowModel)
    return model


def run(model: TensorFlowModel, inputs: Mapping[str, Array], *outputs: str) -> Mapping[str, Array]:
    instance = model.instance(instance_spec(config()))
    try:
        return instance.execute(inputs, outputs)
    finally:
        instance.close()
        model.close()


def refusal(path: Path, written: ModelConfig | None = None, **more: Any) -> str:
    with pytest.raises(ModserveError) as caught:
        opened(path, written, **more).close()
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message
