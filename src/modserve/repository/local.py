"""Model repositories on disk.

Models that a command line names, and that lie in no repository: single files, and directories of one model.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from modserve.core.errors import ModserveError, from_exception, internal, invalid
from modserve.core.files import regular_file
from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.files.file_tree import walk
from modserve.core.loading import DirectoryLease, Listing
from modserve.core.texts import is_unicode, unicode_text
from modserve.core.version import RolledBack, folder_owner, may_be_model, parse_directory

from . import rollbacks

MODEL_FILES = frozenset(
    {".onnx", ".pt", ".pth", ".plan", ".engine", ".pb", ".pkl", ".joblib", ".safetensors", ".gguf", ".h5", ".keras"}
)


Mark: TypeAlias = tuple[int, ...]
"""The time of modification and the size of a file; empty for a directory."""


class LocalRepository:
    """Implements `core.loading.Repository`: each directory in `path` is a model, and is loaded where it is.

    With a `config_name`, a model that has ``configs/<config_name>.pbtxt`` has that in place of ``config.pbtxt``.
    Without `outside_links`, a model with a link to something outside is refused. `path` itself may be a link.
    """

    def __init__(self, path: Path, config_name: str = "", *, outside_links: bool = False) -> None:
        self.path = path
        self._custom = f"configs/{config_name}.pbtxt" if config_name else ""
        self._outside_links = outside_links
        self._inside = path
        """Directory that links must not leave."""

    def __str__(self) -> str:
        return str(self.path)

    async def names(self) -> Collection[str]:
        return await asyncio.to_thread(self._names)

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        return await asyncio.to_thread(
            lambda: {name: self.read(name) for name in self._names() if names is None or name in names}
        )

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        known = _read_marks(listing, version)

        async def find_change() -> str:
            before = dict(known)
            known.update(await asyncio.to_thread(_now, listing.path, before))
            other = next((file for file, mark in before.items() if known[file] != mark), None)
            return "" if other is None else f"'{listing.path / other}' has changed while it was loaded"

        return DirectoryLease(listing.path, changed=find_change)

    async def keep_rollback(self, listing: Listing, version: int, rolled_back: RolledBack | None) -> str:
        """Write it, as `RollbackKeeper` says, into the model's directory."""
        try:
            await asyncio.to_thread(rollbacks.write, listing.path, version, rolled_back)
        except OSError as error:
            remedy = rollbacks.remedy(listing, version, rolled_back)
            return f"'{listing.path / rollbacks.FILE}' cannot be written: {error.strerror}: {remedy}"
        return ""

    async def remarks(self) -> Sequence[str]:
        return await asyncio.to_thread(self._remarks)

    def _names(self) -> list[str]:
        """List the folders, except names that clients could not call: bytes that are not UTF-8."""
        return [
            path.name for path in self._entries() if may_be_model(path.name) and is_unicode(path.name) and path.is_dir()
        ]

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.path.iterdir())
        except OSError as error:
            raise invalid(f"cannot read model repository '{self.path}': {error.strerror}") from error

    def read(self, name: str) -> Listing:
        """Read one model: directories named by a positive integer without leading zeros are its versions. Blocking."""
        path = self.path / name
        marks: dict[int | None, list[tuple[str | int, ...]]] = {None: []}
        weights: dict[int | None, list[object]] = {None: []}
        links = [path] if path.is_symlink() else []
        folders: list[str] = []
        for below, status, is_directory, is_link in walk(path, (_COMPILED,)):
            if is_link:
                links.append(path / below)
            if rollbacks.is_file(below):
                continue
            top, *rest = below.split(os.sep)
            version = parse_directory(top) if rest or is_directory else None
            mark: Mark = () if is_directory else (status.st_mtime_ns, status.st_size)
            marks.setdefault(version, []).append((below, *mark))
            if below not in (CONFIG_FILE, self._custom):
                weights.setdefault(version, []).append(self._identity(path, below, mark, status.st_ino))
            if is_directory and not rest and version is None:
                folders.append(top)
        versions = tuple(sorted(version for version in marks if version is not None))
        # After the marks, so that no change of the file is missed.
        file, content = self._custom, _content(path / self._custom, name) if self._custom else None
        if content is None:
            file, content = CONFIG_FILE, _content(path / CONFIG_FILE, name)
        by_version = {version: tuple(sorted(files)) for version, files in marks.items()}
        kept = {version: frozenset(files) for version, files in weights.items()}
        rolled_back, remark = rollbacks.read(path)
        refusal = None if self._outside_links else self._refusal(name, links)
        return Listing(
            name,
            self,
            path,
            versions,
            content,
            refusal=refusal,
            config_file=file,
            marks=by_version,
            weights=kept,
            folders=tuple(sorted(folders)),
            rolled_back=rolled_back,
            remark=remark,
        )

    def _identity(self, path: Path, below: str, mark: Mark, inode: int) -> object:
        """Return the identity of a file, or with an empty mark of a directory. `inode`: of the file itself."""
        return path, below, mark, inode if mark else 0

    def _refusal(self, name: str, links: Iterable[Path]) -> ModserveError | None:
        """Return the error for a model with these links; None if all of them stay inside."""
        root = os.path.realpath(self._inside)
        for link in links:
            target = os.path.realpath(link)
            if os.path.commonpath([root, target]) != root and not _is_interpreter(link, target):
                return invalid(
                    f"model '{name}' is not loaded: '{link}' is a link out of the model repository, to '{target}'. If "
                    "everyone who can write to the repository may read the target, start the server with "
                    "--allow-outside-symlinks"
                )
        return None

    def _remarks(self) -> list[str]:
        unnamed = [
            f"'{unicode_text(str(path))}' is ignored: the name of a model's folder must be UTF-8; rename it"
            for path in self._entries()
            if not is_unicode(path.name) and path.is_dir()
        ]
        foreign = [
            f"'{path}' is ignored: {folder_owner(path.name)}" for path in self._entries() if folder_owner(path.name)
        ]
        return [
            *unnamed,
            *foreign,
            *(
                f"'{path}' is ignored: a model is a folder, such as '{path.stem}/1/model{path.suffix}'"
                for path in self._entries()
                if path.suffix in MODEL_FILES and path.is_file()
            ),
        ]


