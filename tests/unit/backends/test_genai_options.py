"""The parameters of a model, its files, and what the configuration gets from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.api import ModelSource
from modserve.backends.generation.program.on_genai.grammars import write_weightless
from modserve.backends.generation.tensors import INPUTS, OUTPUTS
from modserve.backends.openvino_genai import options
from modserve.backends.openvino_genai.backend import OpenVinoGenaiBackend
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError


def config(parameters: dict[str, str] | None = None, **fields: Any) -> ModelConfig:
    return ModelConfig(name="m", backend="openvino_genai", parameters=parameters or {}, **fields)


def source(path: Path, parameters: dict[str, str] | None = None, **fields: Any) -> ModelSource:
    return ModelSource(config(parameters, **fields), 1, path, path.parent.parent)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m" / "1" / "model.gguf"
    path.parent.mkdir(parents=True)
    write_weightless(str(path), 100)
    return path


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cache_size", "0.5", "an integer of 0 or more"),
        ("num_kv_blocks", "-1", "an integer of 0 or more"),
        ("max_num_seqs", "0", "an integer of 1 or more"),
        ("max_num_batched_tokens", "many", "an integer of 0 or more"),
        ("enable_prefix_caching", "maybe", "true or false"),
        ("max_model_len", "0", "an integer of 1 or more"),
        ("EXECUTION_MODE", "thread", "process: the engine would hold up everything else in the server's"),
    ],
)
def test_values_that_the_engine_would_not_take(file: Path, key: str, value: str, expected: str) -> None:
    with pytest.raises(ModserveError) as raised:
        OpenVinoGenaiBackend().open(source(file, {key: value}))
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == f"model 'm': parameter '{key}' is '{value}', expected {expected}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "32", "0"),
        ("INFERENCE_PRECISION_HINT", "bf16", "f32"),
        ("KV_CACHE_PRECISION", "u8", "f32"),
        ("enable_prefix_caching", "true", "false"),
        ("dynamic_split_fuse", "1", "false"),
    ],
)
def test_reproducible_contradicts_settings_that_make_texts_depend_on_others(
    file: Path, key: str, value: str, expected: str
) -> None:
    with pytest.raises(ModserveError) as raised:
        options.read(config({"reproducible": "true", key: value}), file)
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == (
        f"model 'm': parameter '{key}' is '{value}', expected {expected}, or no such parameter: 'reproducible' needs it"
    )
    options.read(config({"reproducible": "true", key: "off" if expected == "false" else expected.upper()}), file)
    options.read(config({"reproducible": "false", key: value}), file)


def test_reproducible_is_a_flag(file: Path) -> None:
    with pytest.raises(ModserveError, match="parameter 'reproducible' is 'maybe', expected true or false"):
        options.read(config({"reproducible": "maybe"}), file)
    assert not options.warnings(config({"reproducible": "true"}))


def test_adapters(file: Path) -> None:
    with pytest.raises(ModserveError, match=r"'adapters' has no effect on a GGUF file: .* optimum-cli export"):
        options.read(config({"adapters": "a.safetensors"}), file)
    model = file.with_name("openvino_model.xml")
    with pytest.raises(ModserveError, match=r"there is no adapter '.*/1/a.safetensors' \(parameter 'adapters'\)"):
        options.read(config({"adapters": "a.safetensors:0.5"}), model)
    file.with_name("a.safetensors").touch()
    read = options.read(config({"adapters": "a.safetensors:0.5, a.safetensors"}), model)
    assert read.adapters == ("a.safetensors:0.5", "a.safetensors")
    with pytest.raises(ModserveError, match="expected names of files, each with ':' and its weight"):
        options.read(config({"adapters": "a.safetensors:half"}), model)


def test_parameters_that_nothing_acts_on() -> None:
    parameters = {"max_num_seq": "1", "INFERENCE_NUM_THREADS": "2", "device": "cpu", "chat_template": ""}
    (warning,) = options.warnings(config(parameters))
    assert "parameter 'max_num_seq' has no effect" in warning
    assert "did you mean 'max_num_seqs'?" in warning


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModserveError, match=r"the folder of a version must have a .gguf file or 'openvino_model.xml'"):
        OpenVinoGenaiBackend().open(source(tmp_path / "openvino_model.xml"))


def test_the_engine_forms_batches_itself(file: Path) -> None:
    with pytest.raises(ModserveError, match=r"max_batch_size is 8, but the engine .* limit them by 'max_num_seqs'"):
        OpenVinoGenaiBackend().open(source(file, max_batch_size=8))


def test_what_the_configuration_gets(file: Path) -> None:
    description = OpenVinoGenaiBackend().open(source(file)).describe()
    assert description is not None
    assert (description.inputs, description.outputs, description.decoupled) == (INPUTS, OUTPUTS, True)
    assert [tensor.name for tensor in description.inputs if not tensor.optional] == ["text_input"]
    assert description.parameters == {"max_model_len": "64", "default_max_tokens": "64"}


OF_WEIGHTS = {"chat_template": "{{ bos_token }}w", "bos_token": "<w>", "max_model_len": "64"}


def test_a_template_beside_the_weights_goes_before_theirs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.backends.openvino_genai.backend._parameters", lambda path: OF_WEIGHTS)

    def parameters() -> Any:
        description = OpenVinoGenaiBackend().open(source(file)).describe()
        assert description is not None
        return description.parameters

    assert parameters() == OF_WEIGHTS
    file.with_name("chat_template.jinja").write_text("{{ bos_token }}b")
    assert parameters() == {"bos_token": "<w>", "max_model_len": "64"}
    file.with_name("chat_template.jinja").rename(file.parents[1] / "chat_template.jinja")
    file.with_name("tokenizer_config.json").write_text('{"bos_token": "<b>"}')
    assert parameters() == {"max_model_len": "64"}
    file.with_name("tokenizer_config.json").write_text("{")
    assert parameters() == OF_WEIGHTS, "chats say what is wrong with the file"


@pytest.mark.parametrize(
    ("content", "length"),
    [
        ({"max_position_embeddings": 4096}, "4096"),
        ({"text_config": {"max_position_embeddings": 512}}, "512"),
        ({"n_positions": 1024}, "1024"),
        ({"max_position_embeddings": "x"}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_context_of_an_openvino_model(file: Path, content: Any, length: str | None) -> None:
    model = file.with_name("openvino_model.xml")
    model.touch()
    file.with_name("config.json").write_text("{" if content is None else json.dumps(content))
    description = OpenVinoGenaiBackend().open(source(model)).describe()
    assert description is not None
    assert description.parameters.get("max_model_len") == length
