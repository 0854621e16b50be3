"""Requests that a model responds to: what the documentation page and a starting server show for people to try.

They fit the model's signature; whether the model accepts their values only it knows. The first input counts up, and
the others are ones, so that a person can see what the model makes of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import SequenceBatching
from modserve.core.tensors import dtypes

JsonObject: TypeAlias = dict[str, object]

Models: TypeAlias = Mapping[str, ModelConfig]
"""The models that are READY, by name: what an ensemble needs is for its steps to say."""

MOST_ELEMENTS = 20_000
"""Examples with more elements than that are longer than anybody reads, or wants in a browser's text field."""

_COUNTING: Mapping[str, Callable[[int], object]] = {
    "bool": lambda index: index % 2 == 0,
    "int": lambda index: index % 100,
    "float": lambda index: index % 100,
    "string": lambda index: f"text {index}",
}
"""Functions from an index to an element of the first input, by `Datatype.json_kind`."""

ONES: Mapping[str, object] = {"bool": True, "int": 1, "float": 1, "string": "one"}
"""Elements of the other inputs, by `Datatype.json_kind`."""


def infer(config: ModelConfig, models: Models) -> JsonObject:
    """Return the body of an ``infer`` or ``infer_stream`` call."""
    tensors = [
        {"name": spec.name, "datatype": spec.datatype.name, "shape": shape(config, spec), "data": _data(config, spec)}
        for spec in choose_inputs(config)
    ]
    own = parameters(config, models)
    return {"parameters": own, "inputs": tensors} if own else {"inputs": tensors}


def generate(config: ModelConfig, models: Models) -> JsonObject:
    """Return the body of a ``generate`` or ``generate_stream`` call."""
    body: JsonObject = dict(parameters(config, models))
    for spec in choose_inputs(config):
        data = _data(config, spec)
        body[spec.name] = data[0] if len(data) == 1 else data
    return body


def predict(config: ModelConfig) -> JsonObject:
    """Return the body of a v1 ``:predict`` call, in the column format."""
    return {"inputs": {spec.name: nest_elements(config, spec) for spec in choose_inputs(config)}}


def bodies(config: ModelConfig, models: Models) -> JsonObject:
    """Return request bodies that the model responds to, by call; a `note` gives the reason for missing calls."""
    if elements(config) > MOST_ELEMENTS:
        count = elements(config)
        return {"note": f"An example would have {count} elements, too many to show. See the model's metadata."}
    flat, tensors = generate(config, models), infer(config, models)
    streams: JsonObject = {"infer_stream": tensors, "generate_stream": flat}
    if decoupled(config, models):
        note = "This model may answer any number of times: send it infer_stream or generate_stream."
        return {"note": note, **streams}
    single: JsonObject = {**streams, "infer": tensors, "generate": flat}
    if sequences(config, models):
        return {"note": "This model takes sequences of requests, which v1 predictions cannot be part of.", **single}
    return {"note": "", **single, "predict": predict(config)}


def elements(config: ModelConfig) -> int:
    """Return the number of elements in the inputs of an example."""
    return sum(math.prod(shape(config, spec)) for spec in config.inputs)


def decoupled(config: ModelConfig, models: Models) -> bool:
    """True if a request may have any number of responses, so that only streaming calls are of use."""
    return any(each.decoupled for each in composing(config, models))


def sequences(config: ModelConfig, models: Models) -> list[SequenceBatching]:
    """Return the sequence settings of the models that require each request to belong to a sequence."""
    batchings = [each.sequence_batching for each in composing(config, models)]
    return [batching for batching in batchings if batching is not None and not batching.iterative]


def composing(config: ModelConfig, models: Models) -> list[ModelConfig]:
    """Return a model, and all models that an ensemble is made of."""
    if config.ensemble is None:
        return [config]
    steps = [models[step.model] for step in config.ensemble.steps if step.model in models]
    return [config, *(each for step in steps for each in composing(step, models))]


def parameters(config: ModelConfig, models: Models) -> JsonObject:
    """Return the parameters of a request that is a whole sequence, where the model takes no others."""
    batchings = sequences(config, models)
    if not batchings:
        return {}
    texts = any(each.correlation is not None and each.correlation.datatype is dtypes.BYTES for each in batchings)
    return {"sequence_id": "1" if texts else 1, "sequence_start": True, "sequence_end": True}


def choose_inputs(config: ModelConfig) -> Sequence[TensorSpec]:
    """Return the inputs of an example: the model's required ones, or the first one if it requires none."""
    return [spec for spec in config.inputs if not spec.optional] or config.inputs[:1]


def nest_elements(config: ModelConfig, spec: TensorSpec) -> object:
    """Return the elements of an input of an example, in lists as deep as its shape."""
    values: object = np.array(_data(config, spec), object).reshape(shape(config, spec)).tolist()
    return values


def shape(config: ModelConfig, spec: TensorSpec) -> list[int]:
    """Return the shape of an input of an example: 1 for every size that may vary."""
    return [abs(size) for size in config.full_dims(spec)]


def _data(config: ModelConfig, spec: TensorSpec) -> list[object]:
    count, kind = math.prod(shape(config, spec)), spec.datatype.json_kind
    if spec is not choose_inputs(config)[0]:
        return [ONES[kind]] * count
    return [_COUNTING[kind](index) for index in range(count)]
