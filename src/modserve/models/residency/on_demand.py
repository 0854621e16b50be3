"""A model version that is in memory or not, and takes requests all the same.

What others read of it (`config`, `config_message`, `labels`) is that of the model as it was loaded last; before the
first load it is what the configuration says, which may lack what only the engine knows: see `describe`. The statistics
are of all the time, across loads.

`waiting` has the stages of its way into memory and out of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from modserve.core.configuration.model_config import ModelConfig, QueuePolicy
from modserve.core.errors import ModserveError, OverloadedError, from_exception, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.residency import Presence, ResidencyReport, megabytes
from modserve.core.runtime.clock import Clock
from modserve.core.servable import Finisher, Oldest, ReadinessChecker, Servable, engine_report, oldest, process_ids
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.core.version import STOPPING, ModelId

from .backoff import Backoff
from .memory import ModelMemory
from .waiting import (
    NO_RULES,
    NOBODY_BORROWS,
    Borrowers,
    IdleWatch,
    Stage,
    StageEvent,
    StayRules,
    WaitingRequests,
    after,
    at_work,
    mark_seen,
    open_sequences,
    outstanding,
    waiting_inflight,
)

_log = logging.getLogger(__name__)


class OnDemandModel:
    """Implements `core.servable.Servable`, `RequestHolder`, `Finisher`, `ReadinessChecker`, and `memory.ResidentModel`.

    `make` loads the model, and counts in the statistics that it gets. `files` is the size of the version's files.
    `whole`: the configuration says of the model all that others need to know to call it.
    `on_health` is called when the version may have become ready, or not ready.
    """

    def __init__(
        self,
        memory: ModelMemory,
        model_id: ModelId,
        config: ModelConfig,
        config_message: bytes,
        make: Callable[[ModelStatistics], Awaitable[Servable]],
        clock: Clock,
        *,
        files: int = 0,
        whole: bool = True,
        rules: StayRules = NO_RULES,
        borrowers: Borrowers = NOBODY_BORROWS,
        on_health: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = model_id
        self.config = config
        self.config_message = config_message
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.statistics = ModelStatistics()
        self.files = files
        self.held = self.size = self.last_used_ns = 0
        self._stage = Stage.ABSENT
        self.pinned = rules.pin
        self._memory, self._make, self._clock = memory, make, clock
        self._borrowers = borrowers
        self._inner: Servable | None = None
        self._engine_report: Mapping[str, object] = {}
        self._waiting = WaitingRequests(clock, self.statistics, self._nobody_waits)
        self._task: asyncio.Task[None] | None = None
        """Task that brings it into memory."""
        self._gave_up = False
        """True if the task was cancelled because no requests were left; later requests need another one."""
        self._watchers = 0
        """Number of waiters for the model without a request."""
        self._leaving: asyncio.Task[None] | None = None
        self._stopped = False
        self.described = False
        """True if it was in memory once, so that its configuration is complete."""
        self.whole = whole
        self._backoff = Backoff(clock, model_id, on_health)
        self._idle = IdleWatch(clock, rules.idle_ns, self._last_use_ns, self._on_idle)
        self._loads = self._failed_loads = self._evictions = self._load_ns = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id.name}, version {self.id.version}, {self.presence.value})"

    def _step(self, event: StageEvent) -> None:
        self._stage = after(self._stage, event)

    @property
    def presence(self) -> Presence:
        return self._stage.presence

    # Requests

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inner = self._inner
        if inner is not None and self._stage is Stage.RESIDENT:
            self.last_used_ns = now_ns
            return inner.submit(request, sink, now_ns)
        if self._stopped:
            raise unavailable(f"{request.label}{STOPPING}")
        inflight = waiting_inflight(request, sink, now_ns)
        try:
            self._backoff.check()
            self._waiting.add(inflight, self._policy)
        except ModserveError:
            self.statistics.record_failure(inflight, FailureReason.REJECTED, self._clock.now_ns())
            raise
        self.last_used_ns = now_ns
        if inner is None:
            self._bring()
            self._memory.wake_waiting()  # a model that is being loaded may wait for this one
        return inflight

    @property
    def _policy(self) -> QueuePolicy:
        batching = self.config.dynamic_batching
        return QueuePolicy() if batching is None else batching.default_policy

    # What there is to know

    @property
    def residency(self) -> ResidencyReport:
        failure = self._backoff.failure
        return ResidencyReport(
            self.presence,
            self.size,
            self.files,
            self.pinned,
            len(self._waiting),
            self._loads,
            self._failed_loads,
            self._evictions,
            self._load_ns,
            self._waiting.waited_ns,
            "" if failure is None else failure.message,
        )

    def oldest(self, now_ns: int) -> Oldest:
        execution_ns, waiting_ns = (self._inner and oldest(self._inner, now_ns)) or Oldest()
        return Oldest(execution_ns, max(waiting_ns, self._waiting.longest_ns(now_ns)))

    @property
    def unready_reason(self) -> str | None:
        """A version that is not in memory is ready: its requests get their responses. Not while loading it fails."""
        if self._inner is not None:
            return self._inner.unready_reason
        return None if self._backoff.failure is None else self._backoff.failure.reason

    @property
    def engine_report(self) -> Mapping[str, object]:
        return self._engine_report if self._inner is None else engine_report(self._inner)

    @property
    def process_ids(self) -> list[int]:
        return process_ids(self._inner)

    async def check_ready(self) -> bool:
        inner = self._inner
        return not isinstance(inner, ReadinessChecker) or await inner.check_ready()

    async def describe(self) -> None:
        if not self.described:
            await self.ensure()

    async def ensure(self) -> None:
        """Return when the model is in memory. Raises why it cannot be."""
        self._watchers += 1
        try:
            while self._inner is None:
                if self._stopped:
                    raise unavailable(STOPPING)
                self._backoff.check()
                task = self._bring()
                await asyncio.wait((task,))
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise from_exception(error, f"failed to load model '{self.id.name}'")
        finally:
            self._watchers -= 1
            self._nobody_waits()

    # Into memory

    def _bring(self) -> "asyncio.Task[None]":
        if self._task is None:
            self._gave_up = False
            self._task = self._memory.start(self._load())
            self._task.add_done_callback(mark_seen)
        return self._task

    async def _load(self) -> None:
        name, version = self.id
        began_ns = 0

        def begin() -> None:
            nonlocal began_ns
            began_ns = self._clock.now_ns()
            self._step(StageEvent.ROOM)

        def wait() -> None:
            self._has_no_instances()
            self._step(StageEvent.NO_ROOM)

        try:
            await self._left()
            self._step(StageEvent.WANTED)
            inner = await self._memory.load(self, begin, wait)
        except asyncio.CancelledError:
            self._task = None
            self._step(StageEvent.FAILED)
            if not self._gave_up:
                self._waiting.fail(unavailable(STOPPING))
            elif self._waiting or self._watchers:
                self._bring()
            raise
        except Exception as error:
            failure = from_exception(error, f"failed to load model '{name}' version {version}")
            self._task = None
            self._step(StageEvent.FAILED)
            self._failed_loads += 1
            foreign = None if isinstance(error, ModserveError) else error
            full = isinstance(failure, OverloadedError)
            level = logging.WARNING if full else logging.ERROR
            _log.log(level, "model '%s', version %d: %s", name, version, failure.message, exc_info=foreign)
            if full:  # no memory at the moment: the next request tries again
                self._waiting.fail(failure)
            else:
                self._backoff.on_failure(failure)
                self._waiting.fail(self._backoff.refusal(failure))
            raise failure from error
        self._task = None
        self._arrive(inner, self._clock.now_ns() - began_ns)

    def _arrive(self, inner: Servable, took_ns: int) -> None:
        self._inner = inner
        self.config, self.config_message, self.labels = inner.config, inner.config_message, inner.labels
        self.described = self.whole = True
        self._step(StageEvent.ARRIVED)
        self._loads += 1
        self._load_ns += took_ns
        self.statistics.load_ns = took_ns
        self.last_used_ns = max(self.last_used_ns, self._clock.now_ns())
        limit = self._memory.limit
        _log.info(
            "model '%s', version %d: in memory after %.3f s, %s; all models: %s%s",
            *(*self.id, took_ns / 1e9, megabytes(self.size), megabytes(self._memory.held)),
            f" of {megabytes(limit)}" if limit else "",
        )
        self._backoff.on_success()
        if not self.pinned:
            self._idle.start()
        self._waiting.hand_over(inner)
        self._memory.wake_waiting()  # it may leave from now on

    def _nobody_waits(self) -> None:
        """Stop waiting for memory, which others can use, since all requests for it have left."""
        if self._task is not None and self._stage is Stage.WAITING and not self._waiting and not self._watchers:
            self._gave_up = True
            self._task.cancel()

    async def make(self) -> Servable:
        try:
            return await self._make(self.statistics)
        except BaseException:
            self._has_no_instances()
            raise

    def _has_no_instances(self) -> None:
        self.statistics.instances = self.statistics.instances_lost = 0

    # In memory: what the budget sees of it

    @property
    def movable(self) -> bool:
        return self._inner is not None and not self.pinned

    @property
    def at_work(self) -> str:
        return at_work(self._inner)

    @property
    def borrowed(self) -> bool:
        return self._inner is not None and self._borrowers.lent(self)

    @property
    def calls(self) -> bool:
        return self.statistics.calls > 0

    @property
    def interruptible(self) -> bool:
        return not self.borrowed and not open_sequences(self._inner)

    @property
    def holds(self) -> str:
        if self._inner is None:
            return ""
        reasons = ["pinned" if self.pinned else "", self.at_work, "borrowed by another model" if self.borrowed else ""]
        return ", ".join(filter(None, reasons)) or "idle"

    async def wait_until_relieved(self) -> None:
        if self.at_work and isinstance(self._inner, Finisher):
            await self._inner.idle()
        elif self._borrowers.returned is not None:
            await self._borrowers.returned(self)

    def hold_back(self, on: bool) -> None:
        if on and self._stopped:
            return
        self._step(StageEvent.HOLD if on else StageEvent.RELEASE)
        if self._inner is not None and self._stage is Stage.RESIDENT:
            self._waiting.hand_over(self._inner)

    def pin(self, on: bool) -> None:
        """Keep the model in memory once it is there, or let it leave again."""
        self.pinned = on
        self._idle.stop()
        if not on and self._inner is not None:
            self._idle.start()
        self._memory.wake_waiting()

    def _last_use_ns(self) -> int:
        in_use = self.at_work or self.borrowed or len(self._waiting)
        return self._clock.now_ns() if in_use else self.last_used_ns

    def _on_idle(self) -> None:
        if self.movable:
            self.leave(f"no request for {self._idle.seconds:g} s")

    # Out of memory

    def leave(self, why: str) -> "asyncio.Task[None]":
        inner = self._inner
        if inner is None:
            assert self._leaving is not None, "only what is in memory can leave: this is a bug"
            return self._leaving
        self._evictions += 1
        _log.info("model '%s', version %d: leaves memory, %s: %s", *self.id, megabytes(self.size), why)
        return self._let_go(inner)

    def _let_go(self, inner: Servable) -> "asyncio.Task[None]":
        self._engine_report = engine_report(inner)
        self._inner = None
        self._step(StageEvent.EVICT)
        self._idle.stop()
        self._leaving = self._memory.start(self._close(inner))
        return self._leaving

    async def _close(self, inner: Servable) -> None:
        try:
            await self._memory.close(inner, self)
        finally:
            self._has_no_instances()
            self._leaving = None
            self._step(StageEvent.LEFT)
            if len(self._waiting) or self._watchers:
                self._bring()

    # The end

    @property
    def outstanding(self) -> int:
        return len(self._waiting) + outstanding(self._inner)

    @property
    def busy(self) -> bool:
        return len(self._waiting) > 0 or bool(self.at_work)

    def hurry(self) -> None:
        if isinstance(self._inner, Finisher):
            self._inner.hurry()

    async def idle(self) -> None:
        while self.busy:
            await self._waiting.wait_until_empty()
            if isinstance(self._inner, Finisher):
                await self._inner.idle()

    async def drain(self) -> None:
        """Drain the model. Waiting requests are still served, for which it may have to be loaded."""
        self._stopped = True
        self.pin(True)  # else it could be evicted while it is drained
        self.hold_back(False)
        await self._waiting.wait_until_empty()
        if self._inner is not None:
            await self._inner.drain()

    async def close(self) -> None:
        self._stopped = True
        self._backoff.end()
        self._idle.stop()
        if self._task is not None:
            self._gave_up = False
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._waiting.fail(unavailable(f"model '{self.id.name}' was unloaded before the request ran"))
        if self._inner is not None:
            self._let_go(self._inner)
        await self._left()

    async def _left(self) -> None:
        while self._leaving is not None:
            await asyncio.wait((self._leaving,))
