"""Parameters of texts, and what a model with a tokenizer beside it gets by default."""

from dataclasses import replace
from pathlib import Path

import pytest

from modserve import config
from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
from modserve.core.configuration.text_settings import NO_TEXT_SETTINGS, TextSettings, TextTask
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from text_folders import write_folder

HIDDEN = DescribedTensor("last_hidden_state", dtypes.FP32, (-1, -1, 8))
POOLED = DescribedTensor("pooler_output", dtypes.FP32, (-1, 8))


def described(*inputs: str, outputs: tuple[DescribedTensor, ...] = (HIDDEN, POOLED)) -> ModelDescription:
    tensors = tuple(DescribedTensor(name, dtypes.INT64, (-1, -1)) for name in inputs)
    return ModelDescription(tensors, outputs, default_max_batch_size=4)


BERT = described("input_ids", "attention_mask", "token_type_ids")


def finished(
    folder: Path,
    text: str,
    description: ModelDescription = BERT,
    *,
    complete: bool = True,
    backend: str = "onnxruntime",
) -> ModelConfig:
    draft = config.parse(f'backend: "{backend}"\n{text}', folder / "config.pbtxt", folder.name)
    return config.finish(
        draft,
        description,
        default_cpu_instances=1,
        default_model_filename="model.onnx",
        gpu_count=0,
        auto_complete=complete,
        files=folder,
    ).config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "m" / "1", {"config.json": {"pad_token_id": 1}})
    return tmp_path / "m"


def test_texts_of_different_lengths_share_batches(folder: Path) -> None:
    whole = finished(folder, "")
    padding = whole.padding
    assert padding is not None
    assert padding.axes == {"input_ids": 0, "token_type_ids": 0, "attention_mask": 0}
    assert (padding.mask, padding.values, padding.unpad) == (
        "attention_mask",
        {"input_ids": "1"},
        {"last_hidden_state": 0},
    )
    assert (whole.max_batch_size, padding.multiple_of) == (32, 1)
    assert whole.dynamic_batching is not None
    assert whole.optional_inputs == {"attention_mask"}


def test_openvino_gets_few_shapes(folder: Path) -> None:
    padding = finished(folder, "", backend="openvino").padding
    assert padding is not None
    assert padding.multiple_of == 8


def test_what_is_written_stays(folder: Path) -> None:
    whole = finished(
        folder, 'max_batch_size: 4 parameters { key: "padding.axis.input_ids" value { string_value: "0" } }'
    )
    assert whole.padding is not None
    assert (whole.padding.mask, whole.max_batch_size) == ("", 4)


def test_a_batch_of_another_default_stays(folder: Path) -> None:
    assert finished(folder, "", replace(BERT, default_max_batch_size=16)).max_batch_size == 16


NOT_PADDED = {
    "no mask": described("input_ids"),
    "another input": described("input_ids", "attention_mask", "bbox"),
    "an output with two lengths": described(
        "input_ids", "attention_mask", outputs=(DescribedTensor("attentions", dtypes.FP32, (-1, 8, -1, -1)),)
    ),
    "a fixed length": ModelDescription(
        tuple(DescribedTensor(name, dtypes.INT64, (-1, 128)) for name in ("input_ids", "attention_mask")), (POOLED,), 4
    ),
    "numbers": ModelDescription(
        tuple(DescribedTensor(name, dtypes.FP32, (-1, -1)) for name in ("input_ids", "attention_mask")), (POOLED,), 4
    ),
    "no batch dimension": ModelDescription(
        tuple(DescribedTensor(name, dtypes.INT64, (1, -1)) for name in ("input_ids", "attention_mask")), (POOLED,), 4
    ),
}


@pytest.mark.parametrize("name", NOT_PADDED)
def test_other_tensors_are_not_padded(folder: Path, name: str) -> None:
    assert finished(folder, "", NOT_PADDED[name]).padding is None


def test_without_a_tokenizer_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    whole = finished(tmp_path / "m", "")
    assert (whole.padding, whole.max_batch_size) == (None, 4)


def test_without_completion_nothing_changes(folder: Path) -> None:
    tensors = "".join(
        f'{side} {{ name: "{name}" data_type: {kind} dims: [ {dims} ] }}\n'
        for side, name, kind, dims in (
            ("input", "input_ids", "TYPE_INT64", "-1"),
            ("input", "attention_mask", "TYPE_INT64", "-1"),
            ("input", "token_type_ids", "TYPE_INT64", "-1"),
            ("output", "last_hidden_state", "TYPE_FP32", "-1, 8"),
            ("output", "pooler_output", "TYPE_FP32", "8"),
        )
    )
    assert finished(folder, f"max_batch_size: 4 dynamic_batching {{}} {tensors}", complete=False).padding is None


def test_a_broken_config_json_is_no_reason_not_to_load(folder: Path) -> None:
    (folder / "1" / "config.json").write_text("{")
    padding = finished(folder, "").padding
    assert padding is not None
    assert padding.values == {}


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "text.{key.replace("__", ".")}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


def test_settings(folder: Path) -> None:
    text = parameters(
        task="rerank",
        pooling="mean, cls",
        normalize="false",
        max_length="64",
        truncate="false",
        default_prompt="query",
        prompt__query="query: ",
        activation="none",
        output="pooler_output",
        max_texts="7",
    )
    assert finished(folder, text).text == TextSettings(
        task=TextTask.RERANK,
        pooling=("cls", "mean"),
        normalize=False,
        max_length=64,
        truncate=False,
        default_prompt="query",
        prompts={"query": "query: "},
        activation="none",
        output="pooler_output",
        max_texts=7,
    )
    assert finished(folder, parameters(pooling="none")).text.pooling == ()
    assert finished(folder, "").text == NO_TEXT_SETTINGS


WRONG = {
    "task": ("ranking", "'text.task' is 'ranking', expected 'embedding' or 'rerank' or 'classification'"),
    "pooling": ("average", "expected 'none', or names with commas between: cls, max, mean"),
    "normalize": ("yes", "expected 'true' or 'false'"),
    "max_length": ("0", "expected a whole number from 1"),
    "max_texts": ("many", "expected a whole number from 1"),
    "activation": ("relu", "expected 'sigmoid' or 'softmax' or 'none'"),
    "output": ("pooled_output", "model 'm' has no output 'pooled_output'; did you mean 'pooler_output'?"),
    "poling": ("cls", "unknown parameter 'text.poling'; did you mean 'text.pooling'?"),
}


@pytest.mark.parametrize("key", WRONG)
def test_what_is_wrong_with_a_parameter(folder: Path, key: str) -> None:
    value, message = WRONG[key]
    with pytest.raises(ModserveError) as caught:
        finished(folder, parameters(**{key: value}))
    assert message in caught.value.message
