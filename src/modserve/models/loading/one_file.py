"""A model file that is in no repository: what it is called, what runs it, and a temporary repository with it alone."""

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from modserve.config import FORMATS, MEASURED, from_json, names_in
from modserve.core.errors import invalid
from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.version import may_be_model, parse_directory

_ALONE: Mapping[str, Mapping[str, object]] = {
    "fil": {
        "parameters": {"predict_proba": {"string_value": "true"}}
    },  # of more use than the class; no matter to others
}
"""Settings of a model without a configuration, by backend."""


class StandaloneModel(NamedTuple):
    name: str
    """The model's: that of its folder in a repository, otherwise the file's without its ending."""
    folder: Path
    """The files of the version."""
    filename: str
    in_repository: bool
    """True if the folder is that of a version."""
    backend: str
    """Backend for such files, unless the configuration names another."""
    is_folder: bool = False
    """True if all files next to it belong to the model: else only those with its name."""

    @property
    def path(self) -> Path:
        return self.folder / self.filename

    def config(self, *, measured: bool) -> bytes:
        """Return a configuration that says which file is the model; if `measured`, `auto` runs what it takes."""
        backend = "auto" if measured and self.backend in MEASURED else self.backend
        document = {"backend": backend, "default_model_filename": self.filename, **_ALONE.get(backend, {})}
        return from_json(json.dumps(document)).encode()


def model_file(path: Path, installed: Collection[str]) -> StandaloneModel:
    """Identify `path`: a file of a known format, or a folder that has one, such as a SavedModel.

    Raises INVALID_ARG for a missing path, for a file that no engine takes, and for Python that defines no model:
    serving it would run any script. `installed` are the backends that are there.
    """
    path = path.absolute()
    if not os.path.exists(path):  # which takes names that are too long
        raise invalid(f"there is no file '{path}'")
    folder, filename = path.parent, path.name
    if path.is_dir() and path.suffix != ".savedmodel":
        folder, names = path, frozenset(names_in(path))
        filename = next(filter(None, (row.file_in(names) for row in FORMATS)), "")
        if not filename:
            raise invalid(f"'{path}' is not a model: no engine recognises a file in it by its name")
    same = [row for row in FORMATS if row.filename == filename and (not row.beside or (folder / row.beside).exists())]
    ours = same or [row for row in FORMATS if row.by_suffix and _ends_alike(row.filename, filename)]
    if not ours:
        from ..diagnosis.foreign_files import BY_SUFFIX, advice

        kind = BY_SUFFIX.get(path.suffix.lower())
        usual = [row.filename for row in FORMATS if path.suffix and _ends_alike(row.filename, filename)]
        hint = f"; with this ending, models are called {' or '.join(usual)}" if usual else ""
        why = f"{hint}; 'modserve engines' lists the formats"
        if kind is not None:
            why = f": {advice(filename, kind, installed)}"
        raise invalid(f"no engine takes '{path}'{why}")
    if ours[0].backend == "python":
        _check_that_it_is_a_model(folder / filename)
    in_repository = parse_directory(folder.name) is not None
    name = folder.parent.name if in_repository else _own_name(path)
    is_folder = (path.is_dir() and folder == path) or bool(ours[0].beside)
    return StandaloneModel(name, folder, filename, in_repository, ours[0].backend, is_folder)


def _own_name(path: Path) -> str:
    """Return the name without a suffix, or the folder's; for a snapshot in the cache of Hugging Face, the model's."""
    if not path.is_dir() or path.suffix == ".savedmodel":
        return path.stem
    source = path.parent.parent.name
    in_cache = path.parent.name == "snapshots" and source.startswith("models--")
    return source.rpartition("--")[2] if in_cache else path.name


def _check_that_it_is_a_model(file: Path) -> None:
    from ..diagnosis.python_source import why_no_model

    try:
        why = why_no_model(file)
    except OSError as error:
        raise invalid(f"cannot read '{file}': {error.strerror}") from error
    if why:
        raise invalid(f"'{file}' {why}")


def is_model_directory(path: Path) -> bool:
    """True if a directory is a model's, as in a repository: it has a configuration, or versions."""
    return os.path.isfile(path / CONFIG_FILE) or any(
        _subdirectories(path, lambda name: parse_directory(name) is not None)
    )


def is_repository(path: Path) -> bool:
    """True if a directory has directories of models in it."""
    return any(is_model_directory(each) for each in _subdirectories(path, may_be_model))


def _subdirectories(path: Path, chosen: Callable[[str], bool]) -> Iterator[Path]:
    with suppress(OSError):
        yield from (each for each in path.iterdir() if chosen(each.name) and each.is_dir())


def _ends_alike(one: str, other: str) -> bool:
    return Path(one).suffix == Path(other).suffix


@contextmanager
def repository_of(file: StandaloneModel) -> Iterator[Path]:
    """Make a repository with this model alone, without a configuration. Its version 1 is a link to the file's folder.

    The whole folder, since weights may lie next to the graph; the configuration has to name the file.
    """
    with tempfile.TemporaryDirectory(prefix="modserve-") as directory:
        model = Path(directory) / file.name
        model.mkdir()
        (model / "1").symlink_to(file.folder, target_is_directory=True)
        yield Path(directory)