def _is_interpreter(link: Path, target: str) -> bool:
    """True if a link leads from a virtual environment to its Python, which Python models may include."""
    in_environment = link.parent.name == "bin" and (link.parents[1] / "pyvenv.cfg").is_file()
    return in_environment and bool(_PYTHON.fullmatch(os.path.basename(target))) and os.access(target, os.X_OK)


def _content(path: Path, name: str) -> bytes | ModserveError | None:
    try:
        return regular_file.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return from_exception(error, f"reading the configuration of model '{name}'")


def _read_marks(listing: Listing, version: int) -> dict[str, Mark]:
    """Return the files of a version, and of all versions, with their marks from a look; not the configuration."""
    entries = [entry for key in (None, version) for entry in cast("Iterable[Any]", listing.marks.get(key, ()))]
    return {below: tuple(mark) for below, *mark in entries if mark and below not in (CONFIG_FILE, listing.config_file)}


def _now(directory: Path, files: Iterable[str]) -> dict[str, Mark]:
    """Return the present marks of some files; an empty one for a file that has gone."""
    marks: dict[str, Mark] = {}
    for file in files:
        try:
            status = (directory / file).stat()
            marks[file] = status.st_mtime_ns, status.st_size
        except OSError:
            marks[file] = ()
    return marks


_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_COMPILED = "__pycache__"
"""Directory that Python writes next to a model's own modules; it does not count as a change of the model."""


VERSION = 1


@dataclass(frozen=True)
class FileModel:
    """A model of one version: a file, or a folder that is one, such as a SavedModel."""

    path: Path
    folder: Path
    """Source of the version's directory: weights may lie next to the file."""
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
    """Return the state of the file, of what is below it, and of its neighbours with similar names, such as weights.

    Other files are left out: the folder may be used for anything else.
    """
    stem = model.path.name.partition(".")[0]
    files: list[tuple[str, os.stat_result]] = []
    with suppress(OSError), os.scandir(model.folder) as entries:
        files += [(each.name, each.stat()) for each in entries if each.name.startswith(stem) and each.is_file()]
    if model.path.is_dir():
        files += [(each.path, each.status) for each in walk(model.path)]
    return tuple(sorted((path, status.st_mtime_ns, status.st_size) for path, status in files))


def _link(name: str, folder: Path) -> "tempfile.TemporaryDirectory[str]":
    """Make a repository with a link in place of the model's one version. Raises INTERNAL."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="modserve-", ignore_cleanup_errors=True)
        model = Path(temporary.name) / name
        model.mkdir()
        (model / str(VERSION)).symlink_to(folder, target_is_directory=True)
    except OSError as error:
        raise internal(f"cannot make a directory for model '{name}': {error}") from error
    return temporary


class DirectoryRepository(LocalRepository):
    """Directory of one model; `path` is the directory around it. Other directories there do not count."""

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
