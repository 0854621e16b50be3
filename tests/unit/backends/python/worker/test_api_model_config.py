"""What `auto_complete_config` may change in a configuration."""

import json
from typing import Any

import pytest

from modserve.backends.python.worker.model_config import ModelConfig

FP32: dict[str, Any] = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def config(**more: Any) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **more}))


def test_max_batch_size() -> None:
    changed = config(max_batch_size=4)
    changed.set_max_batch_size(8)
    assert changed.as_dict()["max_batch_size"] == 8
    with pytest.raises(ValueError, match=r"specified max_batch_size 8, but in .* model 'm' specified max_batch_size 2"):
        changed.set_max_batch_size(2)


def test_dynamic_batching() -> None:
    changed = config()
    changed.set_dynamic_batching()
    assert changed.as_dict()["dynamic_batching"] == {}
    configured = config(dynamic_batching={"preferred_batch_size": [2]})
    configured.set_dynamic_batching()
    assert configured.as_dict()["dynamic_batching"] == {"preferred_batch_size": [2]}
    for scheduler in ("sequence_batching", "ensemble_scheduling"):
        with pytest.raises(ValueError, match=f"scheduling_choice as '{scheduler}'.*'dynamic_batching'"):
            config(**{scheduler: {}}).set_dynamic_batching()


@pytest.mark.parametrize("kind", ["input", "output"])
def test_tensors(kind: str) -> None:
    changed = config()
    getattr(changed, f"add_{kind}")(FP32)
    assert changed.as_dict()[kind] == [FP32]
    partial = config(**{kind: [{"name": "X", "data_type": "TYPE_INVALID", "dims": [], "label_filename": "l"}]})
    getattr(partial, f"add_{kind}")(FP32)
    assert partial.as_dict()[kind] == [{**FP32, "label_filename": "l"}]
    getattr(partial, f"add_{kind}")(FP32)


def test_an_optional_input() -> None:
    changed = config(input=[{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}])
    changed.add_input({**FP32, "optional": True})
    changed.add_input(FP32)
    assert changed.as_dict()["input"] == [{**FP32, "optional": True}]
    with pytest.raises(ValueError, match="model expects optional False but the model configuration specifies optional"):
        changed.add_input({**FP32, "optional": False})


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        ({**FP32, "shape": [1]}, "'X' in auto-complete-config function for model 'm' contains property other than"),
        ({"data_type": "TYPE_FP32", "dims": [4]}, "is missing 'name' property"),
        ({"name": "X", "dims": [4]}, "'X' .* is missing 'data_type' property"),
        ({"name": "X", "data_type": "TYPE_FP32"}, "'X' .* is missing 'dims' property"),
        ({**FP32, "data_type": "TYPE_INT8"}, "expects datatype TYPE_FP32 for .* 'X', model provides TYPE_INT8"),
        ({**FP32, "dims": [5]}, r"tensor 'X': the model expects dims \[5\] but .* specifies dims \[4\]"),
    ],
)
def test_what_contradicts(kind: str, tensor: "dict[str, Any]", text: str) -> None:
    with pytest.raises(ValueError, match=text):
        getattr(config(**{kind: [dict(FP32)]}), f"add_{kind}")(tensor)


def test_transaction_policy() -> None:
    changed = config()
    changed.set_model_transaction_policy({})
    assert changed.as_dict()["model_transaction_policy"] == {}
    changed.set_model_transaction_policy({"decoupled": True})
    changed.set_model_transaction_policy({"decoupled": True})
    assert changed.as_dict()["model_transaction_policy"] == {"decoupled": True}
    with pytest.raises(ValueError, match="already set to 'True'"):
        changed.set_model_transaction_policy({"decoupled": False})
    with pytest.raises(ValueError, match="property other than 'decoupled'"):
        changed.set_model_transaction_policy({"other": 1})
