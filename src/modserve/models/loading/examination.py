"""The files of a model, looked at before any engine opens them: what a load would fail for."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from modserve.backends.api import Backend
from modserve.config import FORMATS, Draft
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid

from .integrity import Guard
from .model_files import read_initial_states, read_labels


def of_files(
    directory: Path,
    versions: Iterable[int],
    config: ModelConfig,
    default_filename: str,
    installed: Collection[str],
    refusal: Callable[[ModelConfig, Path], ModserveError | None] | None = None,
) -> list[ModserveError]:
    """What is wrong with the files of a model; `default_filename` is its backend's. Blocking.

    Nothing is said of a directory that is not on this machine, nor of a model file that the engine may do without.
    `refusal` is the backend's, for the model's configuration and file: why it would not load the file, if it knows
    without loading it.
    """
    if not directory.is_dir():
        return []
    failures: list[ModserveError] = []
    readers: tuple[Callable[[Path, ModelConfig], object], ...] = (read_labels, read_initial_states)
    for read in readers:
        try:
            read(directory, config)
        except ModserveError as error:
            failures.append(error)
    from ..diagnosis import advice, file_contents  # only where files are examined before a load

    own = {row.filename for row in FORMATS if row.backend == config.backend}
    filename = config.default_model_filename or default_filename
    if not own or not filename:
        return failures
    for version in versions:
        folder = directory / str(version)
        path = folder / filename
        if not path.exists():
            if not any((folder / name).exists() for name in own):
                failure = invalid(f"unable to find model file '{path}' for model '{config.name}'")
                failures.append(
                    advice.advised(failure, advice.model_file(directory, version, path, installed, failure.message))
                )
        elif wrong := file_contents.problem(path):
            failures.append(invalid(wrong))
        elif refusal is not None and (refused := refusal(config, path)):
            failures.append(refused)
    return failures


def of_contents(
    directory: Path, versions: Iterable[int], draft: Draft, backend: Backend | None, guard: Guard
) -> list[ModserveError]:
    """What the guard would say to the versions of a model, each failure once. Blocking."""
    if not directory.is_dir() or (backend is None and not draft.is_ensemble):
        return []
    default = "" if backend is None else backend.default_model_filename
    filename = draft.provisional().default_model_filename or default
    return list(
        {
            failure.message: failure
            for version in versions
            for failure in guard.problems(draft, backend, directory, version, directory / str(version) / filename)
        }.values()
    )
