"""Execution of batches on the instances of one model version."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from modserve.backends.api import AsyncInstance, AsyncRequestInstance, Executor, InstanceLostError
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import forget_frames
from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId

from .execution_limit import GUARD_NS, ExecutionLimit
from .inline import LONG_NS, LoopThreadTime
from .instance import Instance, ThreadInstance
from .instance_set import InstanceSet
from .item_shapes import UnprovenError
from .job import Job
from .loop_instance import LoopInstance
from .owner import Learner, PoolOwner
from .prefetch import Prefetch
from .revival import Make, RevivalClock
from .settlement import Settlement
from .warming import MakeSamples

_log = logging.getLogger(__name__)

_REFUSED = "refused"
"""`scheduling.batching.Reason` of single-request batches after a refused batch."""


class InstancePool(InstanceSet):
    """Implements `scheduling.PinnedRunner`. Used on the event loop's thread; some instances have their own threads.

    The pool notifies its scheduler when an instance is free. With `may_inline`, batches run on the event loop's thread
    if the instance's rule finds them too short for a hop. The `learner` observes each successful execution; with a
    learner and `prefetches`, places of long executions are lent before the executions end.

    If the engine refuses a merged batch, its requests run again one by one on the same instance, so that only the
    faulty ones fail. Only successful executions are counted.

    The loss of an instance fails only the requests on it. With `make` and `clock`, a new instance replaces it after its
    warm-up with `make_samples`. With `clock` and `execution_timeout_ns`, an instance also counts as lost if an
    execution takes longer, or sends no response for that time. A limit below `GUARD_NS` prevents execution on the event
    loop's thread.
    """

    def __init__(
        self,
        model: ModelId,
        config: ModelConfig,
        engines: Sequence[tuple[str, Executor]],
        statistics: ModelStatistics,
        owner: PoolOwner,
        loop: asyncio.AbstractEventLoop,
        may_inline: bool = False,
        learner: Learner | None = None,
        *,
        prefetches: bool = True,
        make: Make | None = None,
        clock: RevivalClock | None = None,
        make_samples: MakeSamples | None = None,
        execution_timeout_ns: int = 0,
    ) -> None:
        settlement = Settlement(model, config, statistics, owner, loop, learner)
        super().__init__(model, statistics, owner, loop, settlement, make, clock, make_samples)
        self._config = config
        self._has_sequences = config.sequence_batching is not None
        self._limit: ExecutionLimit[Instance] | None = None
        if execution_timeout_ns and clock is not None:
            self._limit = ExecutionLimit(execution_timeout_ns, clock, self._up, self._give_up)
        self._may_inline = may_inline and (self._limit is None or execution_timeout_ns >= GUARD_NS)
        self.prefetches = prefetches
        self._loop_thread = LoopThreadTime()
        self._prefetch = Prefetch(loop, self._offer_prefetch)
        self._begin(engines)

    def __repr__(self) -> str:
        return f"InstancePool({self._model.name}, {len(set(self._free))} of {len(self._instances)} free)"

    def _instance(self, number: int, name: str, engine: Executor) -> Instance:
        model, config, deliver = self._model, self._config, self._settlement.deliver
        if isinstance(engine, AsyncInstance | AsyncRequestInstance):
            return LoopInstance(model, name, config, engine, self._finish, deliver, self._lose, self._loop, number)
        done, deliver = partial(self._from_thread, self._finish), partial(self._from_thread, deliver)
        return ThreadInstance(model, name, config, engine, done, deliver, number, self._may_inline)

    # For the scheduler

    def reserve(self) -> Instance | None:
        free = self._free
        if not free:
            return None
        if self._prefers_first:
            slot = min(free, key=lambda instance: instance.number)
            free.remove(slot)
            return slot
        if self._prefers_idle and free[0].job is not None:
            for index, instance in enumerate(free):
                if instance.job is None:
                    del free[index]
                    return instance
        return free.popleft()

    def free_places(self) -> int:
        """Return the number of free places."""
        return len(self._free)

    def reserve_number(self, number: int) -> Instance | None:
        instance = self._instances[number]
        if instance not in self._free:
            return None
        self._free.remove(instance)
        return instance

    def release(self, slot: Instance) -> None:
        self._free.appendleft(slot)

    def run(self, slot: Instance, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        self._statistics.pending -= len(batch)
        job = Job(batch, close_reason, rows)
        for inflight in batch:
            inflight.timing = job.timing
            if inflight.trace is not None:
                inflight.trace.on_batch(job.timing)
        rule = slot.inline_rule
        if rule is None or not rule.on_loop or slot is self._prefetch.opening:
            slot.job = job
            if self._limit is not None:
                self._limit.on_start(slot, job)
            slot.start(job)
            learner = self._settlement.learner
            if slot.accepts_prefetch and self.prefetches and learner is not None:
                self._prefetch.on_start(slot, job, learner.expect(batch))
            return
        thread = self._loop_thread
        thread.look()
        slot.execute(job)
        start_ns = job.timing.compute_start_ns
        ns = job.timing.compute_end_ns - start_ns
        rule.ran_on_loop(ns, 0 if ns <= LONG_NS else thread.cpu_ns(start_ns))
        if job.refused:
            self._run_one_by_one(slot, job)
            return
        # The scheduler continues by itself after this returns, without a notification of the free slot.
        if job.error is None:
            if rule.on_loop:  # preferred: on another instance's thread, a batch waits for the interpreter lock
                self._free.appendleft(slot)
            else:
                self._free.append(slot)
        else:
            self._set_free(slot, job)
        settlement = self._settlement
        if self._has_sequences:
            settlement.tell_done(job.members)
        settlement.settle(job)

    def remaining_ns(self, now_ns: int, run_ns: Callable[[int], int]) -> list[int]:
        """Return the expected remaining busy time of each instance, 0 if free. `run_ns` predicts a batch's run time."""
        timings = [None if instance.job is None else instance.job.timing for instance in self._instances.values()]
        return [
            0 if timing is None else max(0, (timing.compute_start_ns or now_ns) + run_ns(timing.batch_size) - now_ns)
            for timing in timings
        ]

    # Executions

    def _finish(self, instance: Instance, job: Job) -> None:
        if job.on_done is not None:
            job.on_done(job)
            if self.leaving:
                self.release_leaving()  # the instance may have been dismissed
            return
        if self._limit is not None and not self._limit.on_end(job):
            return
        timing = job.timing
        if instance.inline_rule is not None:
            instance.inline_rule.ran_on_thread(timing.compute_end_ns - timing.compute_start_ns, job.cpu_ns)
        if job.refused:
            self._run_one_by_one(instance, job)
            return
        settlement = self._settlement
        if job.more:
            settlement.settle(job)  # another job of the same batch has begun
            return
        self._set_free(instance, job)
        if job.running and self._has_sequences:
            settlement.settle(job)  # first, as it reports the sequences that can continue in the next batch
            self._tell_free()
            return
        if not job.running:  # otherwise requests are done one by one
            settlement.tell_done(job.members)
        # The next batch starts before this one's responses are written, so that the engine does not wait for sockets.
        self._tell_free()
        settlement.settle(job)

    def _set_free(self, instance: Instance, job: Job | None = None) -> None:
        """Release the place of a finished execution. An instance that is gone has no free places."""
        if job is None or instance.job is job:
            instance.job = None
        if job is not None and isinstance(job.error, InstanceLostError):
            self._lose(instance, job.error)
        if instance.gone:
            if self.leaving:
                self._loop.call_soon(self.release_leaving)  # after the settlement of the execution
            return
        if self._prefetch.on_end(instance):
            return
        self._free.append(instance)
        if instance.max_ahead:
            most = instance.most_places
            if instance.places < most:
                self._free.append(instance)
                instance.places += 1
            elif instance.places > most:
                self._free.remove(instance)
                instance.places -= 1

    def _offer_prefetch(self, instance: Instance, job: Job) -> None:
        """Offer a place of the instance before `job` ends; withdraw it if it is not taken."""
        if instance.gone or job.timing.compute_end_ns:
            return
        before = instance.job
        instance.prefetched += 1
        self._free.append(instance)
        self._prefetch.opening = instance
        try:
            self._tell_free()
        finally:
            self._prefetch.opening = None
            if instance.job is before:
                self._free.remove(instance)
                instance.prefetched -= 1

    def _run_one_by_one(self, instance: Instance, job: Job) -> None:
        """Run the requests of a refused batch one by one on the same instance."""
        assert job.error is not None, "set when the engine refused: this is a bug"
        if job.late:
            self._settlement.refuse_late(job.late)
        left = [inflight for inflight in job.members if not inflight.settled]
        settled = [inflight for inflight in job.members if inflight.settled]
        if self._settlement.log_limit.allows():
            _log.warning(
                "model '%s': a batch of %d requests failed; each runs once more on its own: %s",
                self._model.name,
                len(job.members),
                job.error.message,
            )
        if settled:
            self._settlement.count_cancelled(settled)
        forget_frames(job.error)
        if job.timing.compute_output_start_ns and not isinstance(job.error, UnprovenError):
            self._loop.call_soon(self._owner.mixes_rows)
        if not left:
            self._set_free(instance)
            self._tell_free()
            return
        jobs = [Job([inflight], _REFUSED) for inflight in left]
        for one in jobs:
            one.is_retry = True
            one.more = one is not jobs[-1]
            one.members[0].timing = one.timing
        instance.job = jobs[-1]
        for one in jobs:
            if self._limit is not None:
                self._limit.on_start(instance, one)
            instance.start(one)

    def _up(self) -> list[Instance]:
        return [*[instance for instance in self._instances.values() if not instance.gone], *self.leaving]

    def oldest_execution_ns(self, now_ns: int) -> int:
        """Return the longest `Instance.silent_ns`; 0 if all instances are idle."""
        return max([instance.silent_ns(now_ns) or 0 for instance in self._up()], default=0)

    def stop_watching(self) -> None:
        """Stop watching executions; the pool is closed."""
        if self._limit is not None:
            self._limit.end()

    def _give_up(self, instance: Instance) -> None:
        """Give up an instance with an overlong execution, and fail its jobs."""
        limit = self._limit
        assert limit is not None, "it has noticed: this is a bug"
        names = "'--execution-timeout-secs' or 'limits.execution_timeout_ms'"
        reason = f"an execution took longer than {limit.limit_ns / 1e9:g} s ({names})"
        error = InstanceLostError(f"model '{self._model.name}', instance '{instance.name}' was lost: {reason}")
        jobs = limit.of(instance)
        if instance.give_up(InstanceLostError(reason)):
            return
        for one in jobs:
            one.error = error
            one.refused = False
            one.timing.compute_end_ns = time.monotonic_ns()
            self._finish(instance, one)
        if not jobs:  # only responses of finished executions are outstanding
            self._lose(instance, error)
