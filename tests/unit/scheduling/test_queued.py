"""The loop around the rules, by a clock turned by hand and a runner whose batches are finished by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from together import Unread

from modserve.core.configuration.model_config import DynamicBatching, QueuePolicy
from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.tenants import Tenant
from modserve.scheduling import batching
from modserve.scheduling.batching import BatchCandidates, Decision, Rule
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, PuppetRunner, RecordingSink, inflight, request
from modserve.testing.builders import RecordedInflight

RESPONSE = InferenceResponse("model", 1, {})
DELAY = 1000
MS = 1_000_000


class HastyClock(FakeClock):
    """The next timer goes off `early_ns` too early."""

    early_ns = 0

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Any:
        when_ns, self.early_ns = when_ns - self.early_ns, 0
        return super().call_at(when_ns, callback)


NO_POLICY = DynamicBatching()


class Bench:
    """A scheduler between a clock and a runner, with a record of what it drops and how much its rule looks at."""

    def __init__(self, rule: Rule = batching.direct, slots: int = 1, policy: DynamicBatching = NO_POLICY) -> None:
        self.clock = HastyClock()
        self.runner = PuppetRunner(slots)
        self.dropped: list[tuple[Inflight, ModserveError]] = []
        self.decisions = 0
        self.most_looked_at = 0
        self.looked_at = 0
        self._rule = rule
        ripe = batching.ripe_size(policy, 8)
        self.scheduler = QueuedScheduler(self._decide, self.runner, self.clock, self._drop, policy, ripe_size=ripe)
        self.runner.serve(self.scheduler)

    def _drop(self, entry: Inflight, error: ModserveError) -> None:
        self.dropped.append((entry, error))
        entry.settle(error)

    def _decide(self, together: BatchCandidates, now_ns: int) -> Decision:
        looked_at = 0
        read = type(together).__iter__

        def counting(group: BatchCandidates) -> Iterator[Inflight]:
            nonlocal looked_at
            for entry in read(group):
                looked_at += 1
                yield entry

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(together), "__iter__", counting)
            decision = self._rule(together, now_ns)
        self.decisions += 1
        self.most_looked_at = max(self.most_looked_at, looked_at)
        self.looked_at += looked_at
        return decision

    def enqueue(self, *entries: Inflight) -> list[Inflight]:
        """All in one turn of the event loop; what that makes due is not run yet."""
        for entry in entries:
            self.scheduler.enqueue(entry)
        return list(entries)

    def submit(self, *entries: Inflight) -> list[Inflight]:
        """Each in a turn of its own."""
        for entry in entries:
            self.enqueue(entry)
            self.clock.run()
        return list(entries)

    def finish(self) -> list[Inflight]:
        """End the oldest execution and answer its requests."""
        batch = self.runner.finish()
        for entry in batch:
            entry.settle(RESPONSE)
        return batch

    @property
    def reasons(self) -> list[tuple[Inflight, Code, str]]:
        return [(entry, error.code, error.message) for entry, error in self.dropped]


def many(count: int, **more: Any) -> list[Inflight]:
    return [inflight(**more) for _ in range(count)]


def batcher(
    delay: int = 0,
    preferred: tuple[int, ...] = (8,),
    slots: int = 1,
    *,
    max_queue_size: int = 0,
    default_timeout_ns: int = 0,
    **more: Any,
) -> Bench:
    queue_policy = QueuePolicy(max_queue_size, default_timeout_ns)
    policy = DynamicBatching(preferred, delay, default_policy=queue_policy, **more)
    return Bench(batching.dynamic(policy, 8), slots, policy)


# Forming batches late


def test_requests_of_one_turn_of_the_loop_are_seen_together() -> None:
    bench = batcher()
    entries = bench.enqueue(*many(5))
    assert bench.runner.batches == []
    bench.clock.run()
    assert bench.runner.batches == [entries]
    assert bench.decisions == 1


def test_a_batch_grows_until_a_slot_is_free() -> None:
    bench = batcher()
    bench.submit(*many(4))
    assert bench.runner.sizes == [1]
    bench.finish()
    assert bench.runner.sizes == [1, 3]


def test_no_decision_is_made_while_no_slot_is_free() -> None:
    bench = batcher()
    bench.submit(*many(100))
    assert bench.decisions == 1
    while bench.runner.running:
        bench.finish()
    assert bench.runner.sizes == [1, *[8] * 12, 3]


def test_free_slots_are_all_used() -> None:
    bench = batcher(slots=3)
    bench.enqueue(*many(40))
    bench.clock.run()
    assert bench.runner.sizes == [8, 8, 8]


def test_a_slot_is_given_back_when_nothing_is_to_be_run() -> None:
    bench = batcher(DELAY)
    bench.submit(*many(3))
    assert bench.runner.reserve() == 0


def test_direct_runs_requests_one_by_one_in_order() -> None:
    bench = Bench(slots=2)
    entries = bench.submit(*many(5))
    assert bench.runner.batches == [[entry] for entry in entries[:2]]
    for _ in entries:
        bench.finish()
    assert bench.runner.batches == [[entry] for entry in entries]


def test_other_shapes_run_in_a_batch_of_their_own_and_break_up_no_other() -> None:
    bench = batcher(slots=3)
    a, b, c, d, e = bench.enqueue(*(inflight(shape_key=shape) for shape in "xxyyx"))
    bench.clock.run()
    assert bench.runner.batches == [[a, b, e], [c, d]]
    assert bench.runner.reasons == ["shape", "idle_instance"]


def test_a_batch_that_others_could_have_joined_did_not_close_by_their_shape() -> None:
    bench = batcher()
    bench.submit(inflight())
    bench.enqueue(*many(9), inflight(shape_key="y"))
    bench.finish()
    assert bench.runner.reasons == ["idle_instance", "full"]


def test_a_complete_batch_does_not_wait_behind_one_that_waits_for_its_delay() -> None:
    bench = batcher(DELAY)
    (odd,) = bench.submit(inflight(shape_key="x"))
    full = bench.submit(*many(8, shape_key="y"))
    assert bench.runner.batches == [full]
    bench.clock.advance(DELAY)
    bench.finish()
    assert bench.runner.batches == [full, [odd]]


@pytest.mark.parametrize(
    ("look_ahead", "waiting"),
    [(0, 0), (1, 0), (2, 1), (1024, 1)],
    ids=["nobody may overtake", "used up by the other", "one more may", "many more may"],
)
def test_a_batch_that_nobody_can_join_any_more_does_not_wait_for_its_delay(look_ahead: int, waiting: int) -> None:
    """As Triton, which sends what waits when a request of another shape comes. That one waits for others like it."""
    bench = batcher(DELAY, look_ahead=look_ahead)
    first = bench.submit(inflight(shape_key="x"))
    assert bench.runner.batches == []
    other = bench.submit(inflight(shape_key="y"))
    assert bench.runner.batches == [first][waiting:]
    assert bench.runner.reasons == ["shape"][waiting:]
    bench.clock.advance(DELAY)
    for _ in range(2):
        bench.finish()
    assert bench.runner.batches == [first, other]


# The queue delay


def test_the_delay_is_kept_and_then_all_go() -> None:
    bench = batcher(DELAY)
    entries = bench.submit(inflight())
    bench.clock.advance(DELAY - 1)
    entries += bench.submit(inflight(2))
    assert bench.runner.batches == []
    bench.clock.advance(1)
    assert bench.runner.batches == [entries]
    assert bench.clock.next_timer_ns() is None


def test_a_full_batch_does_not_wait() -> None:
    bench = batcher(DELAY)
    bench.submit(*many(8))
    assert bench.runner.sizes == [8]
    assert bench.clock.next_timer_ns() is None


def test_a_timer_that_goes_off_early_is_set_again() -> None:
    bench = batcher(DELAY)
    bench.clock.early_ns = 400
    bench.submit(inflight())
    bench.clock.advance(DELAY - 1)
    assert (bench.runner.sizes, bench.decisions) == ([], 2)
    bench.clock.advance(1)
    assert bench.runner.sizes == [1]


def test_while_all_slots_are_busy_the_delay_runs_on() -> None:
    bench = batcher(DELAY)
    bench.submit(*many(8))
    bench.submit(inflight())
    bench.clock.advance(DELAY + 1)
    assert bench.runner.sizes == [8]
    bench.finish()
    assert bench.runner.sizes == [8, 1]


def test_the_delay_counts_from_the_oldest_that_still_waits() -> None:
    bench = batcher(DELAY)
    [first] = bench.submit(inflight())
    bench.clock.advance(DELAY // 2)
    [second] = bench.submit(inflight())
    first.cancel()
    bench.clock.advance(DELAY - 1)
    assert bench.runner.batches == []
    bench.clock.advance(1)
    assert bench.runner.batches == [[second]]


# Deadlines


def test_a_deadline_removes_exactly_one() -> None:
    bench = batcher(DELAY)
    bench.submit(*many(8))
    deadline = bench.clock.now_ns() + 10
    before, late, after = bench.submit(inflight(), inflight(deadline_ns=deadline), inflight())
    bench.clock.advance(9)
    assert bench.dropped == []
    bench.clock.advance(1)
    assert bench.reasons == [(late, Code.UNAVAILABLE, "Request timeout expired")]
    bench.clock.advance(DELAY)
    bench.finish()
    assert bench.runner.batches[-1] == [before, after]


def test_a_deadline_within_the_delay_is_met() -> None:
    bench = batcher(60 * MS)
    (odd,) = bench.submit(inflight(shape_key="x"))
    bench.clock.advance(MS)
    (pressed,) = bench.submit(inflight(shape_key="y", deadline_ns=bench.clock.now_ns() + 10 * MS))
    bench.clock.advance(9 * MS - 1)
    assert bench.runner.batches == []
    bench.clock.advance(1)
    assert (bench.runner.batches, bench.runner.reasons) == ([[pressed]], ["deadline"])
    bench.finish()
    bench.clock.advance(50 * MS)
    assert bench.runner.batches[1:] == [[odd]]


def test_a_queue_limit_within_the_delay_is_met() -> None:
    bench = batcher(60 * MS)
    (odd,) = bench.submit(inflight(shape_key="x"))
    bench.clock.advance(MS)
    hasty = inflight(shape_key="y")
    hasty.request = request(timeout_ns=10 * MS)
    bench.submit(hasty)
    bench.clock.advance(9 * MS - 1)
    assert bench.runner.batches == []
    bench.clock.advance(1)
    assert (bench.runner.batches, bench.runner.reasons) == ([[hasty]], ["deadline"])
    bench.clock.advance(500 * MS)
    bench.finish()
    assert bench.runner.batches[1:] == [[odd]]
    assert bench.dropped == []


def test_a_queue_limit_shorter_than_the_execution_lets_batches_grow() -> None:
    policy = DynamicBatching((4,), 40 * MS, default_policy=QueuePolicy(default_timeout_ns=80 * MS))
    bench = Bench(batching.dynamic(policy, 4, lambda batch_size: 100 * MS), 2, policy)
    for _ in range(4):
        bench.submit(inflight())
        bench.clock.advance(5 * MS)
    assert (bench.runner.sizes, bench.runner.reasons) == ([4], ["full"])


def test_a_deadline_that_has_passed_is_refused_though_a_slot_is_free() -> None:
    bench = Bench()
    late, good = bench.enqueue(inflight(deadline_ns=bench.clock.now_ns()), inflight())
    bench.clock.run()
    assert [entry for entry, _ in bench.dropped] == [late]
    assert bench.runner.batches == [[good]]


def test_a_request_that_runs_has_no_deadline_any_more() -> None:
    bench = Bench()
    bench.submit(inflight(deadline_ns=bench.clock.now_ns() + 10), inflight())
    bench.clock.advance(20)
    assert bench.dropped == []
    assert bench.clock.next_timer_ns() is None


@pytest.mark.parametrize(
    ("own", "expected"),
    [(0, 100), (50, 50), (200, 100)],
    ids=["none of its own", "its own is shorter", "its own is longer"],
)
def test_the_queues_timeout_only_shortens(own: int, expected: int) -> None:
    bench = Bench(policy=DynamicBatching(default_policy=QueuePolicy(default_timeout_ns=100)))
    now = bench.clock.now_ns()
    _, entry = bench.submit(inflight(), inflight(deadline_ns=now + own if own else 0))
    assert entry.begin_by_ns == now + expected
    bench.clock.advance(expected - 1)
    assert bench.dropped == []
    bench.clock.advance(1)
    assert [dropped for dropped, _ in bench.dropped] == [entry]


# Priorities


def prioritised(slots: int = 1, **more: Any) -> Bench:
    return batcher(slots=slots, priority_levels=3, default_priority_level=2, **more)


def asked(priority: Any, **more: Any) -> Inflight:
    entry = inflight(8, **more)
    given = InferenceRequest("model", {}, parameters={} if priority is None else {"priority": priority})
    entry.request = given
    return entry


def test_the_most_urgent_run_first_and_each_level_in_order() -> None:
    bench = prioritised()
    bench.submit(asked(1))
    entries = bench.submit(*(asked(priority) for priority in (3, None, 2, 1, 0, 4, 1)))
    while bench.runner.running:
        bench.finish()
    three, none, two, one, zero, four, other_one = entries
    assert bench.runner.batches[1:] == [[each] for each in (one, other_one, none, two, zero, four, three)]


def test_a_batch_is_filled_up_with_less_urgent_ones() -> None:
    bench = prioritised()
    bench.submit(asked(1))
    entries = [asked(priority) for priority in (3, 2, 1)]
    for entry in entries:
        entry.batch_size = 2
    bench.submit(*entries)
    bench.finish()
    assert bench.runner.batches[-1] == entries[::-1]


def test_a_level_has_its_own_queue_size_and_timeout() -> None:
    policies = {1: QueuePolicy(max_queue_size=1), 3: QueuePolicy(default_timeout_ns=50)}
    bench = prioritised(level_policies=policies)
    bench.submit(asked(2))
    _, low = bench.submit(asked(1), asked(3))
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.enqueue(asked(1))
    bench.submit(asked(2))
    bench.clock.advance(50)
    assert bench.reasons == [(low, Code.UNAVAILABLE, "Request timeout expired")]


def test_what_has_waited_too_long_goes_behind_the_others_of_its_level() -> None:
    delayed = QueuePolicy(max_queue_size=3, default_timeout_ns=50, delay=True)
    bench = prioritised(level_policies={2: delayed})
    bench.submit(asked(2))
    (old,) = bench.submit(asked(2))
    bench.clock.advance(40)
    young, low = bench.submit(asked(2), asked(3))
    bench.clock.advance(10)
    assert bench.dropped == []
    (youngest,) = bench.submit(asked(2))
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.enqueue(asked(2))
    while bench.runner.running:
        bench.finish()
    assert bench.runner.batches[1:] == [[young], [youngest], [old], [low]]


def test_ageing_lets_nobody_starve() -> None:
    bench = prioritised(ageing_ns=10)
    bench.submit(asked(1))
    (low,) = bench.submit(asked(3))
    for _ in range(10):
        bench.clock.advance(8)
        bench.submit(asked(1))
        bench.finish()
    # Two levels up after 16 and 32, each time behind those that wait there.
    assert bench.runner.batches.index([low]) == 5


# Refusals


@pytest.mark.parametrize(("request_id", "named"), [("", "<id_unknown>"), ("my-id", "my-id")], ids=["no id", "id"])
def test_a_full_queue_refuses(request_id: str, named: str) -> None:
    bench = batcher(max_queue_size=2)
    bench.submit(*many(3))  # one runs, two wait
    entry = RecordedInflight(request(id=request_id), RecordingSink(), {}, (), 1, None, 0)
    with pytest.raises(ModserveError) as caught:
        bench.enqueue(entry)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == f"[request id: {named}] Exceeds maximum queue size"
    assert not entry.settled
    bench.finish()
    bench.submit(entry)
    bench.finish()
    assert bench.runner.batches[-1] == [entry]


def test_a_full_queue_is_looked_at_before_the_next_turn() -> None:
    bench = batcher(max_queue_size=4)
    entries = bench.enqueue(*many(8))  # in one turn: four run at once, four wait
    assert bench.runner.batches == [entries[:4]]
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.enqueue(inflight())
    bench.clock.run()
    bench.finish()
    assert bench.runner.batches[1:] == [entries[4:]]


def test_ageing_takes_no_room_from_the_more_urgent() -> None:
    policies = {1: QueuePolicy(max_queue_size=1), 3: QueuePolicy(max_queue_size=3)}
    bench = prioritised(ageing_ns=10, level_policies=policies)
    bench.submit(asked(2), *(asked(3) for _ in range(3)))
    for _ in range(2):  # the one that still waits then stands where those of priority 1 do
        bench.clock.advance(30)
        bench.finish()
    bench.submit(asked(1))
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.enqueue(asked(1))
    bench.submit(asked(3), asked(3))
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.enqueue(asked(3))


def test_who_leaves_makes_room_in_a_full_queue() -> None:
    bench = batcher(max_queue_size=1)
    _, waiting = bench.submit(*many(2))
    waiting.cancel()
    bench.submit(inflight())
    assert repr(bench.scheduler) == "QueuedScheduler(1 waiting)"


def test_stop_takes_nothing_new_and_runs_what_waits() -> None:
    bench = batcher(DELAY)
    waiting = bench.submit(*many(2))
    bench.scheduler.stop()
    with pytest.raises(ModserveError) as caught:
        bench.enqueue(inflight())
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == (
        "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new "
        "inference requests"
    )
    assert bench.runner.batches == []
    bench.clock.run()
    assert bench.runner.batches == [waiting], "nobody joins any more: there is nothing to wait for"


def test_what_waits_for_a_slot_runs_without_its_delay_after_a_stop() -> None:
    bench = batcher(DELAY)
    bench.submit(*many(8))
    waiting = bench.submit(inflight())
    bench.scheduler.stop()
    bench.clock.run()
    bench.finish()
    assert bench.runner.batches[1:] == [waiting]


def test_close_fails_what_waits_and_leaves_what_runs() -> None:
    bench = batcher(DELAY)
    running = bench.submit(*many(8))
    waiting = bench.submit(*many(3, deadline_ns=bench.clock.now_ns() + 10 * DELAY))
    bench.scheduler.close(unavailable("gone"))
    assert bench.reasons == [(entry, Code.UNAVAILABLE, "gone") for entry in waiting]
    assert bench.clock.next_timer_ns() is None
    assert bench.finish() == running
    bench.clock.advance(100 * DELAY)
    assert bench.runner.sizes == [8]
    with pytest.raises(ModserveError, match="Server is stopping"):
        bench.enqueue(inflight())


class _CancellingSink(RecordingSink):
    """A client whose connection breaks when it is told of a failure, which cancels its other requests."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Inflight] = []

    def settle(self, outcome: Outcome, final: bool) -> None:
        super().settle(outcome, final)
        if isinstance(outcome, ModserveError):
            for other in self.others:
                other.cancel()


