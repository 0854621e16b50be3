"""Conversion of ``modserve infer``'s arguments to tensors: numbers, lists, JSON, texts and files."""

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
"""The endings of pictures."""
_NUMBERS = "numbers such as 1, [1, 2, 3] or 1,2,3"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input as the metadata has it: with the dimension of the batch, where the model has one."""

    name: str
    datatype: Datatype
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} {list(self.shape)}"


DecodeImage = Callable[[str, bytes, InputSpec], Array]
"""The elements of a picture in a file for an input; the text is the file's name. Raises INVALID_ARG."""


def tensors(words: Sequence[str], inputs: Sequence[InputSpec], decode_image: DecodeImage) -> dict[str, Tensor]:
    """Return the tensors of ``name=value`` words; values of the same name become rows of one batch.

    Raises INVALID_ARG, with the input, its value, and the expected one.
    """
    by_name = {each.name: each for each in inputs}
    arrays: dict[str, list[Array]] = {}
    for word in words:
        for name, array in _read(word, by_name, decode_image):
            arrays.setdefault(name, []).append(array)
    return {
        name: Tensor.from_array(_join_rows(by_name[name], rows), by_name[name].datatype)
        for name, rows in arrays.items()
    }


def _read(word: str, inputs: Mapping[str, InputSpec], decode_image: DecodeImage) -> list[tuple[str, Array]]:
    name, equals, text = word.partition("=")
    if not equals or name not in inputs:
        if word.startswith("@") and word.lower().endswith(".npz"):
            return _archive(word[1:], inputs)
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
    """Read a value of the command line. Raises INVALID_ARG."""
    if spec.datatype is dtypes.BYTES:
        value: Any = text
        if text[:1] in ("[", '"'):
            try:
                value = json.loads(text)
            except ValueError:
                value = text
        return fit(_texts(value, spec), spec)
    try:
        value = json.loads(text if not _is_list(text) else f"[{text}]")
    except ValueError:
        raise invalid(f"input '{spec}': expected {_NUMBERS}, got: {text[:60]}") from None
    return fit(convert(_numbers(value, spec), spec), spec)


def _is_list(text: str) -> bool:
    """Return True for ``1,2,3`` or rows of it: JSON without the outer brackets."""
    depth = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            return True
    return False


def _numbers(value: Any, spec: InputSpec) -> Array:
    try:
        array = np.array(value)
    except ValueError:
        raise invalid(f"input '{spec}': the rows of the value have different lengths") from None
    if array.dtype.kind not in "biuf":
        raise invalid(f"input '{spec}': expected {_NUMBERS}, got: {json.dumps(value)[:60]}")
    return array


def _texts(value: Any, spec: InputSpec) -> Array:
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
    """Convert an array to the input's datatype if only precision is lost. Raises INVALID_ARG."""
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
        made = array.astype(datatype.numpy)
    if not np.array_equal(made.astype(np.float64), array.astype(np.float64)):
        if datatype is dtypes.BOOL:
            raise invalid(f"input '{spec}' takes true and false, or 1 and 0")
        limits = np.iinfo(datatype.numpy)
        raise invalid(f"input '{spec}' takes whole numbers from {limits.min} to {limits.max}")
    return made


