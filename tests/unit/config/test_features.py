"""The table of features: a module that is not in it would have no effect."""

import importlib
import pkgutil
from pathlib import Path

import pytest

from modserve import config
from modserve.config import features
from modserve.config.features.feature import Feature
from modserve.core.errors import ModserveError

MODULES = [
    importlib.import_module(f"{features.__name__}.{each.name}") for each in pkgutil.iter_modules(features.__path__)
]
WITH_FEATURE = [module for module in MODULES if isinstance(getattr(module, "FEATURE", None), Feature)]


def test_every_feature_is_in_the_table_once() -> None:
    assert len(WITH_FEATURE) > 10  # or nothing was read
    for module in WITH_FEATURE:
        assert sum(feature is module.FEATURE for feature in features.FEATURES) == 1, module.__name__


def test_problems_without_positions_come_in_the_order_of_the_table() -> None:
    """JSON has no positions. The order is Triton's, as far as Triton checks the same."""
    text = """{
        "instance_group": [{"count": -1}],
        "response_cache": {"enable": true},
        "model_transaction_policy": {"decoupled": true},
        "parameters": {"padding.axis.IN": {"string_value": "7"}, "scheduling.look_ahead": {"string_value": "x"}},
        "dynamic_batching": {"preferred_batch_size": [-1]},
        "default_model_filename": "../model.onnx",
        "input": [{"name": "IN", "data_type": "type_fp32", "dims": [0]}],
        "version_policy": {"specific": {}},
        "platform": "ensemble",
        "backend": "onnxruntime",
        "name": "other"
    }"""
    with pytest.raises(ModserveError) as caught:
        config.check(config.read_override(text, Path("/nosuch/foo/config.pbtxt"), "foo"))

    _, *problems = caught.value.message.splitlines()
    beginnings = [
        "unexpected directory name 'foo'",
        "Ensemble model 'other' must have platform type",
        "version policy 'specific' must list",
        "model input 'IN' dimension must be integer",
        "model file path '../model.onnx'",
        "dynamic batching preferred size must be positive",
        "parameter 'scheduling.look_ahead' is 'x'",
        "ensemble scheduling must be set",
        "parameter 'padding.axis.IN' is '7'",
        "Response Cache does not currently support",
        "instance group other_0",
    ]
    for problem, beginning in zip(problems, beginnings, strict=True):
        assert problem.startswith(f"config override: {beginning}")
