"""Hands an instance its next batch shortly before the current one ends, so that the engine need not wait.

Between two executions the event loop must be notified, the scheduler must choose, and the instance's thread must wake
up. That takes a millisecond or more when the engine keeps all cores busy. So the place of a long execution is given out
shortly before its end if requests wait, and the next batch is ready at the instance. It is not formed earlier, because
it should contain all requests that have arrived by then.
"""

import asyncio
from collections.abc import Callable

from modserve.core.runtime.failures import guard

from .instance import Instance
from .job import Job

_LONG_NS = 2_000_000
"""Executions that take less are not worth a timer, which keeps to milliseconds."""
_SHARE, _MOST_NS = 4, 8_000_000
"""A place is given out so early: a quarter of the execution, at most some milliseconds."""


class Prefetch:
    """Says when the place of a job is to be given out: `give_out` is called then, with the instance and the job."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give_out: Callable[[Instance, Job], None]) -> None:
        self.opening: Instance | None = None
        """The instance whose place is given out at this moment. Kept by the pool."""
        self._loop = loop
        self._give_out = guard("prefetch", give_out)

    def on_start(self, instance: Instance, job: Job, expected_ns: int) -> None:
        """Record that a job was started; if `opening`, another one of the instance comes before it."""
        job.expected_ns = expected_ns
        if instance is self.opening:
            instance.ahead.append(job)
        else:
            self._time(instance, job)

    def on_end(self, instance: Instance) -> bool:
        """Record the end of an execution; True if its place was given out before."""
        if not instance.prefetched:
            return False
        instance.prefetched -= 1
        if instance.ahead:
            job = instance.ahead.popleft()
            self._time(instance, job)
        return True

    def _time(self, instance: Instance, job: Job) -> None:
        ns = job.expected_ns
        if ns >= _LONG_NS:
            wait_ns = ns - min(_MOST_NS, ns // _SHARE)
            self._loop.call_later(wait_ns / 1e9, self._give_out, instance, job)
