"""The part of a sequence scheduler that forms the batches of one instance."""

from collections.abc import Callable
from typing import Generic, Protocol

from modserve.core.errors import ModserveError
from modserve.core.inflight import Inflight

from .queued import QueuedScheduler
from .scheduler import PinnedRunner, SlotT


class Lane(Protocol):
    """Forms batches of the next requests of an instance's sequences. It has at most one request of each at a time.

    A request that leaves without having run goes to the `OnDrop` that the lane was made with. Until it runs, calling
    its `on_cancel` makes it leave.
    """

    def offer(self, row: int, inflight: Inflight) -> None:
        """The next request of the sequence in `row`; returns at once."""

    def close(self, error: ModserveError) -> None:
        """Fail what waits."""


class OneSlot(Generic[SlotT]):
    """One instance of a runner. Implements `scheduler.BatchRunner`; calls `on_run` with a batch about to run."""

    def __init__(self, runner: PinnedRunner[SlotT], number: int, on_run: Callable[[list[Inflight]], None]) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self._runner = runner
        self._number = number
        self._on_run = on_run

    def reserve(self) -> SlotT | None:
        return self._runner.reserve_number(self._number)

    def release(self, slot: SlotT) -> None:
        self._runner.release(slot)

    def run(self, slot: SlotT, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        self._on_run(batch)
        self._runner.run(slot, batch, close_reason, rows)


class OldestLane(Generic[SlotT]):
    """The oldest strategy: a dynamic batcher."""

    def __init__(self, batcher: QueuedScheduler[SlotT]) -> None:
        self._batcher = batcher

    def offer(self, row: int, inflight: Inflight) -> None:
        self._batcher.enqueue(inflight)

    def close(self, error: ModserveError) -> None:
        self._batcher.close(error)
