"""Merges inputs directly into memory that the engine has allocated."""

from collections.abc import Mapping, Sequence

import numpy as np

from modserve.backends.api import Allocate
from modserve.core.errors import internal
from modserve.core.requests.inflight import Inflight
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, format_shape

from .batch import join


class EngineMemory:
    """The memory that an engine offers by its `allocate`, checked before anything is written to it."""

    def __init__(self, allocate: Allocate, model: str) -> None:
        self._allocate = allocate
        self._model = model

    def merge(self, members: Sequence[Inflight]) -> dict[str, Array]:
        """Merge the inputs as `batch.merge` does. Raises INTERNAL if the engine offers memory that cannot be used."""
        inputs: dict[str, Array] = {}
        for name, first in members[0].inputs.items():
            tensors = [inflight.inputs[name] for inflight in members]
            shape = first.shape if len(tensors) == 1 else (sum([each.shape[0] for each in tensors]), *first.shape[1:])
            target = self._target(name, first.datatype, shape)
            if target is None:
                inputs[name] = join(tensors)
                continue
            np.concatenate(
                [np.frombuffer(each.raw, np.uint8) for each in tensors], out=target.reshape(-1).view(np.uint8)
            )
            inputs[name] = target
        return inputs

    def move(self, merged: Mapping[str, Array]) -> dict[str, Array]:
        """Copy inputs that were merged elsewhere. Raises as `merge`."""
        inputs = dict(merged)
        for name, array in merged.items():
            datatype = dtypes.from_numpy(array.dtype)
            target = None if datatype is None else self._target(name, datatype, array.shape)
            if target is not None:
                np.copyto(target, array)
                inputs[name] = target
        return inputs

    def _target(self, name: str, datatype: Datatype, shape: Shape) -> Array | None:
        if not datatype.size:
            return None
        target: object = self._allocate(name, datatype, shape)
        if target is None:
            return None
        if not isinstance(target, np.ndarray):
            problem = f"it is an object of type {type(target).__name__}, expected an array"
        elif target.dtype != datatype.numpy:
            problem = f"its type is {target.dtype}, expected {datatype.numpy}"
        elif target.shape != shape:
            problem = f"its shape is {format_shape(target.shape)}, expected {format_shape(shape)}"
        elif not target.flags.writeable:
            problem = "it is read-only"
        elif not target.flags.c_contiguous:
            problem = "it is not contiguous in row-major order"
        else:
            return target
        raise internal(
            f"the memory that the engine of model '{self._model}' allocated for input '{name}' cannot be used: "
            f"{problem}"
        )
