"""The metrics of models that are loaded on demand and unloaded: names, help texts and readers."""

from collections.abc import Callable
from typing import TypeAlias

from modserve.core.residency import MemoryReport, ResidencyReport

_NS = 1e9
_OfModel: TypeAlias = tuple[str, str, Callable[[ResidencyReport], float]]

SIZES: tuple[tuple[str, str, Callable[[int], float]], ...] = (
    (
        "modserve_model_resident_bytes",
        "Memory of the model in bytes, as measured when it was loaded; 0 while it is not in memory",
        float,
    ),
)
"""Of all models that were measured."""
GAUGES: tuple[_OfModel, ...] = (
    ("modserve_model_resident", "1 while the model is in memory", lambda r: r.resident),
    ("modserve_model_requests_waiting", "Requests that wait for the model to be in memory", lambda r: r.waiting),
)
COUNTERS: tuple[_OfModel, ...] = (
    ("modserve_model_loads_total", "Number of times that the model was loaded into memory", lambda r: r.loads),
    (
        "modserve_model_evictions_total",
        "Number of times that the model left memory while it was served",
        lambda r: r.evictions,
    ),
    ("modserve_model_load_seconds_total", "Time of these loads in seconds", lambda r: r.load_ns / _NS),
    (
        "modserve_model_load_wait_seconds_total",
        "Time that requests waited for the model to be in memory, in seconds",
        lambda r: r.waited_ns / _NS,
    ),
)
OF_ALL: tuple[tuple[str, str, Callable[[MemoryReport], float]], ...] = (
    ("modserve_model_memory_limit_bytes", "Memory limit for all models together, in bytes", lambda r: r.limit),
    (
        "modserve_model_memory_bytes",
        "Memory of all models in bytes, including the expected memory of those that are being loaded",
        lambda r: r.held,
    ),
)
