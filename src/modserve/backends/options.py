"""Reader of a model's ``parameters`` and the options of ``--backend-config``, for all backends."""

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid

from .api import ModelSource

SERVER_PARAMETERS = ("padding.", "scheduling.", "ensemble.")
"""Prefixes of parameters that are the server's own, whatever the backend."""
MAX_BATCH_SIZE = "default-max-batch-size"
"""The option of all backends that know how many rows a model takes without a configuration."""
QUANTIZED_DIRECTORY = "quantized-dir"
"""Directory for quantised models of the ``onnxruntime`` backend; ``auto`` sets it for the models that it measures."""

_FLAGS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class OptionReader:
    """Reader of options, which are texts. `where` is the beginning of errors, which are INVALID_ARG."""

    where: str
    values: Mapping[str, str]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        """Return a value; empty also if a template had nothing to fill in."""
        return self.values.get(key, "").strip()

    def fault(self, key: str, expected: str) -> ModserveError:
        return invalid(f"{self.where} '{key}' is '{self.values[key]}', expected {expected}")

    def integer(self, key: str, default: int) -> int:
        if key not in self:
            return default
        text = self.text(key)
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise self.fault(key, "an integer of 0 or more")
        return int(text)

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a flag: a word, or a number, which is true unless it is zero."""
        if key not in self:
            return default
        text = self.text(key).lower()
        if text in _FLAGS:
            return _FLAGS[text]
        if not (text.isascii() and text.isdecimal()):
            raise self.fault(key, "true or false")
        return int(text) != 0

    def number(self, key: str, default: float, is_good: Callable[[float], bool], expected: str) -> float:
        if key not in self:
            return default
        try:
            value = float(self.text(key))
        except ValueError:
            value = math.nan
        if math.isnan(value) or not is_good(value):
            raise self.fault(key, expected)
        return value

    def choice(self, key: str, choices: Collection[str], default: str = "") -> str:
        """Read one of these words, ignoring case."""
        text = self.text(key).lower()
        if text and text not in choices:
            raise self.fault(key, f"one of: {', '.join(choices)}")
        return text or default


def parameters_of(config: ModelConfig) -> OptionReader:
    return OptionReader(f"model '{config.name}': parameter", config.parameters)


def options_of(options: Mapping[str, str]) -> OptionReader:
    """Return a reader of the options of ``--backend-config``."""
    return OptionReader("backend option", options)


def default_max_batch_size(options: Mapping[str, str], default: int = 4) -> int:
    """Return the largest batch of a model with none configured: by default that of Triton's backends."""
    return options_of(options).integer(MAX_BATCH_SIZE, default)


def unknown_parameter(backend: str, config: ModelConfig, key: str, known: Collection[str]) -> str:
    """Return a warning for a model's parameter that its backend does not use."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    who = f"model '{config.name}': parameter '{key}' has no effect"
    return f"{who}: backend '{backend}' does not know it{hint}"


def unknown_parameters(backend: str, config: ModelConfig, known: Collection[str]) -> list[str]:
    """Return a warning for each parameter of a model that neither its backend nor the server knows."""
    keys = [key for key in config.parameters if key not in known and not key.startswith(SERVER_PARAMETERS)]
    return [unknown_parameter(backend, config, key, known) for key in keys]


def library_path(name: str, source: ModelSource) -> str:
    """Return the path of an operator library: as Triton takes it, or else in the version's directory, or the model's.

    Triton hands the text to the system's loader as it is, for which a path with a slash begins in the working
    directory, and a mere name does not.
    """
    if "/" in name and Path(name).exists():
        return name
    for folder in (source.path if source.path.is_dir() else source.path.parent, source.model_directory):
        if (folder / name).is_file():
            return str((folder / name).absolute())
    return name
