"""What `/batches` says of a model."""

from types import SimpleNamespace
from typing import cast

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.servable import Servable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.protocol.control import statistics
from modserve.testing import config, inflight

MS = 1_000_000


def found(counts: ModelStatistics) -> dict[str, object]:
    return statistics.batches_json(
        cast(Servable, SimpleNamespace(id=ModelId("m", 2), config=config("m"), statistics=counts))
    )


def execution(size: int, reason: str, ns: int) -> ExecutionTiming:
    """It began ten milliseconds after the clock did."""
    timing = ExecutionTiming(size, reason)
    timing.compute_start_ns = 10 * MS
    timing.compute_end_ns = 10 * MS + ns
    return timing


def waiting(count: int, ns: int) -> list[Inflight]:
    """Requests of which the first has waited so long for it."""
    requests = [inflight() for _ in range(count)]
    for number, each in enumerate(requests):
        each.queue_start_ns = 10 * MS - ns + number
    return requests


def test_batches() -> None:
    counts = ModelStatistics()
    counts.record_execution(execution(8, "full", 4 * MS), waiting(3, 2 * MS), 5)
    counts.record_execution(execution(1, "delay", MS), waiting(1, MS), 6)
    assert found(counts) == {
        "name": "m",
        "version": "2",
        "close_reasons": {"full": 1, "delay": 1},
        "recent": [
            {
                "end_ms": 6,
                "batch_size": 1,
                "requests": 1,
                "close_reason": "delay",
                "waited_us": 1000,
                "compute_us": 1000,
            },
            {
                "end_ms": 5,
                "batch_size": 8,
                "requests": 3,
                "close_reason": "full",
                "waited_us": 2000,
                "compute_us": 4000,
            },
        ],
    }
