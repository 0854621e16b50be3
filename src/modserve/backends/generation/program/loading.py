"""Sources of an engine."""

from collections.abc import Mapping
from typing import NamedTuple


class LoadingError(ValueError):
    """A reason why a model cannot be loaded, with the remedy."""


class EngineFiles(NamedTuple):
    """Model files: `directory` is the version's, `filename` the file in it. `parameters` are the configuration's.

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
