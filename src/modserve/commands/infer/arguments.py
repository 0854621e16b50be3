"""Conversion of ``modserve infer``'s arguments to tensors. An argument is a number, a list, JSON, text or a file."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Tensor
from modserve.settings.options import did_you_mean

Shape = tuple[int, ...]
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""File name extensions of pictures."""
_NUMBERS = "numbers such as 1, [1, 2, 3] or 1,2,3"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input from the model's metadata. The shape includes the batch dimension, if the model has one."""

    name: str
    datatype: Datatype
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} {list(self.shape)}"


DecodeImage = Callable[[str, bytes, InputSpec], Array]
"""Decodes a picture for an input. Takes the file's name and content. Raises INVALID_ARG."""


def tensors(words: Sequence[str], inputs: Sequence[InputSpec], decode_image: DecodeImage) -> dict[str, Tensor]:
    """Return the tensors of ``name=value`` arguments, by name. Several values of an input become rows of a batch.

    Raises INVALID_ARG. The message names the input, its value and the expected value.
    """
    by_name = {each.name: each for each in inputs}
    arrays: dict[str, list[Array]] = {}
    for word in words:
        for name, array in _read_argument(word, by_name, decode_image):
            arrays.setdefault(name, []).append(array)
    return {
        name: Tensor.from_array(_join_rows(by_name[name], rows), by_name[name].datatype)
        for name, rows in arrays.items()
    }


def _read_argument(word: str, inputs: Mapping[str, InputSpec], decode_image: DecodeImage) -> list[tuple[str, Array]]:
    name, equals, text = word.partition("=")
    if not equals or name not in inputs:
        if word.startswith("@") and word.lower().endswith(".npz"):
            return _read_archive(word[1:], inputs)
        if len(inputs) != 1 or (equals and name.isidentifier()):
            listed = "; ".join(map(str, inputs.values())) or "none"
            hint = did_you_mean(name, inputs) if equals else ", expected NAME=VALUE"
            raise invalid(f"'{word[:60]}' does not name an input of the model{hint}; its inputs are {listed}")
        name, text = next(iter(inputs)), word
    spec = inputs[name]
    if text.startswith("@") and not text.startswith("@@"):
        return [(name, from_file(text[1:], spec, decode_image))]
    return [(name, from_text(text.removeprefix("@") if text.startswith("@@") else text, spec))]


def _join_rows(spec: InputSpec, rows: list[Array]) -> Array:
    if len(rows) == 1:
        return rows[0]
    if not spec.shape or spec.shape[0] != -1:
        raise invalid(f"input '{spec}' takes one value: its first dimension is fixed")
    try:
        return np.concatenate(rows)
    except ValueError:
        shapes = ", ".join(str(list(row.shape)) for row in rows)
        raise invalid(f"the values of input '{spec}' do not form a batch: their shapes are {shapes}") from None


# Texts


def from_text(text: str, spec: InputSpec) -> Array:
    """Read an argument that is not a file. Raises INVALID_ARG."""
    if spec.datatype is dtypes.BYTES:
        value: Any = text
        if text[:1] in ("[", '"'):
            try:
                value = json.loads(text)
            except ValueError:
                value = text
        return fit(_encode_texts(value, spec), spec)
    try:
        value = json.loads(text if not _is_list(text) else f"[{text}]")
    except ValueError:
        raise invalid(f"input '{spec}': expected {_NUMBERS}, got: {text[:60]}") from None
    return fit(convert(_parse_numbers(value, spec), spec), spec)


def _is_list(text: str) -> bool:
    """True for a list without the outer brackets, such as ``1,2,3`` or ``[1,2],[3,4]``."""
    depth = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            return True
    return False


def _parse_numbers(value: Any, spec: InputSpec) -> Array:
    try:
        array = np.array(value)
    except ValueError:
        raise invalid(f"input '{spec}': the rows of the value have different lengths") from None
    if array.dtype.kind not in "biuf":
        raise invalid(f"input '{spec}': expected {_NUMBERS}, got: {json.dumps(value)[:60]}")
    return array


