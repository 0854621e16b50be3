"""Interfaces on both sides of a scheduler."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight


class Scheduler(Protocol):
    """Owns the waiting requests of one model version. All methods run on the event loop's thread and never wait."""

    @property
    def count(self) -> int:
        """Number of waiting requests."""

    def longest_wait_ns(self, now_ns: int) -> int:
        """Return how long the oldest waiting request has waited; 0 if none waits."""

    def dispatch(self) -> None:
        """Start every batch that can start now: called when a slot of the runner may have become free."""

    def enqueue(self, inflight: Inflight) -> None:
        """Take the request, or raise UNAVAILABLE and leave it alone when full or stopping."""

    def hurry(self) -> None:
        """Stop holding requests back to share a batch, from now on."""

    def stop(self) -> None:
        """Take nothing new; what waits still runs, and hurries."""

    def close(self, error: ModserveError) -> None:
        """Take nothing new and fail what waits."""

    def fail_waiting(self, error: ModserveError) -> None:
        """Fail what waits; what comes later is taken."""


SlotT = TypeVar("SlotT")
"""A place to run one batch. Only the runner knows what it is."""


class BatchRunner(Protocol[SlotT]):
    """Runner of batches; implemented by `execution/pool.py`."""

    def reserve(self) -> SlotT | None:
        """Reserve a free slot, or return None. Call `run` or `release` with each reserved slot."""

    def release(self, slot: SlotT) -> None: ...

    def run(self, slot: SlotT, batch: list[Inflight], close_reason: str) -> None:
        """Execute and settle all of a `batch`, never empty; returns at once. `close_reason`: a value of `Reason`."""


class PinnedRunner(BatchRunner[SlotT], Protocol):
    """A runner with numbered slots, for schedulers that keep requests in their places."""

    @property
    def count(self) -> int:
        """Number of slots."""

    def reserve_number(self, number: int) -> SlotT | None:
        """Reserve the slot with this number, 0 to `count` - 1, as `reserve` does."""

    def run(self, slot: SlotT, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        """Run a batch as all runners do. `rows` are the requests in the model's rows; fillers count nowhere."""


OnDrop: TypeAlias = Callable[[Inflight, ModserveError], None]
"""Settles a request that leaves the queue without having run, and counts it."""
