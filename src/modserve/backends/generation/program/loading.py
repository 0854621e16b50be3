"""What an engine is loaded from."""

from collections.abc import Mapping
from typing import NamedTuple


class LoadingError(ValueError):
    """Why a model cannot be loaded, and what would be right."""


class EngineFiles(NamedTuple):
    """`directory` is the version's, `filename` the model's file in it. `parameters` are those of the configuration.

    `kind` and `device` are those of the instance: ``CPU``, ``GPU``, ``MODEL``, and a GPU's number.
    """

    directory: str
    filename: str
    parameters: Mapping[str, str]
    kind: str
    device: int


def flag(text: str) -> bool:
    """What a parameter that was found to be one says."""
    text = text.strip().lower()
    return text in ("true", "yes", "on") or (text.isdecimal() and int(text) != 0)
