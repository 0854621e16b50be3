"""Who is refused before it queues, and what it is told."""

import pytest

from modserve.core.configuration.model_config import Admission, DynamicBatching, QueuePolicy
from modserve.core.errors import OverloadedError
from modserve.core.requests.inflight import Inflight
from modserve.scheduling import batching
from modserve.scheduling.admission import Gate
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, PuppetRunner, inflight, request

MS = 1_000_000
NOW = 10**9
PREFIX = "[request id: <id_unknown>] Request refused because it would be too late: predicted "
BY_DEADLINE = Admission(by_deadline=True)


def gate(
    options: Admission = BY_DEADLINE, *, limit: int = 8, busy_ms: tuple[int, ...] = (4,), item_ms: int = 1
) -> Gate:
    """An item takes `item_ms`; what runs in each slot still takes `busy_ms`."""
    return Gate(options, lambda size: size * item_ms * MS, lambda now_ns: [ms * MS for ms in busy_ms], limit)


def entry(allowed_ms: int = 0, batch_size: int = 1) -> Inflight:
    return inflight(batch_size, deadline_ns=NOW + allowed_ms * MS if allowed_ms else 0)


def limited(limit_ms: int, allowed_ms: int = 0) -> Inflight:
    """Its waiting is bounded."""
    asked = entry(allowed_ms)
    asked.queue_limit_ns = NOW + limit_ms * MS
    return asked


def verdict(by: Gate, asked: Inflight, count: int = 0, size: int = 0) -> tuple[str, int] | None:
    """The message's figures, and in how many milliseconds to try again; None for those let in."""
    try:
        by.check(asked, count, size, NOW)
    except OverloadedError as error:
        return error.message.removeprefix(PREFIX), error.retry_after_ns // MS
    return None


def figures(queue: int, execution: int, allowed: int) -> str:
    return f"{queue}.0 ms in the queue and {execution}.0 ms of execution, allowed {allowed}.0 ms"


def waiting_figures(queue: int, allowed: int) -> str:
    return f"{queue}.0 ms in the queue, allowed {allowed}.0 ms"


@pytest.mark.parametrize(
    ("by", "asked", "count", "size", "expected"),
    [
        (gate(), entry(5), 0, 0, None),
        (gate(), entry(4), 0, 0, (figures(4, 1, 4), 1)),
        (gate(), entry(), 100, 100, None),
        (gate(), entry(7), 3, 3, (figures(4, 4, 7), 1)),
        (gate(), entry(14), 9, 9, None),
        (gate(), entry(13), 9, 9, (figures(12, 2, 13), 1)),
        (gate(), entry(2, 8), 0, 0, (figures(4, 8, 2), 4)),
        (gate(busy_ms=(0, 4)), entry(1, 8), 0, 0, None),
        (gate(busy_ms=(0,)), entry(1), 1, 1, (figures(0, 2, 1), 0)),
        (gate(limit=0), entry(8), 3, 6, (figures(10, 1, 8), 3)),
        (gate(item_ms=0), entry(1), 9, 9, None),
        (gate(Admission(True, 3 * MS)), entry(), 0, 0, (figures(4, 1, 3), 2)),
        (gate(Admission(True, 3 * MS)), entry(2), 0, 0, (figures(4, 1, 2), 3)),
        (gate(Admission(True, 9 * MS)), entry(), 0, 0, None),
        (gate(), limited(4), 0, 0, None),
        (gate(), limited(11), 9, 9, (waiting_figures(12, 11), 1)),
        (gate(), limited(11, 12), 9, 9, (waiting_figures(12, 11), 1)),
        (gate(), limited(12, 13), 9, 9, (figures(12, 2, 13), 1)),
        (gate(Admission(True, 13 * MS)), limited(12), 9, 9, (figures(12, 2, 13), 1)),
        (gate(item_ms=0), limited(1), 9, 9, None),
    ],
    ids=[
        "in time",
        "too late by waiting",
        "no deadline",
        "too late by running",
        "in time behind a batch",
        "too late behind a batch",
        "its own size",
        "idle",
        "not idle while others wait",
        "each alone",
        "nothing known",
        "goal",
        "deadline before the goal",
        "within the goal",
        "begins within its queue limit",
        "waits longer than its queue limit",
        "waits longer than its queue limit and its deadline",
        "within its queue limit, not within its deadline",
        "within its queue limit, not within the goal",
        "nothing known, with a queue limit",
    ],
)
def test_verdicts(by: Gate, asked: Inflight, count: int, size: int, expected: tuple[str, int] | None) -> None:
    assert verdict(by, asked, count, size) == expected


class Bench:
    def __init__(
        self,
        options: Admission,
        policy: QueuePolicy = QueuePolicy(),  # noqa: B008 - frozen
        slots: int = 1,
    ) -> None:
        self.clock = FakeClock()
        self.runner = PuppetRunner(slots)
        batcher = DynamicBatching((4,), default_policy=policy, priority_levels=2, default_priority_level=2)
        self.scheduler = QueuedScheduler(
            batching.dynamic(batcher, 4),
            self.runner,
            self.clock,
            lambda entry, error: None,
            batcher,
            gate=Gate(options, lambda size: 10 * MS, self._remaining_ns, 4),
        )
        self.runner.serve(self.scheduler)

    def _remaining_ns(self, now_ns: int) -> list[int]:
        return [10 * MS if slot in self.runner.running else 0 for slot in range(self.runner.count)]

    def submit(self, allowed_ms: int = 0, priority: int = 0) -> bool:
        """Whether it is taken."""
        asked = inflight(deadline_ns=self.clock.now_ns() + allowed_ms * MS if allowed_ms else 0)
        asked.request = request(parameters={"priority": priority})
        try:
            self.scheduler.enqueue(asked)
        except OverloadedError as error:
            self.error = error
            return False
        self.clock.run()
        return True


def test_only_those_ahead_count() -> None:
    bench = Bench(BY_DEADLINE)
    assert bench.submit()
    for _ in range(8):
        assert bench.submit(priority=2)
    assert not bench.submit(35, priority=2)
    assert bench.submit(35, priority=1)
    assert len(list(bench.scheduler._queue)) == 9


def test_without_admission_everybody_queues() -> None:
    bench = Bench(Admission())
    assert all(bench.submit(1) for _ in range(20))


def test_a_policys_time_out_bounds_the_waiting_alone() -> None:
    bench = Bench(BY_DEADLINE, QueuePolicy(default_timeout_ns=15 * MS))
    assert [bench.submit() for _ in range(6)] == [True] * 5 + [False]
    assert bench.error.message.endswith("predicted 20.0 ms in the queue, allowed 15.0 ms")


def test_who_may_wait_less_long_than_it_runs_is_taken_while_a_slot_is_free() -> None:
    bench = Bench(BY_DEADLINE, QueuePolicy(default_timeout_ns=5 * MS), slots=2)
    bench.scheduler.enqueue(inflight())
    bench.scheduler.enqueue(inflight(shape_key="other"))
    bench.clock.run()
    assert len(bench.runner.running) == 2
    assert not bench.submit()


@pytest.mark.parametrize("too_many", [False, True])
def test_a_full_queue_tells_when_to_try_again(too_many: bool) -> None:
    bench = Bench(Admission(too_many=too_many), QueuePolicy(max_queue_size=2))
    assert [bench.submit() for _ in range(4)] == [True, True, True, False]
    assert (bench.error.message, bench.error.retry_after_ns, bench.error.too_many) == (
        "[request id: <id_unknown>] Exceeds maximum queue size",
        10 * MS,
        too_many,
    )
