"""Priorities, whatever comes and in whatever order."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.scheduling import batching
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, PuppetRunner, inflight

LEVELS = 3
POLICY = DynamicBatching((4,), priority_levels=LEVELS, default_priority_level=2)
ARRIVALS = st.lists(
    st.tuples(st.integers(1, LEVELS), st.sampled_from("xy"), st.integers(0, 3), st.booleans()), max_size=40
)
"""Priority, shape, how many executions end before it comes, whether it is given up at once."""


def priority(entry: Inflight) -> int:
    found = entry.request.parameters["priority"]
    assert isinstance(found, int)
    return found


@settings(max_examples=60, deadline=None)
@given(ARRIVALS)
def test_no_batch_begins_while_a_more_urgent_request_waits(arrivals: list[tuple[int, str, int, bool]]) -> None:
    clock, runner = FakeClock(), PuppetRunner()
    waiting: list[Inflight] = []
    run = runner.run

    def checked(slot: int, batch: list[Inflight], reason: str, *more: Any) -> None:
        assert min(map(priority, batch)) == min(map(priority, waiting))
        assert len(batch) <= 4
        order = [(priority(entry), entry.arrival) for entry in batch]
        assert order == sorted(order)
        for entry in batch:
            waiting.remove(entry)
        run(slot, batch, reason, *more)

    runner.run = checked  # type: ignore[method-assign,assignment]
    rule = batching.dynamic(POLICY, 4)
    scheduler = QueuedScheduler(rule, runner, clock, lambda entry, error: waiting.remove(entry), POLICY)
    runner.serve(scheduler)
    for level, shape, ended, given_up in arrivals:
        for _ in range(min(ended, len(runner.running))):
            runner.finish()
        entry = inflight(shape_key=shape)
        entry.request.parameters["priority"] = level  # type: ignore[index]
        waiting.append(entry)
        scheduler.enqueue(entry)
        if given_up:
            entry.cancel()
        clock.run()
    while runner.running:
        runner.finish()
        clock.run()
    assert waiting == []
