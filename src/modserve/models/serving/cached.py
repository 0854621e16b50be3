"""Models with cached responses: a repeated request does not run; one equal to a request under way waits for it.

Equal requests under way form a *flight*. Its first request runs, or looks up its response if that takes time; later
ones hold `Inflight`s made here. When the first one gets a response, all get it. When it fails, the others run: one
after the other if the failure concerns only the first client (it disconnected or timed out), else all at once, as if
each had arrived alone. Requests with another priority or time-out do not join: they would wait differently.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from modserve.core.errors import Code, ModserveError, from_exception, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, ResponseSink, hand_over
from modserve.core.runtime.clock import Alarm, Clock
from modserve.core.servable import Servable
from modserve.core.statistics.model_statistics import FailureReason, failure_reason
from modserve.core.tensors.tensor import Tensor
from modserve.resources.response_cache import Cache, key

from .wrappers import ModelWrapper

_FlightKey: TypeAlias = tuple[bytes, object, int]
"""Key shared by the requests of a flight: the key of their response, and their queueing."""


@dataclass(slots=True, eq=False)
class _Flight:
    place: _FlightKey
    looked_ns: int
    waiting: dict[Inflight, Alarm | None] = field(default_factory=dict)
    """Requests made here without a response so far, in order of arrival, with their deadlines."""


class CachedModel(ModelWrapper):
    """Caches responses of a model or an ensemble with one response per request.

    For an ensemble the response of the whole is cached, and a hit runs none of its models. Requests that wait for the
    response of another request count as hits. Each tenant has its own responses, unless the model shares them.
    """

    def __init__(self, servable: Servable, cache: Cache, clock: Clock) -> None:
        super().__init__(servable)
        self._cache = cache
        self._clock = clock
        self._stopped = False
        self._flights: dict[_FlightKey, _Flight] = {}
        self._waiting = 0
        self._nobody_waits = asyncio.Event()
        self._nobody_waits.set()
        self._looking: set[asyncio.Future[InferenceResponse | None]] = set()

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if self._stopped:  # the model itself refuses the request
            return self._servable.submit(request, sink, now_ns)
        start_ns = time.monotonic_ns()
        tenant = request.tenant
        digest = key(request, "" if tenant is None or self.config.limits.share_cache else tenant.name)
        kept = self._cache.get(self, digest)
        looked_ns = time.monotonic_ns() - start_ns
        if kept is not None:
            inflight = _inflight(request, sink, now_ns, start_ns, kept)
            self._clock.call_soon(partial(self._hit, inflight, kept, looked_ns))
            return inflight
        place = digest, request.parameters.get("priority"), request.timeout_ns
        flight = self._flights.get(place)
        if flight is not None:
            return self._join(flight, request, sink, now_ns, start_ns)
        flight = _Flight(place, looked_ns)
        looking = self._cache.fetch(self, digest)
        if looking is None:
            inflight = self._servable.submit(request, _Keeper(self, flight, sink), now_ns)
            self._flights[place] = flight
            return inflight
        self._flights[place] = flight
        self._looking.add(looking)
        looking.add_done_callback(partial(self._on_look_up, flight, start_ns))
        return self._join(flight, request, sink, now_ns, start_ns)

    @property
    def outstanding(self) -> int:
        return super().outstanding + self._waiting

    @property
    def busy(self) -> bool:
        return super().busy or self._waiting > 0

    async def idle(self) -> None:
        await super().idle()
        while self._waiting:
            await self._nobody_waits.wait()
            await super().idle()

    def stop(self) -> None:
        """Cache nothing from now on."""
        self._stopped = True
        self._cache.forget(self)

    async def drain(self) -> None:
        self._stopped = True
        await self._nobody_waits.wait()  # waiting requests may still have to run
        await self._servable.drain()

    async def close(self) -> None:
        self._cache.forget(self)
        for flight in list(self._flights.values()):
            self._all_fail(flight, unavailable(f"model '{self.id.name}' was unloaded before the request ran"))
        await self._servable.close()

    # Waiting requests

    def _join(
        self, flight: _Flight, request: InferenceRequest, sink: ResponseSink, now_ns: int, start_ns: int
    ) -> Inflight:
        inflight = _inflight(request, sink, now_ns, start_ns)
        alarm = None
        if inflight.deadline_ns:
            alarm = Alarm(self._clock, partial(self._ring, flight, inflight))
            alarm.at(inflight.deadline_ns)
        flight.waiting[inflight] = alarm
        inflight.on_cancel = partial(self._on_cancel, flight)
        self._waiting += 1
        self._nobody_waits.clear()
        return inflight

    def _leave(self, flight: _Flight, inflight: Inflight) -> None:
        """Remove a request from the waiting ones."""
        alarm = flight.waiting.pop(inflight)
        if alarm is not None:
            alarm.end()
        inflight.on_cancel = None
        self._waiting -= 1
        if not self._waiting:
            self._nobody_waits.set()

    def _on_cancel(self, flight: _Flight, inflight: Inflight) -> None:
        self._leave(flight, inflight)
        self.statistics.record_failure(inflight, FailureReason.CANCELED, time.monotonic_ns())

    def _ring(self, flight: _Flight, inflight: Inflight) -> None:
        alarm = flight.waiting[inflight]
        if alarm is not None and self._clock.now_ns() < inflight.deadline_ns:
            alarm.at(inflight.deadline_ns)  # it rings early
            return
        self._leave(flight, inflight)
        self._fail(inflight, unavailable("Request timeout expired"))

    def _fail(self, inflight: Inflight, error: ModserveError) -> None:
        reason = failure_reason(error, by_backend=False)
        self.statistics.record_failure(inflight, reason, time.monotonic_ns())
        inflight.settle(error)

    def _all_fail(self, flight: _Flight, error: ModserveError) -> None:
        for inflight in self._leaving(flight):
            self._fail(inflight, error)

    def _leaving(self, flight: _Flight) -> Iterator[Inflight]:
        """Remove and yield the waiting requests one by one, since the outcome of one may cancel others."""
        while flight.waiting:
            inflight = next(iter(flight.waiting))
            self._leave(flight, inflight)
            yield inflight

    # End of a flight

    def _on_look_up(self, flight: _Flight, start_ns: int, looking: "asyncio.Future[InferenceResponse | None]") -> None:
        self._looking.discard(looking)
        if self._flights.get(flight.place) is not flight:
            return
        flight.looked_ns = time.monotonic_ns() - start_ns
        kept = None if looking.cancelled() or looking.exception() is not None else looking.result()
        if kept is None:
            self._next(flight)
        else:
            self._land(flight, kept)

    def keep(self, flight: _Flight, response: InferenceResponse) -> None:
        """Cache the model's response to a request that was not in the cache."""
        start_ns = time.monotonic_ns()
        if not self._stopped:
            self._cache.put(self, flight.place[0], response)
        self.statistics.record_cache_miss(flight.looked_ns + time.monotonic_ns() - start_ns)

    def on_end(self, flight: _Flight, outcome: Outcome, of_client: bool) -> None:
        """End a flight's run with its outcome. `of_client`: the failure does not concern the other requests."""
        if self._flights.get(flight.place) is not flight:
            return
        if isinstance(outcome, InferenceResponse):
            self._land(flight, outcome)
        elif of_client:
            self._next(flight)
        else:
            del self._flights[flight.place]
            for inflight in self._leaving(flight):
                self._run(_Flight(flight.place, flight.looked_ns), inflight)

    def _land(self, flight: _Flight, response: InferenceResponse) -> None:
        del self._flights[flight.place]
        for inflight in self._leaving(flight):
            self._hit(inflight, response, flight.looked_ns)

    def _next(self, flight: _Flight) -> None:
        """Run the first waiting request; the flight ends if there is none."""
        inflight = next(iter(flight.waiting), None)
        if inflight is None:
            del self._flights[flight.place]
            return
        self._leave(flight, inflight)
        self._run(flight, inflight)

    def _hit(self, inflight: Inflight, kept: InferenceResponse, looked_ns: int) -> None:
        if inflight.settled:
            self.statistics.record_failure(inflight, FailureReason.CANCELED, time.monotonic_ns())
            return
        self.statistics.record_cache_hit(inflight, looked_ns, time.monotonic_ns())
        # New tensors: conversions in them do not outlive the response.
        outputs = {name: Tensor.from_raw(one.datatype, one.shape, one.raw) for name, one in kept.outputs.items()}
        inflight.settle(replace(kept, id=inflight.request.id, outputs=outputs, waited_ns=0))

    def _run(self, flight: _Flight, outer: Inflight) -> None:
        """Submit a request that already has an `Inflight`. Its outcome goes to `outer`."""
        relay = _Relay(self, flight, outer)
        try:
            inner = self._servable.submit(outer.request, relay, outer.request_start_ns)
        except Exception as error:
            failure = error if isinstance(error, ModserveError) else from_exception(error, "submitting a request")
            outer.settle(failure)
            self.on_end(flight, failure, False)
            return
        inner.trace, outer.trace = outer.trace, None
        inner.callers, inner.ordered = outer.callers, outer.ordered
        relay.inner = inner
        outer.on_cancel = relay.cancel


