"""Settlement: delivers the responses and failures of executions to their requests, and counts them.

An exception of a sink, the statistics or the scheduler does not affect other requests.
"""

import asyncio
import logging
import time
from collections import deque

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, cancelled, forget_frames, unavailable
from modserve.core.requests import request_ids
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.runtime.log_limit import LogLimit
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.core.version import ModelId

from .job import Job
from .owner import Learner, PoolOwner
from .running import Again, RequestProgress, RequestReport, Stamp

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Batch size above which responses are delivered in parts."""
_TELL_NS = 1_000_000
"""Time limit of one part, which blocks the event loop."""


class Settlement:
    """Settles the requests of one pool, on the event loop's thread. Passes successful executions to the `learner`."""

    def __init__(
        self,
        model: ModelId,
        config: ModelConfig,
        statistics: ModelStatistics,
        owner: PoolOwner,
        loop: asyncio.AbstractEventLoop,
        learner: Learner | None,
    ) -> None:
        self.learner = learner
        self._model = model
        self._statistics = statistics
        self._owner = owner
        self._loop = loop
        self._has_sequences = config.sequence_batching is not None
        self._decoupled = config.decoupled
        self.log_limit = LogLimit(time.monotonic)
        """Rate limit for log lines on failures, which clients can cause; the metrics count all of them."""
        self._to_tell: deque[tuple[Inflight, InferenceResponse]] = deque()
        """Requests of very large batches with undelivered responses, in order."""

    def settle(self, job: Job) -> None:
        timing = job.timing
        if job.late:
            self.refuse_late(job.late)
            if not job.members:
                return
        if job.is_retry and not job.responses and job.error is None:
            self.count_cancelled(job.members)  # settled before it could run again
            return
        if job.error is None and self.learner is not None:
            try:
                self.learner.observe(timing, job.members)
            except Exception:
                self.log_exception("recording an execution")
        if job.running:
            self._settle_running(job)
        elif job.error is not None:
            self._log_failure(job.error, job.members)
            self._fail(job.members, job.error)
        else:
            self._respond(job)

    def _settle_running(self, job: Job) -> None:
        """Settle a finished execution, and its requests with a final response."""
        if job.error is None:
            try:
                self._statistics.record_execution(job.timing, job.members, int(time.time() * 1e3))
            except Exception:
                self.log_exception("counting an execution")
        else:
            self._log_failure(job.error, job.members)
        for running in job.running:
            if running.filler:
                continue
            running.executed = True
            if running.ended:
                self._end(running)
            elif job.error is not None:
                self.fail_open(running, job.error, job.timing.compute_start_ns)

    def fail_open(self, running: RequestProgress, error: ModserveError, start_ns: int = 0) -> None:
        """Fail a request to which the engine will not respond any more."""
        now_ns = time.monotonic_ns()
        self.deliver(running, RequestReport(error, True, start_ns or now_ns, now_ns, now_ns))

    def deliver(self, running: RequestProgress, report: RequestReport | Stamp) -> None:
        if isinstance(report, Stamp):
            trace = running.inflight.trace
            if trace is not None:
                trace.stamp(report.activity, report.ns)
            return
        if running.ended:
            return  # late report after a failed execution
        inflight, what = running.inflight, report.what
        if running.filler:  # a warm-up request, as mere fillers are `ended` from the start
            if report.final:
                running.ended = True
                running.home.pop(running, None)
            inflight.settle(None if isinstance(what, Again) else what, report.final)
            self._owner.on_settle(0)  # a leaving instance may be idle now
            return
        kind = "success"
        if isinstance(what, Again):
            running.rerun_requested = True
            self._on_end(running)
            return
        if inflight.cancelled:
            kind = "cancel"
        elif isinstance(what, ModserveError):
            kind = "fail"
            if report.final:
                running.error = what
        elif what is None:
            kind = "empty_response"
        if inflight.trace is not None:
            running.trace_id = inflight.trace.trace_id
        inflight.settle(what, report.final)
        if self._decoupled:
            times = report.start_ns, report.output_start_ns, report.end_ns
            try:
                self._statistics.record_response(running.responses, kind, *times)
                if not running.responses and kind == "success":
                    self._statistics.record_first_response(inflight, report.end_ns, running.trace_id)
            except Exception:
                self.log_exception("counting a response")
        running.responses += 1
        if report.final:
            self._on_end(running)

    def _on_end(self, running: RequestProgress) -> None:
        """Record the engine's last report on a request."""
        running.ended = True
        running.home.pop(running, None)
        if running.executed:
            self._end(running)

    def _end(self, running: RequestProgress) -> None:
        """Count a completely finished request, or run it again."""
        inflight, now_ns = running.inflight, time.monotonic_ns()
        if running.rerun_requested and not inflight.settled:
            self._statistics.pending += 1
            self._owner.run_again(inflight)
            return
        assert inflight.timing is not None, "set when its batch started: this is a bug"
        try:
            if inflight.cancelled or running.error is not None:
                reason = FailureReason.CANCELED if inflight.cancelled else FailureReason.BACKEND
                self._statistics.record_failure(inflight, reason, now_ns)
            else:
                self._statistics.record_successes([inflight], inflight.timing, now_ns, running.trace_id)
        except Exception:
            self.log_exception("counting a request")
        self.tell_done([inflight])
        self._owner.on_settle(1)

    def tell_done(self, members: list[Inflight]) -> None:
        """Notify the sequence scheduler, if there is one."""
        if self._has_sequences:
            try:
                self._owner.batch_done(members)
            except Exception:
                self.log_exception("notifying its scheduler of finished requests")

    def _respond(self, job: Job) -> None:
        statistics, members, now_ns = self._statistics, job.members, time.monotonic_ns()
        try:
            statistics.record_execution(job.timing, members, int(time.time() * 1e3))
            for inflight in members:
                if inflight.settled:
                    self._count_settled(members, job.timing, now_ns)
                    break
            else:
                statistics.record_successes(members, job.timing, now_ns)
        except Exception:
            self.log_exception("counting an execution")
        if len(members) > _AT_ONCE or self._to_tell:
            if not self._to_tell:
                self._loop.call_soon(self._tell_some)
            self._to_tell.extend(zip(members, job.responses, strict=True))
            return
        for index, inflight in enumerate(members):
            inflight.settle(job.responses[index])
        self._owner.on_settle(len(members))

    def _count_settled(self, members: list[Inflight], timing: ExecutionTiming, now_ns: int) -> None:
        """Count the requests of an execution, some of which were cancelled."""
        for inflight in members:
            if inflight.settled:
                self._statistics.record_failure(inflight, FailureReason.CANCELED, now_ns)
        self._statistics.record_successes([each for each in members if not each.settled], timing, now_ns)

    def _tell_some(self) -> None:
        """Settle requests of a very large batch, in parts that do not block the event loop for long."""
        waiting, end_ns, count = self._to_tell, time.monotonic_ns() + _TELL_NS, 0
        while waiting and time.monotonic_ns() < end_ns:
            inflight, response = waiting.popleft()
            inflight.settle(response)
            count += 1
        if waiting:
            self._loop.call_soon(self._tell_some)
        self._owner.on_settle(count)

    def refuse_late(self, late: list[Inflight]) -> None:
        """Refuse requests that were too late when their batch began."""
        for inflight in late:
            inflight.timing = None
        self._fail(late, unavailable("Request timeout expired"), FailureReason.REJECTED)

    def count_cancelled(self, members: list[Inflight]) -> None:
        """Count requests that were settled before they could run, or run again."""
        self._fail(members, cancelled())

    def _fail(
        self, members: list[Inflight], error: ModserveError, reason: FailureReason = FailureReason.BACKEND
    ) -> None:
        now_ns = time.monotonic_ns()
        for inflight in members:
            counted = FailureReason.CANCELED if inflight.settled else reason
            try:
                self._statistics.record_failure(inflight, counted, now_ns)
            except Exception:
                self.log_exception("counting a failure")
            inflight.settle(error)
        self._owner.on_settle(len(members))

    def log_exception(self, doing: str) -> None:
        """Log an exception that must not stop the settlement."""
        _log.exception("model '%s': %s failed", self._model.name, doing)

    def _log_failure(self, error: ModserveError, members: list[Inflight]) -> None:
        if error.code is Code.INTERNAL and self.log_limit.allows():
            ids = request_ids.list_ids([member.request for member in members])
            name, text = self._model.name, "model '%s': execution failed: %s [X-Request-ID %s]"
            extra = {"fields": {"model": name, "request_id": ids}}
            _log.error(text, name, error.message, ids, exc_info=error.__cause__, extra=extra)
        forget_frames(error)
