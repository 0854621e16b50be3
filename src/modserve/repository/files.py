"""Models that a command line names, and that lie in no repository: single files, and directories of one model."""

import asyncio
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modserve.core.errors import internal
from modserve.core.files.file_tree import walk
from modserve.core.loading import DirectoryLease, Listing

from .local import LocalRepository

VERSION = 1


@dataclass(frozen=True)
class FileModel:
    """A model of one version: a file, or a folder that is one, such as a SavedModel."""

    path: Path
    folder: Path
    """What becomes the directory of the version: weights may lie beside the file."""
    content: bytes
    """The text of its configuration."""


class FileRepository:
    """Implements `core.loading.Repository` for files by the names of their models.

    For each load there is a temporary directory, with a link to the file's folder; it goes with the version.
    """

    def __init__(self, models: Mapping[str, FileModel]) -> None:
        self._models = dict(models)

    def __str__(self) -> str:
        return ", ".join(str(model.path) for model in self._models.values())

    async def names(self) -> Collection[str]:
        return await asyncio.to_thread(self._names)

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        return await asyncio.to_thread(
            lambda: {name: self._read(name) for name in self._names() if names is None or name in names}
        )

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        temporary = await asyncio.to_thread(_link, listing.name, self._models[listing.name].folder)

        async def release() -> None:
            await asyncio.to_thread(temporary.cleanup)

        return DirectoryLease(Path(temporary.name) / listing.name, release)

    async def remarks(self) -> Sequence[str]:
        return ()

    def _names(self) -> list[str]:
        return [name for name, model in self._models.items() if model.path.exists()]

    def _read(self, name: str) -> Listing:
        model = self._models[name]
        return Listing(name, self, model.path, (VERSION,), model.content, marks={VERSION: _marks(model)})


def _marks(model: FileModel) -> tuple[tuple[str, int, int], ...]:
    """The state of the file, of what is below it, and of files beside it whose names begin alike, such as its weights.

    All that lies beside it is too much: the folder may be anybody's.
    """
    stem = model.path.name.partition(".")[0]
    files: list[tuple[str, os.stat_result]] = []
    with suppress(OSError), os.scandir(model.folder) as entries:
        files += [(each.name, each.stat()) for each in entries if each.name.startswith(stem) and each.is_file()]
    if model.path.is_dir():
        files += [(each.path, each.status) for each in walk(model.path)]
    return tuple(sorted((path, status.st_mtime_ns, status.st_size) for path, status in files))


def _link(name: str, folder: Path) -> "tempfile.TemporaryDirectory[str]":
    """A repository with a link in place of the model's one version. Raises INTERNAL."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="modserve-", ignore_cleanup_errors=True)
        model = Path(temporary.name) / name
        model.mkdir()
        (model / str(VERSION)).symlink_to(folder, target_is_directory=True)
    except OSError as error:
        raise internal(f"cannot make a directory for model '{name}': {error}") from error
    return temporary


class DirectoryRepository(LocalRepository):
    """A directory of one model; `path` is the directory around it, whose others do not count."""

    def __init__(self, directory: Path, *, outside_links: bool = False) -> None:
        super().__init__(directory.parent, outside_links=outside_links)
        self._name = directory.name
        self._inside = directory

    def __str__(self) -> str:
        return str(self.path / self._name)

    def _names(self) -> list[str]:
        return [self._name] if (self.path / self._name).is_dir() else []

    def _remarks(self) -> list[str]:
        return []
