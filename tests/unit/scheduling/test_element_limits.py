"""Batches limited by their elements as well as by their size."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from together import decided

from modserve.core.configuration.merging import Padding
from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.scheduling.batching import Dispatch, Reason, WaitUntil, dynamic, element_cost
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import QueueSettings
from modserve.testing import config, inflight

NOW = 1_000


def waiting(*entries: int | tuple[int, int]) -> list[Inflight]:
    """Requests of the given lengths, or batch sizes and lengths."""
    found: list[Inflight] = []
    for entry in entries:
        size, length = entry if isinstance(entry, tuple) else (1, entry)
        member = inflight(shape_key="all")
        member.batch_size, member.length, member.queue_start_ns = size, length, NOW
        found.append(member)
    return found


def batcher(most: int, delay: int = 0, sizes: tuple[int, ...] = ()) -> DynamicBatching:
    return DynamicBatching((8,), max_queue_delay_ns=delay, max_batch_elements=most, batch_sizes=sizes)


PLAIN = Padding({"INPUT0": 0})
BY_EIGHT = Padding({"INPUT0": 0}, multiple_of=8)


@pytest.mark.parametrize(
    ("entries", "padding", "sizes", "expected"),
    [
        (waiting(10, 10, 10), PLAIN, (), Dispatch(3, Reason.IDLE_INSTANCE)),
        (waiting(10, 50, 10), PLAIN, (), Dispatch(2, Reason.FULL)),
        (waiting(50, 50, 50), PLAIN, (), Dispatch(2, Reason.FULL)),
        (waiting(10, 60), PLAIN, (), Dispatch(1, Reason.FULL)),
        (waiting(400, 1), PLAIN, (), Dispatch(1, Reason.FULL)),
        (waiting((3, 30), (1, 10)), PLAIN, (), Dispatch(1, Reason.FULL)),
        (waiting((2, 30), (1, 33)), PLAIN, (), Dispatch(2, Reason.IDLE_INSTANCE)),
        (waiting(33, 33, 33), BY_EIGHT, (), Dispatch(2, Reason.FULL)),
        (waiting(30, 30, 30), PLAIN, (1, 2, 4, 8), Dispatch(2, Reason.FULL)),
        (waiting(*[1] * 20), PLAIN, (), Dispatch(8, Reason.FULL)),
        (waiting(50, 30, 20, 1), None, (), Dispatch(3, Reason.FULL)),
        (waiting((2, 30), 41), None, (), Dispatch(1, Reason.FULL)),
    ],
    ids=[
        "room",
        "reached",
        "reached at once",
        "a long one",
        "larger than the limit alone",
        "rows count",
        "just fits",
        "rounded length",
        "rounded rows",
        "size limits first",
        "ragged: a sum",
        "ragged: rows count",
    ],
)
def test_rule(entries: list[Inflight], padding: Padding | None, sizes: tuple[int, ...], expected: Dispatch) -> None:
    policy = batcher(100, sizes=sizes)
    rule = dynamic(policy, 8, cost=element_cost(config(padding=padding, dynamic_batching=policy)))
    assert decided(rule, entries, NOW) == expected


def test_what_is_full_by_its_elements_need_not_wait() -> None:
    policy = batcher(100, delay=500)
    rule = dynamic(policy, 8, cost=element_cost(config(padding=PLAIN, dynamic_batching=policy)))
    assert decided(rule, waiting(30, 30), NOW) == WaitUntil(NOW + 500)
    assert decided(rule, waiting(30, 30, 30, 30), NOW) == Dispatch(3, Reason.FULL)
    assert decided(rule, waiting(50, 50), NOW) == Dispatch(2, Reason.FULL)


def ripe(queue: LevelQueue) -> list[Inflight]:
    return [group.first() for group in queue._ripe]


def test_the_queue_finds_it_behind_others() -> None:
    queue = LevelQueue(QueueSettings(sums=True, ripe_size=8, ripe_elements=100))
    first = inflight(shape_key="odd")
    queue.append(first)
    members = waiting(40, 40, 40)
    for member, following in pairwise(members):
        queue.append(member)
        assert ripe(queue) == []
        assert following.length
    queue.append(members[-1])
    assert ripe(queue) == [members[0]]
    queue.left(members[1])
    assert ripe(queue) == []
    assert queue.take(queue._prepare(queue._groups[members[0].shape_key]), 2) == [members[0], members[2]]
    assert list(queue) == [first]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=20),
    st.integers(1, 200),
    st.integers(1, 8),
    st.sampled_from([(), (1, 2, 4, 8)]),
)
@settings(max_examples=40, deadline=None)
def test_no_batch_is_over_its_limits(
    entries: list[tuple[int, int]], most: int, multiple_of: int, sizes: tuple[int, ...]
) -> None:
    padding = Padding({"INPUT0": 0}, multiple_of=multiple_of)
    policy = batcher(most, sizes=sizes)
    members = waiting(*entries)
    cost = element_cost(config(padding=padding, dynamic_batching=policy))
    decision = decided(dynamic(policy, 8, cost=cost), members, NOW)
    assert isinstance(decision, Dispatch)
    batch = members[: decision.count]
    size, longest = sum(member.batch_size for member in batch), max(member.length for member in batch)
    assert decision.count == 1 or (size <= 8 and cost(size, longest, 0) <= most)