def fit(array: Array, spec: InputSpec) -> Array:
    """Fit an array to the input's shape: as is, with leading dimensions of 1, a list folded, or one number repeated.

    Raises INVALID_ARG for what fits in none of these ways.
    """
    dims = spec.shape
    if _matches(array.shape, dims):
        return array
    before = len(dims) - array.ndim
    if before > 0 and all(size in (-1, 1) for size in dims[:before]) and _matches(array.shape, dims[before:]):
        return array.reshape((1,) * before + array.shape)
    fixed = math.prod(size for size in dims if size >= 0)
    if array.ndim == 0 and (spec.datatype is not dtypes.BYTES or fixed == 1):
        return np.broadcast_to(array, tuple(max(1, size) if size < 0 else size for size in dims)).copy()
    if array.ndim == 1 and dims.count(-1) <= 1 and fixed and array.size and array.size % fixed == 0:
        folded = tuple(array.size // fixed if size < 0 else size for size in dims)
        if math.prod(folded) == array.size:
            return array.reshape(folded)
    raise invalid(f"input '{spec}': the value has shape {list(array.shape)}; {_describe_expected(dims)}")


def _describe_expected(dims: Shape) -> str:
    rest = dims[1:] if dims[:1] == (-1,) else dims
    if -1 in rest:
        return f"expected {len(dims)} dimensions, of which -1 has any size"
    return (
        f"expected {math.prod(rest)} elements{' for each row' if rest != dims else ''}, or one number for all of them"
    )


def _matches(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(size in (-1, own) for own, size in zip(shape, dims, strict=True))


# Files


def from_file(file: str, spec: InputSpec, decode_image: DecodeImage) -> Array:
    """Read the value in a file, by its ending. Raises INVALID_ARG."""
    content = _content(file)
    ending = Path(file).suffix.lower()
    if ending == ".npy":
        return fit(convert(_numpy(file, content), spec), spec)
    if ending == ".npz":
        arrays = _numpy(file, content)
        if spec.name not in arrays and len(arrays) != 1:
            raise invalid(f"{file} has no array '{spec.name}', but {', '.join(arrays)}")
        return fit(convert(arrays.get(spec.name, next(iter(arrays.values()))), spec), spec)
    if ending == ".json":
        return from_text(_text(file, content), spec)
    if ending in IMAGES and spec.datatype is not dtypes.BYTES:
        return decode_image(file, content, spec)
    if spec.datatype is dtypes.BYTES:
        made = np.empty((), object)
        made[()] = content.removesuffix(b"\n") if ending == ".txt" else content
        return fit(made, spec)
    if ending in (".txt", ".csv"):
        return fit(convert(_columns(file, _text(file, content)), spec), spec)
    if ending in (".bin", ".raw") and len(content) % spec.datatype.size == 0:
        return fit(np.frombuffer(content, spec.datatype.numpy), spec)
    raise invalid(
        f"{file} cannot be a value of input '{spec}'; read are .npy, .npz, .json, .txt and .csv with numbers, .bin "
        f"with {spec.datatype.size}-byte elements, and pictures ({' '.join(IMAGES)})"
    )


def _archive(file: str, inputs: Mapping[str, InputSpec]) -> list[tuple[str, Array]]:
    """Return the inputs of an .npz file, by name."""
    arrays = _numpy(file, _content(file))
    if others := [name for name in arrays if name not in inputs]:
        listed = "; ".join(map(str, inputs.values()))
        raise invalid(f"{file} has an array '{others[0]}', which is not an input; the inputs are {listed}")
    return [(name, fit(convert(array, inputs[name]), inputs[name])) for name, array in arrays.items()]


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise invalid(f"cannot read {file}: {error.strerror}; a text that begins with @ is written @@") from None


def _text(file: str, content: bytes) -> str:
    try:
        return content.decode().strip()
    except UnicodeDecodeError as error:
        raise invalid(f"{file} is not UTF-8 text: {error}") from None


def _numpy(file: str, content: bytes) -> Any:
    """Read an array, or arrays by name. Files with objects are refused: they may run code."""
    try:
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise invalid(f"{file} is not a numpy file without objects: {error}") from None


def _columns(file: str, text: str) -> Array:
    rows = [line.replace(",", " ").replace(";", " ").split() for line in text.splitlines() if line.strip()]
    if len(rows) > 1 and not any(map(_is_number, rows[0])):  # the names of the columns
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
    """Return made-up data that most models take. `shape` may leave out the batch. Raises INVALID_ARG."""
    from modserve.core.tensors.sample_data import Sizes, generator, likely

    dims = spec.shape[1:] if spec.shape[:1] == (-1,) else spec.shape
    if shape is None:
        shape = Sizes("", model).resolve(spec.name, dims)
    whole = (1, *shape) if len(shape) < len(spec.shape) else shape
    if len(whole) != len(spec.shape) or any(
        size not in (-1, ours) for size, ours in zip(spec.shape, whole, strict=True)
    ):
        raise invalid(f"option '--shape': input '{spec.name}' has shape {list(spec.shape)}, got {list(shape)}")
    return Tensor.from_array(
        likely(spec.name, spec.datatype, whole, generator(), whole[-1] if whole else 1), spec.datatype
    )


def remark_on_sizes(samples: Mapping[str, Tensor], inputs: Sequence[InputSpec]) -> str:
    """Say which sizes of samples are made up and which option sets them; empty without variable dimensions."""
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
    return f"the variable sizes of {listed} are made up; other ones: {shapes}"


def parameter(text: str) -> tuple[str, bool | int | float | str]:
    """Read ``NAME=VALUE``: true, false and numbers as in JSON, anything else as text. Raises INVALID_ARG."""
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise invalid(f"option '--parameter': expected NAME=VALUE, got: {text}")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    return name, parsed if isinstance(parsed, bool | int | float | str) else value