@pytest.mark.parametrize("how", ["close", "deadline", "queue limit"])
def test_a_failure_that_cancels_others_drops_each_once(how: str) -> None:
    by_limit = how == "queue limit"
    bench = batcher(DELAY, default_timeout_ns=10 if by_limit else 0)
    bench.submit(inflight(8))
    sink = _CancellingSink()
    deadline_ns = 0 if by_limit else bench.clock.now_ns() + 10
    entries = [inflight(sink=sink, deadline_ns=deadline_ns), *many(3, deadline_ns=deadline_ns)]
    sink.others = entries[1:]
    bench.submit(*entries)
    if how == "close":
        bench.scheduler.close(unavailable("gone"))
    else:
        bench.clock.advance(10)
    assert sorted(map(id, (entry for entry, _ in bench.dropped))) == sorted(map(id, entries))
    assert repr(bench.scheduler) == "QueuedScheduler(0 waiting)"


# Cancellation


def test_cancelling_removes_exactly_one_at_once() -> None:
    bench = batcher(DELAY)
    first, second, third = bench.submit(*many(3))
    second.cancel()
    assert bench.reasons == [(second, Code.CANCELLED, "")]
    assert isinstance(second.sink, RecordingSink)
    assert second.sink.settled == 1
    bench.clock.advance(DELAY)
    assert bench.runner.batches == [[first, third]]


