"""The queue agrees with a list that is read anew at each question, for requests that are all alike."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.requests.inflight import Inflight
from modserve.scheduling.batching import BatchCandidates
from modserve.scheduling.fair_queue import FairQueue
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import GONE, QueueSettings, RequestQueue
from modserve.testing import inflight

ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(0, 4),
            st.integers(0, 9),
            st.sampled_from([0, 0, 3, 20]),
            st.sampled_from([0, 0, 5]),
        ),
        st.tuples(st.just("left"), st.integers(0, 20)),
        st.tuples(st.just("again"), st.integers(0, 20)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("times"), st.integers(0, 10)),
    ),
    max_size=60,
)


class PlainQueue(RequestQueue):
    """A list, first in, first out; nothing is kept that can be worked out from it."""

    def __init__(self) -> None:
        super().__init__(sums=True)
        self.line: list[Inflight] = []

    def __iter__(self) -> Iterator[Inflight]:
        return iter(self.line)

    def ahead(self, level: int) -> tuple[int, int]:
        return len(self.line), sum(entry.batch_size or 1 for entry in self.line)

    def append(self, inflight: Inflight, level: int = 0, timeout_ns: int = 0) -> None:
        self._arrivals += 1
        inflight.arrival, inflight.level = self._arrivals, 0
        self.line.append(inflight)
        self.count = len(self.line)
        if inflight.deadline_ns or timeout_ns:
            self._remember(inflight, timeout_ns)

    def left(self, inflight: Inflight) -> None:
        self.line.remove(inflight)
        inflight.level = GONE
        self.count = len(self.line)
        if not self.line:
            self._forget_times()

    def take(self, together: BatchCandidates, count: int) -> list[Inflight]:
        batch = self.line[:count]
        for entry in batch:
            self.left(entry)
        return batch

    def candidates(self) -> list[BatchCandidates]:
        sizes = [entry.batch_size or 1 for entry in self.line]
        elements = sum(size * entry.length for size, entry in zip(sizes, self.line, strict=True))
        return [BatchCandidates(self.line, len(self.line), sum(sizes), elements, stale=True)]


class Driven:
    """A queue, and what is seen of it from outside; requests are told by their numbers."""

    def __init__(self, queue: PlainQueue | LevelQueue | FairQueue) -> None:
        self.queue = queue
        self.entries: list[Inflight] = []
        self.now_ns = 100

    def together(self) -> BatchCandidates:
        (together,) = self.queue.candidates()
        return together

    def numbers(self, entries: list[Inflight]) -> list[int]:
        return [self.entries.index(entry) for entry in entries]

    def act(self, action: str, *values: int) -> list[Any]:
        queue = self.queue
        waiting = list(queue)
        left = [entry for entry in self.entries if entry.level == GONE]
        seen: list[Any] = []
        if action == "append":
            size, length, deadline, timeout = values
            entry = inflight(1, deadline_ns=deadline and self.now_ns + deadline)
            entry.batch_size, entry.length, entry.queue_start_ns = size, length, self.now_ns
            entry.queue_limit_ns = timeout and self.now_ns + timeout
            self.entries.append(entry)
            queue.append(entry, 0, entry.queue_limit_ns)
        elif action == "left" and waiting:
            queue.left(waiting[values[0] % len(waiting)])
        elif action == "again" and left:
            queue.append(left[values[0] % len(left)])
        elif action == "take" and waiting:
            seen.append(self.numbers(queue.take(self.together(), min(values[0], len(waiting)))))
        elif action == "times":
            self.now_ns += values[0]
            seen += [self.numbers(queue.pop_expired(self.now_ns)), self.numbers(queue.pop_timed_out(self.now_ns))]
        seen += [queue.count, queue.ahead(0), self.numbers(list(queue)), queue.next_time_ns() if queue.timed else 0]
        if queue.count:
            together = self.together()
            if together.stale:
                together.renew()
            seen += [self.numbers(list(together)), together.whole, together.closed, sums(together)]
            self.check(together)
        return seen

    @staticmethod
    def check(together: BatchCandidates) -> None:
        entries = list(together)
        sizes = [entry.batch_size or 1 for entry in entries]
        assert (together.count, together.size) == (len(entries), sum(sizes))
        assert together.elements == sum(size * entry.length for size, entry in zip(sizes, entries, strict=True))
        assert together.longest == max(entry.length for entry in entries)
        assert together.oldest_ns == min(entry.queue_start_ns for entry in entries)
        assert together.deadline_ns == min([entry.deadline_ns for entry in entries if entry.deadline_ns], default=0)
        limits = [entry.queue_limit_ns for entry in entries if entry.queue_limit_ns]
        assert together.limit_ns == min(limits, default=0)


def sums(together: BatchCandidates) -> dict[str, Any]:
    return {each.name: getattr(together, each.name) for each in fields(BatchCandidates) if each.name != "requests"}


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_whatever_comes_and_goes(actions: list[tuple[Any, ...]]) -> None:
    plain, levels = Driven(PlainQueue()), Driven(LevelQueue(QueueSettings(sums=True)))
    for action in actions:
        assert plain.act(*action) == levels.act(*action)
