"""Conversion between arrays and PyTorch tensors, sharing memory where that is safe."""

import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array

from ..tensors import object_array, texts_of

_QUIET = threading.Lock()


@contextmanager
def quiet() -> Any:
    """Suppress warnings: PyTorch reports TorchScript as deprecated at each load."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    # Triggers PyTorch's one-time warning about read-only arrays, which this module handles itself.
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))

TORCH_TYPES: dict[Datatype, Any] = {
    datatype: getattr(torch, datatype.numpy.name)  # PyTorch uses NumPy's type names
    for datatype in dtypes.BY_NAME.values()
    if datatype is not dtypes.BYTES
}
DATATYPES = {torch_type: datatype for datatype, torch_type in TORCH_TYPES.items()}


def to_tensor(array: Array) -> Any:
    """Return a tensor over the array's memory, which must stay unchanged; over a copy unless in row-major order."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C")
    if array.dtype == dtypes.BF16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def input_converter(
    name: str, datatype: Datatype, kind: str, *, copies: bool, cast: Any = None, device: Any = None
) -> Callable[[Array], object]:
    """Return a converter for an input of the model. `kind` is the argument's kind, empty if unknown.

    `copies`: the model writes into its inputs. `cast` is the type for floating-point tensors. Both this function and
    the converter raise INVALID_ARG.
    """
    if datatype is dtypes.BYTES:
        if kind not in ("strings", "string", ""):
            raise invalid(f"input '{name}' is TYPE_STRING, but the model takes a tensor")
        return partial(_single_string if kind == "string" else _strings, name)
    if kind in ("strings", "string"):
        raise invalid(f"input '{name}' is {datatype.config_name}, but the model takes strings: use TYPE_STRING")
    if kind == "number":
        return _number

    def convert(array: Array) -> object:
        tensor = to_tensor(array)
        owned = False
        if cast is not None and tensor.is_floating_point() and tensor.dtype != cast:
            tensor, owned = tensor.to(cast), True
        if device is not None:
            tensor, owned = tensor.to(device, non_blocking=True), True
        return tensor.clone() if copies and not owned else tensor

    if not copies and cast is None and device is None:
        return to_tensor
    return convert


def _strings(name: str, array: Array) -> list[str]:
    if array.ndim > 1:
        raise invalid(
            f"PyTorch takes strings as a list, but these have the shape {list(array.shape)}: use dims: [ -1 ], or with "
            "max_batch_size above 0 dims: [ 1 ] reshape: { shape: [ ] }"
        )
    return texts_of(name, array)


def _single_string(name: str, array: Array) -> str:
    if array.size != 1:
        raise invalid(f"the model takes one string, but the input has {array.size}")
    return texts_of(name, array)[0]


def _number(array: Array) -> bool | int | float:
    if array.size != 1:
        raise invalid(f"the model takes one number, but the input has {array.size} elements")
    number: bool | int | float = array.item()
    return number


_COUNTS = hasattr(torch.Tensor, "_use_count") and hasattr(torch._C, "_storage_Use_Count")
"""True if this PyTorch exposes reference counts of tensors, through private functions."""


def is_shared(tensor: Any) -> bool:
    """Return whether the model, another output or a constant also references the tensor or its memory.

    The fresh result of an operator is referenced only by the Python object, and its memory only by the tensor (and by
    the view made here). This saves a copy, 0.4 ms for 1 MB (benchmarks/engine_shortcuts.py).
    """
    if not _COUNTS:
        return True
    shared: bool = tensor._use_count() > 1 or torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > 2
    return shared


def to_array(value: Any, datatype: Datatype, *, copies: bool, casts: bool) -> Array:
    """Return an output as an array with memory that is not written to any more.

    `copies`: the model may keep references to its results that cannot be detected here. `casts`: the server changed the
    precision, so the result is converted to the configured type.
    """
    if not isinstance(value, torch.Tensor):
        return _to_array(value, datatype)
    tensor = value
    owned = not copies and not is_shared(tensor)
    if tensor.layout is not torch.strided:
        tensor, owned = tensor.to_dense(), True
    if tensor.device.type != "cpu":
        tensor, owned = tensor.cpu(), True
    if tensor.requires_grad:
        tensor = tensor.detach()
    expected = TORCH_TYPES.get(datatype)
    if casts and tensor.dtype != expected and tensor.is_floating_point() and expected is not None:
        tensor, owned = tensor.to(expected), True
    if tensor.is_neg() or not tensor.is_contiguous():
        tensor, owned = tensor.resolve_neg().contiguous(), True
    if not owned:
        tensor = tensor.clone()
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy().view(dtypes.BF16.numpy)
    else:
        array = tensor.numpy()
    return array


def _to_array(value: object, datatype: Datatype) -> Array:
    """Convert strings, and a number to an array of one element."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and (datatype is dtypes.BYTES or value):
        return object_array([str(element).encode() for element in value], (len(value),))
    if isinstance(value, list):
        return np.empty(0, datatype.numpy)
    if isinstance(value, bool | int | float) and datatype is not dtypes.BYTES:
        return np.array([value], datatype.numpy)
    raise TypeError(f"the model returned a {type(value).__name__}, expected a tensor")
