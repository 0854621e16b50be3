"""Which tensors of a model are those of a text, and what becomes of its outputs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.core.configuration.merging import Padding
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.text_settings import NO_TEXT_SETTINGS, TextTask
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.text.dense import DenseLayer
from modserve.text.description import TextDescription, describe
from modserve.text.outputs import TensorPlan, label_scores, scores
from modserve.text.tokenizer import Tokens
from text_folders import write_folder

TOKENS = Tokens(np.array([2, 5, 3]), None)
PAIR = Tokens(np.array([2, 5, 3]), np.array([0, 0, 1]))


@pytest.fixture
def text(tmp_path: Path) -> TextDescription:
    described = describe(write_folder(tmp_path), NO_TEXT_SETTINGS)
    assert described is not None
    return described


def config_of(inputs: list[str], outputs: Mapping[str, tuple[int, ...]], **others: Any) -> ModelConfig:
    return ModelConfig(
        "m",
        "onnxruntime",
        max_batch_size=8,
        inputs=tuple(TensorSpec(name, dtypes.INT64, (-1,)) for name in inputs),
        outputs=tuple(TensorSpec(name, dtypes.FP32, dims) for name, dims in outputs.items()),
        **others,
    )


BERT = ["input_ids", "attention_mask", "token_type_ids"]
HIDDEN = {"last_hidden_state": (-1, 4)}


def values(plan: TensorPlan, tokens: Tokens = TOKENS) -> dict[str, Any]:
    return {name: tensor.array.tolist() for name, tensor in plan.inputs(tokens).items()}


def test_the_inputs(text: TextDescription) -> None:
    plan = TensorPlan(config_of([*BERT, "position_ids"], HIDDEN), text)
    assert values(plan) == {
        "input_ids": [[2, 5, 3]],
        "attention_mask": [[1, 1, 1]],
        "token_type_ids": [[0, 0, 0]],
        "position_ids": [[0, 1, 2]],
    }
    assert values(plan, PAIR)["token_type_ids"] == [[0, 0, 1]]


def test_the_server_makes_the_mask_where_it_pads(text: TextDescription) -> None:
    padding = Padding({"input_ids": 0, "token_type_ids": 0, "attention_mask": 0}, mask="attention_mask")
    assert set(values(TensorPlan(config_of(BERT, HIDDEN, padding=padding), text))) == {"input_ids", "token_type_ids"}


def test_the_datatype_is_the_models(text: TextDescription) -> None:
    config = config_of(["input_ids"], HIDDEN)
    config = replace(config, inputs=(TensorSpec("input_ids", dtypes.INT32, (-1,)),))
    assert TensorPlan(config, text).inputs(TOKENS)["input_ids"].datatype is dtypes.INT32


def test_the_numbered_inputs_of_torchscript(text: TextDescription) -> None:
    plan = TensorPlan(config_of(["INPUT__0", "INPUT__1"], {"OUTPUT__0": (-1, 4)}), text)
    assert values(plan) == {"INPUT__0": [[2, 5, 3]], "INPUT__1": [[1, 1, 1]]}


def test_an_optional_input_of_another_kind_is_left_out(text: TextDescription) -> None:
    config = config_of(["input_ids"], HIDDEN)
    extra = TensorSpec("past", dtypes.FP32, (-1,), optional=True)
    assert set(values(TensorPlan(replace(config, inputs=(*config.inputs, extra)), text))) == {"input_ids"}


REFUSED: dict[str, tuple[list[str], Mapping[str, tuple[int, ...]], str]] = {
    "of an image": (["pixels"], HIDDEN, "takes no texts: its inputs are 'pixels', and a text has input_ids"),
    "with one more": (["input_ids", "bbox"], HIDDEN, "its inputs are 'input_ids', 'bbox'"),
    "without an output for it": (
        BERT,
        {"x": (2, 3, 4)},
        r"none of its outputs fits the task embedding: 'x' \[-1, 2, 3, 4\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_none(text: TextDescription, name: str) -> None:
    inputs, outputs, message = REFUSED[name]
    with pytest.raises(ModserveError, match=message):
        TensorPlan(config_of(inputs, outputs), text)


CHOSEN: dict[str, tuple[TextTask, Mapping[str, tuple[int, ...]], str]] = {
    "the usual": (TextTask.EMBEDDING, {"last_hidden_state": (-1, 4), "pooler_output": (4,)}, "last_hidden_state"),
    "pooled inside": (
        TextTask.EMBEDDING,
        {"token_embeddings": (-1, 4), "sentence_embedding": (4,)},
        "sentence_embedding",
    ),
    "any of the right rank": (TextTask.EMBEDDING, {"pooler_output": (4,), "x": (-1, 4)}, "x"),
    "the only one": (TextTask.EMBEDDING, {"y": (4,)}, "y"),
    "logits": (TextTask.RERANK, {"hidden": (4,), "logits": (1,)}, "logits"),
    "logits of tokens": (TextTask.TOKEN_CLASSIFICATION, {"other": (4,), "z": (-1, 9)}, "z"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_output(text: TextDescription, name: str) -> None:
    task, outputs, expected = CHOSEN[name]
    plan = TensorPlan(config_of(BERT, outputs), replace(text, task=task))
    assert plan.output.name == expected


def test_an_output_by_its_name(text: TextDescription) -> None:
    config = config_of(BERT, {"last_hidden_state": (-1, 4), "pooler_output": (4,)})
    assert TensorPlan(config, replace(text, output="pooler_output")).output.name == "pooler_output"
    with pytest.raises(ModserveError, match="it has no output 'nothing'"):
        TensorPlan(config, replace(text, output="nothing"))


def test_layers_that_no_file_has_are_refused_unless_the_model_has_them(text: TextDescription) -> None:
    dense = replace(text, unread_layer="'2_Dense' has no model.safetensors")
    with pytest.raises(ModserveError, match=r"'2_Dense' has no model\.safetensors, and the model has no output 'sent"):
        TensorPlan(config_of(BERT, HIDDEN), dense)
    assert TensorPlan(config_of(BERT, {**HIDDEN, "sentence_embedding": (4,)}), dense).pools is False


def layer(before: int, after: int, activation: str = "Tanh") -> DenseLayer:
    random = np.random.default_rng(before)
    weight = random.standard_normal((before, after)).astype(np.float32)
    return DenseLayer(weight, random.standard_normal(after).astype(np.float32), activation)


def test_layers_behind_the_pooling(text: TextDescription) -> None:
    first, second = layer(4, 3), layer(3, 2, "Identity")
    plan = TensorPlan(config_of(BERT, HIDDEN), replace(text, layers=(first, second)))
    assert plan.width == 2
    tokens = np.random.default_rng(7).standard_normal((1, 5, 4)).astype(np.float32)
    expected = np.tanh(tokens[0].mean(axis=0) @ first.weight + first.bias) @ second.weight + second.bias
    assert np.allclose(plan.vector(Tensor.from_array(tokens), 0, False, None), expected, atol=1e-6)
    expected /= np.linalg.norm(expected)
    assert np.allclose(plan.vector(Tensor.from_array(tokens), 0, True, None), expected, atol=1e-6)


def test_layers_that_the_model_has_inside_are_not_applied_again(text: TextDescription) -> None:
    plan = TensorPlan(config_of(BERT, {**HIDDEN, "sentence_embedding": (2,)}), replace(text, layers=(layer(4, 2),)))
    assert plan.width == 2
    output = Tensor.from_array(np.array([[3, 4]], np.float32))
    assert plan.vector(output, 0, True, None).tolist() == pytest.approx([0.6, 0.8])


def test_layers_that_do_not_fit(text: TextDescription) -> None:
    with pytest.raises(ModserveError, match="layer 2 behind the pooling takes vectors of 5, and gets 3"):
        TensorPlan(config_of(BERT, HIDDEN), replace(text, layers=(layer(4, 3), layer(5, 2))))
    with pytest.raises(ModserveError, match="which its outputs have passed already"):
        TensorPlan(config_of(BERT, {"pooled": (4,)}), replace(text, layers=(layer(4, 3),)))


def test_an_unknown_pooling(text: TextDescription) -> None:
    with pytest.raises(ModserveError, match="it has the pooling 'attention'; known are: cls, max"):
        TensorPlan(config_of(BERT, HIDDEN), replace(text, pooling=("attention",)))


def test_vectors(text: TextDescription) -> None:
    tokens = np.array([[[1, 0, 0, 0], [3, 4, 0, 0]]], np.float32)
    plan = TensorPlan(config_of(BERT, HIDDEN), text)
    assert (plan.pools, plan.width) == (True, 4)
    np.testing.assert_array_equal(plan.vector(Tensor.from_array(tokens), 0, False, None), [2, 2, 0, 0])
    np.testing.assert_array_equal(plan.vector(Tensor.from_array(tokens), 1, False, 2), [3, 4])
    whole = TensorPlan(config_of(BERT, {"sentence_embedding": (4,)}), text)
    vector = whole.vector(Tensor.from_array(np.array([[3, 4, 0, 0]], np.float16)), 0, True, None)
    np.testing.assert_allclose(vector, [0.6, 0.8, 0, 0], rtol=1e-3)
    assert vector.dtype.name == "float32"
    assert TensorPlan(config_of(BERT, HIDDEN), replace(text, pooling=("cls", "max"))).width == 8


def test_scores() -> None:
    logits = np.array([0.0, 1.0, -1000.0], np.float32)
    np.testing.assert_array_equal(scores(logits, "none"), logits)
    np.testing.assert_allclose(scores(logits, "sigmoid"), [0.5, 0.7310586, 0.0], atol=1e-7)
    np.testing.assert_allclose(scores(logits, "softmax"), [0.26894143, 0.7310586, 0.0], atol=1e-7)
    np.testing.assert_allclose(scores(np.array([1e30, 0], np.float32), "softmax"), [1, 0])


def test_labels_are_in_the_order_of_their_scores() -> None:
    by_score = label_scores(np.array([0.2, 0.5, 0.5, 0.1], np.float32), ["a", "b", "c"])
    assert [each["label"] for each in by_score] == ["b", "c", "a", "LABEL_3"]
