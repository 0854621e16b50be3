"""The instances of a sequence scheduler: a *lane* for each, which forms its batches.

A lane has at most one request of each of the instance's sequences, the next one. A request that leaves without having
run goes to the `OnDrop` that the lane was made with. Until it runs, calling its `on_cancel` makes it leave.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.configuration.sequence_config import DirectStrategy, OldestStrategy
from modserve.core.errors import ModserveError, cancelled, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.runtime.clock import Alarm, Clock

from . import batching
from .batching import MARGIN_NS, Reason, WaitUntil
from .queued import TURN_NS, QueuedScheduler
from .scheduler import OnDrop, PinnedRunner, SlotT


class OneSlot(Generic[SlotT]):
    """Single instance of a runner. Implements `scheduler.BatchRunner`; calls `on_run` with a batch about to run."""

    def __init__(self, runner: PinnedRunner[SlotT], number: int, on_run: Callable[[list[Inflight]], None]) -> None:
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


class OldestLane(QueuedScheduler[SlotT]):
    """The oldest strategy: a dynamic batcher."""

    def offer(self, row: int, inflight: Inflight) -> None:
        self.enqueue(inflight)


def oldest_lane(
    strategy: OldestStrategy, max_batch_size: int, slot: OneSlot[SlotT], clock: Clock, on_drop: OnDrop
) -> OldestLane[SlotT]:
    policy = DynamicBatching(strategy.preferred_batch_sizes, strategy.max_queue_delay_ns)
    rule = batching.dynamic(policy, max_batch_size)
    size = batching.ripe_size(policy, max_batch_size)
    return OldestLane(rule, slot, clock, on_drop, policy, ripe_size=size)


@dataclass(frozen=True, slots=True)
class Rows:
    """Run the requests of these rows, in ascending order."""

    rows: tuple[int, ...]
    reason: Reason


def direct(heads: Sequence[Inflight | None], strategy: DirectStrategy, now_ns: int) -> Rows | WaitUntil | None:
    """Choose what to run of `heads`, each row's next request; None for nothing. As Triton (core, DirectSequenceBatch).

    All heads run at once, unless there is a delay and less than the minimum of the rows is filled; then they wait until
    the oldest has waited that long. If requests cannot share a batch, those like the oldest run.
    """
    ready = [head for head in heads if head is not None]
    if not ready:
        return None
    oldest = min(ready, key=lambda head: head.queue_start_ns)
    rows = tuple(row for row, head in enumerate(heads) if head is not None and head.shape_key == oldest.shape_key)
    if len(rows) == len(heads):
        return Rows(rows, Reason.FULL)
    delay_ns, utilization = strategy.max_queue_delay_ns, strategy.minimum_slot_utilization
    if not delay_ns or not utilization:
        return Rows(rows, Reason.IDLE_INSTANCE)
    if len(ready) >= utilization * len(heads):
        return Rows(rows, Reason.PREFERRED)
    due_ns = oldest.queue_start_ns + delay_ns
    if now_ns >= due_ns:
        return Rows(rows, Reason.DELAY)
    latest_ns = min([head.begin_by_ns - MARGIN_NS for head in ready if head.begin_by_ns], default=due_ns)
    return Rows(rows, Reason.DEADLINE) if now_ns >= latest_ns else WaitUntil(min(due_ns, latest_ns))


class DirectLane(Generic[SlotT]):
    """The rows of one instance: at most one request waits in each.

    Runs batches in which every request is in its row; rows before the last that have nothing to run get fillers, which
    `make_filler` makes for a batch with a request. No client waits for them; their control inputs mark them.
    """

    def __init__(
        self,
        strategy: DirectStrategy,
        rows: int,
        runner: OneSlot[SlotT],
        clock: Clock,
        on_drop: OnDrop,
        make_filler: Callable[[Inflight], Inflight],
    ) -> None:
        self._strategy = strategy
        self._heads: list[Inflight | None] = [None] * rows
        self._rows: dict[Inflight, int] = {}
        self._runner = runner
        self._clock = clock
        self._on_drop = on_drop
        self._make_filler = make_filler
        self._pump_due = False
        self._alarm = Alarm(clock, self.dispatch)

    def offer(self, row: int, inflight: Inflight) -> None:
        """Offer the next request of the sequence in `row`; returns at once."""
        inflight.queue_start_ns = self._clock.now_ns()
        inflight.on_cancel = self._on_cancel
        self._heads[row] = inflight
        self._rows[inflight] = row
        if not self._pump_due:
            self._pump_due = True
            self._clock.call_soon(self.dispatch)

    def close(self, error: ModserveError) -> None:
        """Fail what waits."""
        for inflight in list(self._rows):
            self._leave(inflight, error)
        self._alarm.cancel()

    def _on_cancel(self, inflight: Inflight) -> None:
        self._leave(inflight, cancelled())

    def _leave(self, inflight: Inflight, error: ModserveError) -> None:
        row = self._rows.pop(inflight, None)
        if row is None:
            return  # re-entrancy: a sink may cancel other requests when it hears of a failure
        inflight.on_cancel = None
        self._heads[row] = None
        self._on_drop(inflight, error)

    def dispatch(self) -> None:
        """Start the next batch if it can start now: an instance has one slot."""
        self._pump_due = False
        self._alarm.cancel()
        end_ns = 0
        while self._rows:
            now_ns = self._clock.now_ns()
            if not end_ns:
                end_ns = now_ns + TURN_NS
            elif now_ns > end_ns:
                self._pump_due = True
                self._clock.call_soon(self.dispatch)
                return
            wake_ns = self._expire(now_ns)
            slot = self._runner.reserve() if self._rows else None
            if slot is None:
                self._alarm.at(wake_ns)
                return
            decision = direct(self._heads, self._strategy, now_ns)
            if not isinstance(decision, Rows):
                self._runner.release(slot)
                if decision is not None:
                    self._alarm.at(min(wake_ns or decision.when_ns, decision.when_ns))
                return
            self._start(slot, decision)

    def _start(self, slot: SlotT, decision: Rows) -> None:
        batch = [head for row in decision.rows if (head := self._heads[row]) is not None]
        rows: list[Inflight] = []
        for inflight in batch:
            row = self._rows.pop(inflight)
            self._heads[row] = None
            inflight.on_cancel = None
            while len(rows) < row:
                rows.append(self._make_filler(batch[0]))
            rows.append(inflight)
        self._runner.run(slot, batch, decision.reason.value, rows if len(rows) > len(batch) else None)

    def _expire(self, now_ns: int) -> int:
        """Refuse what is past its deadline or queue limit; when the next one is, 0 for never."""
        next_ns = 0
        for inflight in list(self._rows):
            begin_by_ns = inflight.begin_by_ns
            if begin_by_ns and begin_by_ns <= now_ns:
                self._leave(inflight, unavailable("Request timeout expired"))
            elif begin_by_ns:
                next_ns = min(next_ns or begin_by_ns, begin_by_ns)
        return next_ns


Lane: TypeAlias = OldestLane[SlotT] | DirectLane[SlotT]
