"""Limits on requests, work and models in memory, and settings for stopping a server."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator

from modserve.core.residency import MemoryLimit

from .options import option
from .setting_types import boolean


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of uninterrupted work on the event loop, and of waiting work. Larger work goes to a thread, or waits."""

    json: int = 256 * 1024
    """Size in bytes of JSON to decode, and of a decompressed message."""
    compressed: int = 16 * 1024
    """Bytes to decompress or compress."""
    texts: int = 256 * 1024
    """Size in bytes of a BYTES tensor for counting its elements, or of any tensor for computing its digest."""
    elements: int = 32 * 1024
    """Elements that are ranked, or converted one by one."""
    message: int = 1024 * 1024
    """Size in bytes of a protobuf message to parse or build."""
    split: int = 64 * 1024
    """Size in bytes of a ModelInferRequest that protobuf parses as a whole; longer ones are split first."""
    part: int = 256 * 1024
    """Bytes of a stream's message sent at once, which distinguishes slow readers from stalled ones."""
    parts: int = 32
    """Queued and running parts of one prediction; more would crowd out other clients' parts."""
    outstanding: int = 1024
    """Unsettled requests of a gRPC stream. At the limit none is read, and the client waits."""
    outstanding_bytes: int = 64 * 1024 * 1024
    """Total size in bytes of these requests. A larger request is allowed as the only one."""


REQUEST_MEMORY: int | None = option(
    None,
    "Bytes that all requests together may hold; 0: no limit.",
    section="limits",
    default_in_words="half of the container's or machine's memory",
)
MAX_ACCEPTED: int = option(
    0,
    "Maximum requests in flight; 0: no limit. For one model: parameter limits.max_accepted_requests.",
)
EXECUTION_SECS: int = option(
    600,
    "Time limit of an execution, and of a decoupled model's next response, in seconds. After it, the request fails and "
    "the instance is replaced. 0: none. For one model: parameter limits.execution_timeout_ms.",
)
RATE_LIMIT: Literal["off", "execution_count"] = option(
    "off",
    "execution_count: executions wait for the resources of their instance_group's rate_limiter.",
    value="off|execution_count",
)


_UNITS = {"": 1, **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", "K", "M", "G", "T"))}}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate(("", "K", "M", "G", "T")) if power}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*|%)")
_BY_NAME = {unit.lower(): factor for unit, factor in _UNITS.items()}


def memory_limit(value: Any) -> MemoryLimit:
    """Parse a number of bytes, ``10GB`` (10^9 each), ``10GiB`` (2^30 each) or ``50%``. Raises ValueError."""
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
    "Memory for all models: bytes, 10GB, 500MiB, or a percentage of the container's or machine's. "
    "Models load with a request; the least recently used are unloaded. 0: no limit.",
    section="memory of models",
    value="BYTES|SIZE|PERCENTAGE",
    default_in_words="0",
)
LAZILY: Literal["auto", "true", "false"] = option(
    "auto",
    "Load models with their first request; auto: only with --model-memory-limit. For one model: parameter "
    "residency.load.",
    flag=True,
    value="auto|true|false",
)
IDLE_SECS: int = option(
    0,
    "Seconds without a request until a model is unloaded; 0: never. For one model: parameter "
    "residency.idle_unload_secs.",
)
WAIT_SECS: int = option(
    30,
    "Seconds that requests wait for memory for their model.",
)


EXIT_SECS: int = option(30, "Seconds that a stopping server waits for requests in flight.")
DELAY_SECS: int = option(
    0,
    "Seconds that a stopping server, no longer ready, accepts requests, for load balancers.",
)
