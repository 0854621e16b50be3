"""Folders of Triton's vLLM backend: what of ``model.json`` is checked, and what the configuration gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.api import ModelSource
from modserve.backends.catalogue import is_installed
from modserve.backends.generation.program.loading import LoadingError
from modserve.backends.generation.program.on_vllm.arguments import adapters, engine_arguments
from modserve.backends.generation.tensors import IMAGES, INPUTS, OUTPUTS
from modserve.backends.vllm.backend import VllmBackend
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError

DEFAULTS = {"model": "x", "tokenizer": None, "enforce_eager": False, "gpu_memory_utilization": 0.9}


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    return folder


def source(version: Path, parameters: dict[str, str] | None = None, **fields: Any) -> ModelSource:
    elsewhere = {"EXECUTION_ENV_PATH": "/usr"}
    config = ModelConfig(name="m", backend="vllm", parameters=elsewhere if parameters is None else parameters, **fields)
    return ModelSource(config, 1, version / "model.json", version.parent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "unable to find .*model.json', which has the arguments of vLLM's engine, at least \"model\""),
        ('{"model": ', "is not JSON: Expecting value at line 1, column 11"),
        ("[]", 'expected an object with "model": the folder of the weights'),
        ('{"model": 1}', 'expected an object with "model"'),
        ('{"learner": {}, "version": [2]}', "looks like a model of XGBoost: call it 'xgboost.json'"),
    ],
)
def test_files_that_are_no_arguments(version: Path, text: str | None, message: str) -> None:
    if text is not None:
        (version / "model.json").write_text(text)
    with pytest.raises(ModserveError, match=message) as raised:
        VllmBackend().open(source(version))
    assert raised.value.code is Code.INVALID_ARG


def test_vllm_is_not_installed(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (version / "model.json").write_text('{"model": "facebook/opt-125m"}')
    monkeypatch.setattr("modserve.backends.catalogue.find_spec", lambda _: None)
    is_installed.cache_clear()
    with pytest.raises(ModserveError, match=r"vLLM is not installed: pip install vllm .*'EXECUTION_ENV_PATH'"):
        VllmBackend().open(source(version, {}))
    is_installed.cache_clear()


def test_what_the_configuration_gets(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.backends.generation.model.PythonModel", lambda source: None)
    weights = version / "weights"
    weights.mkdir()
    (version / "model.json").write_text('{"model": "weights"}')
    (weights / "config.json").write_text('{"max_position_embeddings": 2048}')
    (weights / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ x }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": "p"})
    )
    description = VllmBackend().open(source(version)).describe()
    assert description is not None
    assert (description.inputs, description.outputs) == ((*INPUTS, IMAGES), OUTPUTS)
    assert (description.decoupled, description.dynamic_batching) == (True, False)
    expected = {"chat_template": "{{ x }}", "bos_token": "<s>", "eos_token": "</s>", "default_max_tokens": "2048"}
    assert description.parameters == expected
    (weights / "chat_template.jinja").write_text("{{ y }}")
    (version / "model.json").write_text('{"model": "weights", "max_model_len": 512}')
    description = VllmBackend().open(source(version)).describe()
    assert description is not None
    assert description.parameters == expected | {"chat_template": "{{ y }}", "default_max_tokens": "512"}
    (version / "chat_template.jinja").write_text("{{ z }}")
    description = VllmBackend().open(source(version)).describe()
    assert description is not None
    assert "chat_template" not in description.parameters, "chats read the file beside model.json"
    (weights / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModserveError, match=r"model 'm': 'tokenizer_config.json' is no JSON: .* \(in '.*weights'\)"):
        VllmBackend().open(source(version)).describe()


def test_a_model_that_is_not_here_is_asked_of_vllm(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        def __init__(self, source: ModelSource) -> None: ...

        def complete(self, config: dict[str, Any]) -> dict[str, Any]:
            assert config["path"] == str(version / "model.json")
            return {**config, "parameters": {"chat_template": "{{ z }}"}}

    monkeypatch.setattr("modserve.backends.generation.model.PythonModel", Worker)
    (version / "model.json").write_text('{"model": "facebook/opt-125m"}')
    description = VllmBackend().open(source(version)).describe()
    assert description is not None
    assert description.parameters == {"chat_template": "{{ z }}"}


def test_the_engine_forms_batches_itself(version: Path) -> None:
    (version / "model.json").write_text('{"model": "facebook/opt-125m"}')
    with pytest.raises(ModserveError, match=r"max_batch_size is 8, but the engine of backend 'vllm' forms batches"):
        VllmBackend().open(source(version, max_batch_size=8))


def test_programs_beside_the_weights(version: Path) -> None:
    (version / "model.json").write_text('{"model": "a/b", "trust_remote_code": true}')
    assert "trust_remote_code" in VllmBackend().code_in(source(version, {}).config, version / "model.json")
    (version / "model.json").write_text('{"model": "a/b"}')
    assert VllmBackend().code_in(source(version, {}).config, version / "model.json") == ""


def test_arguments_of_the_engine(version: Path) -> None:
    path, warnings = version / "model.json", list[str]()
    (version / "weights").mkdir()
    path.write_text('{"model": "weights", "enforce_eager": "True", "disable_log_requests": "true"}')
    read = engine_arguments(str(path), DEFAULTS, "0.32", warnings.append)
    assert read == {"model": str(version / "weights"), "enforce_eager": True}
    assert warnings == [f"'{path}': vLLM 0.32 has no engine argument 'disable_log_requests' any more; it has no effect"]
    path.write_text('{"model": "a/b", "gpu_memory_utilisation": 0.5}')
    with pytest.raises(LoadingError, match="no engine argument 'gpu_memory_utilisation'; did you mean 'gpu_memory_ut"):
        engine_arguments(str(path), DEFAULTS, "0.32", warnings.append)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "'enable_lora' is true, but there is no '.*multi_lora.json'"),
        ("{", "multi_lora.json' is not JSON: .* at line 1, column 2"),
        ("[]", "multi_lora.json' must hold a JSON object"),
        ('{"a": 1}', "'a' is 1, expected the folder of an adapter"),
    ],
)
def test_adapters_that_cannot_be_read(version: Path, text: str | None, message: str) -> None:
    if text is not None:
        (version / "multi_lora.json").write_text(text)
    with pytest.raises(LoadingError, match=message):
        adapters(str(version))


def test_adapters(version: Path) -> None:
    (version / "near").mkdir()
    (version / "multi_lora.json").write_text('{"a": "near", "b": "/far"}')
    assert adapters(str(version)) == {"a": str(version / "near"), "b": "/far"}
