"""Sample data in place of real requests: zeros, random values, files, and what most models take."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modserve.core.files import regular_file

from ..errors import invalid
from . import dtypes
from .dtypes import Datatype
from .tensor import Array, Shape, Tensor, TruncatedError

if TYPE_CHECKING:
    from numpy.random import Generator  # 2.6 MB, which most servers do without

_SIZE = 64
_IMAGE_SIZE = 224
_CHANNELS = (1, 3, 4)
_IDS = 100
"""Upper limit of token ids, within every vocabulary."""
_LONGEST_TEXT = 16
_LARGEST_FILE = 1 << 30


class Sizes:
    """Sizes for variable dimensions: ``sample_shape``, or by default 224 for pictures and 64 for all else.

    The text has ``128`` or ``3x480x640`` for all inputs with this number of dimensions, or ``name:`` before it for one,
    with ``;`` between several. The batch dimension is left out.
    """

    def __init__(self, text: str, model: str) -> None:
        self._model = model
        self._by_name: dict[str, Shape] = {}
        for part in filter(None, (part.strip() for part in text.split(";"))):
            name, _, dims = part.rpartition(":")
            if not re.fullmatch(r"[1-9][0-9]{0,8}( *x *[1-9][0-9]{0,8})*", dims.strip()):
                raise invalid(
                    f"model '{model}': sample_shape is '{text}', expected a value like '128', '3x480x640' or "
                    "'input_ids:128; pixels:3x480x640'"
                )
            self._by_name[name.strip()] = tuple(int(size) for size in dims.split("x"))

    def resolve(self, name: str, dims: Shape) -> Shape:
        """Replace each -1 in the dimensions by a size. Raises INVALID_ARG if a shape for `name` does not fit."""
        variable = [index for index, size in enumerate(dims) if size < 0]
        if not variable:
            return tuple(dims)
        explicit = self._by_name.get(name)
        shape = self._by_name.get("", ()) if explicit is None else explicit
        if len(shape) == len(dims) and all(size in (-1, ours) for size, ours in zip(dims, shape, strict=True)):
            return shape
        if len(shape) == 1:
            return tuple(shape[0] if size < 0 else size for size in dims)
        if explicit is not None:
            given_dims = "x".join(map(str, explicit))
            raise invalid(
                f"model '{self._model}': sample_shape is {given_dims} for '{name}', whose dims are {list(dims)}"
            )
        is_image = len(variable) == 2 and any(size in _CHANNELS for size in dims)
        return tuple((_IMAGE_SIZE if is_image else _SIZE) if size < 0 else size for size in dims)


def generator() -> "Generator":
    """Return a generator that is always the same, so that failures with random data are reproducible."""
    return np.random.default_rng(0)


def likely(name: str, datatype: Datatype, shape: Shape, random: "Generator", length: int) -> Array:
    """Return data that most models take: token ids within every vocabulary, masks that hide nothing."""
    lower = name.lower()
    if datatype is dtypes.BYTES:
        return _texts(b"a short text", shape)
    if datatype.json_kind == "float":
        made: Array = random.standard_normal(shape).astype(datatype.numpy)
        return made
    if datatype is dtypes.BOOL or "mask" in lower:
        return np.ones(shape, datatype.numpy)
    if "type" in lower or "segment" in lower:
        return zeros(datatype, shape)
    if "len" in lower:
        return np.full(shape, length, datatype.numpy)
    return _integers(datatype, shape, random)


def zeros(datatype: Datatype, shape: Shape) -> Array:
    """Return zeros, False, or empty strings."""
    return _texts(b"", shape) if datatype is dtypes.BYTES else np.zeros(shape, datatype.numpy)


def random_values(datatype: Datatype, shape: Shape, random: "Generator") -> Array:
    """Return normal numbers, integers below 100 (UINT8: any), either truth value, or words of 1 to 16 small letters.

    Triton fills the memory with random bytes, which as floating point are huge, or no number at all.
    """
    if datatype is dtypes.BYTES:
        array = np.empty(shape, dtype=object)
        for index in range(array.size):
            letters = random.integers(ord("a"), ord("z") + 1, random.integers(1, _LONGEST_TEXT + 1))
            array.flat[index] = letters.astype(np.uint8).tobytes()
        return array
    if datatype is dtypes.BOOL:
        truths: Array = random.integers(0, 2, shape).astype(datatype.numpy)
        return truths
    if datatype.json_kind == "float":
        normal: Array = random.standard_normal(shape).astype(datatype.numpy)
        return normal
    return _integers(datatype, shape, random)


def file_size_fault(path: Path, datatype: Datatype, dims: Shape) -> str:
    """Return the fault of a file of raw elements, as in a request, for one row of these dims; empty if none."""
    if not path.exists():
        return f"there is no file '{path}'"
    if not path.is_file():  # a pipe would never end
        return f"'{path}' is not a file"
    size = path.stat().st_size
    if size > _LARGEST_FILE:
        return f"'{path}' has {size} bytes, at most {_LARGEST_FILE} are read"
    count = math.prod(dims)
    if datatype.size and size < count * datatype.size:
        return (
            f"'{path}' has {size} bytes, but dims {list(dims)} of {datatype.config_name} take "
            f"{count * datatype.size}: {count} elements of {datatype.size} bytes"
        )
    return ""


def file_tensor(path: Path, datatype: Datatype, dims: Shape) -> Tensor:
    """Read one row of elements from a file. Excess bytes are ignored, as by Triton.

    BYTES are strings, each preceded by its length in 4 bytes, little-endian. Raises INVALID_ARG.
    """
    if fault := file_size_fault(path, datatype, dims):
        raise invalid(fault)
    try:
        content = regular_file.read_bytes(path)
    except OSError as error:
        raise invalid(f"cannot read '{path}': {error.strerror}") from None
    count = math.prod(dims)
    if datatype.size:
        return Tensor.from_raw(datatype, dims, content[: count * datatype.size])
    tensor = Tensor.from_raw(datatype, dims, content)
    layout = "each preceded by its length in 4 bytes, little-endian"
    try:
        elements = tensor.count_elements()
    except TruncatedError as error:
        raise invalid(
            f"'{path}' ends within a string, after {error.complete} of them; expected {count}, {layout}"
        ) from None
    if elements != count:
        raise invalid(f"'{path}' has {elements} strings, but dims {list(dims)} take {count}, {layout}")
    return tensor


def _integers(datatype: Datatype, shape: Shape, random: "Generator") -> Array:
    most = 256 if datatype is dtypes.UINT8 else _IDS
    integers: Array = random.integers(0, most, shape).astype(datatype.numpy)
    return integers


def _texts(text: bytes, shape: Shape) -> Array:
    array = np.empty(shape, dtype=object)
    array[...] = text
    return array
