"""The file in a model's directory that says which of its versions were rolled back: a restart keeps to it.

All servers of a repository read it, and one writes it: as a whole, so that nobody reads half of it.
"""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from modserve.core.errors import ModserveError
from modserve.core.files import regular_file
from modserve.core.version import RolledBack, parse_directory

FILE = "rolled_back.json"
_NEW = f".{FILE}."
"""Beginning of its name while it is written."""
_MOST_BYTES = 1024 * 1024
"""Polling reads the file again and again. A thousand versions with the longest reasons are less."""


def is_file(below: str) -> bool:
    """True if a path below the model's directory is that of this file, or of one that takes its place."""
    return below == FILE or below.startswith(_NEW)


def read(directory: Path) -> tuple[Mapping[int, RolledBack], str]:
    """Versions that were rolled back, and the reason for which the file is ignored if it is no such file."""
    path = directory / FILE
    try:
        with regular_file.open_regular(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        return _parsed(orjson.loads(content)), ""  # what it refuses could not be written into responses either
    except FileNotFoundError:
        return {}, ""
    except (OSError, ModserveError, ValueError) as error:
        return {}, f"'{path}' is ignored, and no version counts as rolled back: {error}"


def _parsed(document: object) -> Mapping[int, RolledBack]:
    if not isinstance(document, dict):
        raise ValueError("it is not an object of JSON")
    return {_version(name): _rolled_back(name, value) for name, value in document.items()}


def _version(name: str) -> int:
    version = parse_directory(name)
    if version is None:
        raise ValueError(f"'{name[:100]}' is no version, expected one such as 2")
    return version


def _rolled_back(name: str, value: Any) -> RolledBack:
    reason, at_ms = (value.get("reason"), value.get("at_ms")) if isinstance(value, dict) else (None, None)
    if not isinstance(reason, str) or type(at_ms) is not int:
        raise ValueError(f'version {name} has no {{"reason": "a text", "at_ms": a whole number}}')
    return RolledBack(reason, at_ms)


def write(directory: Path, version: int, rolled_back: RolledBack | None) -> None:
    """Say of one version that it was rolled back, or is no longer. Blocking. Raises OSError."""
    versions = {**read(directory)[0]}
    versions.pop(version, None)
    if rolled_back is not None:
        versions[version] = rolled_back
    if not versions:
        remove(directory)
        return
    document = {str(each): {"reason": of.reason, "at_ms": of.at_ms} for each, of in sorted(versions.items())}
    new = directory / f"{_NEW}{uuid.uuid4().hex}"
    try:
        with new.open("x") as file:  # which follows no link
            file.write(json.dumps(document, indent=2) + "\n")
        os.replace(new, directory / FILE)
    finally:
        new.unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Nothing is rolled back any more. Raises OSError."""
    (directory / FILE).unlink(missing_ok=True)
