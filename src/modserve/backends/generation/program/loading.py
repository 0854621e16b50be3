"""Sources of an engine."""

from collections.abc import Mapping
from typing import NamedTuple


class LoadingError(ValueError):
    """A reason why a model cannot be loaded, with the remedy."""


class EngineFiles(NamedTuple):
    """Files of a model: `directory` is the version's, `filename` the model's file in it. `parameters` are configured.

    `kind` and `device` are those of the instance: ``CPU``, ``GPU``, ``MODEL``, and a GPU's number.
    """

    directory: str
    filename: str
    parameters: Mapping[str, str]
    kind: str
    device: int


def flag(text: str) -> bool:
    """Return the value of a parameter known to be a flag."""
    text = text.strip().lower()
    return text in ("true", "yes", "on") or (text.isdecimal() and int(text) != 0)
