"""Measures how busy the server is, for load balancers that share out requests by it.

Rates and utilizations are means of the last second, in which what is older counts less and less. What is said of the
application is the larger of two: the part of the cores that the process uses, and the part of its time that each
instance of the busiest model has been executing. A balancer that divides the rate by it gets what the server could do.
"""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modserve.core.servable import Servable
from modserve.core.statistics.load_report import LoadReport
from modserve.core.statistics.metrics import MetricStore
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics

_MEMORY_S: Final = 1.0
"""Seconds after which an old value weighs e times less."""
_MOST_NAMES: Final = 8
"""Models in a report: those with the longest queues."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""Names that a header line may have."""
_CACHE: Final = "modserve_kv_cache_usage_perc"
_CACHE_NAME: Final = "kv_cache_utilization"
_PAGE: Final = 4096
_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return this process's resident memory; 0 if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


@dataclass(slots=True)
class _Counts:
    """Counts of a model at the last reading, and how busy it was lately."""

    requests: int
    errors: int
    busy_ns: int
    busy: float = 0.0


class LoadMeter:
    """Load meter, for the event loop's thread. `cores` and `memory` (bytes, 0 if unknown) are the process's limits.

    `workers` processes serve the same ports: the report of one stands for all. With `names`, models are named.
    """

    def __init__(
        self,
        models: Callable[[], Sequence[Servable]],
        store: MetricStore,
        *,
        cores: float,
        memory: int,
        workers: int = 1,
        names: bool = True,
        cpu_s: Callable[[], float] = time.process_time,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._models = models
        self._store = store
        self._cores = cores
        self._memory = memory / workers
        self._workers = workers
        self._names = names
        self._cpu_s = cpu_s
        self._resident = resident
        self._counts: dict[ModelStatistics, _Counts] = {}
        self._last = (-1.0, 0.0)
        """Time of the last reading, and the process's time then."""
        self._cpu = self._rate = self._errors = 0.0

    def read(self, now: float) -> LoadReport:
        """Return the load at `now`, in seconds of any steady clock."""
        before, cpu_before = self._last
        cpu_s, passed = self._cpu_s(), now - before
        servables = self._models()
        known, self._counts = self._counts, {}
        requests = errors = 0
        weight = 1 - math.exp(-passed / _MEMORY_S)
        for servable in servables:
            statistics = servable.statistics
            counts = _counts(statistics)
            old = known.get(statistics)
            self._counts[statistics] = counts
            if old is None:
                continue
            requests += counts.requests - old.requests
            errors += counts.errors - old.errors
            if statistics.instances and passed > 0:
                busy = (counts.busy_ns - old.busy_ns) / (passed * 1e9 * statistics.instances)
                counts.busy = old.busy + weight * (busy - old.busy)
        if before >= 0 and passed > 0:
            self._cpu += weight * ((cpu_s - cpu_before) / passed / self._cores - self._cpu)
            self._rate += weight * (requests / passed - self._rate)
            self._errors += weight * (errors / passed - self._errors)
        self._last = now, cpu_s
        busiest = max((counts.busy for counts in self._counts.values()), default=0.0)
        return LoadReport(
            self._cpu,
            min(1.0, self._resident() / self._memory) if self._memory else 0.0,
            max(busiest, self._cpu),
            self._rate * self._workers,
            self._errors * self._workers,
            self._collect_named(servables),
        )

    def _collect_named(self, servables: Sequence[Servable]) -> dict[str, float]:
        named: dict[str, float] = {}
        caches = [
            (labels.get("model", ""), value)
            for family in self._store.read(frozenset((_CACHE,)))
            for labels, value in family.rows
            if isinstance(value, int | float)
        ]
        if caches:
            named[_CACHE_NAME] = max(value for _, value in caches)
        if not self._names:
            return named
        queues = [(each.statistics.pending, each.id.name) for each in servables if each.statistics.pending]
        for pending, name in sorted(queues, reverse=True)[:_MOST_NAMES]:
            if _NAME.fullmatch(name):
                key = f"queue.{name}"
                named[key] = named.get(key, 0) + pending
        return named


def _counts(statistics: ModelStatistics) -> _Counts:
    busy_ns = sum(each.input_ns + each.infer_ns + each.output_ns for each in statistics.batches.values())
    failures = statistics.fail.count - statistics.failures[FailureReason.CANCELED]
    return _Counts(statistics.success.count + failures, failures, busy_ns)
