"""Layers behind the pooling, as sentence-transformers keeps them: a folder such as ``2_Dense`` with ``config.json`` and
``model.safetensors``.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .files import broken, field, read_bytes, read_json
from .pooling import Vectors

WEIGHTS: Final = "model.safetensors"
_CONFIG: Final = "config.json"
_PICKLED: Final = "pytorch_model.bin"
_OF_TEXTS: Final = "sentence_embedding"


def _sigmoid(values: Vectors) -> Any:
    return 1.0 / (1.0 + np.exp(-values))


ACTIVATIONS: Final[Mapping[str, Callable[[Vectors], Any]]] = {
    "Identity": lambda values: values,
    "ReLU": lambda values: np.maximum(values, 0.0),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
}
"""Activation functions by the names of PyTorch's classes."""
_READERS: Final[Mapping[str, Callable[[bytes], NDArray[Any]]]] = {
    "F64": lambda data: np.frombuffer(data, "<f8"),
    "F32": lambda data: np.frombuffer(data, "<f4"),
    "F16": lambda data: np.frombuffer(data, "<f2"),
    "BF16": lambda data: (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32),
}
"""Decoders by the names of datatypes in safetensors."""


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """``activation(vector @ weight + bias)``. FP32: `weight` is [width before, width], `bias` [width] or 0."""

    weight: Vectors
    bias: Vectors | float
    activation: str
    """A name in `ACTIVATIONS`."""

    def apply(self, vector: Vectors) -> Vectors:
        """A new array."""
        values: Vectors = ACTIVATIONS[self.activation](vector @ self.weight + self.bias)
        return values


def read_layer(folder: Path) -> DenseLayer | str:
    """The layer in a folder of a model; as a text, why there is none to read. Raises INTERNAL for broken files."""
    path = folder / WEIGHTS
    content = read_bytes(path)
    if content is None:
        why = f"'{folder.name}' has no {WEIGHTS}"
        if (folder / _PICKLED).is_file():
            why += f", only {_PICKLED}, which is a program; sentence-transformers writes the other by model.save()"
        return why
    config = read_json(folder, _CONFIG) or {}
    source = config.get("module_input_name") or _OF_TEXTS
    if source != _OF_TEXTS:
        return f"'{folder.name}' is a layer for '{source}'; read are those for '{_OF_TEXTS}'"
    # Older files have no such field, and mean what sentence-transformers does then.
    activation = str(field(config, "activation_function", str, folder / _CONFIG) or "Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        return f"'{folder.name}' has the activation {activation}; known are {', '.join(ACTIVATIONS)}"
    tensors = read_tensors(content, path)
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(f"'{name}' {list(tensor.shape)}" for name, tensor in tensors.items())
        raise broken(path, f"expected 'linear.weight' and perhaps 'linear.bias', not {shapes}")
    return DenseLayer(np.ascontiguousarray(weight.T), 0.0 if bias is None else bias, activation)


def read_tensors(content: bytes, path: Path) -> dict[str, Vectors]:
    """Return the tensors of a file of safetensors, as FP32. Raises INTERNAL; `path` is for the message."""
    try:
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        data = content[8 + length :]
        tensors = {}
        for name, described in header.items():
            if name != "__metadata__":
                begin, end = described["data_offsets"]
                values = _READERS[described["dtype"]](data[begin:end])
                tensors[name] = values.astype(np.float32).reshape(described["shape"])
    except KeyError as error:
        raise broken(path, f"it has no {error}, or does not know it") from None
    except (struct.error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise broken(path, f"it is not a file of safetensors ({error})") from None
    return tensors
