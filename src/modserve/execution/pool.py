"""The instances of one model version: reserves free ones, runs batches on them, settles the requests."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeAlias

from modserve.backends.api import Executor
from modserve.core.errors import Code, ModserveError, cancelled, forget_frames, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.response import InferenceResponse
from modserve.core.statistics import FailureReason, ModelStatistics
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId

from .instance import Instance, Job
from .quick import LONG_NS, LoopThread
from .running import Again, Answer, Running

_log = logging.getLogger(__name__)

_REFUSED = "refused"
"""`scheduling.batching.Reason` of the batches of one that a refused batch becomes."""
_AT_ONCE = 64
"""The responses of a larger batch are given in parts."""
_TELL_NS = 1_000_000
"""How long a part may take, so that the event loop is not held for longer."""

Observe: TypeAlias = Callable[[ExecutionTiming, Sequence[Inflight]], None]


class InstancePool:
    """Implements `scheduling.BatchRunner`. Lives on the event loop's thread; the instances have theirs.

    `on_settled` is told how many requests have just been settled. If it `may_be_quick`, batches run on the event loop's
    own thread on those instances whose rule says that they are too short to be worth a hop. `observe` is told of each
    execution that succeeded.

    A merged batch that the engine refuses runs once more, each request by itself, on the same instance, so that only
    those fail that are to blame. Only the executions that succeed are counted.
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
    ) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.on_done: Callable[[list[Inflight]], None] | None = None
        self.on_again: Callable[[Inflight], None] = _never_again
        self._model = model
        self._statistics = statistics
        self._on_settled = on_settled
        self._loop = loop
        self._observe = observe
        self._decoupled = config.decoupled
        self._loop_thread = LoopThread()
        self._to_tell: deque[tuple[Inflight, InferenceResponse]] = deque()
        """Those of very large batches whose responses are still to be given, in order."""
        self._instances: list[Instance] = []
        try:
            for name, engine in engines:
                made = Instance(model, name, config, engine, self._done, self._tell, may_be_quick=may_be_quick)
                self._instances.append(made)
        except BaseException:
            self.end()
            raise
        self._free = deque(self._instances)

    def __repr__(self) -> str:
        return f"InstancePool({self._model.name}, {len(self._free)} of {len(self._instances)} free)"

    def reserve(self) -> Instance | None:
        return self._free.popleft() if self._free else None

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
        if rule is None or not rule.quick:
            slot.job = job
            slot.start(job)
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
        self._free.append(slot)
        self._tell_done(job.members)
        self._settle(job)

    def remaining_ns(self, now_ns: int, run_ns: Callable[[int], int]) -> list[int]:
        """How long each instance is likely to be busy, by `run_ns`, which tells it of a batch size; 0 for free ones."""
        found: list[int] = []
        for instance in self._instances:
            if instance.job is None:
                found.append(0)
                continue
            timing = instance.job.timing
            found.append(max(0, (timing.compute_start_ns or now_ns) + run_ns(timing.batch_size) - now_ns))
        return found

    def end(self) -> None:
        """Let the threads end of a pool that nothing runs on. The engines' instances stay open. Does not wait."""
        for instance in self._instances:
            instance.end()

    def close(self) -> None:
        """End all instances after what they are running. Blocks; not for the event loop's thread."""
        with ExitStack() as stack:  # one that fails to close leaves no other open
            for instance in reversed(self._instances):
                stack.callback(instance.close)

    def _tell(self, running: Running, answer: Answer) -> None:
        """On any thread: one hop to the event loop for each answer of an engine that answers request by request."""
        try:
            self._loop.call_soon_threadsafe(self._on_answer, running, answer)
        except RuntimeError:
            _log.debug("model '%s': a request was answered after the server's end", self._model.name)

    def _done(self, instance: Instance, job: Job) -> None:
        """On the instance's thread: one hop to the event loop a batch."""
        try:
            self._loop.call_soon_threadsafe(self._finish, instance, job)
        except RuntimeError:
            # The loop has closed: the server was stopped without waiting for this batch, and nobody waits for it.
            _log.debug("model '%s': a batch ended after the server", self._model.name)

    def _finish(self, instance: Instance, job: Job) -> None:
        timing = job.timing
        if instance.quick is not None:
            instance.quick.ran_on_thread(timing.compute_end_ns - timing.compute_start_ns, job.cpu_ns)
        if job.refused:
            self._run_one_by_one(instance, job)
            return
        if job.more:
            self._settle(job)  # another job of the same batch has begun
            return
        instance.job = None
        self._free.append(instance)
        if job.running and self.on_done is not None:
            self._settle(job)  # which tells of those whose sequences can go on in the next batch
            self._tell_free()
            return
        if not job.running:  # requests that engines answer by themselves are done one by one
            self._tell_done(job.members)
        # The next batch starts before this one's answers are written: the engine should not wait for sockets.
        self._tell_free()
        self._settle(job)

    def _tell_free(self) -> None:
        try:
            self.on_free()
        except Exception:
            self._misbehaved("telling its scheduler of a free instance")

    def _run_one_by_one(self, instance: Instance, job: Job) -> None:
        """The engine refused a batch: those who still wait for an answer run by themselves, on its thread."""
        assert job.error is not None, "set when the engine refused: this is a bug"
        if job.late:
            self._refuse_late(job.late)
        left = [inflight for inflight in job.members if not inflight.settled]
        _log.warning(
            "model '%s': a batch of %d requests failed, each of them runs once more by itself: %s",
            self._model.name,
            len(job.members),
            job.error.message,
        )
        if len(left) < len(job.members):
            self._count_cancelled([inflight for inflight in job.members if inflight.settled])
        forget_frames(job.error)
        if not left:
            instance.job = None
            self._free.append(instance)
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

    def _settle(self, job: Job) -> None:
        timing = job.timing
        if job.late:
            self._refuse_late(job.late)
            if not job.members:
                return
        if job.again and not job.responses and job.error is None:
            self._count_cancelled(job.members)  # it was settled before its turn came, and did not run
            return
        if job.error is None and self._observe is not None:
            try:
                self._observe(timing, job.members)
            except Exception:
                self._misbehaved("learning from an execution")
        if job.running:
            self._settle_running(job)
        elif job.error is not None:
            self._log_failure(job.error)
            forget_frames(job.error)
            self._fail(job.members, job.error)
        else:
            self._answer(job)

    def _settle_running(self, job: Job) -> None:
        """The execution is over; requests that have had their final answer are, too."""
        if job.error is None:
            try:
                self._statistics.record_execution(job.timing, job.members, int(time.time() * 1e3))
            except Exception:
                self._misbehaved("counting an execution")
        else:
            self._log_failure(job.error)
            forget_frames(job.error)
        for running in job.running:
            if running.filler:
                continue
            running.executed = True
            if running.ended:
                self._end(running)
            elif job.error is not None:
                now_ns = time.monotonic_ns()
                self._on_answer(running, Answer(job.error, True, job.timing.compute_start_ns, now_ns, now_ns))

    def _on_answer(self, running: Running, answer: Answer) -> None:
        if running.ended:
            return  # what an engine says after its execution has failed
        inflight, what = running.inflight, answer.what
        kind = "success"
        if isinstance(what, Again):
            running.again = running.ended = True
            if running.executed:
                self._end(running)
            return
        if inflight.cancelled:
            kind = "cancel"
        elif isinstance(what, ModserveError):
            kind = "fail"
            if answer.final:
                running.error = what
        elif what is None:
            kind = "empty_response"
        inflight.settle(what, answer.final)
        if self._decoupled:
            try:
                self._statistics.record_response(
                    running.answers, kind, answer.start_ns, answer.output_start_ns, answer.end_ns
                )
            except Exception:
                self._misbehaved("counting a response")
        running.answers += 1
        if answer.final:
            running.ended = True
            if running.executed:
                self._end(running)

    def _end(self, running: Running) -> None:
        """Count a request that is over in every respect, unless it is to run again."""
        inflight, now_ns = running.inflight, time.monotonic_ns()
        if running.again and not inflight.settled:
            self._statistics.pending += 1
            self.on_again(inflight)
            return
        assert inflight.timing is not None, "set when its batch started: this is a bug"
        try:
            if inflight.cancelled:
                self._statistics.record_failure(inflight, FailureReason.CANCELED, now_ns)
            elif running.error is not None:
                self._statistics.record_failure(inflight, FailureReason.BACKEND, now_ns)
            else:
                self._statistics.record_successes([inflight], inflight.timing, now_ns)
        except Exception:
            self._misbehaved("counting a request")
        self._tell_done([inflight])
        self._on_settled(1)

    def _tell_done(self, members: list[Inflight]) -> None:
        if self.on_done is not None:
            try:
                self.on_done(members)
            except Exception:
                self._misbehaved("telling its scheduler of requests that are done")

    def _answer(self, job: Job) -> None:
        try:
            self._count(job)
        except Exception:
            self._misbehaved("counting an execution")
        members = job.members
        if len(members) > _AT_ONCE or self._to_tell:
            if not self._to_tell:
                self._loop.call_soon(self._tell_some)
            self._to_tell.extend(zip(members, job.responses, strict=True))
            return
        for inflight, response in zip(members, job.responses, strict=True):
            inflight.settle(response)
        self._on_settled(len(members))

    def _tell_some(self) -> None:
        """Give the outcomes of a very large batch, or as many as do not hold the event loop for long."""
        waiting, end_ns, told = self._to_tell, time.monotonic_ns() + _TELL_NS, 0
        while waiting and time.monotonic_ns() < end_ns:
            inflight, response = waiting.popleft()
            inflight.settle(response)
            told += 1
        if waiting:
            self._loop.call_soon(self._tell_some)
        self._on_settled(told)

    def _count(self, job: Job) -> None:
        statistics, members, now_ns = self._statistics, job.members, time.monotonic_ns()
        statistics.record_execution(job.timing, members, int(time.time() * 1e3))
        answered = members
        if any(inflight.settled for inflight in members):
            answered = [inflight for inflight in members if not inflight.settled]
            for inflight in members:
                if inflight.settled:
                    statistics.record_failure(inflight, FailureReason.CANCELED, now_ns)
        statistics.record_successes(answered, job.timing, now_ns)

    def _refuse_late(self, late: list[Inflight]) -> None:
        """Those that did not run because it was too late when their batch began."""
        for inflight in late:
            inflight.timing = None
        self._fail(late, unavailable("Request timeout expired"), FailureReason.REJECTED)

    def _count_cancelled(self, members: list[Inflight]) -> None:
        """Those that were settled before they ran, or ran again."""
        self._fail(members, cancelled())

    def _fail(
        self, members: list[Inflight], error: ModserveError, reason: FailureReason = FailureReason.BACKEND
    ) -> None:
        now_ns = time.monotonic_ns()
        for inflight in members:
            try:
                self._statistics.record_failure(
                    inflight, FailureReason.CANCELED if inflight.settled else reason, now_ns
                )
            except Exception:
                self._misbehaved("counting a failure")
            inflight.settle(error)
        self._on_settled(len(members))

    def _misbehaved(self, doing: str) -> None:
        """Something raised that must not: whoever has part in it, the requests go on."""
        _log.exception("model '%s': %s failed", self._model.name, doing)

    def _log_failure(self, error: ModserveError) -> None:
        if error.code is Code.INTERNAL:
            _log.error("model '%s': execution failed: %s", self._model.name, error.message, exc_info=error.__cause__)


def _never_again(inflight: Inflight) -> None:
    raise RuntimeError("a request is to run again, and its scheduler knows no such thing: this is a bug")
