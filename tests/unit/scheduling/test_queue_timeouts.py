"""The ``timeout`` parameter and the queue policy: who is refused, who goes behind the others, and when."""

from dataclasses import replace

import pytest

from modserve.core.configuration.model_config import DynamicBatching, QueuePolicy
from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import Outcome
from modserve.scheduling import batching
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, PuppetRunner, RecordingSink, inflight, request


class Bench:
    """A model that runs one request at a time, and is busy with one."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.clock = FakeClock()
        self.runner = PuppetRunner()
        self.dropped: list[tuple[Inflight, str]] = []
        options = DynamicBatching(default_policy=policy)
        self.scheduler = QueuedScheduler(batching.direct, self.runner, self.clock, self._drop, options)
        self.runner.serve(self.scheduler)
        self.submit()

    def _drop(self, entry: Inflight, error: ModserveError) -> None:
        self.dropped.append((entry, error.message))
        entry.settle(error)

    def submit(self, timeout_ns: int = 0, deadline_ns: int = 0) -> Inflight:
        entry = inflight(deadline_ns=deadline_ns and self.clock.now_ns() + deadline_ns)
        entry.request = replace(entry.request, timeout_ns=timeout_ns)
        self.scheduler.enqueue(entry)
        self.clock.run()
        return entry


@pytest.mark.parametrize(
    ("default", "override", "asked", "expected"),
    [
        (0, False, 0, 0),
        (0, False, 50, 50),
        (0, True, 50, 50),
        (100, False, 0, 100),
        (100, False, 50, 100),
        (100, True, 50, 50),
        (100, True, 0, 100),
        (100, True, 200, 100),
        (100, False, 200, 100),
    ],
)
@pytest.mark.parametrize("delay", [False, True], ids=["REJECT", "DELAY"])
def test_how_long_a_request_may_wait(delay: bool, default: int, override: bool, asked: int, expected: int) -> None:
    bench = Bench(QueuePolicy(0, default, delay, override))
    first = bench.submit(asked)
    bench.clock.advance((expected or 1000) - 1)
    second = bench.submit()
    assert bench.dropped == []
    bench.clock.advance(1)
    bench.runner.finish()
    late = bool(expected)
    assert bench.dropped == ([(first, "Request timeout expired")] if late and not delay else [])
    assert bench.runner.batches[1] == [second if late else first]


class _Cancels(RecordingSink):
    """A client that gives up another of its requests when one has failed."""

    other: Inflight

    def settle(self, outcome: Outcome, final: bool) -> None:
        super().settle(outcome, final)
        if isinstance(outcome, ModserveError):
            self.other.cancel()


def test_one_that_is_given_up_is_not_put_behind_the_others() -> None:
    clock, runner = FakeClock(), PuppetRunner()
    levels = {1: QueuePolicy(0, 100), 2: QueuePolicy(0, 100, delay=True)}
    options = DynamicBatching(priority_levels=2, default_priority_level=1, level_policies=levels)

    def drop(entry: Inflight, error: ModserveError) -> None:
        entry.settle(error)

    scheduler = QueuedScheduler(batching.direct, runner, clock, drop, options)
    runner.serve(scheduler)
    sink = _Cancels()
    runs, refused, delayed = (inflight(sink=sink if number == 1 else None) for number in range(3))
    delayed.request = request(parameters={"priority": 2})
    sink.other = delayed
    for entry in (runs, refused, delayed):
        scheduler.enqueue(entry)
        clock.run()
    clock.advance(100)
    assert (refused.settled, delayed.cancelled) == (True, True)
    assert repr(scheduler) == "QueuedScheduler(0 waiting)"


def test_a_deadline_is_one_whatever_the_action() -> None:
    bench = Bench(QueuePolicy(0, 100, delay=True))
    entry = bench.submit(deadline_ns=120)
    bench.clock.advance(119)
    assert bench.dropped == []
    bench.clock.advance(1)
    assert bench.dropped == [(entry, "Request timeout expired")]