def test_cancelling_before_the_queue_was_looked_at() -> None:
    bench = batcher()
    for entry in bench.enqueue(*many(3)):
        entry.cancel()
    bench.clock.run()
    assert bench.runner.batches == []
    assert bench.runner.reserve() == 0


def test_cancelling_what_runs_does_not_touch_the_queue() -> None:
    bench = Bench()
    running, _ = bench.submit(*many(2))
    running.cancel()
    assert bench.dropped == []
    assert repr(bench.scheduler) == "QueuedScheduler(1 waiting)"


def test_ten_thousand_cancelled_requests() -> None:
    bench = batcher()
    bench.submit(inflight(8))
    first, *cancelled, last = bench.submit(*many(10_002))
    for entry in cancelled:
        entry.cancel()
    assert len(bench.dropped) == 10_000
    assert repr(bench.scheduler) == "QueuedScheduler(2 waiting)"
    bench.finish()
    assert bench.runner.batches[-1] == [first, last]


# Whatever happens


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.integers(0, 8), st.sampled_from("aab"), st.sampled_from([0, 0, 5, 50])),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("finish")),
        st.tuples(st.just("turn")),
        st.tuples(st.just("advance"), st.integers(1, 60)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    actions=ACTIONS,
    delay=st.sampled_from([0, 20]),
    preferred=st.sampled_from([(8,), (2, 4), (3,)]),
    slots=st.integers(1, 3),
    limit=st.sampled_from([0, 3]),
)
def test_whatever_happens(
    actions: list[tuple[Any, ...]], delay: int, preferred: tuple[int, ...], slots: int, limit: int
) -> None:
    bench = batcher(delay, preferred, slots, max_queue_size=limit, default_timeout_ns=40)
    accepted: list[Inflight] = []
    for action, *values in actions:
        if action == "enqueue":
            size, shape, timeout = values
            entry = inflight(1, shape_key=shape, deadline_ns=bench.clock.now_ns() + timeout if timeout else 0)
            entry.batch_size = size
            try:
                bench.enqueue(entry)
            except ModserveError:
                assert limit
            else:
                accepted.append(entry)
        elif action == "cancel" and accepted:
            accepted[values[0] % len(accepted)].cancel()
        elif action == "finish" and bench.runner.running:
            bench.finish()
        elif action == "turn":
            bench.clock.run()
        elif action == "advance":
            bench.clock.advance(values[0])
    bench.clock.advance(1000)
    while bench.runner.running:
        bench.finish()
        bench.clock.advance(1000)

    # Nothing is lost, and nothing settled twice.
    for entry in accepted:
        assert isinstance(entry.sink, RecordingSink)
        assert entry.sink.settled == 1
    run = [entry for batch in bench.runner.batches for entry in batch]
    left = [entry for entry, _ in bench.dropped]
    assert sorted(map(id, [*run, *left])) == sorted(map(id, accepted))
    # Those of a shape run in order, and no batch is above its limits.
    places = {id(entry): place for place, entry in enumerate(accepted)}
    for shape in "ab":
        order = [places[id(entry)] for entry in run if entry.shape_key == shape]
        assert order == sorted(order)
    for batch in bench.runner.batches:
        assert sum(entry.batch_size or 1 for entry in batch) <= 8
        assert len({entry.shape_key for entry in batch}) == 1
    # All is at rest, and no decision looked at more than one batch and the request behind it.
    assert repr(bench.scheduler) == "QueuedScheduler(0 waiting)"
    assert bench.clock.next_timer_ns() is None
    assert bench.most_looked_at <= 9


