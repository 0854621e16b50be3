"""The models of the settings, for a server and for commands: location, loading at the start, loader options."""

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from modserve.backends.registry import BackendRegistry
from modserve.config import from_json
from modserve.core.configuration.warm_up_config import WarmUpMode
from modserve.core.errors import ModserveError, invalid
from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.loading import Repository
from modserve.models.loading.integrity import Guard
from modserve.models.loading.loader import LoaderOptions
from modserve.models.loading.one_file import StandaloneModel, is_model_directory, is_repository, model_file
from modserve.repository.control import ALL
from modserve.repository.local import DirectoryRepository, FileModel, FileRepository
from modserve.repository.overrides import check_model_name
from modserve.repository.scanning import repositories_at
from modserve.settings import Settings

_log = logging.getLogger(__name__)


class NamedFiles(NamedTuple):
    """Files named by the option model-file."""

    files: Mapping[str, StandaloneModel]
    directories: Mapping[str, Path]
    """Model directories."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.files, *self.directories)


def read_named_files(settings: Settings) -> NamedFiles:
    """Read the files. Raises INVALID_ARG for a path without a model or in a repository, and for a repeated name."""
    files: dict[str, StandaloneModel] = {}
    directories: dict[str, Path] = {}
    installed = BackendRegistry().names if settings.model_file else ()
    for name, written in settings.model_file:
        path = Path(os.path.abspath(written))
        own = path.name
        file = None
        if path.suffix == ".savedmodel" or not is_model_directory(path):
            file = _file(path, installed)
            own = name or file.name
        elif name not in ("", own):
            raise invalid(f"the model in '{written}' is called '{own}' after its directory, not '{name}'")
        check_model_name(own)
        if own in files or own in directories:
            raise invalid(f"two models are called '{own}'; NAME=FILE gives one of them another name")
        if file is None:
            directories[own] = path
        else:
            files[own] = file
    return NamedFiles(files, directories)


def _file(path: Path, installed: Iterable[str]) -> StandaloneModel:
    try:
        return model_file(path, [*installed])
    except ModserveError as error:
        if not is_repository(path):
            raise
        raise invalid(
            f"'{path}' is a repository, with models in it: modserve serve --model-repository {path}"
        ) from error


def repositories(settings: Settings) -> list[Repository]:
    """Return the repositories: directories, models named one by one, and decorated objects. Raises INVALID_ARG."""
    outside_links = settings.allow_outside_symlinks
    cache, timeout_s = settings.repository_cache_dir, settings.repository_timeout_secs
    config_name = settings.model_config_name
    places = repositories_at(
        settings.repositories, cache, timeout_s, config_name=config_name, outside_links=outside_links
    )
    files, directories = read_named_files(settings)
    places += [DirectoryRepository(path, outside_links=outside_links) for path in directories.values()]
    measured = settings.default_backend == "auto"
    if files:
        for name, file in files.items():
            _announce(name, file)
        models = {
            name: FileModel(file.path, file.folder, file.config(measured=measured)) for name, file in files.items()
        }
        places.append(FileRepository(models))
    if settings.python_model:
        from modserve.backends.python.functions import FunctionRepository

        places.append(FunctionRepository(settings.python_model, from_json))
    return places


def _announce(name: str, file: StandaloneModel) -> None:
    _log.info("'%s' is model '%s', version 1, of backend '%s'", file.path, name, file.backend)
    config = file.folder.parent / CONFIG_FILE
    if file.in_repository and config.exists():
        _log.info("'%s' is not read; to serve the model with it: modserve serve %s", config, config.parent)


def models_to_load(settings: Settings) -> tuple[str, ...]:
    """Return the models that mode explicit loads at the start: single models from options, and --load-model."""
    if settings.model_control_mode != "explicit" or ALL in settings.load_model:
        return settings.load_model
    return tuple(dict.fromkeys((*settings.load_model, *read_named_files(settings).names, *settings.python_model)))


def backend_options(settings: Settings, names: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Return the options of each backend in `names`: its own, over the options for all backends."""
    by_backend = settings.backend_config
    return {name: {**by_backend.get("", {}), **by_backend.get(name, {})} for name in names}


def loader_options(settings: Settings, backends: Iterable[str], cores: int) -> LoaderOptions:
    """Return the options for loading models; `backends`: installed backends."""
    return LoaderOptions(
        cores=cores,
        auto_complete=not settings.disable_auto_complete_config,
        backend_options=backend_options(settings, backends),
        shared_options=frozenset(settings.backend_config.get("", ())),
        measured=settings.default_backend == "auto",
        guard=Guard(settings.require_digests, settings.deny_code),
        warm_up=WarmUpMode(settings.warmup),
        execution_timeout_ns=settings.execution_timeout_secs * 10**9,
    )
