"""Prefetch: lends an instance's place shortly before its execution ends, so that the engine need not wait.

Between two executions, the event loop is notified, the scheduler chooses a batch, and the instance's thread wakes up.
That takes a millisecond or more while the engine keeps all cores busy. If requests wait, the place of a long execution
is therefore lent shortly before its end, and the next batch is ready at the instance. It is not formed earlier, so that
it contains all requests that have arrived by then.
"""

import asyncio
from collections.abc import Callable

from modserve.core.runtime.failures import guard

from .instance import Instance
from .job import Job

_LONG_NS = 2_000_000
"""Minimum duration of an execution for prefetch, as timers have a resolution of milliseconds."""
_SHARE, _MOST_NS = 4, 8_000_000
"""Lead of the prefetch: a quarter of the execution, and at most this many nanoseconds."""


class Prefetch:
    """Timing of prefetches. Calls `give_out` with the instance and the job when the job's place is to be lent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give_out: Callable[[Instance, Job], None]) -> None:
        self.opening: Instance | None = None
        """Instance with a place being lent at the moment. Set by the pool."""
        self._loop = loop
        self._give_out = guard("prefetch", give_out)

    def on_start(self, instance: Instance, job: Job, expected_ns: int) -> None:
        """Record the start of a job. For the instance `opening`, it follows the instance's current job."""
        job.expected_ns = expected_ns
        if instance is self.opening:
            instance.ahead.append(job)
        else:
            self._time(instance, job)

    def on_end(self, instance: Instance) -> bool:
        """Record the end of an execution; returns True if its place was already lent."""
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