def _inflight(
    request: InferenceRequest, sink: ResponseSink, now_ns: int, start_ns: int, kept: InferenceResponse | None = None
) -> Inflight:
    """Return an `Inflight` that the model does not know of."""
    names = request.outputs if kept is None else tuple(kept.outputs)
    inflight = Inflight(request, sink, request.inputs, names, 0, None, now_ns, request.deadline_ns)
    inflight.queue_start_ns = start_ns
    return inflight


@dataclass(slots=True, eq=False)
class _Keeper:
    """Implements `core.requests.response.ResponseSink`: caches the response on its way to the client."""

    _model: CachedModel
    _flight: _Flight
    _sink: ResponseSink

    def settle(self, outcome: Outcome, final: bool) -> None:
        try:
            if isinstance(outcome, InferenceResponse):
                self._model.keep(self._flight, outcome)
        finally:
            hand_over(self._sink, outcome, final)
            self._model.on_end(self._flight, outcome, _of_client(outcome))


@dataclass(slots=True, eq=False)
class _Relay:
    """Implements `core.requests.response.ResponseSink` for a request that has waited before it was submitted."""

    _model: CachedModel
    _flight: _Flight
    _outer: Inflight
    inner: Inflight | None = None

    def settle(self, outcome: Outcome, final: bool) -> None:
        inner, self.inner = self.inner, None
        if inner is not None:
            self._outer.timing = inner.timing
        self._outer.on_cancel = None
        try:
            if isinstance(outcome, InferenceResponse):
                self._model.keep(self._flight, outcome)
        finally:
            self._outer.settle(outcome, final)
            self._model.on_end(self._flight, outcome, _of_client(outcome))

    def cancel(self, outer: Inflight) -> None:
        """Cancel the run after a disconnect."""
        if self.inner is not None:
            self.inner.cancel()


def _of_client(outcome: Outcome) -> bool:
    """True if a failure concerns one client only: it has disconnected or timed out."""
    if not isinstance(outcome, ModserveError):
        return False
    return outcome.code is Code.CANCELLED or outcome.message == "Request timeout expired"
