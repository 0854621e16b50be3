"""Scheduler for a batching rule: the direct scheduler or the dynamic batcher, depending on the rule."""

from collections.abc import Callable, Iterable
from typing import Generic

from mypy_extensions import mypyc_attr

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.errors import ModserveError, cancelled, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.runtime.clock import Alarm, Clock
from modserve.core.version import STOPPING

from .admission import WHOLE_QUEUE, Gate, QueueLimit
from .batching import FAR_NS, Dispatch, Reason, Rule, WaitUntil
from .fair_queue import FairQueue, rows
from .level_queue import LevelQueue
from .queue import GONE, QueueSettings
from .scheduler import BatchRunner, OnDrop, SlotT

TURN_NS = 1_000_000
"""Maximum time for starting batches in one turn of the event loop; the rest follows in the next."""


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuedScheduler(Generic[SlotT]):
    """Scheduler with a queue: requests wait by priority and arrival until a slot is free and `rule` runs them.

    First a slot is reserved, and then the batch formed, as late as possible: all arrivals in one turn of the event loop
    are considered together, and a batch grows until an instance can run it.
    """

    def __init__(
        self,
        rule: Rule,
        runner: BatchRunner[SlotT],
        clock: Clock,
        on_drop: OnDrop,
        policy: DynamicBatching = DynamicBatching(),  # noqa: B008 - frozen
        *,
        ripe_size: int = 0,
        gate: Gate = Gate(),  # noqa: B008 - it changes nothing
        padded: Callable[[int], int] | None = None,
        cost: Callable[[Inflight], float] = rows,
    ) -> None:
        """Create a scheduler.

        `ripe_size`: size from which the rule may run a batch before its delay is over. `padded`: the rule reads
        `BatchCandidates.lengths`; this returns the length that counts there for a request's own. `cost`: cost of a
        request to its tenant, in rows.
        """
        self._rule = rule
        self._runner = runner
        self._clock = clock
        self._on_drop = on_drop
        self._policy = policy
        self._gate = gate
        policies = (policy.default_policy, *policy.level_policies.values())
        self._counted = any(each.max_queue_size for each in policies)
        self._waiting: dict[object, int] = {}
        """Number of waiting requests by original priority and tenant (`_line`), if any queue has a limit."""
        has_timeout = any(each.default_timeout_ns for each in policies)
        self._restricted = bool(policy.priority_levels or self._counted or gate.predicts or has_timeout)
        """True if `_place` must handle every request, not only requests with a time-out or a tenant."""
        self._settings = QueueSettings(
            sums=bool(policy.max_queue_delay_ns or policy.max_batch_elements),
            ripe_size=ripe_size if policy.max_queue_delay_ns else 0,
            ripe_elements=policy.max_batch_elements,
            look_ahead=policy.look_ahead,
            padded=padded,
        )
        self._cost = cost
        self._queue: LevelQueue | FairQueue = LevelQueue(self._settings)
        self._fair: FairQueue | None = None
        """The queue, once there has been a request with a tenant."""
        self._stopped = self._hurries = False
        self._pump_due = False
        self._alarm = Alarm(clock, self.dispatch)

    def __repr__(self) -> str:
        return f"QueuedScheduler({self._queue.count} waiting)"

    @property
    def count(self) -> int:
        """Number of waiting requests."""
        return self._queue.count

    @property
    def waiting(self) -> Iterable[Inflight]:
        """Waiting requests, most urgent first."""
        return self._queue

    def longest_wait_ns(self, now_ns: int) -> int:
        return now_ns - self._queue.oldest_ns() if self._queue.count else 0

    def waiting_by_tenant(self) -> dict[str, int]:
        """Implements `core.tenants.TenantQueues`."""
        return {} if self._fair is None else self._fair.waiting_by_tenant()

    def enqueue(self, inflight: Inflight) -> None:
        if self._stopped:
            raise unavailable(f"{inflight.request.label}{STOPPING}")
        now_ns = self._clock.now_ns()
        level = timeout_ns = 0
        request = inflight.request
        if self._restricted or request.timeout_ns or request.tenant is not None:
            level, timeout_ns = self._place(inflight, now_ns)
        inflight.queue_start_ns = now_ns
        inflight.on_cancel = self._on_cancel
        self._queue.append(inflight, level, timeout_ns)
        if not self._pump_due:
            self._pump_due = True
            self._clock.call_soon(self.dispatch)

    def hurry(self) -> None:
        self._hurries = True
        self._clock.call_soon(self.dispatch)

    def stop(self) -> None:
        self._stopped = True
        self.hurry()  # no request joins a batch any more, so none waits for its delay

    def close(self, error: ModserveError) -> None:
        self._stopped = True
        self.fail_waiting(error)
        self._alarm.cancel()

    def fail_waiting(self, error: ModserveError) -> None:
        for inflight in list(self._queue):
            self._leave(inflight, error)

    def _share(self) -> None:
        """Share between tenants from now on. Requests that already wait count as one tenant's."""
        former, timeouts = self._queue, self._queue.timeouts()
        self._queue = self._fair = fair = FairQueue(self._settings, self._cost)
        for inflight in sorted(former, key=lambda each: each.arrival):
            fair.append(inflight, inflight.level, timeouts.get(inflight, 0))

    def _place(self, inflight: Inflight, now_ns: int) -> tuple[int, int]:
        """Return a request's level, and the time of its policy's time-out, 0 for none. Raises UNAVAILABLE."""
        tenant = inflight.request.tenant
        if tenant is not None and self._fair is None:
            self._share()
        policy, priority = self._policy.default_policy, 0
        if self._policy.priority_levels:
            priority = self._priority(inflight)
            policy = self._policy.policy(priority)
        # Each priority has two levels: the second one is for requests past their time-out.
        level = 2 * priority
        if self._is_full(inflight, policy.max_queue_size, priority):
            if self._pump_due:
                self.dispatch()  # earlier arrivals of this turn of the event loop need not wait for the next
            if limit := self._is_full(inflight, policy.max_queue_size, priority):
                raise self._gate.full(inflight, *self._queue.ahead(level + 1, tenant), now_ns, limit)
        timeout_ns = policy.timeout_ns(inflight.request.timeout_ns)
        if timeout_ns:
            timeout_ns += now_ns
            if not policy.delay:
                inflight.queue_limit_ns = timeout_ns = min(inflight.queue_limit_ns or timeout_ns, timeout_ns)
        if self._gate.predicts:
            self._gate.check(inflight, *self._queue.ahead(level, tenant), now_ns)
        if self._counted:
            inflight.priority = priority
            line = _line(inflight, priority)
            self._waiting[line] = self._waiting.get(line, 0) + 1
        return level, timeout_ns

    def _is_full(self, inflight: Inflight, most: int, priority: int) -> QueueLimit | None:
        """Return the limit that refuses a request (its priority's queue, or its tenant's part of it), or None."""
        tenant, fair = inflight.request.tenant, self._fair
        if fair is None:
            return WHOLE_QUEUE if most and self._waiting.get(priority, 0) >= most else None
        if tenant is not None and tenant.queue_size is not None:
            waiting = fair.waiting(tenant)
            if waiting >= tenant.queue_size:
                return QueueLimit(tenant.name, waiting, tenant.queue_size)
        elif most:
            share, waiting = fair.share(tenant, most), self._waiting.get(_line(inflight, priority), 0)
            if waiting >= share:
                return WHOLE_QUEUE if share >= most or tenant is None else QueueLimit(tenant.name, waiting, share, most)
        return None

    def _priority(self, inflight: Inflight) -> int:
        """Return the request's priority; the default for an invalid one, as in Triton."""
        priority = inflight.request.parameters.get("priority", 0)
        if type(priority) is int and 0 < priority <= self._policy.priority_levels:
            return priority
        return self._policy.default_priority_level

    def _on_cancel(self, inflight: Inflight) -> None:
        self._leave(inflight, cancelled())

    def _leave(self, inflight: Inflight, error: ModserveError) -> None:
        if inflight.settled:
            return  # re-entrancy: a sink may cancel other requests on a failure
        inflight.on_cancel = None
        self._queue.left(inflight)
        if self._counted:
            self._uncount(inflight)
        self._on_drop(inflight, error)

    def _uncount(self, inflight: Inflight) -> None:
        line = _line(inflight, inflight.priority)
        left = self._waiting.pop(line) - 1
        if left:
            self._waiting[line] = left

    def dispatch(self) -> None:
        """Start every batch that can start now."""
        self._pump_due = False
        runner, alarm = self._runner, self._alarm
        end_ns = 0
        while (queue := self._queue).count:
            now_ns = self._clock.now_ns()
            if not end_ns:
                end_ns = now_ns + TURN_NS
            elif now_ns > end_ns:
                # After direct runs or very many starts, other work gets a turn of the event loop.
                self._pump_due = True
                self._clock.call_soon(self.dispatch)
                return
            wake_ns = self._expire(now_ns) if queue.timed else 0
            if not queue.count:
                break
            slot = runner.reserve()
            if slot is None:
                alarm.at(wake_ns)
                return
            if self._policy.ageing_ns:
                queue.promote(now_ns, self._policy.ageing_ns)
            look_ns = now_ns if not self._hurries else FAR_NS
            for together in queue.candidates():
                decision = self._rule(together, look_ns)
                if isinstance(decision, WaitUntil):
                    if not together.closed:
                        wake_ns = min(wake_ns or decision.when_ns, decision.when_ns)
                        continue
                    decision = Dispatch(sum(1 for _ in together), Reason.SHAPE)
                if decision.members:
                    batch = queue.take_members(list(decision.members))
                else:
                    batch = queue.take(together, decision.count)
                for inflight in batch:
                    inflight.on_cancel = None
                    if self._counted:
                        self._uncount(inflight)
                reason = decision.reason
                if reason is Reason.IDLE_INSTANCE and queue.count and not together.count:
                    reason = Reason.SHAPE
                runner.run(slot, batch, reason._value_)  # `value` is a property, in Python
                break
            else:
                runner.release(slot)
                alarm.at(wake_ns)
                return
        if alarm.when_ns:
            alarm.cancel()

    def _expire(self, now_ns: int) -> int:
        """Refuse late requests, and move back those delayed by their policy. Return the next due time, 0 for never."""
        queue = self._queue
        next_ns = queue.next_time_ns()
        if not next_ns or next_ns > now_ns:
            return next_ns
        for inflight in queue.pop_expired(now_ns):
            self._leave(inflight, unavailable("Request timeout expired"))
        for inflight in queue.pop_timed_out(now_ns):
            if inflight.queue_limit_ns:
                self._leave(inflight, unavailable("Request timeout expired"))
            elif inflight.level != GONE:  # re-entrancy, as in `_leave`
                queue.move(inflight, inflight.level + 1, now_ns)
        return queue.next_time_ns()


def _line(inflight: Inflight, priority: int) -> object:
    """Return the key for counting queue places: the priority, and the tenant if there is one."""
    tenant = inflight.request.tenant
    return priority if tenant is None else (tenant.name, priority)
