"""An engine whose time is that of a clock turned by hand."""

from collections.abc import Callable

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.scheduling.scheduler import Scheduler
from modserve.testing import FakeClock, RecordingSink, request
from modserve.testing.builders import RecordedInflight

MS = 1_000_000
ASKED = request()
"""What all requests ask for, which no engine looks at."""


def one_item() -> Inflight:
    return RecordedInflight(ASKED, RecordingSink(), ASKED.inputs, ("OUTPUT0",), 1, None, 0)


class SimulatedPool:
    """Implements `scheduling.scheduler.BatchRunner`. Batches of all slots run one after the other on one device."""

    def __init__(self, clock: FakeClock, slots: int, run_ns: Callable[[int], int]) -> None:
        self.scheduler: Scheduler | None = None
        self.observe: Callable[[ExecutionTiming, list[Inflight]], None] = lambda timing, members: None
        self.on_answer: Callable[[Inflight], None] = lambda entry: None
        self.done: list[tuple[int, int]] = []
        """When each request came, and how long it took."""
        self.running: dict[int, ExecutionTiming] = {}
        """What runs, or waits for the device, in each slot that is not free."""
        self._clock = clock
        self._free = list(range(slots))
        self._run_ns = run_ns
        self._device_ns = 0

    def reserve(self) -> int | None:
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def run(self, slot: int, batch: list[Inflight], close_reason: str) -> None:
        timing = ExecutionTiming(sum(entry.batch_size for entry in batch), close_reason)
        timing.compute_start_ns = self._clock.now_ns()
        self.running[slot] = timing
        self._device_ns = max(timing.compute_start_ns, self._device_ns) + self._run_ns(timing.batch_size)

        def end() -> None:
            timing.compute_end_ns = self._clock.now_ns()
            self.done += [(entry.queue_start_ns, timing.compute_end_ns - entry.queue_start_ns) for entry in batch]
            self.observe(timing, batch)
            del self.running[slot]
            self._free.append(slot)
            for entry in batch:
                self.on_answer(entry)
            if self.scheduler is not None:
                self.scheduler.dispatch()

        self._clock.call_at(self._device_ns, end)
