"""A single loaded model version: checks requests, queues them, and knows when all are settled."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from modserve.backends.api import InstanceSpec
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, OverloadedError, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.runtime.clock import LoopClock
from modserve.core.servable import Oldest
from modserve.core.statistics.model_statistics import FailureReason, failure_reason
from modserve.core.tenants import waiting_by_tenant
from modserve.core.version import ModelId
from modserve.execution.inline import may_run_inline
from modserve.execution.instance import Instance
from modserve.execution.limited import LimitedPool
from modserve.execution.pool import InstancePool
from modserve.execution.rate_limit import RateLimiter, ResourceTurn, turns
from modserve.execution.warming import Sample
from modserve.scheduling.batch_policy import BatchPolicy
from modserve.scheduling.batching import ripe_size
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import Scheduler

from .closing import close_aside
from .opened_model import OpenedModel, QueueConfig
from .readiness import ReadinessCheck
from .service import Service, ServiceEvent, after
from .warm_up import warm_up

_log = logging.getLogger(__name__)

_ABANDONED_NS = 5_000_000_000
"""Time that a closing model waits for executions without waiting requests."""
_LOOK_S = 0.5
"""Interval of checks for such executions."""


class Model:
    """Implements `core.servable.Servable`, `Finisher` and `ReadinessChecker`, and `execution.owner.PoolOwner`.

    On the event loop's thread. For its states, see `service`. It closes the engine and instances passed to it, unless
    its constructor raises; then the caller does. With a `limiter`, its instances share resources with other models'
    instances; the constructor raises INVALID_ARG if one needs more than exists.
    """

    def __init__(
        self,
        model_id: ModelId,
        opened: OpenedModel,
        clock: LoopClock,
        queue_config: QueueConfig,
        limiter: RateLimiter | None = None,
    ) -> None:
        self.id = model_id
        self.unready_reason: str | None = None
        """Reason that it accepts no requests although it is loaded: it has no instance left."""
        self.config = config = opened.config
        self.config_message = opened.message
        self.statistics = opened.statistics
        self.statistics.set_buckets(config.histogram_buckets)
        self.labels = opened.labels
        self.engine_report = opened.engine_report
        self.opened = replace(opened, instances=())
        """The opened model, without its instances, which change."""
        self.outstanding = 0
        self._apart = False
        """True if requests run alone despite dynamic batching in the configuration: their rows were mixed."""
        self._engine = opened.engine
        self._clock = clock
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._abandoned_since_ns = 0
        self._leaving: set[asyncio.Task[None]] = set()
        shares = {} if limiter is None else dict(enumerate(turns(config, self.slot_free)))
        timeout_ns = config.limits.execution_timeout_ns
        self.pool = InstancePool(
            model_id,
            config,
            list(opened.instances),
            self.statistics,
            self,
            clock.loop,
            opened.any_thread and may_run_inline(config),
            queue_config.policy,
            prefetches=not shares,
            make=opened.make,
            clock=clock,
            make_samples=opened.make_samples,
            execution_timeout_ns=opened.execution_timeout_ns if timeout_ns is None else timeout_ns,
        )
        self._limited: LimitedPool | None = None
        self._former: list[Scheduler] = []
        try:
            if limiter is not None:
                self._limited = LimitedPool(self.pool, limiter, shares)
            self._scheduler = self._new_queue(queue_config)
        except BaseException:
            self._release()
            self.pool.end()
            raise
        self._accept = queue_config.accept
        self._state = Service.OPEN
        self._enqueue = self._taking()
        self._readiness = ReadinessCheck(model_id, lambda: self.pool.executors)
        self.check_ready = self._readiness.check

    @property
    def process_ids(self) -> list[int]:
        return [id for _, instance in self.pool.executors if (id := getattr(instance, "process_id", 0))]

    def _new_queue(self, queue_config: QueueConfig) -> Scheduler:
        policy = queue_config.policy
        assert policy is not None, "a model without sequences has one: this is a bug"
        policy.use(self.pool)
        self.statistics.choice = policy.choice
        return QueuedScheduler(
            policy.rule,
            self._limited or self.pool,
            self._clock,
            self._on_drop,
            policy.bounds,
            ripe_size=ripe_size(policy.bounds, self.config.max_batch_size),
            gate=policy.gate(self.pool),
            padded=policy.padded,
            cost=policy.cost,
        )

    def _enter(self, event: ServiceEvent) -> None:
        self._state = after(self._state, event)
        self._enqueue = self._taking() if self._state.takes else self._refuse

    def _taking(self) -> Callable[[Inflight], None]:
        return self._enqueue_bounded if self.config.limits.max_accepted_requests else self._scheduler.enqueue

    def _enqueue_bounded(self, inflight: Inflight) -> None:
        most = self.config.limits.max_accepted_requests
        if self.outstanding >= most:
            what = f"model '{self.id.name}' has {self.outstanding} requests that are not over, and takes {most} at most"
            raise OverloadedError(f"{inflight.request.label}{what} (limits.max_accepted_requests); try again later")
        self._scheduler.enqueue(inflight)

    def _refuse(self, inflight: Inflight) -> None:
        """Refuse a request, instead of `Scheduler.enqueue`, when no instance is left."""
        trouble = self.pool.trouble
        raise unavailable(f"{inflight.request.label}{'' if trouble is None else trouble.message}")

    @property
    def busy(self) -> bool:
        if not self._abandoned_since_ns:
            return self.outstanding > 0
        abandoned_ns = time.monotonic_ns() - self._abandoned_since_ns
        return self.outstanding > 0 and not (abandoned_ns >= _ABANDONED_NS and self._is_abandoned())

    def _is_abandoned(self) -> bool:
        """True if all pending requests are cancelled ones that engines have not finished.

        Such an engine may hang. Closing it is then the only way to end it, if there is one.
        """
        return not self.statistics.pending and not self.pool.awaited

    def __repr__(self) -> str:
        return f"Model({self.id.name}, version {self.id.version}, {self.outstanding} outstanding, {self.pool!r})"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = self._accept(request, sink, now_ns)
        try:
            self._enqueue(inflight)
        except BaseException as error:
            # An invalid request does not count as a failure of the model.
            if not isinstance(error, ModserveError) or error.code is not Code.INVALID_ARG:
                self.statistics.record_failure(inflight, FailureReason.REJECTED, time.monotonic_ns())
            raise
        self.statistics.pending += 1
        self.outstanding += 1
        return inflight

    def waiting_by_tenant(self) -> Mapping[str, int]:
        """Implements `core.tenants.TenantQueues`."""
        counts: Counter[str] = Counter()
        for scheduler in (*self._former, self._scheduler):
            counts.update(waiting_by_tenant(scheduler))
        return counts

    def oldest(self, now_ns: int) -> Oldest:
        """Implements `core.servable.OldestReporter`."""
        waited_ns = max([queue.longest_wait_ns(now_ns) for queue in (*self._former, self._scheduler)])
        return Oldest(self.pool.oldest_execution_ns(now_ns), waited_ns)

    async def warm_up(self, samples: Sequence[Sample], at_a_time: int) -> None:
        """Run samples on every instance before it serves. Raises the reason if an instance is not fit to serve."""
        numbers = range(self.pool.count)
        self.engine_report = {**self.engine_report, **await warm_up(self.pool, numbers, samples, at_a_time)}

    async def warm(self, instances: Sequence[Instance], opened: OpenedModel) -> None:
        """Warm up new instances with the samples of a new configuration."""
        numbers = [instance.number for instance in instances]
        await warm_up(self.pool, numbers, opened.samples, opened.warmed_at_a_time)

    @property
    def staying(self) -> dict[int, InstanceSpec]:
        """Instances that a change may keep, by number."""
        return dict(self.opened.specs)

    def promise(self, config: ModelConfig, specs: Mapping[int, InstanceSpec]) -> Mapping[int, ResourceTurn] | None:
        """Reserve and return a change's needs of shared resources, by instance number; None without a limiter.

        Raises INVALID_ARG if they exceed the resources. `change` or `break_promise` must follow.
        """
        if self._limited is None:
            return None
        needs = turns(config, self.slot_free)
        by_number = {number: needs[spec.index] for number, spec in specs.items()} if needs else {}
        self._limited.promise(by_number)
        return by_number

    def break_promise(self, needs: Mapping[int, ResourceTurn]) -> None:
        """Withdraw a reservation: no `change` with these needs follows."""
        if self._limited is not None:
            self._limited.break_promise(needs)

    def change(
        self,
        opened: OpenedModel,
        queue_config: QueueConfig | None,
        added: Collection[Instance] = (),
        removed: Collection[int] = (),
        needs: Mapping[int, ResourceTurn] | None = None,
    ) -> None:
        """Apply another configuration to the same engine: other instances, and a new queue if `queue_config` is given.

        Requests in the old queue run first, and none of them fails. `needs`: resources of all instances, by number;
        None if they are unchanged or there is no limiter.
        """
        self.opened, self.config, self.config_message = opened, opened.config, opened.message
        self.engine_report = opened.engine_report
        learner = self.pool.learner
        leaving = self._reassign(added, removed)
        if self._limited is not None and needs is not None:
            self._limited.change(needs)
            self.pool.prefetches = not needs
        self._remove(leaving)
        self.pool.change(added, ())
        if queue_config is not None:
            learner = self._replace_queue(queue_config)
        self._enter(ServiceEvent.CHANGE)
        self.pool.learn(learner, opened.make_samples)
        self.health_changed()

    def _remove(self, numbers: Collection[int]) -> None:
        """Remove instances; they finish their work and are closed."""
        for number in numbers:
            self.opened.specs.pop(number, None)
        if self._limited is not None:
            self._limited.remove(numbers)
        self.pool.change((), numbers)

    def _reassign(self, added: Collection[Instance], removed: Collection[int]) -> Collection[int]:
        """Hook for subclasses: reassign instances. Return the numbers of instances that may leave at once."""
        return removed

    def _replace_queue(self, queue_config: QueueConfig) -> BatchPolicy | None:
        """Replace the queue; return the learner for later executions."""
        former = self._scheduler
        self._accept, self._scheduler = queue_config.accept, self._new_queue(queue_config)
        former.stop()
        self._former.append(former)
        if self._state.drains:
            self._scheduler.stop()
        return queue_config.policy

    def hurry(self) -> None:
        self._scheduler.hurry()

    async def idle(self) -> None:
        while self.busy:
            self._all_settled.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._all_settled.wait()
            since_ns = self._abandoned_since_ns or time.monotonic_ns()
            self._abandoned_since_ns = since_ns if self._is_abandoned() else 0

    async def drain(self) -> None:
        self._enter(ServiceEvent.DRAIN)
        self._scheduler.stop()
        await self.idle()

    async def close(self) -> None:
        self._enter(ServiceEvent.CLOSE)
        self._readiness.close()
        self.pool.stop_reviving()
        failure = unavailable(f"model '{self.id.name}' was unloaded before the request ran")
        for scheduler in (*self._former, self._scheduler):
            scheduler.close(failure)
        if self._leaving:
            await asyncio.wait(self._leaving)
        try:
            await close_aside(self._close_engine, f"model '{self.id.name}', version {self.id.version}")
        finally:
            self._release()
            self.opened.on_closed()

    def _release(self) -> None:
        self.pool.stop_watching()
        if self._limited is not None:
            self._limited.close()

    def _close_engine(self) -> None:
        try:
            self.pool.close()
        finally:
            self._engine.close()

    def _on_drop(self, inflight: Inflight, error: ModserveError) -> None:
        """Count a request that leaves the queue without having run."""
        self.statistics.pending -= 1
        try:
            self.statistics.record_failure(inflight, failure_reason(error, by_backend=False), time.monotonic_ns())
        except Exception:
            _log.exception("model '%s': counting a failure failed", self.id.name)
        inflight.settle(error)
        self.on_settle(1)

    # Called by the pool

    def on_settle(self, count: int) -> None:
        self.outstanding -= count
        if not self.outstanding:
            self._all_settled.set()
        if self.pool.leaving:
            self.pool.release_leaving()

    def slot_free(self) -> None:
        if self._limited is not None:
            self._limited.collect()
        if self._former:
            for queue in self._former:
                queue.dispatch()
            self._former = [queue for queue in self._former if queue.count]
        self._scheduler.dispatch()

    def batch_done(self, members: list[Inflight]) -> None:
        raise RuntimeError("only sequences need to hear of the end of a batch: this is a bug")

    def run_again(self, inflight: Inflight) -> None:
        raise RuntimeError("a request is to run again, and its scheduler knows no such thing: this is a bug")

    def mixes_rows(self) -> None:
        if self._state is Service.CLOSED or self._apart:
            return
        self._apart = True
        _log.error(
            "model '%s': the outputs of a batch do not have the rows that its requests have alone. Each request "
            "runs on its own from now on. Write max_batch_size: 0 into config.pbtxt",
            self.id.name,
        )
        policy = BatchPolicy(replace(self.config, dynamic_batching=None))
        self.change(self.opened, QueueConfig(self._accept, policy))

    def slot_lost(self, number: int, error: ModserveError, in_vain: bool) -> None:
        if self._limited is not None:
            self._limited.slot_lost(number)
        if in_vain and self.pool.trouble is not None:
            for scheduler in (*self._former, self._scheduler):
                scheduler.fail_waiting(error)

    def instance_left(self, instance: Instance) -> None:
        if self._limited is not None:
            self._limited.left(instance.number)
        self.engine_left(instance.close, instance.name)

    def engine_left(self, close: Callable[[], None], name: str) -> None:
        task = asyncio.create_task(self._close_instance(close, name))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _close_instance(self, close: Callable[[], None], name: str) -> None:
        try:
            await close_aside(close, f"instance '{name}'")
        except Exception:
            _log.exception("model '%s': closing instance '%s' failed", self.id.name, name)

    def health_changed(self) -> None:
        trouble = self.pool.trouble
        self.unready_reason = None if trouble is None else trouble.reason
        self._enter(ServiceEvent.HEALTHY if trouble is None else ServiceEvent.LOST)
        self.opened.on_health()
