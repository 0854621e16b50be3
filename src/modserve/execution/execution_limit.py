"""Notices executions that take too long, by the event loop's clock."""

from collections.abc import Callable

from modserve.core.runtime.failures import count_failure, register_task

from .instance import Instance
from .job import Job
from .revival import RevivalClock, Timer

_TASK = "execution_limit"
_AGAIN_NS = 1_000_000_000
"""Until a job that could not be given up is looked at again."""


class ExecutionLimit:
    """Watches the jobs of a pool; `give_up` gets each that has run for `limit_ns`, with its instance.

    On the event loop's thread. Time counts from when the engine begins: a job may have to wait for the one before it.
    """

    def __init__(self, limit_ns: int, clock: RevivalClock, give_up: Callable[[Instance, Job], None]) -> None:
        self.limit_ns = limit_ns
        self._clock = clock
        self._give_up = give_up
        self._jobs: dict[Job, Instance] = {}
        self._timer: Timer | None = None
        register_task(_TASK)

    def __repr__(self) -> str:
        return f"ExecutionLimit({self.limit_ns / 1e6:g} ms, {len(self._jobs)} under way)"

    def started(self, instance: Instance, job: Job) -> None:
        self._jobs[job] = instance
        self._look_at(self._clock.now_ns() + self.limit_ns)

    def _look_at(self, when_ns: int) -> None:
        if self._timer is None:
            self._timer = self._clock.call_at(when_ns, self._look)

    def ended(self, job: Job) -> bool:
        """A job is over, as its instance says. False if it was over before, since it took too long."""
        return self._jobs.pop(job, None) is not None

    def of(self, instance: Instance) -> list[Job]:
        """The jobs of an instance that are not over, in the order in which they were started."""
        return [job for job, its in self._jobs.items() if its is instance]

    def _look(self) -> None:
        self._timer = None
        next_ns = 0
        for job, instance in list(self._jobs.items()):
            try:
                due_ns = self._due_ns(instance, job)
            except Exception as error:  # the others have their limits all the same
                count_failure(_TASK, error)
                due_ns = self._clock.now_ns() + _AGAIN_NS
            if due_ns:
                next_ns = min(next_ns or due_ns, due_ns)
        if next_ns and self._jobs:
            self._look_at(next_ns)

    def _due_ns(self, instance: Instance, job: Job) -> int:
        """Give up a job that has run for too long; 0 then, else when it will have."""
        now_ns = self._clock.now_ns()
        due_ns = (job.timing.compute_start_ns or now_ns) + self.limit_ns
        if due_ns > now_ns:
            return due_ns
        if job in self._jobs:  # giving up one may have ended others
            self._give_up(instance, job)
        return 0
