"""One loaded model version: checks requests, queues them, and knows when all are settled."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from modserve.backends.api import BackendModel, Executor
from modserve.core.errors import Code, ModserveError, invalid, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching, ModelConfig
from modserve.core.normalize import Signature
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.sequence import SequenceId
from modserve.core.statistics import FailureReason, ModelStatistics, failure_reason
from modserve.core.tensor import Tensor
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId
from modserve.execution.instance import Instance
from modserve.execution.pool import InstancePool
from modserve.execution.quick import could_be_quick
from modserve.execution.revival import Make
from modserve.scheduling import batching
from modserve.scheduling.admission import Gate
from modserve.scheduling.batching import Rule
from modserve.scheduling.buckets import LengthBuckets
from modserve.scheduling.ordering import ResponseOrder
from modserve.scheduling.prediction import RunTimes
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import LoopClock, Scheduler
from modserve.scheduling.sequence import SequenceScheduler
from modserve.scheduling.tuner import Tuner

from .closing import close_aside

_log = logging.getLogger(__name__)

_PARAMETER = (str, int, float, bool, type(None))


class Model:
    """Implements `core.servable.Servable`. Made, and used, on the event loop's thread.

    It closes the engine and the instances that it is made with; if making it fails, they are left to who made them.
    """

    def __init__(
        self,
        model_id: ModelId,
        config: ModelConfig,
        config_message: bytes,
        engine: BackendModel,
        instances: Sequence[tuple[str, Executor]],
        loop: asyncio.AbstractEventLoop,
        *,
        any_thread: bool,
        labels: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        initial_states: Mapping[str, Tensor] = MappingProxyType({}),
        make: Make | None = None,
        on_health: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = model_id
        self.config = config
        self.config_message = config_message
        self.statistics = ModelStatistics()
        self.labels = labels
        self._engine = engine
        self._signature = Signature(config)
        policy = config.dynamic_batching
        padding = config.padding
        self._buckets: LengthBuckets | None = None
        if padding is not None and padding.buckets > 1 and policy is not None:
            self._buckets = LengthBuckets(padding.buckets, padding.multiple_of, padding.relearn_every)
        self._separate_by = policy.separate_by if policy is not None else ()
        self._order = ResponseOrder() if policy is not None and policy.preserve_ordering else None
        self._outstanding = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._run_times = RunTimes()
        self._tuner = self._make_tuner()
        quick = any_thread and could_be_quick(config)
        clock = LoopClock(loop)
        self._on_health = on_health
        self._pool = InstancePool(
            model_id,
            config,
            list(instances),
            self.statistics,
            self._on_settled,
            loop,
            quick,
            self._observe,
            make=make,
            clock=clock,
            on_health=self._health_changed,
        )
        self._initial_states = initial_states
        self._sequences: SequenceScheduler[Instance] | None = None
        try:
            self._working = self._make_scheduler(clock)
        except BaseException:
            self._pool.end()
            raise
        self._scheduler: Scheduler = self._working
        self._pool.on_stuck = self._working.fail_waiting

    def __repr__(self) -> str:
        return f"Model({self.id.name}, version {self.id.version}, {self._outstanding} outstanding, {self._pool!r})"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = self._signature.accept(request, sink, now_ns)
        if self._buckets is not None:
            inflight.shape_key = (inflight.shape_key, self._buckets.of(inflight.length))
        if self._separate_by:
            inflight.shape_key = (inflight.shape_key, self._apart(request))
        if self.config.sequence_batching is not None and request.timeout_ns:  # no queue policy says what it means
            inflight.queue_limit_ns = now_ns + request.timeout_ns
        if self._order is not None:
            inflight.sink = held = self._order.behind(sink)
            inflight.ordered = True
        try:
            self._scheduler.enqueue(inflight)
        except BaseException as error:
            if self._order is not None:
                self._order.withdraw(held)
            # A client's mistake says nothing of the model.
            if not isinstance(error, ModserveError) or error.code is not Code.INVALID_ARG:
                self.statistics.record_failure(inflight, FailureReason.REJECTED, time.monotonic_ns())
            raise
        self.statistics.pending += 1
        self._outstanding += 1
        return inflight

    @property
    def trouble(self) -> str:
        """Why it takes no requests at the moment, although it is loaded; empty if it does."""
        return "" if self._pool.trouble is None else self._pool.trouble.reason

    def _health_changed(self) -> None:
        """While no instance is left, new requests are refused at once.

        Those that wait already go on waiting until the first attempt to make another instance, and fail with that.
        """
        trouble = self._pool.trouble
        self._scheduler = self._working if trouble is None else _Down(self._working, trouble)
        self._on_health()

    @property
    def outstanding(self) -> int:
        return self._outstanding

    def _apart(self, request: InferenceRequest) -> object:
        """What parameters keep a request apart by. Raises INVALID_ARG for values that parameters cannot have."""
        values: list[object] = []
        for name in self._separate_by:
            value: object = request.parameters.get(name)
            if not isinstance(value, _PARAMETER):
                raise invalid(
                    f"{request.label}parameter '{name}' of a request to model '{self.id.name}' is of type "
                    f"{type(value).__name__}, expected a string, a number or a boolean"
                )
            values.append((type(value), value))
        return tuple(values)

    async def drain(self) -> None:
        self._working.stop()
        while self._outstanding or self.open_sequences:
            self._settled.clear()
            await self._settled.wait()

    @property
    def open_sequences(self) -> int:
        """The sequences that have begun, and may go on while the model drains."""
        return self._sequences.open_sequences if self._sequences is not None else 0

    def has_sequence(self, id: SequenceId) -> bool:
        return self._sequences is not None and self._sequences.has(id)

    def abandon_sequence(self, id: SequenceId) -> None:
        if self._sequences is not None:
            self._sequences.abandon(id)

    async def close(self) -> None:
        self._pool.stop_reviving()
        self._working.close(unavailable(f"model '{self.id.name}' was unloaded before the request ran"))
        await close_aside(self._close_engine, f"model '{self.id.name}', version {self.id.version}")

    def _close_engine(self) -> None:
        try:
            self._pool.close()
        finally:
            self._engine.close()

    def _make_scheduler(self, clock: LoopClock) -> QueuedScheduler[Instance] | SequenceScheduler[Instance]:
        config = self.config
        policy = config.dynamic_batching
        if config.sequence_batching is not None:
            self._sequences = SequenceScheduler(config, self._pool, clock, self._drop, self._initial_states)
            self._sequences.on_end = self._settled.set
            return self._sequences
        if policy is None:
            return QueuedScheduler(batching.direct, self._pool, clock, self._drop, gate=self._gate(0))
        rule = self._dynamic(policy, config.max_batch_size) if self._tuner is None else self._tuner.rule
        if self._tuner is not None:  # the delay may become this long, and batches this large
            policy = replace(policy, preferred_batch_sizes=(), max_queue_delay_ns=policy.p99_goal_ns)
        return QueuedScheduler(
            rule,
            self._pool,
            clock,
            self._drop,
            policy,
            ripe_size=batching.ripe_size(policy, config.max_batch_size),
            gate=self._gate(max(1, config.max_batch_size)),
        )

    def _dynamic(self, policy: DynamicBatching, max_batch_size: int) -> Rule:
        return batching.dynamic(policy, max_batch_size, self._run_times, cost=batching.element_cost(self.config))

    def _gate(self, limit: int) -> Gate:
        run_times, pool = self._run_times, self._pool
        return Gate(
            self.config.admission, run_times.at_best, lambda now_ns: pool.remaining_ns(now_ns, run_times), limit
        )

    def _make_tuner(self) -> Tuner | None:
        policy = self.config.dynamic_batching
        if policy is None or not policy.p99_goal_ns or self.config.sequence_batching is not None:
            return None
        tuner = Tuner(policy, self.config.max_batch_size, self._run_times, self._dynamic)
        self.statistics.tuner = tuner.statistics
        return tuner

    def _observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        """An execution has succeeded."""
        self._run_times.observe(timing.batch_size, timing.compute_end_ns - timing.compute_start_ns)
        if self._tuner is not None:
            self._tuner.observe(timing, members)

    def _drop(self, inflight: Inflight, error: ModserveError) -> None:
        """A request leaves the queue without having run."""
        self.statistics.pending -= 1
        try:
            self.statistics.record_failure(inflight, failure_reason(error, by_backend=False), time.monotonic_ns())
        except Exception:
            _log.exception("model '%s': counting a failure failed", self.id.name)
        inflight.fail(error)
        self._on_settled(1)

    def _on_settled(self, count: int) -> None:
        self._outstanding -= count
        if not self._outstanding:
            self._settled.set()


class _Down:
    """Implements `scheduling.Scheduler` in place of one whose model has no instance left."""

    def __init__(self, scheduler: Scheduler, trouble: ModserveError) -> None:
        self.stop = scheduler.stop
        self.close = scheduler.close
        self._trouble = trouble

    def enqueue(self, inflight: Inflight) -> None:
        raise unavailable(f"{inflight.request.label}{self._trouble.message}")
