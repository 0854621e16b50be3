"""The options for loading models on demand and unloading them."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator

from modserve.core.residency import MemoryLimit

from .options import option
from .values import boolean

_UNITS = {"": 1, **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", "K", "M", "G", "T"))}}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate(("", "K", "M", "G", "T")) if power}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*|%)")
_BY_NAME = {unit.lower(): factor for unit, factor in _UNITS.items()}


def memory_limit(value: Any) -> MemoryLimit:
    """A number of bytes, ``10GB`` (10^9 each), ``10GiB`` (2^30 each) or ``50%``. Raises ValueError."""
    if isinstance(value, MemoryLimit):
        return value
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, int | str) else None
    number, unit = (float(match[1]), match[2].lower()) if match is not None else (0.0, "?")
    if unit == "%" and 0 < number <= 100:
        return MemoryLimit(percent=number)
    if unit not in _BY_NAME:
        raise ValueError(f"expected bytes, a size such as 10GB or 500MiB, or a share such as 50%, got: {value}")
    return MemoryLimit(int(number * _BY_NAME[unit]))


def _lazily(value: Any) -> Any:
    if isinstance(value, str) and value.lower() != "auto":
        return "true" if boolean(value) else "false"
    return str(value).lower() if isinstance(value, bool | str) else value


Limit = Annotated[MemoryLimit, PlainValidator(memory_limit)]
Lazily = Annotated[Literal["auto", "true", "false"], BeforeValidator(_lazily)]

LIMIT: MemoryLimit = option(
    MemoryLimit(),
    "Memory for all models together: bytes, a size such as 10GB or 500MiB, or a percentage of the memory of the "
    "container or machine. Models load with their first request, and the least recently used ones are unloaded for "
    "others; 0: no limit, all stay loaded.",
    section="memory of models",
    value="BYTES|SIZE|PERCENTAGE",
    default_in_words="0",
)
LAZILY: Literal["auto", "true", "false"] = option(
    "auto",
    "Load models with their first request, not at the start; auto: only with --model-memory-limit. A model's "
    "parameter residency.load overrides it.",
    flag=True,
    value="auto|true|false",
)
IDLE_SECS: int = option(
    0,
    "Seconds without a request after which a model is unloaded until the next one; 0: never. A model's parameter "
    "residency.idle_unload_secs overrides it.",
)
WAIT_SECS: int = option(
    30,
    "Seconds that requests wait for memory for their model before they are refused.",
)
