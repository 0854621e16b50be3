"""The files next to a text model, read with care: they may be missing, broken, or not what they should be."""

import json
from pathlib import Path
from typing import Any

from modserve.core.errors import ModserveError, internal
from modserve.core.files import regular_file

_MOST_BYTES = 64 * 1024 * 1024
"""Limit of a file that is read as a whole. Tokenizers of 250,000 words have 17 MB."""


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the object in a file; None if there is no such file. Raises INTERNAL with what is wrong with it."""
    value = _read(folder / name)
    if value is None or isinstance(value, dict):
        return value
    raise broken(folder / name, f"expected an object, not {_kind(value)}")


def read_json_list(folder: Path, name: str) -> list[dict[str, Any]] | None:
    """Read a list of objects, like `read_json`."""
    value = _read(folder / name)
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return value
    raise broken(folder / name, f"expected a list of objects, not {_kind(value)}")


def read_bytes(path: Path) -> bytes | None:
    """Return the content; None if there is no such file. Raises INTERNAL."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise broken(path, f"it has more than {_MOST_BYTES} bytes")
        return regular_file.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise broken(path, error.strerror or str(error)) from error


def broken(path: Path, why: str) -> ModserveError:
    """INTERNAL: a file of the model cannot be used. Names the file, not where the server keeps it."""
    return internal(f"'{path.name}' of the model cannot be used: {why}")


def field(content: dict[str, Any], name: str, kind: type | tuple[type, ...], path: Path) -> Any:
    """Return a member of an object; None if it is absent or null. Raises INTERNAL for one of another type."""
    value = content.get(name)
    if value is None or (isinstance(value, kind) and not (isinstance(value, bool) and kind is int)):
        return value
    raise broken(path, f"'{name}' is {_kind(value)}")


def _read(path: Path) -> Any:
    content = read_bytes(path)
    if content is None:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise broken(path, f"it is not JSON ({error})") from error


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
