"""What the files of a folder say of a text model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.core.configuration.text_settings import NO_TEXT_SETTINGS, TextSettings, TextTask
from modserve.core.errors import Code, ModserveError
from modserve.text.description import TextDescription, describe, is_text_model
from text_folders import MODULES, safetensors, write_folder

POOLING = "1_Pooling/config.json"


def described(folder: Path, files: dict[str, Any], settings: TextSettings = NO_TEXT_SETTINGS) -> TextDescription:
    text = describe(write_folder(folder, files), settings)
    assert text is not None
    return text


TASKS: dict[str, tuple[dict[str, Any], TextTask | None]] = {
    "nothing but a tokenizer": ({}, TextTask.EMBEDDING),
    "an empty list of architectures": ({"config.json": {"architectures": []}}, TextTask.EMBEDDING),
    "an encoder": ({"config.json": {"architectures": ["BertModel"]}}, TextTask.EMBEDDING),
    "a masked language model": ({"config.json": {"architectures": ["BertForMaskedLM"]}}, TextTask.EMBEDDING),
    "a cross-encoder by its number of labels": (
        {"config.json": {"architectures": ["BertForSequenceClassification"], "num_labels": 1}},
        TextTask.RERANK,
    ),
    "a cross-encoder by the names of its labels": (
        {"config.json": {"architectures": ["XLMRobertaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}},
        TextTask.RERANK,
    ),
    "a classifier": (
        {"config.json": {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}},
        TextTask.CLASSIFICATION,
    ),
    "a classifier that counts nothing has two labels": (
        {"config.json": {"architectures": ["BertForSequenceClassification"]}},
        TextTask.CLASSIFICATION,
    ),
    "a classifier of tokens": (
        {"config.json": {"architectures": ["BertForTokenClassification"], "id2label": {"0": "O"}}},
        TextTask.TOKEN_CLASSIFICATION,
    ),
    "one that writes": ({"config.json": {"architectures": ["LlamaForCausalLM"]}}, None),
    "one that writes, pooled": (
        {"config.json": {"architectures": ["Qwen3ForCausalLM"]}, "modules.json": MODULES},
        TextTask.EMBEDDING,
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_task(tmp_path: Path, name: str) -> None:
    files, task = TASKS[name]
    text = describe(write_folder(tmp_path, files), NO_TEXT_SETTINGS)
    assert (text.task if text else None) is task


POOLINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "none said": ({}, ("mean",)),
    "cls": ({POOLING: {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}, ("cls",)),
    "max": ({POOLING: {"pooling_mode_max_tokens": True}}, ("max",)),
    "mean": ({POOLING: {"pooling_mode_mean_tokens": True}}, ("mean",)),
    "mean_sqrt_len": ({POOLING: {"pooling_mode_mean_sqrt_len_tokens": True}}, ("mean_sqrt_len",)),
    "weighted_mean": ({POOLING: {"pooling_mode_weightedmean_tokens": True}}, ("weighted_mean",)),
    "last_token": ({POOLING: {"pooling_mode_lasttoken": True}}, ("last_token",)),
    "two": ({POOLING: {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}}, ("cls", "mean")),
    "as a name": ({POOLING: {"pooling_mode": "lasttoken"}}, ("last_token",)),
    "as a list of names": ({POOLING: {"pooling_mode": ["cls", "weightedmean"]}}, ("cls", "weighted_mean")),
    "where modules.json says": (
        {
            "modules.json": [{"path": "2_Pooling", "type": "sentence_transformers.models.Pooling"}],
            "2_Pooling/config.json": {"pooling_mode_cls_token": True},
            POOLING: {"pooling_mode_max_tokens": True},
        },
        ("cls",),
    ),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_the_pooling(tmp_path: Path, name: str) -> None:
    files, expected = POOLINGS[name]
    assert described(tmp_path, files).pooling == expected


def test_normalisation_is_a_module(tmp_path: Path) -> None:
    assert described(tmp_path / "with", {"modules.json": MODULES}).normalize
    assert not described(tmp_path / "without", {"modules.json": MODULES[:2]}).normalize
    assert described(tmp_path / "none", {}).normalize


DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
ORDERED = [*MODULES[:2], DENSE, *MODULES[2:]]


def test_modules_in_another_order_are_not_read(tmp_path: Path) -> None:
    text = described(tmp_path / "a", {"modules.json": [*MODULES, DENSE]})
    assert text.unread_layer.startswith("modules.json has Transformer, Pooling, Normalize, Dense; read are layers of")
    text = described(tmp_path / "b", {"modules.json": [*ORDERED, {**DENSE, "type": "x.LayerNorm"}]})
    assert "LayerNorm" in text.unread_layer
    text = described(tmp_path / "c", {"modules.json": MODULES})
    assert (text.layers, text.unread_layer) == ((), "")
    with pytest.raises(ModserveError, match=r"its path '\.\./2_Dense' is outside the model's folder"):
        described(tmp_path / "d", {"modules.json": [*MODULES[:2], {**DENSE, "path": "../2_Dense"}]})


def test_layers_without_weights_that_can_be_read(tmp_path: Path) -> None:
    files = {"modules.json": ORDERED, "2_Dense/config.json": {"activation_function": "torch.nn.modules.GELU"}}
    assert described(tmp_path, files).unread_layer == "'2_Dense' has no model.safetensors"
    (tmp_path / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    assert "only pytorch_model.bin, which is a program" in described(tmp_path, files).unread_layer
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"")
    assert "'2_Dense' has the activation GELU; known are Identity, " in described(tmp_path, files).unread_layer
    files["2_Dense/config.json"] = {"module_input_name": "token_embeddings"}
    assert "'2_Dense' is a layer for 'token_embeddings'" in described(tmp_path, files).unread_layer


def test_layers_are_read(tmp_path: Path) -> None:
    config = {"in_features": 4, "out_features": 3, "activation_function": "torch.nn.modules.linear.Identity"}
    folder = write_folder(tmp_path, {"modules.json": ORDERED, "2_Dense/config.json": config})
    weight = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (folder / "2_Dense" / "model.safetensors").write_bytes(safetensors({"linear.weight": weight}))
    text = describe(folder, NO_TEXT_SETTINGS)
    assert text is not None
    (layer,) = text.layers
    assert (layer.activation, layer.bias, text.unread_layer) == ("Identity", 0.0, "")
    assert np.array_equal(layer.weight, weight.T)


LENGTHS: dict[str, tuple[dict[str, Any], int]] = {
    "nothing": ({}, 512),
    "sentence-transformers": (
        {
            "sentence_bert_config.json": {"max_seq_length": 256},
            "tokenizer_config.json": {"model_max_length": 128},
            "config.json": {"max_position_embeddings": 512},
        },
        256,
    ),
    "an older name": ({"sentence_roberta_config.json": {"max_seq_length": 100}}, 100),
    "the tokenizer": ({"tokenizer_config.json": {"model_max_length": 128}}, 128),
    "no limit": ({"tokenizer_config.json": {"model_max_length": 1e30}}, 512),
    "positions": ({"config.json": {"max_position_embeddings": 2048}}, 2048),
    "never more than positions": (
        {"sentence_bert_config.json": {"max_seq_length": 4096}, "config.json": {"max_position_embeddings": 512}},
        512,
    ),
    "positions behind the padding": (
        {"config.json": {"max_position_embeddings": 514, "model_type": "xlm-roberta", "pad_token_id": 1}},
        512,
    ),
    "null": ({"sentence_bert_config.json": {"max_seq_length": None}}, 512),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_the_longest_text(tmp_path: Path, name: str) -> None:
    files, expected = LENGTHS[name]
    assert described(tmp_path, files).max_length == expected


def test_prompts(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "document"}
    files = {"config_sentence_transformers.json": prompts, POOLING: {"include_prompt": False}}
    text = described(tmp_path, files)
    assert (text.prompt(None), text.prompt("query"), text.prompt("")) == ("passage: ", "query: ", "")
    assert not text.pools_prompt
    with pytest.raises(ModserveError, match="no prompt 'other'; its prompts are: 'query', 'document'"):
        text.prompt("other")
    assert described(tmp_path / "none", {}).pools_prompt


def test_a_default_prompt_that_is_not_there_is_none(tmp_path: Path) -> None:
    files = {"config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": "query"}}
    assert described(tmp_path, files).prompt(None) == ""


def test_labels_and_what_makes_scores(tmp_path: Path) -> None:
    classifier = {"architectures": ["BertForSequenceClassification"], "id2label": {"1": "yes", "0": "no"}}
    text = described(tmp_path / "a", {"config.json": classifier})
    assert (text.labels, text.activation) == (("no", "yes"), "softmax")
    several = {**classifier, "problem_type": "multi_label_classification"}
    assert described(tmp_path / "b", {"config.json": several}).activation == "sigmoid"
    one = {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    assert described(tmp_path / "c", {"config.json": one}).activation == "sigmoid"


def test_the_configuration_goes_before_the_files(tmp_path: Path) -> None:
    files = {
        "modules.json": MODULES,
        POOLING: {"pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
    }
    settings = TextSettings(
        task=TextTask.CLASSIFICATION,
        pooling=("cls",),
        normalize=False,
        max_length=8,
        truncate=False,
        default_prompt="own",
        prompts={"own": "mine: "},
        activation="none",
        output="last",
        max_texts=3,
    )
    text = described(tmp_path, files, settings)
    assert text == replace(
        text,
        task=TextTask.CLASSIFICATION,
        pooling=("cls",),
        normalize=False,
        max_length=8,
        truncate=False,
        activation="none",
        output="last",
        max_texts=3,
        lowercase=True,
    )
    assert (text.prompt(None), text.prompt("query")) == ("mine: ", "q: ")
    assert described(tmp_path, files, TextSettings(default_prompt="")).prompt(None) == ""


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no JSON": ({"config.json": "{"}, "'config.json' of the model cannot be used: it is not JSON"),
    "no object": ({"config.json": []}, "'config.json' of the model cannot be used: expected an object, not a list"),
    "no list": ({"modules.json": {}}, "'modules.json' of the model cannot be used: expected a list of objects"),
    "modules of another kind": ({"modules.json": [1]}, "expected a list of objects, not a list"),
    "a path outside": (
        {"modules.json": [{"path": "../x", "type": "sentence_transformers.models.Pooling"}]},
        "its path '../x' is outside the model's folder",
    ),
    "a length in words": ({"sentence_bert_config.json": {"max_seq_length": "long"}}, "'max_seq_length' is a string"),
    "labels without numbers": (
        {"config.json": {"architectures": ["BertForSequenceClassification"], "id2label": {"a": "b"}}},
        "'id2label' has a key that is no number",
    ),
    "a label too far": (
        {"config.json": {"architectures": ["BertForSequenceClassification"], "id2label": {"99999999999": "b"}}},
        "'id2label' has the number 99999999999",
    ),
    "deep": ({"config.json": "[" * 100_000}, "it is not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    files, message = BROKEN[name]
    folder = write_folder(tmp_path, files)
    with pytest.raises(ModserveError) as caught:
        describe(folder, NO_TEXT_SETTINGS)
    assert caught.value.code is Code.INTERNAL
    assert message in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ModserveError, match="it is not JSON"):
        describe(tmp_path, NO_TEXT_SETTINGS)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "config.json").mkdir()
    with pytest.raises(ModserveError, match=r"'config\.json' of the model cannot be used: Is a directory"):
        describe(tmp_path, NO_TEXT_SETTINGS)


def test_a_tokenizer_makes_a_text_model(tmp_path: Path) -> None:
    assert is_text_model(write_folder(tmp_path / "a"))
    assert not is_text_model(write_folder(tmp_path / "b", {"config.json": {}}, with_tokenizer=False))
