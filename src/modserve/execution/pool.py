"""The instances of one model version: which are free, which run what, and which are gone.

An instance is in one of three states. *Free*: it is in `_free`, as often as it can take another execution. *Busy*: all
of its places are taken; how many it has may change with its executions (`Instance.most_places`). *Gone*: it was lost,
is in `_free` no more, and finishes nothing; `revival` makes another one that takes its number. A slot that a scheduler
holds is a place that was taken from `_free`; `run` or `release` ends that. Only the methods here move instances between
the states, all on the event loop's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial

from modserve.backends.api import AsyncInstance, AsyncRequestInstance, Executor, InstanceLostError
from modserve.core.errors import ModserveError, forget_frames, from_exception, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.statistics import ModelStatistics
from modserve.core.version import ModelId

from .early import EarlyPlaces, Expect
from .instance import Instance, ThreadInstance
from .job import Job
from .loop_instance import LoopInstance
from .quick import LONG_NS, LoopThread
from .revival import Clock, Make, Revival
from .settlement import Observe, Settlement
from .warming import MakeSamples, OnEnd, Ran, Sample, Warming, failure_of

_log = logging.getLogger(__name__)

_REFUSED = "refused"
"""`scheduling.batching.Reason` of the batches of one that a refused batch becomes."""


class InstancePool(Settlement):
    """Implements `scheduling.PinnedRunner`. Lives on the event loop's thread; some instances have threads of their own.

    `on_settled` hears how many requests have just been settled. If it `may_be_quick`, batches run on the event loop's
    own thread on those instances whose rule says that they are too short to be worth a hop. `observe` hears of each
    execution that succeeded. `on_health` is called when `trouble` may have changed.

    A merged batch that the engine refuses runs once more, each request by itself, on the same instance, so that only
    those fail that are to blame. Only the executions that succeed are counted.

    An instance that is lost fails what it runs, and nothing else. With `make` and `clock`, another one takes its place
    when it is warm: with `make_samples`, it runs these first.
    """

    def __init__(
        self,
        model: ModelId,
        config: ModelConfig,
        engines: Sequence[tuple[str, Executor]],
        statistics: ModelStatistics,
        on_settled: Callable[[int], None],
        loop: asyncio.AbstractEventLoop,
        may_be_quick: bool = False,
        observe: Observe | None = None,
        *,
        make: Make | None = None,
        clock: Clock | None = None,
        on_health: Callable[[], None] = lambda: None,
        make_samples: MakeSamples | None = None,
    ) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.on_lost: Callable[[int, ModserveError, bool], None] = lambda number, error, again: None
        self.on_stuck: Callable[[ModserveError], None] = lambda error: None
        self.expect: Expect | None = None
        """Set by those who know: then places of long executions are given out early."""
        self.trouble: ModserveError | None = None
        """Why nothing can run, while no instance is left."""
        super().__init__(model, config, statistics, on_settled, loop, observe)
        self._config = config
        self._may_be_quick = may_be_quick
        self._on_health = on_health
        self._make_samples = make_samples
        self._loop_thread = LoopThread()
        self._revival: Revival | None = None
        if make is not None and clock is not None:
            self._revival = Revival(make, clock, loop.call_soon_threadsafe, self._revived, self._revival_failed)
        self._instances: list[Instance] = []
        self._free: deque[Instance] = deque()
        self._early = EarlyPlaces(loop, self._give_out_early)
        try:
            for number, (name, engine) in enumerate(engines):
                self._instances.append(self._instance(number, name, engine))
        except BaseException:
            self.end()
            raise
        for instance in self._instances:
            self._free.extend([instance] * instance.max_in_flight)
            instance.places = instance.max_in_flight
        self._prefers_idle = len(engines) > 1 and any(instance.max_ahead for instance in self._instances)
        statistics.instances = len(self._instances)

    def __repr__(self) -> str:
        return f"InstancePool({self._model.name}, {len(set(self._free))} of {len(self._instances)} free)"

    def _instance(self, number: int, name: str, engine: Executor) -> Instance:
        model, config = self._model, self._config
        if isinstance(engine, AsyncInstance | AsyncRequestInstance):
            return LoopInstance(model, name, config, engine, self._finish, self.deliver, self._lose, self._loop, number)
        done, deliver = partial(self._from_thread, self._finish), partial(self._from_thread, self.deliver)
        return ThreadInstance(model, name, config, engine, done, deliver, number, self._may_be_quick)

    @property
    def executors(self) -> list[tuple[str, Executor]]:
        """Those of the engine that are up, by the names of their instances."""
        return [(instance.name, instance.engine) for instance in self._instances if not instance.gone]

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for what the instances do. False also where nobody does any more, and they go on."""
        return any(instance.awaited for instance in self._instances)

    def warm_up(self, number: int, samples: Sequence[Sample], on_end: OnEnd) -> None:
        """Run samples on one of the instances, before there are requests to run."""
        Warming(self._model, self._instances[number], samples, on_end).start()

    def lost_in_warm_up(self, number: int, error: InstanceLostError) -> None:
        """Data that was made up has been too much for an instance: others are made, and serve without it."""
        self._make_samples = None
        self._lose(self._instances[number], error)

    # For the scheduler

    def reserve(self) -> Instance | None:
        free = self._free
        if not free:
            return None
        if self._prefers_idle and free[0].job is not None:
            for index, instance in enumerate(free):
                if instance.job is None:
                    del free[index]
                    return instance
        return free.popleft()

    @property
    def count(self) -> int:
        return len(self._instances)

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
        rule = slot.quick
        if rule is None or not rule.quick or slot is self._early.opening:
            slot.job = job
            slot.start(job)
            if slot.takes_early and self.expect is not None:
                self._early.started(slot, job, self.expect(batch))
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
        # The scheduler goes on by itself when this returns: it need not be told of the free slot.
        if job.error is None:
            self._free.append(slot)
        else:
            self._set_free(slot, job)
        if self.on_done is not None:
            self.tell_done(job.members)
        self.settle(job)

    def remaining_ns(self, now_ns: int, run_ns: Callable[[int], int]) -> list[int]:
        """How long each instance is likely to be busy, by `run_ns`, which tells it of a batch size; 0 for free ones."""
        timings = [None if instance.job is None else instance.job.timing for instance in self._instances]
        return [
            0 if timing is None else max(0, (timing.compute_start_ns or now_ns) + run_ns(timing.batch_size) - now_ns)
            for timing in timings
        ]

    # Executions

    def _from_thread(self, callback: Callable[..., object], *arguments: object) -> None:
        """On any thread: one hop to the event loop for each batch, and for each response of a request by itself."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop has closed: the server was stopped without waiting for this batch, and nobody waits for it.
            _log.debug("model '%s': an engine responded after the server's end", self._model.name)

    def _finish(self, instance: Instance, job: Job) -> None:
        if job.on_done is not None:
            job.on_done(job)
            return
        timing = job.timing
        if instance.quick is not None:
            instance.quick.ran_on_thread(timing.compute_end_ns - timing.compute_start_ns, job.cpu_ns)
        if job.refused:
            self._run_one_by_one(instance, job)
            return
        if job.more:
            self.settle(job)  # another job of the same batch has begun
            return
        self._set_free(instance, job)
        if job.running and self.on_done is not None:
            self.settle(job)  # which tells of those whose sequences can go on in the next batch
            self._tell_free()
            return
        if not job.running:  # requests that engines respond to by themselves are done one by one
            self.tell_done(job.members)
        # The next batch starts before this one's responses are written: the engine should not wait for sockets.
        self._tell_free()
        self.settle(job)

    def _set_free(self, instance: Instance, job: Job | None = None) -> None:
        """One of the instance's executions is over. Of one that is gone no place is free."""
        if job is None or instance.job is job:
            instance.job = None
        if job is not None and isinstance(job.error, InstanceLostError):
            self._lose(instance, job.error)
        if instance.gone or self._early.ended(instance):
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

    def _give_out_early(self, instance: Instance, job: Job) -> None:
        """The instance has a place to give before `job` is over, unless nobody wants it now."""
        if instance.gone or job.timing.compute_end_ns:
            return
        before = instance.job
        instance.early += 1
        self._free.append(instance)
        self._early.opening = instance
        self._tell_free()
        self._early.opening = None
        if instance.job is before:
            self._free.remove(instance)
            instance.early -= 1

    def _tell_free(self) -> None:
        try:
            self.on_free()
        except Exception:
            self.misbehaved("telling its scheduler of a free instance")

    def _run_one_by_one(self, instance: Instance, job: Job) -> None:
        """The engine refused a batch: those who still wait for a response run by themselves, on the same instance."""
        assert job.error is not None, "set when the engine refused: this is a bug"
        if job.late:
            self.refuse_late(job.late)
        left = [inflight for inflight in job.members if not inflight.settled]
        settled = [inflight for inflight in job.members if inflight.settled]
        _log.warning(
            "model '%s': a batch of %d requests failed, each of them runs once more by itself: %s",
            self._model.name,
            len(job.members),
            job.error.message,
        )
        if settled:
            self.count_cancelled(settled)
        forget_frames(job.error)
        if not left:
            self._set_free(instance)
            self._tell_free()
            return
        jobs = [Job([inflight], _REFUSED) for inflight in left]
        for one in jobs:
            one.again = True
            one.more = one is not jobs[-1]
            one.members[0].timing = one.timing
        instance.job = jobs[-1]
        for one in jobs:
            instance.start(one)

    # Instances come and go

    def _lose(self, instance: Instance, error: InstanceLostError) -> None:
        """An instance is gone: what it still owes fails, and another one is made."""
        if instance.on_lost is not None:
            instance.on_lost(error)
            return
        if instance.gone:
            return
        instance.gone = True
        self._statistics.instances_lost += 1
        if instance in self._free:
            self._free = deque(each for each in self._free if each is not instance)
        for running in list(instance.open):
            if running.executed:
                self.fail_open(running, error)
        wait = "it is not made anew"
        if self._revival is not None:
            wait_ns = self._revival.lost(instance.number, instance.close)
            wait = f"another one is made in {wait_ns / 1e9:g} s"
        _log.error("%s; %s", error.message, wait)
        self._tell_of_loss(instance.number, error, again=False)

    def _tell_of_loss(self, number: int, error: ModserveError, *, again: bool) -> None:
        """An instance was lost, or could not be made anew once more."""
        if all(each.gone for each in self._instances):
            self._set_trouble(error)
        try:
            self.on_lost(number, error, again)
            if self.trouble is not None and (again or self._revival is None):
                self.on_stuck(error)
        except Exception:
            self.misbehaved("telling its scheduler of a lost instance")

    def _revived(self, number: int, engine: Executor) -> None:
        name = self._instances[number].name
        making = None if self._make_samples is None else self._make_samples()
        instance = self._instances[number] = self._instance(number, name, engine)
        if making is None:
            self._take_in(instance)
        else:
            instance.gone = True  # until it is warm
            making.add_done_callback(partial(self._from_thread, self._warm, instance))

    def _warm(self, instance: Instance, making: "Future[Sequence[Sample]]") -> None:
        if making.cancelled():
            return  # the server has ended
        if (error := making.exception()) is not None:
            self._stays_cold(instance, from_exception(error, "its warm-up failed"))
        else:
            Warming(self._model, instance, making.result(), partial(self._warmed, instance)).start()

    def _warmed(self, instance: Instance, ran: list[Ran]) -> None:
        if (error := failure_of(ran)) is None:
            self._take_in(instance)
        else:
            self._make_samples = None if ran[-1].made_up else self._make_samples
            self._stays_cold(instance, error)

    def _stays_cold(self, instance: Instance, error: ModserveError) -> None:
        if self._revival is not None:
            self._revival_failed(instance.number, error, self._revival.lost(instance.number, instance.close))

    def _take_in(self, instance: Instance) -> None:
        instance.gone = False
        self._free.extend([instance] * instance.max_in_flight)
        instance.places = instance.max_in_flight
        self._statistics.instances_lost -= 1
        self._statistics.instance_restarts += 1
        _log.info("model '%s': instance '%s' runs again", self._model.name, instance.name)
        self._set_trouble(None)
        self._tell_free()

    def _revival_failed(self, number: int, error: ModserveError, wait_ns: int) -> None:
        who = f"model '{self._model.name}', instance '{self._instances[number].name}'"
        # Whatever went wrong is no fault of those who wait.
        failure = unavailable(f"{who} was lost and cannot be made anew: {error.message}")
        _log.error("%s; the next attempt is in %g s", failure.message, wait_ns / 1e9)
        self._tell_of_loss(number, failure, again=True)

    def _set_trouble(self, error: ModserveError | None) -> None:
        self.trouble = error
        self._on_health()

    # The end

    def end(self) -> None:
        """Let the instances end of a pool that nothing runs on. The engines' instances stay open. Does not wait."""
        self.stop_reviving()
        for instance in self._instances:
            instance.end()

    def stop_reviving(self) -> None:
        """No instance is made anew any more. Before `close`, which may be called on another thread."""
        if self._revival is not None:
            self._revival.end()

    def close(self) -> None:
        """End all instances after what they are running. Blocks; not for the event loop's thread."""
        with ExitStack() as stack:  # one that fails to close leaves no other open
            if self._revival is not None:
                self.stop_reviving()
                stack.callback(self._revival.close)
            for instance in reversed(self._instances):
                stack.callback(instance.close)
