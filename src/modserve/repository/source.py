"""Model repositories on disk."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modserve.core.errors import invalid
from modserve.core.servable import ModelDirectory
from modserve.core.version import parse_directory


@dataclass(frozen=True, slots=True)
class Scan:
    """What the model repositories hold. A name found in two of them is no model, as in Triton."""

    models: dict[str, ModelDirectory]
    duplicates: tuple[str, ...]


def scan(repositories: Sequence[Path]) -> Scan:
    """Look through `repositories`: each directory in them is a model. Blocking.

    Raises INVALID_ARG for a repository that is no readable directory.
    """
    found = locate(repositories)
    return Scan(
        {name: read_model(paths[0]) for name, paths in found.items() if len(paths) == 1},
        tuple(sorted(name for name, paths in found.items() if len(paths) > 1)),
    )


def locate(repositories: Sequence[Path]) -> dict[str, list[Path]]:
    """Where the models are, by name. Blocking; raises as `scan` does."""
    found: dict[str, list[Path]] = {}
    for repository in dict.fromkeys(path.absolute() for path in repositories):
        try:
            entries = sorted(repository.iterdir())
        except OSError as error:
            raise invalid(f"can not read model repository '{repository}': {error.strerror}") from error
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                found.setdefault(entry.name, []).append(entry)
    return found


MODEL_FILES = frozenset(
    {".onnx", ".pt", ".pth", ".plan", ".engine", ".pb", ".pkl", ".joblib", ".safetensors", ".h5", ".keras"}
)


def loose_files(repositories: Sequence[Path]) -> list[Path]:
    """Files that are probably models, and are none where they lie: beside the folders of models. Blocking."""
    found: list[Path] = []
    for repository in repositories:
        try:
            found += [path for path in repository.absolute().iterdir() if path.suffix in MODEL_FILES and path.is_file()]
        except OSError:
            continue
    return sorted(found)


def read_model(path: Path) -> ModelDirectory:
    """One model directory: its versions are the directories named by a positive integer without leading zeros."""
    marks: dict[int | None, list[_Mark]] = {None: []}
    for mark in _marks(path):
        top, *below = mark.path.split(os.sep)
        version = parse_directory(top) if below or mark.size is None else None
        marks.setdefault(version, []).append(mark)
    versions = tuple(sorted(version for version in marks if version is not None))
    return ModelDirectory(
        path.name, path, versions, marks={version: tuple(sorted(found)) for version, found in marks.items()}
    )


@dataclass(frozen=True, slots=True, order=True)
class _Mark:
    """What a file is like; of a directory only that it is there."""

    path: str
    """Below the model's directory."""
    modified_ns: int = 0
    size: int | None = None
    """None for a directory."""


def _marks(root: Path) -> Iterator[_Mark]:
    """Everything in a directory. What can not be read, or vanishes meanwhile, is left out."""
    pending = [(root, "", frozenset[tuple[int, int]]())]
    while pending:
        directory, below, above = pending.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            path = f"{below}{entry.name}"
            try:
                status = entry.stat()
                is_directory = entry.is_dir()
            except OSError:
                continue
            if not is_directory:
                yield _Mark(path, status.st_mtime_ns, status.st_size)
                continue
            yield _Mark(path)
            identity = (status.st_dev, status.st_ino)
            if identity not in above:  # else a link to a directory around it
                pending.append((Path(entry.path), f"{path}{os.sep}", above | {identity}))
