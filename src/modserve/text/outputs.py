"""Mapping between tokens and a model's tensors: roles of inputs, choice and conversion of the output."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.text_settings import TextTask
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor

from .description import TextDescription, no_text_model
from .pooling import POOLINGS, Vectors, pool, shorten
from .tokenizer import Tokens

_IDS, _MASK, _TYPES, _POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
_BY_PLACE: Final = (_IDS, _MASK, _TYPES)
"""Roles by position: TorchScript inputs have numbers, in the order of the arguments."""
_ROLES: Final = (*_BY_PLACE, _POSITIONS)
_INTEGERS: Final = (dtypes.INT64, dtypes.INT32)
_WHOLE_VECTORS: Final = ("sentence_embedding", "text_embeds", "embedding", "embeddings")
"""Outputs with text vectors, pooled inside the model."""
_TOKEN_VECTORS: Final = ("last_hidden_state", "token_embeddings", "hidden_states")
_SCORES: Final = ("logits", "scores", "output")


class TensorPlan:
    """Plan of one model's tensors: inputs from the tokens of a text, and the output to read.

    Raises INVALID_ARG for a model with other tensors than a text model's.
    """

    def __init__(self, config: ModelConfig, text: TextDescription) -> None:
        self._masked = config.padding is not None and config.padding.mask
        self._inputs = {_role(config, spec): spec for spec in config.inputs}
        strange = [spec.name for role, spec in self._inputs.items() if not role and not spec.optional]
        if _IDS not in self._inputs or strange:
            names = ", ".join(f"'{spec.name}'" for spec in config.inputs)
            known = ", ".join((_IDS, _MASK, _TYPES, _POSITIONS))
            raise no_text_model(config.name, f"its inputs are {names}, and a text has {known}")
        self.output = _choose_output(config, text)
        self.pools = text.task is TextTask.EMBEDDING and len(self.output.dims) - (not config.batching) >= 2
        self._pooling = text.pooling if text.pooling else ("cls",)
        self._layers = text.layers if self.pools else ()
        unknown = [name for name in self._pooling if name not in POOLINGS]
        if self.pools and unknown:
            raise no_text_model(config.name, f"it has the pooling '{unknown[0]}'; known are: {', '.join(POOLINGS)}")
        self._check_layers(config.name)

    @property
    def width(self) -> int:
        """Width of a text's vector; 0 if unknown before the first vector."""
        return len(self._layers[-1].weight[0]) if self._layers else self._pooled_width

    @property
    def _pooled_width(self) -> int:
        return max(0, self.output.dims[-1]) * (len(self._pooling) if self.pools else 1)

    def _check_layers(self, model: str) -> None:
        width = self._pooled_width
        for number, layer in enumerate(self._layers, start=1):
            if width and len(layer.weight) != width:
                raise no_text_model(
                    model, f"layer {number} behind the pooling takes vectors of {len(layer.weight)}, and gets {width}"
                )
            width = layer.weight.shape[1]

    def inputs(self, tokens: Tokens) -> Mapping[str, Tensor]:
        """Return a [1, tokens] tensor for each input of the model, except a mask that the padding adds."""
        count = len(tokens.ids)
        tensors = {}
        for role, spec in self._inputs.items():
            if not role or (role == _MASK and self._masked == spec.name):
                continue
            values = tokens.ids
            if role == _MASK:
                values = np.ones(count, np.int64)
            elif role == _TYPES:
                values = np.zeros(count, np.int64) if tokens.types is None else tokens.types
            elif role == _POSITIONS:
                values = np.arange(count, dtype=np.int64)
            tensors[spec.name] = Tensor.from_array(values[None], spec.datatype)
        return tensors

    def result(self, output: Tensor) -> NDArray[Any]:
        """Return the output for one text, without the batch dimension."""
        values: NDArray[Any] = output.array[0]
        return values

    def vector(self, output: Tensor, skip: int, normalize: bool, dimensions: int | None) -> Vectors:
        """Return FP32 [width] of one text, ignoring its first `skip` tokens."""
        values = self.result(output)
        if self.pools:
            vector = pool(values, self._pooling, skip)
            for layer in self._layers:
                vector = layer.apply(vector)
            return shorten(vector, dimensions, normalize)
        return shorten(values.astype(np.float32).reshape(-1), dimensions, normalize)


def _role(config: ModelConfig, spec: TensorSpec) -> str:
    """Return the role of an input; empty for an unrelated input."""
    names = [each.name for each in config.inputs]
    if _IDS not in names and spec.name.startswith("INPUT__"):
        place = names.index(spec.name)
        return _BY_PLACE[place] if place < len(_BY_PLACE) else ""
    fits = spec.datatype in _INTEGERS and len(spec.dims) == 1 + (not config.batching)
    return spec.name if fits and spec.name in _ROLES else ""


def _choose_output(config: ModelConfig, text: TextDescription) -> TensorSpec:
    outputs = config.outputs_by_name
    if text.output:
        if text.output not in outputs:
            raise no_text_model(config.name, f"it has no output '{text.output}', which 'text.output' names")
        return outputs[text.output]
    unbatched = int(not config.batching)
    by_rank = {rank: [each for each in config.outputs if len(each.dims) - unbatched == rank] for rank in (1, 2)}
    embedding = text.task is TextTask.EMBEDDING
    if embedding:
        whole = next((each for each in by_rank[1] if each.name in _WHOLE_VECTORS), None)
        named = [each for each in by_rank[2] if each.name in _TOKEN_VECTORS]
        alone = by_rank[1] if not by_rank[2] and len(by_rank[1]) == 1 else []
        best: list[TensorSpec] = [*([whole] if whole is not None else ()), *named, *by_rank[2], *alone]
        if whole is None and text.unread_layer:
            raise no_text_model(config.name, f"{text.unread_layer}, and the model has no output 'sentence_embedding'")
        if whole is None and text.layers and not by_rank[2]:
            raise no_text_model(
                config.name,
                "modules.json has layers behind the pooling, which its outputs have passed already, and none is "
                "'sentence_embedding'",
            )
    else:
        rank = by_rank[2 if text.task is TextTask.TOKEN_CLASSIFICATION else 1]
        best = [*(each for each in rank if each.name in _SCORES), *rank]
    if not best:
        shapes = ", ".join(f"'{each.name}' {list(config.full_dims(each))}" for each in config.outputs)
        raise no_text_model(config.name, f"none of its outputs fits the task {text.task.value}: {shapes}")
    return best[0]


def scores(logits: NDArray[Any], activation: str) -> NDArray[np.float32]:
    """Return FP32 scores of any shape; ``softmax`` is over the last dimension."""
    values = logits.astype(np.float64)
    if activation == "sigmoid":
        values = 1.0 / (1.0 + np.exp(-np.clip(values, -500, 500)))
    elif activation == "softmax":
        values = np.exp(values - values.max(axis=-1, keepdims=True))
        values /= values.sum(axis=-1, keepdims=True)
    return values.astype(np.float32)


def label_scores(values: NDArray[Any], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of a text with their labels, highest first."""
    flat = values.reshape(-1)
    order = np.argsort(-flat, kind="stable").tolist()
    return [{"score": float(flat[place]), "label": label_of(labels, place)} for place in order]


def label_of(labels: Sequence[str], place: int) -> str:
    """Return a class's label; unnamed ones are named as in transformers."""
    return labels[place] if place < len(labels) else f"LABEL_{place}"
