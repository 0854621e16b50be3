"""The thin loop around a batching rule: the direct scheduler and the dynamic batcher are this, with their rules."""

from typing import Generic

from modserve.core.errors import ModserveError, cancelled, unavailable
from modserve.core.inflight import Inflight

from .batching import Dispatch, Rule, WaitUntil
from .queue import RequestQueue
from .scheduler import BatchRunner, Clock, Drop, SlotT, TimerHandle


class QueuedScheduler(Generic[SlotT]):
    """Requests wait in order of arrival until a slot is free and `rule` sends them.

    A slot is reserved first and the batch formed then, as late as possible: what arrives in the same turn of the event
    loop is seen together, and a batch grows until somebody can run it.
    """

    def __init__(
        self,
        rule: Rule,
        runner: BatchRunner[SlotT],
        clock: Clock,
        drop: Drop,
        *,
        max_queue_size: int = 0,
        default_timeout_ns: int = 0,
    ) -> None:
        self._rule = rule
        self._runner = runner
        self._clock = clock
        self._drop = drop
        self._max_queue_size = max_queue_size
        self._default_timeout_ns = default_timeout_ns
        self._queue = RequestQueue()
        self._stopped = False
        self._pump_due = False
        self._timer: TimerHandle | None = None
        self._timer_ns = 0
        runner.on_free = self._pump

    def __repr__(self) -> str:
        return f"QueuedScheduler({len(self._queue)} waiting)"

    def enqueue(self, inflight: Inflight) -> None:
        if self._stopped:
            raise unavailable(
                f"{inflight.request.label}Server is stopping, scheduler for model has stopped accepting new "
                "inference requests"
            )
        if self._max_queue_size and len(self._queue) >= self._max_queue_size:
            raise unavailable(f"{inflight.request.label}Exceeds maximum queue size")
        now_ns = self._clock.now_ns()
        inflight.queue_start_ns = now_ns
        if self._default_timeout_ns:
            limit_ns = now_ns + self._default_timeout_ns
            inflight.deadline_ns = min(inflight.deadline_ns or limit_ns, limit_ns)
        inflight.on_cancel = self._cancelled
        self._queue.append(inflight)
        if not self._pump_due:
            self._pump_due = True
            self._clock.call_soon(self._pump)

    def stop(self) -> None:
        self._stopped = True

    def close(self, error: ModserveError) -> None:
        self._stopped = True
        for inflight in list(self._queue):
            self._leave(inflight, error)
        self._disarm()

    def _cancelled(self, inflight: Inflight) -> None:
        self._leave(inflight, cancelled())

    def _leave(self, inflight: Inflight, error: ModserveError) -> None:
        if inflight.settled:
            return  # telling one client of its failure made it cancel the others
        inflight.on_cancel = None
        self._drop(inflight, error)
        self._queue.left()

    def _pump(self) -> None:
        """Start every batch that can start now."""
        self._pump_due = False
        queue, runner = self._queue, self._runner
        while len(queue):
            now_ns = self._clock.now_ns()
            wake_ns = self._expire(now_ns)
            slot = runner.reserve()
            if slot is None:
                self._arm(wake_ns)
                return
            decision = self._rule(queue, now_ns)
            if isinstance(decision, Dispatch):
                batch = queue.take(decision.count)
                for inflight in batch:
                    inflight.on_cancel = None
                runner.run(slot, batch)
                continue
            runner.release(slot)
            if isinstance(decision, WaitUntil):
                wake_ns = min(wake_ns or decision.when_ns, decision.when_ns)
            self._arm(wake_ns)
            return
        self._disarm()

    def _expire(self, now_ns: int) -> int:
        """Refuse what has waited past its deadline; the next deadline, 0 if there is none."""
        queue = self._queue
        next_ns = queue.next_deadline_ns()
        if next_ns and next_ns <= now_ns:
            for inflight in queue.expired(now_ns):
                self._leave(inflight, unavailable("Request timeout expired"))
            next_ns = queue.next_deadline_ns()
        return next_ns

    def _arm(self, when_ns: int) -> None:
        if self._timer is not None and self._timer_ns == when_ns:
            return
        self._disarm()
        if when_ns:
            self._timer_ns = when_ns
            self._timer = self._clock.call_at(when_ns, self._wake)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self._pump()
