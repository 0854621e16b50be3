"""The sampling parameters of chats that people have: the model's own, else usual ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.tensors import dtypes
from modserve.text.chat.contract import Contract, contract_of
from modserve.text.chat.suggestions import suggest_sampling

USUAL = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 1024}


def contract(*names: str, **parameters: str) -> Contract:
    inputs = tuple(TensorSpec(name, dtypes.BYTES, (1,), optional=name != "text_input") for name in names)
    outputs = (TensorSpec("text_output", dtypes.BYTES, (-1,)),)
    found = contract_of(ModelConfig("m", "python", inputs=inputs, outputs=outputs, parameters=parameters))
    assert found is not None
    return found


ENGINE = ("text_input", "sampling_parameters")


@pytest.mark.parametrize(
    ("config", "suggested"),
    [
        (None, USUAL),
        ("[1", USUAL),
        ([1], USUAL),
        ({"eos_token_id": 2, "temperature": None}, USUAL),
        ({"temperature": "hot", "top_k": 7.5, "top_p": True}, USUAL),
        ({"temperature": 99}, USUAL),
        ({"temperature": 0.6}, {"temperature": 0.6, "max_tokens": 1024}),
        ({"top_k": 20, "min_p": 0.1}, {"top_k": 20, "min_p": 0.1, "max_tokens": 1024}),
        ({"do_sample": False}, {"temperature": 0, "max_tokens": 1024}),
        ({"do_sample": True}, USUAL),
        ({"repetition_penalty": 1.1, "max_new_tokens": 2048}, {**USUAL, "repetition_penalty": 1.1, "max_tokens": 2048}),
    ],
)
def test_generation_config_goes_before_usual_values(tmp_path: Path, config: Any, suggested: dict[str, Any]) -> None:
    for place in (tmp_path / "1", tmp_path):  # of the version, and of the model
        (tmp_path / "1").mkdir(exist_ok=True)
        for folder in (tmp_path / "1", tmp_path):
            (folder / "generation_config.json").unlink(missing_ok=True)
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config)
            (place / "generation_config.json").write_text(text)
        assert suggest_sampling(contract(*ENGINE), tmp_path / "1") == suggested


def test_the_version_goes_before_the_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "generation_config.json").write_text('{"temperature": 1, "top_k": 3}')
    (tmp_path / "1" / "generation_config.json").write_text('{"temperature": 0.2}')
    assert suggest_sampling(contract(*ENGINE), tmp_path / "1") == {"temperature": 0.2, "max_tokens": 1024}


@pytest.mark.parametrize(("default", "suggested"), [("300", 300), ("8192", 1024)])
def test_a_short_maximum_of_the_model_is_kept(default: str, suggested: int) -> None:
    assert suggest_sampling(contract(*ENGINE, default_max_tokens=default), None)["max_tokens"] == suggested


def test_a_functions_own_defaults_are_its_choice(tmp_path: Path) -> None:
    function = contract("text_input", "max_tokens", "temperature")
    assert suggest_sampling(function, tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.2, "top_k": 3}')
    assert suggest_sampling(function, tmp_path) == {"temperature": 0.2}
