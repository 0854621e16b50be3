"""Model repositories on disk."""

from collections.abc import Sequence
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
    models: dict[str, ModelDirectory] = {}
    duplicates: set[str] = set()
    for repository in dict.fromkeys(path.absolute() for path in repositories):
        try:
            entries = sorted(repository.iterdir())
        except OSError as error:
            raise invalid(f"can not read model repository '{repository}': {error.strerror}") from error
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            if entry.name in models:
                duplicates.add(entry.name)
            models[entry.name] = read_model(entry)
    for name in duplicates:
        del models[name]
    return Scan(models, tuple(sorted(duplicates)))


def read_model(path: Path) -> ModelDirectory:
    """One model directory: its versions are the directories named by a positive integer without leading zeros."""
    numbers = [parse_directory(entry.name) for entry in path.iterdir() if entry.is_dir()]
    return ModelDirectory(path.name, path, tuple(sorted(number for number in numbers if number is not None)))
