"""Version that has replaced others with open sequences: each request goes to the owner of its sequence.

Servables that are unloaded together: their engines may call each other until none of them has anything to do.
"""

from collections.abc import Iterable, Mapping, Sequence

from modserve.core.errors import ModserveError, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.requests.sequence import membership
from modserve.core.servable import (
    Oldest,
    OldestReporter,
    RequestHolder,
    SequenceKeeper,
    Servable,
    Submitter,
    engine_report,
    oldest,
)
from modserve.core.version import STOPPING, ModelId


class DrainGroups:
    """The groups that are leaving. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self._groups: list[list[Servable]] = []

    def __repr__(self) -> str:
        return f"DrainGroups({len(self._groups)} groups)"

    def leave(self, servables: Iterable[Servable]) -> None:
        """Add a group about to be retired, without keepers of sequences, which would begin new ones."""
        group = [each for each in servables if not isinstance(each, SequenceKeeper)]
        if len(group) > 1:
            self._groups.append(group)

    def groups_of(self, servable: Servable) -> list[list[Servable]]:
        return [group for group in self._groups if servable in group]

    def left(self, group: list[Servable]) -> None:
        """Remove a group that is no longer busy. May be called again."""
        if group in self._groups:
            self._groups.remove(group)

    def find(self, caller: ModelId, name: str, version: int | None) -> Servable | None:
        """Return the servable that leaves together with the caller, by name and version (None: the highest)."""
        for group in self._groups:
            if any(each.id == caller for each in group):
                fitting = [each for each in group if each.id.name == name and version in (None, each.id.version)]
                return max(fitting, key=lambda each: each.id.version, default=None)
        return None


class Succession:
    """Implements `core.servable.Servable` in front of `heir` and of the `retired`, the last one first, which drain.

    If it `takes_new`, new sequences begin at the heir; otherwise they are refused, since the server is stopping.
    """

    def __init__(self, heir: Servable, retired: Sequence[SequenceKeeper], *, takes_new: bool = True) -> None:
        self.heir = heir
        self._takes_new = takes_new
        self.id = heir.id
        self.config = heir.config
        self.config_message = heir.config_message
        self.statistics = heir.statistics
        self.labels = heir.labels
        self._retired = retired

    def __repr__(self) -> str:
        return f"Succession({self.heir!r}, {len(self._retired)} retired)"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Submit to whichever version owns the sequence. What begins one, or belongs to none, goes to the heir."""
        try:
            member = membership(request)
        except ModserveError:
            return self.heir.submit(request, sink, now_ns)  # which refuses it if it is wrong
        if not self._takes_new and (member.start or not member.id):
            raise unavailable(STOPPING)
        if member.start:
            inflight = self.heir.submit(request, sink, now_ns)
            for retired in self._retired:
                retired.abandon_sequence(member.key)
            return inflight
        owner: Submitter = self.heir
        if not (isinstance(self.heir, SequenceKeeper) and self.heir.has_sequence(member.key)):
            owner = next((retired for retired in self._retired if retired.has_sequence(member.key)), owner)
        return owner.submit(request, sink, now_ns)

    @property
    def unready_reason(self) -> str | None:
        return self.heir.unready_reason

    @property
    def engine_report(self) -> Mapping[str, object]:
        return engine_report(self.heir)

    @property
    def outstanding(self) -> int:
        """Includes the requests of the retired."""
        return sum(each.outstanding for each in (self.heir, *self._retired) if isinstance(each, RequestHolder))

    def oldest(self, now_ns: int) -> Oldest:
        """Implements `core.servable.OldestReporter`, with the requests of the retired."""
        parts = [each.oldest(now_ns) for each in self._retired if isinstance(each, OldestReporter)]
        parts.append(oldest(self.heir, now_ns) or Oldest())
        return Oldest(max([each.execution_ns for each in parts]), max([each.waiting_ns for each in parts]))

    async def drain(self) -> None:
        await self.heir.drain()

    async def close(self) -> None:
        await self.heir.close()


def in_front(heir: Servable | None, others: Iterable[Servable]) -> Servable | None:
    """Return `heir`, or a `Succession` in front of it and of the others with open sequences."""
    keepers = [each for each in others if isinstance(each, SequenceKeeper) and each.open_sequences]
    if not keepers:
        return heir
    if heir is None:
        heir, *keepers = keepers
    return Succession(heir, keepers) if keepers else heir
