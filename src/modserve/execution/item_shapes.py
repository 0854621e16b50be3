"""Notices that an output's other dimensions depend on what shared its batch, in models that batch unasked."""

from collections.abc import Sequence
from typing import Final

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Shape

_MOST: Final = 256
"""Of the shapes of requests whose outputs' shapes are remembered."""


class UnprovenError(ModserveError):
    """A batch may have mixed its requests: what each of them gives on its own will show it."""


class ItemShapes:
    """What the outputs' variable dimensions were, by the shape of a request.

    Rows that know nothing of each other give the same dimensions in any company. Those that change with it are refused,
    and so is, as long as nothing is known of it, a dimension as large as the batch.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._names = [spec.name for spec in config.outputs if -1 in spec.dims]
        self._known: dict[object, dict[str, Shape]] = {}

    def look(self, responses: Sequence[InferenceResponse], members: Sequence[Inflight]) -> None:
        """Remember the shapes of an execution. Of several requests: raises INTERNAL if others were known, and
        `UnprovenError` if none were and these may come of the batch."""
        if not self._names:
            return
        rows = sum([inflight.batch_size for inflight in members])
        key = members[0].shape_key
        known = self._known.get(key)
        if known is None:
            known = {}
        shapes: dict[str, Shape] = {}
        for response in responses:
            for name in self._names:
                if name in response.outputs:
                    shapes[name] = response.outputs[name].shape[1:]
        if len(members) > 1:
            for name, shape in shapes.items():
                self._check(name, shape, known.get(name), rows)
        if len(self._known) >= _MOST and key not in self._known:
            self._known.clear()
        self._known[key] = {**known, **shapes}

    def _check(self, name: str, shape: Shape, before: Shape | None, rows: int) -> None:
        if (before is None and rows not in shape) or before == shape:
            return
        what = f"output '{name}' of model '{self._model}' has rows of shape {list(shape)} in a batch of {rows} rows"
        if before is None:
            raise UnprovenError(Code.INTERNAL, f"{what}, which may come of the batch")
        raise internal(f"{what}, but of {list(before)} for other requests of the same shape")
