"""The classification extension: an output's best classes, each as text with its index and label."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modserve.core.errors import invalid
from modserve.core.requests.response import InferenceResponse
from modserve.core.runtime.event_loop import yield_now
from modserve.core.servable import Servable
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor

_MOST_ELEMENTS = 1_000_000
"""Most elements for each row of the batch."""

_SPELL: dict[str, Callable[[Any], str]] = {"int": str, "float": "{:f}".format}
"""Functions that format a value as C++'s ``std::to_string`` does, by the datatype's JSON kind."""

_RANKED = frozenset({kind for kind in dtypes.ALL if kind.json_kind in _SPELL} - {dtypes.FP16, dtypes.BF16})


def classify(response: InferenceResponse, counts: Mapping[str, int], servable: Servable) -> InferenceResponse:
    """Return the response with the outputs that `counts` names replaced by their best classes, at most that many.

    Raises INVALID_ARG for an output that cannot be ranked.
    """
    if not counts:
        return response
    batching, labels = servable.config.batching, servable.labels
    outputs = {
        name: top_classes(tensor, counts[name], labels.get(name, ()), batching) if name in counts else tensor
        for name, tensor in response.outputs.items()
    }
    return replace(response, outputs=outputs)


def top_classes(tensor: Tensor, count: int, labels: Sequence[str], batching: bool) -> Tensor:
    """Return the `count` highest elements as BYTES ``<value>:<index>[:<label>]``, best first; per row if `batching`.

    Equal values stand in the order of their indices; NaN ranks as -Infinity. Elements without a label, or with an
    empty one, go without. Raises INVALID_ARG for datatypes that Triton does not rank, and for too many elements.
    """
    if tensor.datatype not in _RANKED:
        raise invalid(f"class result not available for output due to unsupported type '{tensor.datatype.name}'")
    array = tensor.array
    per_row = batching and array.ndim > 0
    rows = array.shape[0] if per_row else 1
    width = array.size // rows if rows else 0
    if width > _MOST_ELEMENTS:
        raise invalid("classification output tensor too large")
    spell = _SPELL[tensor.datatype.json_kind]
    classes = np.empty((rows, min(count, width)), dtype=object)
    for row, values in enumerate(array.reshape(rows, width)):
        for place, index in enumerate(_best(values, count).tolist()):
            if not place & 0xFFF:
                yield_now()
            text = f"{spell(values[index])}:{index}"
            if index < len(labels) and labels[index]:
                text = f"{text}:{labels[index]}"
            classes[row, place] = text.encode(errors="surrogateescape")
    shape = classes.shape if per_row else classes.shape[1:]
    return Tensor(dtypes.BYTES, shape, None, classes.reshape(shape))


def _best(values: Array, count: int) -> Array:
    """Return the indices of the `count` highest of `values`, best first, equal ones in ascending order."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -np.inf, values)
    candidates = np.arange(len(values))
    if count < len(values):  # sort only what can be among them
        border = len(values) - count
        candidates = np.flatnonzero(values >= np.partition(values, border)[border])
    backwards = candidates[::-1]  # a stable ascending sort of these, read from its end, keeps equal ones in order
    best: Array = backwards[np.argsort(values[backwards], kind="stable")][::-1][:count]
    return best
