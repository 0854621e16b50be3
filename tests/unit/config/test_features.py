"""Every function of a feature is called: one that is not would have no effect."""

import ast
import importlib
import pkgutil
from pathlib import Path
from types import FunctionType

import pytest

from modserve import config
from modserve.config import features
from modserve.config.features import composition
from modserve.core.errors import ModserveError

STEPS = ("normalise", "validate", "compare")


def steps() -> set[str]:
    """The functions of features that are steps from a message to a complete configuration."""
    names = [each.name for each in pkgutil.iter_modules(features.__path__)]
    modules = [(name, importlib.import_module(f"{features.__name__}.{name}")) for name in names]
    return {
        f"{name}.{function}"
        for name, module in modules
        for function, value in vars(module).items()
        if function.startswith(STEPS)
        and isinstance(value, FunctionType)
        and value.__module__ == module.__name__ != composition.__name__
    }


def test_every_step_of_a_feature_is_called_once() -> None:
    tree = ast.parse(Path(features.__file__).read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert len(steps()) > 15  # or nothing was read
    assert {step: calls.count(step) for step in steps()} == dict.fromkeys(steps(), 1)


def test_problems_without_positions_come_in_the_order_of_the_rules() -> None:
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
