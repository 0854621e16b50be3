"""The output of ``modserve infer``: a response as text, JSON, or files."""

import base64
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modserve.client.input_values import Result
from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor

from ..syntax import UsageError
from ..terminal import duration

_MOST = 100
"""Elements of a tensor that are shown in full."""
_WIDTH = 96
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
ENDINGS = (".npy", ".npz", ".json", ".txt", ".bin", *_PICTURES)


def lines(result: Result, seconds: float) -> Iterator[str]:
    """Yield the response as text."""
    parts = [f"{result.model} version {_version(result)}", f"after {duration(seconds)}"]
    parts += [f"id {result.id}"] * bool(result.id)
    parts += [f"{name}={value}" for name, value in result.parameters.items()]
    yield ", ".join(parts)
    for name, tensor in result.tensors.items():
        yield f"{name}  {tensor.datatype} {list(tensor.shape)}"
        yield from (f"  {line}" for line in format_elements(tensor).splitlines())


def _version(result: Result) -> str:
    return "" if result.version is None else str(result.version)


def format_elements(tensor: Tensor) -> str:
    """Format the elements; the middle of many is left out."""
    array = tensor.array
    if not array.size:
        return "empty"
    if tensor.datatype is dtypes.BYTES:
        texts = [_text(each) for each in array.reshape(-1)[:_MOST]]
        more = array.size - len(texts)
        return "\n".join(texts + [f"… and {more} more"] * bool(more))
    with np.printoptions(threshold=_MOST, linewidth=_WIDTH, precision=6, suppress=True):
        return str(array)


def _text(element: bytes) -> str:
    try:
        text = element.decode()
    except UnicodeDecodeError:
        return repr(element)
    return text if text.isprintable() or text.replace("\n", "").isprintable() else repr(element)


def document(result: Result) -> dict[str, Any]:
    """Return the response as v2 JSON; bytes that are not text are ``{"b64": …}``."""
    return {
        "model_name": result.model,
        "model_version": _version(result),
        **({"id": result.id} if result.id else {}),
        **({"parameters": dict(result.parameters)} if result.parameters else {}),
        "outputs": [
            {"name": name, "datatype": tensor.datatype.name, "shape": list(tensor.shape), "data": _data(tensor)}
            for name, tensor in result.tensors.items()
        ],
    }


def _data(tensor: Tensor) -> list[Any]:
    flat = tensor.array.reshape(-1)
    if tensor.datatype is dtypes.BYTES:
        return [_json_text(each) for each in flat]
    if tensor.datatype.json_kind == "float":
        flat = flat.astype(np.float64) if tensor.datatype.size < 4 else flat
    values: list[Any] = flat.tolist()
    return values


def _json_text(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}


# Files


def targets(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """Read ``FILE`` and ``NAME=FILE``: the output, empty for all or the only one, and the file. Raises UsageError."""
    out = []
    for text in texts:
        name, equals, file = text.partition("=")
        path = Path(file if equals else text)
        if path.suffix.lower() not in ENDINGS:
            raise UsageError(f"option '--output': expected a file ending in {', '.join(ENDINGS)}, got: {path}")
        out.append((name if equals else "", path))
    return out


def write(result: Result, name: str, path: Path) -> str:
    """Write outputs to a file, and say so in a line. Raises INVALID_ARG."""
    ending = path.suffix.lower()
    outputs = dict(result.tensors)
    if name:
        if name not in outputs:
            raise invalid(f"option '--output': output '{name}' does not exist; the outputs are {', '.join(outputs)}")
        outputs = {name: outputs[name]}
    if ending == ".json":
        content = json.dumps(document(result), ensure_ascii=False).encode()
    elif ending == ".npz":
        content = _archive({each: _portable(tensor) for each, tensor in outputs.items()})
    elif len(outputs) != 1:
        raise invalid(
            f"option '--output': {path} takes one output; NAME=FILE says which of {', '.join(outputs)}, and an .npz "
            "file takes all"
        )
    else:
        content = _one(next(iter(outputs.values())), ending, path)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise invalid(f"option '--output': cannot write {path}: {error.strerror}") from None
    return f"wrote {', '.join(outputs)} to {path}"


def _archive(arrays: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _portable(tensor: Tensor) -> Array:
    """Return an array that numpy writes without objects: texts have a fixed length, BF16 becomes FP32."""
    if tensor.datatype is dtypes.BYTES:
        return tensor.array.astype(bytes)
    return tensor.array.astype(np.float32) if tensor.datatype is dtypes.BF16 else tensor.array


def _one(tensor: Tensor, ending: str, path: Path) -> bytes:
    if ending == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, _portable(tensor), allow_pickle=False)
        return buffer.getvalue()
    if tensor.datatype is dtypes.BYTES:
        separator = b"\n" if ending == ".txt" else b""
        return separator.join(tensor.array.reshape(-1))
    if ending == ".txt":
        with np.printoptions(threshold=2**62, linewidth=2**31):
            return f"{tensor.array}\n".encode()
    if ending == ".bin":
        return bytes(tensor.raw)
    return _picture(tensor, ending, path)


def _picture(tensor: Tensor, ending: str, path: Path) -> bytes:
    array = tensor.array
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise invalid(
            f"option '--output': {tensor.datatype} {list(tensor.shape)} cannot be written as a picture to {path}; "
            "pictures are UINT8 with height, width and channels"
        )
    try:
        from PIL import Image
    except ImportError:
        raise invalid(f"writing {path} needs Pillow: pip install pillow; .npy needs nothing") from None
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, {".png": "PNG", ".bmp": "BMP", ".webp": "WEBP"}.get(ending, "JPEG"))
    return buffer.getvalue()
