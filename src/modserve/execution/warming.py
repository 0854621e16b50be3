"""Warm-up of one instance: runs samples, one execution after another, before the instance takes requests.

Warm-up jobs are started like the pool's jobs, so they run on the same thread or event loop. Their results are dropped
and not counted; Triton counts warm-ups as inferences.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

from modserve.backends.api import InstanceLostError
from modserve.core.errors import ModserveError, forget_frames
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import Outcome, ResponseSink
from modserve.core.version import ModelId

from .instance import Instance
from .job import Job

_log = logging.getLogger(__name__)

CLOSE_REASON = "warm-up"


class Sample(NamedTuple):
    """Requests that are executed together, `times` times. ``requests(sink)`` creates them for each execution.

    A `made_up` sample is generated, for a model without its own samples, and may not fit the model. Its failure is only
    a warning.
    """

    name: str
    times: int
    requests: Callable[[ResponseSink], list[Inflight]]
    made_up: bool = False


class Ran(NamedTuple):
    """Result of a warm-up sample on one instance."""

    sample: str
    times: int
    ns: int
    error: ModserveError | None = None
    """Error of the last execution. Later samples did not run."""
    made_up: bool = False


OnEnd: TypeAlias = Callable[[list[Ran]], None]
MakeSamples: TypeAlias = Callable[[], Future[Sequence[Sample]]]
"""Creates the samples of a model on a loading thread."""


class WarmUpRun:
    """Runs samples on an instance, and calls `on_end` once with the results. Used on the event loop's thread.

    The warm-up ends with the first failure of a sample that is not made up.
    """

    def __init__(self, model: ModelId, instance: Instance, samples: Sequence[Sample], on_end: OnEnd) -> None:
        self._label = f"model '{model.name}', instance '{instance.name}'"
        self._instance = instance
        self._samples = samples
        self._on_end = on_end
        self._at = 0
        self._iteration = 0
        self._started_ns = 0
        self._round = 0
        self._left = 0
        """Requests of the current execution without a final response."""
        self._executed = False
        self._error: ModserveError | None = None
        self._ran: list[Ran] = []
        self._ended = False

    def start(self) -> None:
        self._started_ns = time.monotonic_ns()
        self._next()

    def on_lost(self, error: InstanceLostError) -> None:
        """Fail the warm-up after the loss of the instance."""
        self._fail(error)

    def _next(self) -> None:
        if self._ended:
            return
        if self._at == len(self._samples):
            self._end()
            return
        sample = self._samples[self._at]
        self._round += 1
        self._executed = False
        try:
            inflights = sample.requests(_Sink(self, self._round))
        except ModserveError as error:
            self._fail(error)
            return
        self._left = len(inflights)
        job = Job(inflights, CLOSE_REASON, on_done=self._on_done)
        for inflight in inflights:
            inflight.timing = job.timing
        self._instance.start(job)

    def _on_done(self, job: Job) -> None:
        """Continue after an executed job, unless an engine that responds to each request separately is not finished."""
        if self._ended:
            return
        self._executed = True
        if job.error is not None:
            self._fail(job.error)
        elif not job.running:
            self._left = 0
            self._go_on()
        elif not self._left:
            self._go_on()

    def on_settle(self, round_: int, outcome: Outcome, final: bool) -> None:
        """Record the outcome of a request."""
        if round_ != self._round or self._ended:
            return
        if isinstance(outcome, ModserveError) and self._error is None:
            self._error = outcome
        if final:
            self._left -= 1
            if not self._left and self._executed:
                self._go_on()

    def _go_on(self) -> None:
        if self._error is not None:
            self._fail(self._error)
            return
        sample = self._samples[self._at]
        self._iteration += 1
        if self._iteration >= sample.times:
            ns = time.monotonic_ns() - self._started_ns
            self._ran.append(Ran(sample.name, sample.times, ns, None, sample.made_up))
            often = "once" if sample.times == 1 else f"{sample.times} times"
            _log.info("%s: warm-up sample '%s' ran %s in %.1f ms", self._label, sample.name, often, ns / 1e6)
            self._at += 1
            self._iteration = 0
            self._started_ns = time.monotonic_ns()
        self._next()

    def _fail(self, error: ModserveError) -> None:
        if self._ended:
            return
        sample = self._samples[min(self._at, len(self._samples) - 1)]
        text = error.message.removeprefix(f"{self._label}: ").removeprefix(f"{self._label} ")
        failure = ModserveError(error.code, f"{self._label}: warm-up sample '{sample.name}' failed: {text}")
        if isinstance(error, InstanceLostError):
            failure = InstanceLostError(failure.message)
        forget_frames(error)
        ns = time.monotonic_ns() - self._started_ns
        self._ran.append(Ran(sample.name, self._iteration, ns, failure, sample.made_up))
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._on_end(self._ran)


class _Sink:
    """Receives the outcomes of the requests of one execution."""

    def __init__(self, warming: WarmUpRun, round_: int) -> None:
        self._warming = warming
        self._round = round_

    def settle(self, outcome: Outcome, final: bool) -> None:
        self._warming.on_settle(self._round, outcome, final)


def failure_of(ran: Sequence[Ran]) -> ModserveError | None:
    """Return the error that makes an instance unfit after its warm-up, or None. Warns if generated data failed."""
    error = ran[-1].error if ran else None
    if error is None or not ran[-1].made_up:
        return error
    text = "%s. This data was generated; model_warmup in the configuration can describe better samples"
    _log.warning(text, error.message)
    return error if isinstance(error, InstanceLostError) else None
