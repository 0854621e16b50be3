"""The thin loop around a batching rule: the direct scheduler and the dynamic batcher are this, with their rules."""

from collections.abc import Iterator
from typing import Generic

from modserve.core.errors import ModserveError, cancelled, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching

from .admission import Gate
from .batching import FAR_NS, Dispatch, Reason, Rule, ShowAll, WaitUntil
from .queue import GONE, RequestQueue
from .scheduler import Alarm, BatchRunner, Clock, Drop, SlotT

_RIPE_LOOKED_AT = 8
"""A group with enough for a batch may still wait for a larger one: so many are asked a time."""

TURN_NS = 1_000_000
"""How long a scheduler may start batches in one turn of the event loop; the rest goes on in the next."""


class QueuedScheduler(Generic[SlotT]):
    """Requests wait by priority and arrival until a slot is free and `rule` sends them.

    A slot is reserved first and the batch formed then, as late as possible: what arrives in the same turn of the event
    loop is seen together, and a batch grows until somebody can run it.
    """

    def __init__(
        self,
        rule: Rule,
        runner: BatchRunner[SlotT],
        clock: Clock,
        drop: Drop,
        policy: DynamicBatching = DynamicBatching(),  # noqa: B008 - frozen
        *,
        ripe_size: int = 0,
        gate: Gate = Gate(),  # noqa: B008 - it changes nothing
    ) -> None:
        self._rule = rule
        self._runner = runner
        self._clock = clock
        self._drop = drop
        self._policy = policy
        self._gate = gate
        self._queue = RequestQueue(
            ripe_size=ripe_size if policy.max_queue_delay_ns else 0,
            ripe_elements=policy.max_batch_elements,
            look_ahead=policy.look_ahead,
        )
        policies = (policy.default_policy, *policy.level_policies.values())
        self._counted = any(each.max_queue_size for each in policies)
        self._waiting: dict[int, int] = {}
        """How many wait by the priority they came with, if any queue has a limit."""
        self._stopped = False
        self._pump_due = False
        self._alarm = Alarm(clock, self._pump)
        runner.on_free = self._pump

    def __repr__(self) -> str:
        return f"QueuedScheduler({len(self._queue)} waiting)"

    def enqueue(self, inflight: Inflight) -> None:
        if self._stopped:
            raise unavailable(
                f"{inflight.request.label}Server is stopping, scheduler for model has stopped accepting new "
                "inference requests"
            )
        queue = self._queue
        priority = self._priority(inflight) if self._policy.priority_levels else 0
        policy = self._policy.policy(priority)
        # Each priority has two levels: the second one is for those that have waited too long.
        level = 2 * priority
        now_ns = self._clock.now_ns()
        most = policy.max_queue_size
        if most and self._waiting.get(priority, 0) >= most:
            if self._pump_due:
                self._pump()  # what came in this turn of the event loop need not wait for the next, if a slot is free
            if self._waiting.get(priority, 0) >= most:
                raise self._gate.full(inflight, *queue.ahead(level + 1), now_ns)
        timeout_ns = policy.timeout_ns(inflight.request.timeout_ns)
        if timeout_ns:
            timeout_ns += now_ns
            if not policy.delay:
                inflight.queue_limit_ns = timeout_ns = min(inflight.queue_limit_ns or timeout_ns, timeout_ns)
        if self._gate.predicts:
            self._gate.check(inflight, *queue.ahead(level), now_ns)
        inflight.queue_start_ns = now_ns
        inflight.on_cancel = self._cancelled
        queue.append(inflight, level, timeout_ns)
        if self._counted:
            inflight.priority = priority
            self._waiting[priority] = self._waiting.get(priority, 0) + 1
        if not self._pump_due:
            self._pump_due = True
            self._clock.call_soon(self._pump)

    def stop(self) -> None:
        self._stopped = True
        self._clock.call_soon(self._pump)  # nobody joins a batch any more: none need wait for its delay

    def close(self, error: ModserveError) -> None:
        self._stopped = True
        self.fail_waiting(error)
        self._alarm.cancel()

    def fail_waiting(self, error: ModserveError) -> None:
        """Fail what waits; what comes later is taken."""
        for inflight in list(self._queue):
            self._leave(inflight, error)

    def _priority(self, inflight: Inflight) -> int:
        """Triton takes the default for what is no level."""
        asked = inflight.request.parameters.get("priority", 0)
        if type(asked) is int and 0 < asked <= self._policy.priority_levels:
            return asked
        return self._policy.default_priority_level

    def _cancelled(self, inflight: Inflight) -> None:
        self._leave(inflight, cancelled())

    def _leave(self, inflight: Inflight, error: ModserveError) -> None:
        if inflight.settled:
            return  # telling one client of its failure made it cancel the others
        inflight.on_cancel = None
        self._queue.left(inflight)
        self._left(inflight)
        self._drop(inflight, error)

    def _left(self, inflight: Inflight) -> None:
        if self._counted:
            left = self._waiting.pop(inflight.priority) - 1
            if left:
                self._waiting[inflight.priority] = left

    def _pump(self) -> None:
        """Start every batch that can start now."""
        self._pump_due = False
        queue, runner = self._queue, self._runner
        end_ns = 0
        while len(queue):
            now_ns = self._clock.now_ns()
            if not end_ns:
                end_ns = now_ns + TURN_NS
            elif now_ns > end_ns:
                # Batches that run here, or very many that start: others have a turn of the event loop, too.
                self._pump_due = True
                self._clock.call_soon(self._pump)
                return
            wake_ns = self._expire(now_ns)
            if not len(queue):
                break
            slot = runner.reserve()
            if slot is None:
                self._alarm.at(wake_ns)
                return
            if self._policy.ageing_ns:
                self._age(now_ns)
            asked: set[object] = set()
            for candidate in self._candidates():
                if candidate.shape_key in asked:
                    continue
                asked.add(candidate.shape_key)
                look_ns = now_ns if not self._stopped else FAR_NS
                seen, others = queue.look(candidate)
                decision = self._rule(others, look_ns, seen)
                if decision is ShowAll.SHOW_ALL:
                    decision = self._rule(queue.together(candidate), look_ns)
                if not isinstance(decision, Dispatch) and queue.closed(candidate):
                    decision = Dispatch(sum(1 for _ in queue.together(candidate)), Reason.SHAPE)
                if isinstance(decision, Dispatch):
                    batch = queue.take(candidate, decision.count)
                    for inflight in batch:
                        inflight.on_cancel = None
                        self._left(inflight)
                    reason = decision.reason
                    if reason is Reason.IDLE_INSTANCE and len(queue) and not queue.has_like(batch[0]):
                        reason = Reason.SHAPE
                    runner.run(slot, batch, reason.value)
                    break
                assert isinstance(decision, WaitUntil), "a rule that is shown all decides: this is a bug"
                if decision.seen.requests:
                    queue.looked(candidate, decision.seen)
                wake_ns = min(wake_ns or decision.when_ns, decision.when_ns)
            else:
                runner.release(slot)
                self._alarm.at(wake_ns)
                return
        self._alarm.cancel()

    def _candidates(self) -> Iterator[Inflight]:
        """Whose batch may be the next to run: one request of each, in the order in which they are asked."""
        queue = self._queue
        yield queue.head()
        # Behind a batch that waits for its delay, others may be complete, overdue or pressed for time.
        for _, inflight in zip(range(_RIPE_LOOKED_AT), queue.ripe(), strict=False):
            yield inflight
        yield queue.oldest()
        yield from queue.pressing()

    def _age(self, now_ns: int) -> None:
        """Who has waited long enough at its level goes to the next more urgent one."""
        queue, limit_ns = self._queue, now_ns - self._policy.ageing_ns
        for inflight in queue.heads():
            while inflight.level > 3 and inflight.level_ns <= limit_ns:
                level = inflight.level
                queue.move(inflight, level - 2, now_ns)
                if not queue.waiting(level):
                    break
                inflight = queue.first(level)

    def _expire(self, now_ns: int) -> int:
        """Refuse what is past its deadline or queue limit, put back what its policy delays.

        Returns when to look again, 0 for never.
        """
        queue = self._queue
        next_ns = queue.next_deadline_ns()
        if next_ns and next_ns <= now_ns:
            for inflight in queue.expired(now_ns):
                self._leave(inflight, unavailable("Request timeout expired"))
            for inflight in queue.timed_out(now_ns):
                if inflight.queue_limit_ns:
                    self._leave(inflight, unavailable("Request timeout expired"))
                elif inflight.level != GONE:  # telling one client of its failure may have made it cancel this one
                    queue.move(inflight, inflight.level + 1, now_ns)
            next_ns = queue.next_deadline_ns()
        return next_ns