def _encode_texts(value: Any, spec: InputSpec) -> Array:
    try:
        shape = np.array(value).shape
    except ValueError:
        raise invalid(f"input '{spec}': the rows of the value have different lengths") from None
    array = np.empty(shape, object)
    flat = np.array(value, dtype=object).reshape(-1)
    for index, each in enumerate(flat):
        array.flat[index] = (each if isinstance(each, str) else json.dumps(each)).encode()
    return array


def convert(array: Array, spec: InputSpec) -> Array:
    """Convert an array to the input's datatype. Raises INVALID_ARG if that changes more than a float's precision."""
    datatype = spec.datatype
    if datatype is dtypes.BYTES:
        if array.dtype.kind not in "SUO":
            raise invalid(f"input '{spec}' takes texts, and the value has elements of type {array.dtype}")
        return array
    if array.dtype == datatype.numpy:
        return array
    if array.dtype.kind in "SUO" or dtypes.from_numpy(array.dtype) is None:
        raise invalid(f"input '{spec}' takes numbers, and the value has elements of type {array.dtype}")
    if datatype.json_kind == "float":
        return array.astype(datatype.numpy)
    with np.errstate(invalid="ignore"):
        converted = array.astype(datatype.numpy)
    if not np.array_equal(converted.astype(np.float64), array.astype(np.float64)):
        if datatype is dtypes.BOOL:
            raise invalid(f"input '{spec}' takes true and false, or 1 and 0")
        limits = np.iinfo(datatype.numpy)
        raise invalid(f"input '{spec}' takes whole numbers from {limits.min} to {limits.max}")
    return converted