def forgetful(rule: Rule) -> Rule:
    """Decides by reading all that wait, each time."""
    return lambda together, now_ns: rule(Unread(together), now_ns)


URGENT_ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("enqueue"),
            st.integers(0, 8),
            st.sampled_from("aaab"),
            st.sampled_from([0, 0, 5, 50]),
            st.integers(0, 2),
            st.integers(0, 4),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("finish")),
        st.tuples(st.just("turn")),
        st.tuples(st.just("turn")),
        st.tuples(st.just("advance"), st.integers(1, 30)),
    ),
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(
    actions=URGENT_ACTIONS,
    preferred=st.sampled_from([(8,), (12, 16), (3,)]),
    slots=st.integers(1, 2),
    levels=st.sampled_from([0, 2]),
    look_ahead=st.sampled_from([0, 2, 1024]),
    elements=st.sampled_from([0, 30]),
    more=st.sampled_from([{}, {"ageing_ns": 25}, {"default_policy": QueuePolicy(0, 15, delay=True)}]),
)
def test_sums_and_reading_lead_to_the_same_decisions(
    actions: list[tuple[Any, ...]],
    preferred: tuple[int, ...],
    slots: int,
    levels: int,
    look_ahead: int,
    elements: int,
    more: dict[str, Any],
) -> None:
    policy = DynamicBatching(
        preferred,
        40,
        priority_levels=levels,
        default_priority_level=levels,
        look_ahead=look_ahead,
        max_batch_elements=elements,
        **more,
    )
    rule = batching.dynamic(policy, 16)
    first, second = (history(Bench(each, slots, policy), actions) for each in (rule, forgetful(rule)))
    assert first == second


