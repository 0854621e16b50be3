"""Model files that come with a load request: a directory which lives as long as what was loaded from it."""

import asyncio
import dataclasses
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from modserve.core.errors import internal, invalid
from modserve.core.servable import ModelDirectory

from . import source


class TemporaryRepository:
    """Implements `core.servable.Lease`. Whoever made it holds it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="modserve-", ignore_cleanup_errors=True)
        self._holders = 1

    @property
    def path(self) -> Path:
        return Path(self._directory.name)

    def hold(self) -> None:
        self._holders += 1

    async def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            await asyncio.to_thread(self._directory.cleanup)


def check_model_name(name: str) -> None:
    """Raises INVALID_ARG, with Triton's texts, for a name which is not that of a directory in a repository."""
    trimmed = name.strip()
    if not trimmed:
        raise invalid("Model name cannot be empty. Please enter a valid name to deploy.")
    if trimmed in (".", "..") or any(separator in name for separator in ("/", "\\", "\0")):
        raise invalid(f"invalid model name '{name}', model name must not contain path traversal characters")


def check_files(files: Mapping[str, bytes]) -> None:
    """Raises INVALID_ARG for a path that is not inside the model's directory, or that is at the same time above one."""
    seen: dict[PurePosixPath, str] = {}
    for name in files:
        parts = name.split("/")
        if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise invalid(
                f"invalid path '{name}' of a file override: expected '<version>/<path>', a path inside the model's "
                "directory without '..'"
            )
        seen[PurePosixPath(name)] = name
    for path in seen:
        for above in path.parents:
            if above in seen:
                raise invalid(f"file override '{seen[above]}' is a directory of file override '{path}', too")


def write(name: str, config: str, files: Mapping[str, bytes]) -> ModelDirectory:
    """A model made of a configuration and files by their path in its directory. Blocking.

    The caller releases the lease that comes with it. Raises INVALID_ARG, or INTERNAL if it can not be written.
    """
    check_files(files)
    try:
        repository = TemporaryRepository()
        root = repository.path / name
        root.mkdir()
        for path, content in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        raise internal(
            f"failed to load '{name}', failed to poll from model repository: can not write the files given: "
            f"{os.strerror(error.errno or 0)}"
        ) from error
    return dataclasses.replace(source.read_model(root), config=config, lease=repository)
