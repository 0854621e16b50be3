"""What settings say of models: where they are, which load at the start, and how; for a server and for commands."""

from collections.abc import Iterable, Mapping

from .backends.python.functions import FunctionRepository
from .config import from_json
from .core.loading import Repository
from .core.warm_up_config import WarmUpMode
from .models.integrity import Guard
from .models.loader import LoaderOptions
from .repository.control import ALL
from .repository.local import local_repositories
from .settings import Settings


def repositories(settings: Settings) -> list[Repository]:
    """Where the models are: the directories, and the decorated objects. Raises INVALID_ARG for one of the latter."""
    places: list[Repository] = [
        *local_repositories(settings.repositories, outside_links=settings.allow_outside_symlinks)
    ]
    if settings.python_model:
        places.append(FunctionRepository(settings.python_model, from_json))
    return places


def models_to_load(settings: Settings) -> tuple[str, ...]:
    """What mode explicit loads at the start: what the options name, and decorated objects are named by options, too."""
    if settings.model_control_mode != "explicit" or ALL in settings.load_model:
        return settings.load_model
    return tuple(dict.fromkeys((*settings.load_model, *settings.python_model)))


def backend_options(settings: Settings, names: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """The options of each of the backends `names`: its own, over those for all backends."""
    by_backend = settings.backend_config
    return {name: {**by_backend.get("", {}), **by_backend.get(name, {})} for name in names}


def loader_options(settings: Settings, backends: Iterable[str], cores: int) -> LoaderOptions:
    """How models are loaded; `backends` are those that are installed."""
    return LoaderOptions(
        cores=cores,
        auto_complete=not settings.disable_auto_complete_config,
        backend_options=backend_options(settings, backends),
        measured=settings.default_backend == "auto",
        guard=Guard(settings.require_digests, settings.deny_code),
        warm_up=WarmUpMode(settings.warmup),
    )