@settings(max_examples=150, deadline=None)
@given(
    actions=URGENT_ACTIONS,
    rule=st.sampled_from(["direct", "dynamic", "no delay", "elements"]),
    slots=st.integers(1, 2),
    queue_policy=st.sampled_from([QueuePolicy(), QueuePolicy(3), QueuePolicy(0, 15), QueuePolicy(0, 15, False, True)]),
)
def test_a_tenant_alone_gets_the_decisions_of_a_server_without_tenants(
    actions: list[tuple[Any, ...]], rule: str, slots: int, queue_policy: QueuePolicy
) -> None:
    policy = DynamicBatching(
        (12, 16),
        0 if rule in ("direct", "no delay") else 40,
        default_policy=queue_policy,
        max_batch_elements=30 if rule == "elements" else 0,
    )
    made = batching.direct if rule == "direct" else batching.dynamic(policy, 16)
    levels, fair = (
        history(Bench(made, slots, policy), actions, shaped=rule == "direct", tenant=tenant)
        for tenant in (None, Tenant("a"))
    )
    assert levels == fair


def history(bench: Bench, actions: list[tuple[Any, ...]], *, shaped: bool = True, tenant: Tenant | None = None) -> Any:
    """What becomes of requests: the batches, in order, and those that were dropped or refused, with the reasons."""
    accepted: list[Inflight] = []
    refused: list[tuple[int, str]] = []
    for number, (action, *values) in enumerate(actions):
        if action == "enqueue":
            size, shape, timeout, priority, length = values
            deadline_ns = bench.clock.now_ns() + timeout if timeout else 0
            entry = inflight(1, shape_key=shape if shaped else None, deadline_ns=deadline_ns, tenant=tenant)
            entry.batch_size, entry.length = size, length
            entry.request.parameters["priority"] = priority  # type: ignore[index]
            try:
                bench.enqueue(entry)
            except ModserveError as error:
                refused.append((number, error.message))
            else:
                accepted.append(entry)
        elif action == "cancel" and accepted:
            accepted[values[0] % len(accepted)].cancel()
        elif action == "finish" and bench.runner.running:
            bench.finish()
        elif action == "turn":
            bench.clock.run()
        elif action == "advance":
            bench.clock.advance(values[0])
    bench.clock.advance(1000)
    while bench.runner.running:
        bench.finish()
        bench.clock.advance(1000)
    places = {id(entry): place for place, entry in enumerate(accepted)}
    batches = [[places[id(entry)] for entry in batch] for batch in bench.runner.batches]
    dropped = [(places[id(entry)], error.message) for entry, error in bench.dropped]
    assert sorted([*(place for batch in batches for place in batch), *(place for place, _ in dropped)]) == sorted(
        places.values()
    )
    return batches, bench.runner.reasons, dropped, refused


def test_what_waits_for_its_delay_is_looked_at_once() -> None:
    policy = DynamicBatching((1024,), 10**9)
    bench = Bench(batching.dynamic(policy, 1024), policy=policy)
    for _ in range(1024):
        bench.submit(inflight(1))
    assert bench.runner.sizes == [1024]
    assert bench.looked_at <= 2 * 1024


def test_the_cost_of_a_decision_does_not_grow_with_the_queue() -> None:
    for count in (100, 5_000):
        bench = batcher()
        bench.enqueue(*many(count))
        bench.clock.run()
        while bench.runner.running:
            bench.finish()
        assert sum(bench.runner.sizes) == count
        assert bench.most_looked_at == 8
        assert bench.decisions == -(-count // 8)
