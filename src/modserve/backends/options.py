"""What backends share in reading a model's ``parameters`` and the options of ``--backend-config``."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from .api import ModelSource

SERVER_PARAMETERS = ("padding.", "scheduling.", "ensemble.")
"""How parameters begin that are the server's own, whatever the backend."""


def integer(where: str, values: Mapping[str, str], key: str, default: int) -> int:
    """The number under `key`. Raises INVALID_ARG."""
    text = values.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise invalid(f"{where} '{key}' is '{text}', expected an integer of 0 or more")
    return int(text)


def flag(where: str, values: Mapping[str, str], key: str, *, default: bool) -> bool:
    """As `integer`, for a number of which only zero or not counts, or ``true`` or ``false``."""
    text = values.get(key, "").lower()
    return text == "true" if text in ("true", "false") else bool(integer(where, values, key, default))


def unknown_parameter(backend: str, config: ModelConfig, key: str, known: Collection[str]) -> str:
    """A warning for a parameter of a model on which its backend does not act."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    who = f"model '{config.name}': parameter '{key}' has no effect"
    return f"{who}: backend '{backend}' does not know it{hint}"


def unknown_parameters(backend: str, config: ModelConfig, known: Collection[str]) -> list[str]:
    """A warning for each parameter of a model that neither its backend knows nor the server."""
    keys = [key for key in config.parameters if key not in known and not key.startswith(SERVER_PARAMETERS)]
    return [unknown_parameter(backend, config, key, known) for key in keys]


def library_path(name: str, source: ModelSource) -> str:
    """The place of an operator library: as Triton takes it, or else in the version's directory, or the model's.

    Triton hands the text to the system's loader as it is, for which a path with a slash begins in the working
    directory, and a mere name does not.
    """
    if "/" in name and Path(name).exists():
        return name
    for folder in (source.path if source.path.is_dir() else source.path.parent, source.model_directory):
        if (folder / name).is_file():
            return str((folder / name).absolute())
    return name
