"""Model files and parameters for loading an engine."""

from collections.abc import Mapping
from typing import NamedTuple


class LoadingError(ValueError):
    """A load failure, with its remedy."""


class EngineFiles(NamedTuple):
    """Version directory, the file in it, and the configuration's parameters.

    `kind` is the instance's ``CPU``, ``GPU`` or ``MODEL``; `device` is the number of its GPU.
    """

    directory: str
    filename: str
    parameters: Mapping[str, str]
    kind: str
    device: int


def flag(text: str) -> bool:
    """Return the value of a boolean parameter."""
    text = text.strip().lower()
    return text in ("true", "yes", "on") or (text.isdecimal() and int(text) != 0)
