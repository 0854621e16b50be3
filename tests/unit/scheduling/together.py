"""What rules are asked about: requests with their sums, or with the request to read them."""

from collections.abc import Iterable, Iterator, Sequence

from modserve.core.requests.inflight import Inflight
from modserve.scheduling.batching import BatchCandidates, Decision, Rule
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import QueueSettings


class Unread(BatchCandidates):
    """A group whose sums a rule must not use."""

    def __init__(self, entries: Iterable[Inflight]) -> None:
        super().__init__()
        self.whole = False
        self._entries = entries

    def __iter__(self) -> Iterator[Inflight]:
        return iter(self._entries)


def summed(entries: Iterable[Inflight]) -> BatchCandidates:
    queue = LevelQueue(QueueSettings(sums=True))
    for entry in entries:
        queue.append(entry)
    (together,) = queue.candidates()
    return together


def decided(rule: Rule, entries: Sequence[Inflight], now_ns: int) -> Decision:
    """What a rule says to requests; it says the same by their sums as when it reads them."""
    decision = rule(Unread(entries), now_ns)
    together = summed(entries)
    assert rule(together, now_ns) == decision
    together.stale = True
    assert rule(together, now_ns) == decision
    return decision
