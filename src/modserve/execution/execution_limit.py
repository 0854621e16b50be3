"""Detection of instances with executions that take too long, by the event loop's clock."""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from modserve.core.runtime.failures import count_failure, register_task

from .job import Job
from .revival import RevivalClock, Timer

_TASK = "execution_limit"
_AGAIN_NS = 1_000_000_000
"""Time until the next check of an instance that could not be given up."""
GUARD_NS = 600_000_000_000
"""A limit from here on is a guard against engines that hang, and no reason to keep short executions off the event
loop's thread, where no limit can end them."""


class Watched(Protocol):
    """An instance: `instance.Instance`."""

    def silent_ns(self, now_ns: int) -> int | None: ...


InstanceT = TypeVar("InstanceT", bound=Watched)


class ExecutionLimit(Generic[InstanceT]):
    """Watches the instances of a pool; `give_up` gets each that has been silent for `limit_ns`.

    On the event loop's thread. Time counts from when the engine begins: a job may have to wait for the one before it.
    """

    def __init__(
        self,
        limit_ns: int,
        clock: RevivalClock,
        instances: Callable[[], Iterable[InstanceT]],
        give_up: Callable[[InstanceT], None],
    ) -> None:
        self.limit_ns = limit_ns
        self._clock = clock
        self._instances = instances
        self._give_up = give_up
        self._jobs: dict[Job, InstanceT] = {}
        self._timer: Timer | None = None
        register_task(_TASK)

    def __repr__(self) -> str:
        return f"ExecutionLimit({self.limit_ns / 1e6:g} ms, {len(self._jobs)} under way)"

    def on_start(self, instance: InstanceT, job: Job) -> None:
        self._jobs[job] = instance
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.now_ns() + self.limit_ns, self._look)

    def on_end(self, job: Job) -> bool:
        """Record that a job is over. False if it was over before, since it took too long."""
        return self._jobs.pop(job, None) is not None

    def of(self, instance: InstanceT) -> list[Job]:
        """Return the jobs of an instance that are not over, in the order in which they were started."""
        return [job for job, its in self._jobs.items() if its is instance]

    def end(self) -> None:
        """Stop watching; the pool is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        next_ns = 0
        for instance in list(self._instances()):
            try:
                due_ns = self._due_ns(instance)
            except Exception as error:  # the others have their limits all the same
                count_failure(_TASK, error)
                due_ns = self._clock.now_ns() + _AGAIN_NS
            if due_ns:
                next_ns = min(next_ns or due_ns, due_ns)
        if self._jobs and not next_ns:
            next_ns = self._clock.now_ns() + self.limit_ns
        if next_ns:
            self._timer = self._clock.call_at(next_ns, self._look)

    def _due_ns(self, instance: InstanceT) -> int:
        """Give up an instance that has been silent for too long; 0 then or if it is idle, else when it is due."""
        now_ns = self._clock.now_ns()
        silent_ns = instance.silent_ns(now_ns)
        if silent_ns is None:
            return 0
        if silent_ns < self.limit_ns:
            return now_ns + self.limit_ns - silent_ns
        self._give_up(instance)
        return 0
