"""The metrics of models that come into memory and leave it: names, help, and what reads their values."""

from collections.abc import Callable
from typing import TypeAlias

from modserve.core.residency import MemoryReport, ResidencyReport

_NS = 1e9
_OfModel: TypeAlias = tuple[str, str, Callable[[ResidencyReport], float]]

SIZES: tuple[tuple[str, str, Callable[[int], float]], ...] = (
    (
        "modserve_model_resident_bytes",
        "Bytes that the model holds, as measured when it was loaded; 0 while it is not in memory",
        float,
    ),
)
"""Of all models that were measured."""
GAUGES: tuple[_OfModel, ...] = (
    ("modserve_model_resident", "1 while the model is in memory", lambda r: r.resident),
    ("modserve_model_requests_waiting", "Requests that wait until the model is in memory", lambda r: r.waiting),
)
COUNTERS: tuple[_OfModel, ...] = (
    ("modserve_model_loads_total", "How often the model came into memory", lambda r: r.loads),
    ("modserve_model_evictions_total", "How often the model left memory while it was served", lambda r: r.evictions),
    ("modserve_model_load_seconds_total", "Seconds that its loads took", lambda r: r.load_ns / _NS),
    (
        "modserve_model_load_wait_seconds_total",
        "Seconds that requests waited for the model to be in memory",
        lambda r: r.waited_ns / _NS,
    ),
)
OF_ALL: tuple[tuple[str, str, Callable[[MemoryReport], float]], ...] = (
    ("modserve_model_memory_limit_bytes", "Bytes that all models together may hold", lambda r: r.limit),
    (
        "modserve_model_memory_bytes",
        "Bytes that all models hold, and those that are being loaded are expected to",
        lambda r: r.held,
    ),
)