def fit(array: Array, spec: InputSpec) -> Array:
    """Return an array with the input's shape, or raise INVALID_ARG.

    If the shapes differ, an array gets leading dimensions of 1, a flat list is reshaped, or one number is repeated.
    """
    dims = spec.shape
    if _matches(array.shape, dims):
        return array
    missing = len(dims) - array.ndim
    if missing > 0 and all(size in (-1, 1) for size in dims[:missing]) and _matches(array.shape, dims[missing:]):
        return array.reshape((1,) * missing + array.shape)
    fixed = math.prod(size for size in dims if size >= 0)
    if array.ndim == 0 and (spec.datatype is not dtypes.BYTES or fixed == 1):
        return np.broadcast_to(array, tuple(max(1, size) if size < 0 else size for size in dims)).copy()
    if array.ndim == 1 and dims.count(-1) <= 1 and fixed and array.size and array.size % fixed == 0:
        reshaped = tuple(array.size // fixed if size < 0 else size for size in dims)
        if math.prod(reshaped) == array.size:
            return array.reshape(reshaped)
    raise invalid(f"input '{spec}': the value has shape {list(array.shape)}; {_describe_expected(dims)}")


def _describe_expected(dims: Shape) -> str:
    rest = dims[1:] if dims[:1] == (-1,) else dims
    if -1 in rest:
        return f"expected {len(dims)} dimensions, where -1 is any size"
    return (
        f"expected {math.prod(rest)} elements{' for each row' if rest != dims else ''}, or one number for all of them"
    )


def _matches(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(size in (-1, own) for own, size in zip(shape, dims, strict=True))


# Files


def from_file(file: str, spec: InputSpec, decode_image: DecodeImage) -> Array:
    """Read a value from a file. The file name extension is the format. Raises INVALID_ARG."""
    content = _read_bytes(file)
    ending = Path(file).suffix.lower()
    if ending == ".npy":
        return fit(convert(_load_numpy(file, content), spec), spec)
    if ending == ".npz":
        arrays = _load_numpy(file, content)
        if spec.name not in arrays and len(arrays) != 1:
            raise invalid(f"{file} has no array '{spec.name}', but {', '.join(arrays)}")
        return fit(convert(arrays.get(spec.name, next(iter(arrays.values()))), spec), spec)
    if ending == ".json":
        return from_text(_decode_text(file, content), spec)
    if ending in IMAGES and spec.datatype is not dtypes.BYTES:
        return decode_image(file, content, spec)
    if spec.datatype is dtypes.BYTES:
        element = np.empty((), object)
        element[()] = content.removesuffix(b"\n") if ending == ".txt" else content
        return fit(element, spec)
    if ending in (".txt", ".csv"):
        return fit(convert(_read_table(file, _decode_text(file, content)), spec), spec)
    if ending in (".bin", ".raw") and len(content) % spec.datatype.size == 0:
        return fit(np.frombuffer(content, spec.datatype.numpy), spec)
    raise invalid(
        f"{file} is not a file for input '{spec}': expected .npy, .npz, .json, .txt or .csv with numbers, .bin "
        f"with {spec.datatype.size}-byte elements, or a picture ({' '.join(IMAGES)})"
    )


def _read_archive(file: str, inputs: Mapping[str, InputSpec]) -> list[tuple[str, Array]]:
    """Return the names and values of the inputs in an .npz file."""
    arrays = _load_numpy(file, _read_bytes(file))
    if others := [name for name in arrays if name not in inputs]:
        listed = "; ".join(map(str, inputs.values()))
        raise invalid(f"{file} has an array '{others[0]}', which is not an input; the inputs are {listed}")
    return [(name, fit(convert(array, inputs[name]), inputs[name])) for name, array in arrays.items()]


def _read_bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise invalid(f"cannot read {file}: {error.strerror}; write @@ for a text that begins with @") from None


def _decode_text(file: str, content: bytes) -> str:
    try:
        return content.decode().strip()
    except UnicodeDecodeError as error:
        raise invalid(f"{file} is not UTF-8 text: {error}") from None


def _load_numpy(file: str, content: bytes) -> Any:
    """Read an array, or arrays by name. Refuses files with Python objects, which may run code."""
    try:
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise invalid(f"{file} is not a numpy file, or contains Python objects: {error}") from None


def _read_table(file: str, text: str) -> Array:
    """Read a table of numbers. A first row without numbers is skipped. A single row or column is a flat list."""
    rows = [line.replace(",", " ").replace(";", " ").split() for line in text.splitlines() if line.strip()]
    if len(rows) > 1 and not any(map(_is_number, rows[0])):  # column names
        del rows[0]
    try:
        array = np.array([[float(cell) for cell in row] for row in rows])
    except ValueError as error:
        raise invalid(f"{file} is not a table of numbers: {error}") from None
    return array[0] if len(rows) == 1 else array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def sample(spec: InputSpec, model: str, shape: Shape | None = None) -> Tensor:
    """Return generated data that most models accept. `shape` may omit the batch dimension. Raises INVALID_ARG."""
    from modserve.core.tensors.sample_data import Sizes, generator, likely

    dims = spec.shape[1:] if spec.shape[:1] == (-1,) else spec.shape
    if shape is None:
        shape = Sizes("", model).resolve(spec.name, dims)
    full_shape = (1, *shape) if len(shape) < len(spec.shape) else shape
    if len(full_shape) != len(spec.shape) or any(
        size not in (-1, ours) for size, ours in zip(spec.shape, full_shape, strict=True)
    ):
        raise invalid(f"option '--shape': input '{spec.name}' has shape {list(spec.shape)}, got {list(shape)}")
    return Tensor.from_array(
        likely(spec.name, spec.datatype, full_shape, generator(), full_shape[-1] if full_shape else 1), spec.datatype
    )


def remark_on_sizes(samples: Mapping[str, Tensor], inputs: Sequence[InputSpec]) -> str:
    """Return a note about generated sizes and the option that sets them; empty without variable dimensions."""
    made_up = []
    for spec in inputs:
        dims = spec.shape[1:] if spec.shape[:1] == (-1,) else spec.shape
        if spec.name in samples and -1 in dims:
            shape = samples[spec.name].shape[len(spec.shape) - len(dims) :]
            made_up.append((spec, ",".join(map(str, shape))))
    if not made_up:
        return ""
    listed = " and ".join(f"'{spec.name}' {list(spec.shape)}" for spec, _ in made_up)
    shapes = " ".join(f"--shape {spec.name}:{sizes}" for spec, sizes in made_up)
    return f"the variable sizes of {listed} are made up; set them with {shapes}"


def parameter(text: str) -> tuple[str, bool | int | float | str]:
    """Parse ``NAME=VALUE``. true, false and numbers are read as in JSON, other values as text. Raises INVALID_ARG."""
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise invalid(f"option '--parameter': expected NAME=VALUE, got: {text}")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    return name, parsed if isinstance(parsed, bool | int | float | str) else value
