"""Options of the ``auto`` backend: model parameters, with ``--backend-config`` as defaults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..api import ModelSource
from ..options import MAX_BATCH_SIZE, SERVER_PARAMETERS, OptionReader, options_of, parameters_of, unknown_parameter
from ..user_cache import directory_of
from .candidates import FORMATS

BUDGET = "budget_seconds"
TOLERANCE = "tolerance"
OBJECTIVE = "objective"
SAMPLE_SHAPE = "sample_shape"
ENGINES = "engines"
TUNE = "tune"
PARAMETERS = (BUDGET, TOLERANCE, OBJECTIVE, SAMPLE_SHAPE, ENGINES, TUNE)
CACHE_DIR = "cache-dir"
BACKEND_OPTIONS: Mapping[str, str] = dict.fromkeys(
    (*(key.replace("_", "-") for key in PARAMETERS), CACHE_DIR, MAX_BATCH_SIZE), ""
)

BATCH = "batch"
INSTANCES = "instances"
LATENCY = "latency"
THROUGHPUT = "throughput"
_DEFAULT_TOLERANCE = 1e-3
_DEFAULT_BUDGET_S = 10.0

_BACKENDS = tuple(sorted({candidate.backend for each in FORMATS for candidate in each.candidates}))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest difference from the reference, relative to its largest element; `reduced` allows lower precisions."""

    limit: float = _DEFAULT_TOLERANCE
    reduced: bool = False

    def __str__(self) -> str:
        return f"{self.limit:g}" if self.limit else "exact"


@dataclass(frozen=True, slots=True)
class AutoOptions:
    tolerance: Tolerance = Tolerance()
    budget_s: float = _DEFAULT_BUDGET_S
    objective: str = ""
    """Empty: throughput for models that batch, latency for others."""
    sample_shape: str = ""
    """See `samples.Sizes`."""
    engines: tuple[str, ...] = ()
    """Allowed backends; empty allows all."""
    tune: tuple[str, ...] = ()
    """Settings to tune unless the configuration sets them: `BATCH`, `INSTANCES`."""
    cache_directory: Path | None = None
    """None: choices are not cached."""


def read_options(source: ModelSource) -> AutoOptions:
    """Return the options of a model, with the server's as defaults. Raises INVALID_ARG."""
    return AutoOptions(
        _tolerance(*_reader(source, TOLERANCE)),
        _positive(*_reader(source, BUDGET), _DEFAULT_BUDGET_S, "a number of seconds above 0"),
        OptionReader.choice(*_reader(source, OBJECTIVE), (LATENCY, THROUGHPUT)),
        OptionReader.text(*_reader(source, SAMPLE_SHAPE)),
        _choices(*_reader(source, ENGINES), _BACKENDS),
        _choices(*_reader(source, TUNE), (BATCH, INSTANCES)),
        directory_of(source.options.get(CACHE_DIR), "engines"),
    )


def _reader(source: ModelSource, key: str) -> tuple[OptionReader, str]:
    """Return the reader for the source that sets an option, and the option's name there."""
    if source.config.parameters.get(key, "").strip():
        return parameters_of(source.config), key
    return options_of(source.options), key.replace("_", "-")


def _tolerance(values: OptionReader, key: str) -> Tolerance:
    if not values.text(key):
        return Tolerance()
    if values.text(key) == "exact":
        return Tolerance(0.0)
    return Tolerance(_positive(values, key, 0.0, "'exact' or a number above 0, such as 0.02"), reduced=True)


def _positive(values: OptionReader, key: str, default: float, expected: str) -> float:
    return values.number(key, default, lambda number: 0 < number < math.inf, expected)


def _choices(values: OptionReader, key: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in values.text(key).split(",") if name.strip())
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise invalid(f"{values.where} '{key}' names '{unknown[0]}', expected some of {', '.join(choices)}")
    return names


def engine_parameters(config: ModelConfig, backend: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return a model's parameters for an engine: the server's own, and ``<backend>.<key>`` as ``<key>``.

    The candidate's parameters `own` take precedence.
    """
    prefix = f"{backend}."
    passed = {key: value for key, value in config.parameters.items() if key.startswith(SERVER_PARAMETERS)}
    passed |= {key.removeprefix(prefix): value for key, value in config.parameters.items() if key.startswith(prefix)}
    return passed | dict(own)


def warnings(config: ModelConfig) -> list[str]:
    """Return warnings about parameters of a model that have no effect."""
    prefixes = (*SERVER_PARAMETERS, *(f"{backend}." for backend in _BACKENDS))
    ignored = [key for key in config.parameters if key not in PARAMETERS and not key.startswith(prefixes)]
    if config.backend == "auto":
        return [unknown_parameter("auto", config, key, PARAMETERS) for key in ignored]
    if not ignored:
        return []
    listed = ", ".join(f"'{key}'" for key in ignored)
    return [
        f"model '{config.name}': backend '{config.backend}' is served by 'auto', which ignores "
        f"these parameters: {listed}"
    ]
