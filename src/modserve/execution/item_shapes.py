"""Detects batches that change the shape of their rows, for models that batch without being configured to."""

from collections.abc import Sequence
from typing import Final

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Shape

_MOST: Final = 256
"""Most request shapes with cached output shapes."""


class UnprovenError(ModserveError):
    """The requests of a batch have to run alone once, to see whether the batch changed their outputs."""


class ItemShapes:
    """Output shapes without the batch dimension, by the shape of the request.

    Independent rows have the same shape in every batch. A batch with another shape than before is an error, and so is
    the first one in which a dimension equals the number of rows, until the requests have run alone.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._names = [spec.name for spec in config.outputs if -1 in spec.dims]
        self._known: dict[object, dict[str, Shape]] = {}

    def check(self, responses: Sequence[InferenceResponse], members: Sequence[Inflight]) -> None:
        """Compare an execution with those before. Raises INTERNAL for a batch that differs, `UnprovenError` for one
        that may. An execution of one request is only remembered."""
        if not self._names:
            return
        shapes = {
            name: response.outputs[name].shape[1:]
            for response in responses
            for name in self._names
            if name in response.outputs
        }
        key = members[0].shape_key
        known = self._known.get(key, {})
        if known == shapes:
            return
        if len(members) > 1:
            rows = sum([inflight.batch_size for inflight in members])
            for name, shape in shapes.items():
                self._check(name, shape, known.get(name), rows)
        if len(self._known) >= _MOST and key not in self._known:
            self._known.clear()
        self._known[key] = {**known, **shapes}

    def _check(self, name: str, shape: Shape, before: Shape | None, rows: int) -> None:
        if before == shape or (before is None and rows not in shape):
            return
        what = f"output '{name}' of model '{self._model}' has rows of shape {list(shape)} in a batch of {rows} rows"
        if before is None:
            raise UnprovenError(Code.INTERNAL, f"{what}, possibly because of the batch")
        raise internal(f"{what}, but of {list(before)} for other requests of the same shape")
