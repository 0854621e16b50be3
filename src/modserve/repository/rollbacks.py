"""File in a model's directory with the versions that were rolled back: a restart keeps to it.

All servers of a repository read it, and one writes it: as a whole, so that no reader gets half of it.
"""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from modserve.core.errors import ModserveError
from modserve.core.files import regular_file
from modserve.core.loading import Listing
from modserve.core.version import RolledBack, parse_directory

FILE = "rolled_back.json"
_NEW = f".{FILE}."
"""Beginning of its name while it is written."""
MOST_BYTES = 1024 * 1024
"""Polling reads the file again and again. A thousand versions with the longest reasons are less."""

Rollbacks: TypeAlias = Mapping[int, RolledBack]
"""Rollbacks by version."""


def is_file(below: str) -> bool:
    """True if a path below the model's directory is that of this file, or of one that takes its place."""
    return below == FILE or below.startswith(_NEW)


def read(directory: Path) -> tuple[Rollbacks, str]:
    """Read the versions that were rolled back, and the reason if the file has to be ignored. Blocking."""
    path = directory / FILE
    try:
        with regular_file.open_regular(path) as file:
            return parse(file.read(MOST_BYTES + 1), path)
    except FileNotFoundError:
        return {}, ""
    except (OSError, ModserveError) as error:
        return {}, _format_ignored(path, error)


def parse(content: bytes, path: object) -> tuple[Rollbacks, str]:
    """Parse the content of the file at `path`, with the same result as `read`."""
    try:
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES} bytes")
        document = orjson.loads(content)  # what it refuses could not be written into responses either
        if not isinstance(document, dict):
            raise ValueError("it is not an object of JSON")
        return {_version(name): _parse_rollback(name, value) for name, value in document.items()}, ""
    except ValueError as error:
        return {}, _format_ignored(path, error)


def _format_ignored(path: object, error: Exception) -> str:
    return f"'{path}' is ignored, and no version counts as rolled back: {error}"


def _version(name: str) -> int:
    version = parse_directory(name)
    if version is None:
        raise ValueError(f"'{name[:100]}' is no version, expected one such as 2")
    return version


def _parse_rollback(name: str, value: Any) -> RolledBack:
    reason, at_ms = (value.get("reason"), value.get("at_ms")) if isinstance(value, dict) else (None, None)
    if not isinstance(reason, str) or type(at_ms) is not int:
        raise ValueError(f'version {name} has no {{"reason": "a text", "at_ms": a whole number}}')
    return RolledBack(reason, at_ms)


def replace_version(before: Rollbacks, version: int, rolled_back: RolledBack | None) -> Rollbacks:
    """Return rollbacks with that of one version, or without it; for version 0, there are none any more."""
    others = {each: of for each, of in before.items() if version and each != version}
    return others if rolled_back is None else {**others, version: rolled_back}


def content_of(versions: Rollbacks) -> bytes:
    """Return the file's content."""
    document = {str(each): {"reason": of.reason, "at_ms": of.at_ms} for each, of in sorted(versions.items())}
    return f"{json.dumps(document, indent=2)}\n".encode()


def write(directory: Path, version: int, rolled_back: RolledBack | None) -> None:
    """Say of one version that it was rolled back, or is no longer; for version 0, none is. Blocking. Raises OSError."""
    versions = replace_version(read(directory)[0], version, rolled_back)
    if not versions:
        (directory / FILE).unlink(missing_ok=True)
        return
    new = directory / f"{_NEW}{uuid.uuid4().hex}"
    try:
        with new.open("xb") as file:  # which follows no link
            file.write(content_of(versions))
        os.replace(new, directory / FILE)
    finally:
        new.unlink(missing_ok=True)


def remedy(
    listing: Listing,
    version: int,
    rolled_back: RolledBack | None,
    forgetting: str = "a restart of this or another server",
) -> str:
    """Return the advice for a change that cannot be written."""
    if rolled_back is None:
        return f"remove '{listing.path / FILE}', or a restart rolls back what it names"
    return f"remove '{listing.path / str(version)}', or {forgetting} takes version {version} for the latest again"
