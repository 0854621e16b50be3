"""A model file that is in no repository: what it is called, and a repository in a temporary folder with it alone."""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from modserve.config import FORMATS
from modserve.core.errors import invalid
from modserve.core.version import parse_directory
from modserve.models.foreign_files import BY_SUFFIX, advice


class ModelFile(NamedTuple):
    name: str
    """The model's: that of its folder in a repository, otherwise the file's without its ending."""
    folder: Path
    """The files of the version."""
    filename: str
    in_repository: bool
    """Whether the folder is that of a version."""


def model_file(path: Path, installed: Collection[str]) -> ModelFile:
    """What `path` is: a file of a known format, or a folder that has one, such as a SavedModel.

    Raises INVALID_ARG for what is not there, and for what no engine takes; `installed` are the backends that are there.
    """
    path = path.absolute()
    if not path.exists():
        raise invalid(f"there is no file '{path}'")
    folder, filename = path.parent, path.name
    if path.is_dir() and path.suffix != ".savedmodel":
        folder, filename = path, next((row.filename for row in FORMATS if (path / row.filename).exists()), "")
        if not filename:
            raise invalid(f"'{path}' is no model: no engine knows a file in it by its name")
    ours = [
        row for row in FORMATS if row.filename == filename or (row.by_suffix and _ends_alike(row.filename, filename))
    ]
    if not ours:
        kind = BY_SUFFIX.get(path.suffix.lower())
        why = "" if kind is None else f": {advice(filename, kind, installed)}"
        raise invalid(f"no engine takes '{path}'{why or '; the formats are listed by: modserve engines'}")
    in_repository = parse_directory(folder.name) is not None
    name = folder.parent.name if in_repository else path.stem
    return ModelFile(name, folder, filename, in_repository)


def _ends_alike(one: str, other: str) -> bool:
    return Path(one).suffix == Path(other).suffix


@contextmanager
def repository_of(file: ModelFile) -> Iterator[Path]:
    """A repository with this model alone, without a configuration. Its version 1 is a link to the file's folder.

    The whole folder, since weights may lie beside the graph; the configuration has to name the file.
    """
    with tempfile.TemporaryDirectory(prefix="modserve-") as directory:
        model = Path(directory) / file.name
        model.mkdir()
        (model / "1").symlink_to(file.folder, target_is_directory=True)
        yield Path(directory)
