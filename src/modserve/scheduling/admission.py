"""Admission to a queue: requests that will probably be late are refused at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modserve.core.configuration.model_config import Admission
from modserve.core.errors import OverloadedError
from modserve.core.requests.inflight import Inflight

from .prediction import wait_ns

_OFF = Admission()


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """Reason that a queue has no room for a request. `most`: queue size that tenants share as limits."""

    tenant: str = ""
    waiting: int = 0
    limit: int = 0
    most: int = 0


WHOLE_QUEUE = QueueLimit()
"""The queue is full."""


class Gate:
    """Decides which requests may queue.

    `run_ns`: predicts the run time of a batch size, 0 for unknown. Low guesses are preferable: a refused request never
    shows that it would have been in time. `remaining_ns`: predicts at a time how long each slot stays busy. Batches
    have up to `limit` items; 0 for models that run each request on its own. The queue delay does not count, since it
    ends early for a request with a deadline or a queue limit.
    """

    def __init__(
        self,
        options: Admission = _OFF,
        run_ns: Callable[[int], int] = lambda batch_size: 0,
        remaining_ns: Callable[[int], Sequence[int]] = lambda now_ns: (0,),
        limit: int = 0,
    ) -> None:
        self._options = options
        self._run_ns = run_ns
        self._remaining_ns = remaining_ns
        self._limit = limit
        self.predicts = options.by_deadline
        """True if `check` may refuse requests."""

    def check(self, inflight: Inflight, count: int, size: int, now_ns: int) -> None:
        """Raise `OverloadedError` if the request would be late after `count` others with a total of `size`.

        Its queue limit bounds the wait; its deadline and the latency goal bound wait and execution together. A request
        is always admitted while a slot is free and none waits: a wrong prediction would otherwise never be corrected.
        """
        allowed_ns = self._options.latency_goal_ns
        if inflight.deadline_ns:
            left_ns = max(0, inflight.deadline_ns - now_ns)
            allowed_ns = min(allowed_ns or left_ns, left_ns)
        elif not allowed_ns and not inflight.queue_limit_ns:
            return
        own = inflight.batch_size or 1
        if not self._run_ns(own):
            return
        waiting_ns = self._wait_ns(count, size, now_ns)
        if not waiting_ns and not count:
            return
        if inflight.queue_limit_ns:
            left_ns = max(0, inflight.queue_limit_ns - now_ns)
            if waiting_ns > left_ns:
                raise self._make_refusal(inflight, waiting_ns, left_ns, waiting_ns - left_ns, "")
        if not allowed_ns:
            return
        # The remainder of the batches ahead will probably run in its batch.
        running_ns = self._run_ns(min(self._limit, size % self._limit + own) if self._limit else own)
        late_ns = waiting_ns + running_ns - allowed_ns
        if late_ns > 0:
            execution = f" and {running_ns / 1e6:.1f} ms of execution"
            raise self._make_refusal(inflight, waiting_ns, allowed_ns, min(late_ns, waiting_ns), execution)

    def _make_refusal(
        self, inflight: Inflight, waiting_ns: int, allowed_ns: int, retry_after_ns: int, execution: str
    ) -> OverloadedError:
        return OverloadedError(
            f"{inflight.request.label}Request refused because it would be too late: predicted "
            f"{waiting_ns / 1e6:.1f} ms in the queue{execution}, allowed {allowed_ns / 1e6:.1f} ms",
            retry_after_ns,
            too_many=self._options.too_many,
        )

    def full(
        self, inflight: Inflight, count: int, size: int, now_ns: int, limit: QueueLimit = WHOLE_QUEUE
    ) -> OverloadedError:
        """Return the refusal of a request by a full queue. `count` and `size`: of the requests ahead of it."""
        text, wait_ns = f"{inflight.request.label}Exceeds maximum queue size", self._wait_ns(count, size, now_ns)
        if not limit.tenant:
            return OverloadedError(text, wait_ns, too_many=self._options.too_many)
        share = f", its share of {limit.most} among the tenants that wait" if limit.most else ""
        text += f" of tenant '{limit.tenant}': {limit.waiting} of its requests wait, allowed {limit.limit}{share}"
        return OverloadedError(text, wait_ns, too_many=True)

    def _wait_ns(self, count: int, size: int, now_ns: int) -> int:
        if self._limit:
            return wait_ns(size // self._limit, self._run_ns(self._limit), self._remaining_ns(now_ns))
        each_ns = self._run_ns(-(-size // count)) if count else 0
        return wait_ns(count, each_ns, self._remaining_ns(now_ns))
