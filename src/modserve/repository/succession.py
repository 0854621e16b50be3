"""A version that has taken the place of others whose sequences go on: each request goes where its sequence is."""

from collections.abc import Sequence

from modserve.core.errors import ModserveError
from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.sequence import membership
from modserve.core.servable import RequestHolder, SequenceKeeper, Servable, Submitter


class Succession:
    """Implements `core.servable.Servable`: `heir` before the `retired`, which drain, the last one first."""

    def __init__(self, heir: Servable, retired: Sequence[SequenceKeeper]) -> None:
        self.heir = heir
        self.id = heir.id
        self.config = heir.config
        self.config_message = heir.config_message
        self.statistics = heir.statistics
        self.labels = heir.labels
        self._retired = retired

    def __repr__(self) -> str:
        return f"Succession({self.heir!r}, {len(self._retired)} retired)"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """To who has the request's sequence, and to the heir with those that begin or are in none."""
        try:
            says = membership(request)
        except ModserveError:
            return self.heir.submit(request, sink, now_ns)  # which says what is wrong, if it minds
        if says.start:
            inflight = self.heir.submit(request, sink, now_ns)
            for retired in self._retired:
                retired.abandon_sequence(says.id)
            return inflight
        taker: Submitter = self.heir
        if not (isinstance(self.heir, SequenceKeeper) and self.heir.has_sequence(says.id)):
            taker = next((retired for retired in self._retired if retired.has_sequence(says.id)), taker)
        return taker.submit(request, sink, now_ns)

    @property
    def unready_reason(self) -> str | None:
        return self.heir.unready_reason

    @property
    def outstanding(self) -> int:
        """Those of the retired, too."""
        return sum(each.outstanding for each in (self.heir, *self._retired) if isinstance(each, RequestHolder))

    async def drain(self) -> None:
        await self.heir.drain()

    async def close(self) -> None:
        await self.heir.close()
