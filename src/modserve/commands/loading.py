"""What commands need to load models as a server with the same settings would."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from modserve.backends.python.functions import FunctionRepository
from modserve.config import from_json
from modserve.core.loading import Repository
from modserve.core.warm_up_config import WarmUpMode
from modserve.models.loader import LoaderOptions
from modserve.repository.local import local_repositories
from modserve.settings import Settings


def loader_options(settings: Settings, backends: Iterable[str], cores: int) -> LoaderOptions:
    """How models are loaded; `backends` are those that are installed."""
    by_backend = settings.backend_config
    return LoaderOptions(
        cores=cores,
        auto_complete=not settings.disable_auto_complete_config,
        backend_options={name: {**by_backend.get("", {}), **by_backend.get(name, {})} for name in backends},
        measured=settings.default_backend == "auto",
        warm_up=WarmUpMode(settings.warmup),
    )


def repositories(settings: Settings) -> list[Repository]:
    """Where the models are."""
    places: list[Repository] = [*local_repositories(settings.repositories, settings.model_config_name)]
    if settings.python_model:
        places.append(FunctionRepository(settings.python_model, from_json))
    return places


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """What engines and models print meanwhile goes to standard error, not among what a command writes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
