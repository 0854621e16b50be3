"""The scheduler of ensembles.

Four files, each of which builds on those behind it: `ensemble` (all requests to an ensemble), `ensemble_run` (one of
them), `ensemble_step` (one step of it, which calls its run back), `dataflow` (pure rules).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

from modserve.core.errors import ModserveError, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.servable import Borrow
from modserve.core.timing import ExecutionTiming

from .dataflow import Plan
from .ensemble_run import EnsembleRun, Surroundings
from .ensemble_step import StepLimit
from .scheduler import STOPPING, Clock

_MOST_PLANS = 64
"""Plans kept for the sets of outputs that clients ask for."""

OnDone: TypeAlias = Callable[[Inflight, ExecutionTiming, ModserveError | None], None]
"""Counts a request that is over, before its client gets the last response."""


class EnsembleScheduler:
    """Implements `scheduler.Scheduler` for a model that is made of others, which `borrow` lends.

    Nothing waits here, but for the limit of requests that a step may have under way: the models' own schedulers queue
    what the steps send them.
    """

    def __init__(self, config: ModelConfig, version: int, borrow: Borrow, clock: Clock, on_done: OnDone) -> None:
        assert config.ensemble is not None, "only made for ensembles: this is a bug"
        most = config.ensemble.max_inflight_requests
        self._limits = [StepLimit(most) for _ in config.ensemble.steps] if most else []
        self._surroundings = Surroundings(config, version, borrow, clock, self._limits)
        self._clock = clock
        self._on_done = on_done
        self._plan = lru_cache(_MOST_PLANS)(partial(Plan, config.ensemble))
        self._stopped = False
        self.runs: set[EnsembleRun] = set()

    def __repr__(self) -> str:
        return f"EnsembleScheduler({self._surroundings.config.name}, {len(self.runs)} under way)"

    def enqueue(self, inflight: Inflight) -> None:
        if self._stopped:
            raise unavailable(f"{inflight.request.label}{STOPPING}")
        inflight.queue_start_ns = self._clock.now_ns()
        run = EnsembleRun(self._surroundings, self._plan(inflight.output_names), inflight, self._ended)
        self.runs.add(run)
        inflight.on_cancel = run.cancelled
        self._clock.call_soon(run.start)  # a run may end as it starts, and must not before this returns

    def stop(self) -> None:
        self._stopped = True

    def close(self, error: ModserveError) -> None:
        self._stopped = True
        self.fail_waiting(error)

    def fail_waiting(self, error: ModserveError) -> None:
        for limit in self._limits:
            limit.clear()
        for run in list(self.runs):
            run.end(error)

    def _ended(self, run: EnsembleRun, timing: ExecutionTiming, error: ModserveError | None) -> None:
        self.runs.discard(run)
        self._on_done(run.inflight, timing, error)
