"""Routing of one model among its versions, and the servable in front of these while there is a routing.

The `Router` has the state that outlives loads: current weights, turns, and all counts. When the set of READY versions
changes, the table gets a new `Routed`, which knows the servables. A version that is not READY, or has no instance,
leaves its share to the others; if none is left, requests go to the latest version that was not rolled back.

Requests of a sequence go to the version that has it, regardless of current weights.

The route of a request is chosen by weights in turn, or by the hash of a key.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from modserve.core.configuration.routing_config import RouteFigures, Routing, ShadowFigures
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, ResponseSink, hand_over
from modserve.core.requests.sequence import SequenceKey, membership
from modserve.core.residency import describe
from modserve.core.servable import ReadinessChecker, RequestHolder, SequenceKeeper, Servable, engine_report
from modserve.core.version import RolledBack

from .rollback import RequestWindow, verdict
from .shadow import ShadowTraffic


@dataclass(slots=True, eq=False)
class Route:
    """A share of the traffic that leads to one version."""

    name: str
    """Name in the routing: a label, or a version in digits."""
    version: int
    weight: float
    credit: float = 0.0
    """Weight that it is owed, between minus and plus the sum of all weights."""
    requests: int = 0
    rolled_back: RolledBack | None = None
    window: RequestWindow | None = None
    """Latest requests of the route, if a rule evaluates them."""

    @property
    def open(self) -> bool:
        """True if it accepts requests, provided that its version is READY."""
        return self.weight > 0 and self.rolled_back is None


def next_route(routes: Iterable[Route]) -> Route:
    """Return the next route by weight: of any number of calls, each route gets its share to within one, evenly mixed.

    Each route is credited its weight, and the one with the most credit pays for all. There must be one.
    """
    total = 0.0
    best: Route | None = None
    for route in routes:
        route.credit += route.weight
        total += route.weight
        if best is None or route.credit > best.credit:
            best = route
    assert best is not None, "there is a route to choose: this is a bug"
    best.credit -= total
    return best


def route_of(key: str, routes: Sequence[Route]) -> Route:
    """Return the route of all requests with `key`. Changes of weights or routes move as few keys as possible.

    Each route draws a number from the key, smaller for larger weights, and the smallest wins (weighted rendezvous
    hashing).
    """
    digest = _digest(key.encode("utf-8", "surrogatepass"))  # the key may be long
    return min(routes, key=lambda route: _draw(digest, route.name) / route.weight)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _draw(key: bytes, name: str) -> float:
    """Return an exponentially distributed number."""
    number = int.from_bytes(_digest(key + name.encode()), "little")
    return -math.log((number + 1) / (2**64 + 1))


_log = logging.getLogger(__name__)

_MORE_OF_BASELINE = 10
"""Number of baseline requests kept per canary request, as the canary usually gets fewer in the same time."""
_NOT_ITS_FAULT = frozenset({Code.INVALID_ARG, Code.CANCELLED})
"""Failures not caused by the version: clients' mistakes and disconnects."""


class RouteRollback(NamedTuple):
    """Rollback of a model's version, in JSON values; other workers apply it as well."""

    model: str
    version: int
    reason: str
    """Reason; empty if the rollback has ended."""
    document: Mapping[str, Any]
    """The whole routing; a different one starts again."""


class Router:
    """`source`: origin of the routing, ``config`` or ``api``; empty if it remains only for old sequences."""

    def __init__(
        self,
        name: str,
        routing: Routing,
        source: str,
        memory: MemoryBudget,
        clock_ns: Callable[[], int] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_rollback: Callable[[RouteRollback], None] = lambda rollback: None,
        revision: str = "",
    ) -> None:
        self.name = name
        self.revision = revision
        self.routing = routing
        self.source = source
        self._clock_ns = clock_ns or time.monotonic_ns
        self._now_ms = now_ms
        self._on_rollback = on_rollback
        self.routes = [Route(route, routing.version(route), weight) for route, weight in routing.split.items()]
        self.keyless = 0
        """Requests without the parameter for sticky routing."""
        self.shadow_traffic = None if routing.shadow is None else ShadowTraffic(routing.shadow, memory)
        rule = routing.rollback
        self._ended = 0
        """Requests of the canary that count for the rule."""
        self._canary: Route | None = None
        self._baseline: Route | None = None
        if rule is not None:
            by_name = {route.name: route for route in self.routes}
            self._canary, self._baseline = by_name[rule.route], by_name[rule.baseline]
            self._canary.window = RequestWindow(rule.last_requests, rule.last_ns)
            self._baseline.window = RequestWindow(rule.last_requests * _MORE_OF_BASELINE, rule.last_ns)

    def choose(self, request: InferenceRequest, routes: Sequence[Route]) -> Route:
        """Choose one of the routes; there must be one."""
        if self.routing.sticky:
            key = _key(request, self.routing.sticky)
            if key:
                return route_of(key, routes)
            self.keyless += 1
        return next_route(routes)

    def on_end(self, route: Route, began_ns: int, outcome: Outcome) -> None:
        """Record the last outcome of a request that took `route`."""
        rule, window = self.routing.rollback, route.window
        failed = isinstance(outcome, ModserveError)
        if rule is None or window is None or route.rolled_back is not None:
            return
        if isinstance(outcome, ModserveError) and outcome.code in _NOT_ITS_FAULT:
            return
        now_ns = self._clock_ns()
        window.add(now_ns, now_ns - began_ns, failed)
        if route is not self._canary:
            return
        self._ended += 1
        if not failed and self._ended % (1 + len(window) // 20):
            return  # sorting all durations each time takes long
        baseline = None if self._baseline is None else self._baseline.window
        if baseline is not None:
            baseline.forget(now_ns)
        if reason := verdict(rule, window, baseline):
            self.roll_back(route.version, RolledBack(reason, self._now_ms()))
            self._on_rollback(RouteRollback(self.name, route.version, reason, self.routing.document))

    def roll_back(self, version: int, rolled_back: RolledBack | None) -> None:
        """Remove the weight of a version, or restore it."""
        for route in self.routes:
            if route.version == version:
                route.rolled_back = rolled_back

    def share(self, route: Route, ready: Callable[[Route], bool]) -> float:
        """Return a route's share of the requests, from 0 to 1."""
        weights = {each.name: each.weight for each in self.routes if each.open and ready(each)}
        return weights.get(route.name, 0.0) / (sum(weights.values()) or 1.0)

    def figures(self, ready: Callable[[Route], bool]) -> Iterator[RouteFigures | ShadowFigures]:
        for route in self.routes:
            share = self.share(route, ready)
            rolled_back = route.rolled_back is not None
            yield RouteFigures(self.name, route.name, route.version, share, route.requests, rolled_back)
        if self.shadow_traffic is not None and self.routing.shadow is not None:
            version = self.routing.version(self.routing.shadow.route)
            yield ShadowFigures(self.name, version, self.shadow_traffic.outcomes, self.shadow_traffic.in_flight)

    def report(self, trouble: Callable[[int], str]) -> dict[str, Any]:
        """Return the routing and its results as JSON values. `trouble`: why a version is not READY, or empty."""
        troubles = {route.name: trouble(route.version) for route in self.routes}
        return {
            "model": self.name,
            "source": self.source,
            "routing": self.routing.document,
            "routes": [
                {
                    "name": route.name,
                    "version": route.version,
                    "weight": 0 if route.rolled_back else route.weight,
                    "share": round(self.share(route, lambda each: not troubles[each.name]), 6),
                    "requests": route.requests,
                    **({"not_ready": troubles[route.name]} if troubles[route.name] else {}),
                    **(
                        {"rolled_back": {"reason": route.rolled_back.reason, "at_ms": route.rolled_back.at_ms}}
                        if route.rolled_back
                        else {}
                    ),
                }
                for route in self.routes
            ],
            **({"requests_without_key": self.keyless} if self.routing.sticky else {}),
            **({} if self.shadow_traffic is None else {"shadow": self.shadow_traffic.report()}),
        }


def _key(request: InferenceRequest, sticky: str) -> str:
    """Return the value for sticky routing; empty if there is none. Header names are case-insensitive."""
    header = sticky.removeprefix("header:")
    if header == sticky:
        value = request.parameters.get(sticky, "")
        return "" if sticky == "sequence_id" and value == 0 else str(value)
    return next((str(value) for name, value in request.parameters.items() if name.lower() == header), "")


class Routed:
    """Implements `core.servable.Servable` in front of the READY versions of one model, and chooses among them.

    Also a `SequenceKeeper` and `ReadinessChecker` for all of them.
    """

    def __init__(self, router: Router, served: Mapping[int, Servable], latest: Servable) -> None:
        self._router = router
        self._latest = latest
        self.parts: tuple[Servable, ...] = tuple(served.values())
        """Versions that a request may go to."""
        self._legs = {route.name: (route, served[route.version]) for route in router.routes if route.version in served}
        self._by_version = {route.version: route for route, _ in self._legs.values()}
        self._keepers = [each for each in self.parts if isinstance(each, SequenceKeeper)]
        shadow = router.routing.shadow
        self._shadow = None if shadow is None else served.get(router.routing.version(shadow.route))
        self.id = latest.id
        self.statistics = latest.statistics
        self._look()

    def _look(self) -> None:
        self.config = self._latest.config
        self.config_message = self._latest.config_message
        self.labels = self._latest.labels

    async def describe(self) -> None:
        """Describe the latest version, like `core.residency.OnDemand`."""
        await describe(self._latest)
        self._look()

    def __repr__(self) -> str:
        return f"Routed({self._router.name}, {list(self._legs)} of {len(self.parts)} versions)"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if not self._keepers:
            return self._submit(request, sink, now_ns, *self._choose(request))
        try:
            member = membership(request)
        except ModserveError:
            return self._latest.submit(request, sink, now_ns)  # the version refuses the request
        if not member.start:
            for keeper in self._keepers:
                if keeper.has_sequence(member.key):
                    servable = next(each for each in self.parts if each is keeper)
                    return self._submit(request, sink, now_ns, servable, self._by_version.get(servable.id.version))
            return self._latest.submit(request, sink, now_ns)  # the version refuses it, or leaves it to another worker
        chosen, route = self._choose(request)
        inflight = self._submit(request, sink, now_ns, chosen, route)
        for keeper in self._keepers:
            if keeper is not chosen:
                keeper.abandon_sequence(member.key)
        return inflight

    def _choose(self, request: InferenceRequest) -> tuple[Servable, Route | None]:
        routes = [route for route, servable in self._legs.values() if route.open and servable.unready_reason is None]
        if not routes:
            return self._spare, None
        route = self._router.choose(request, routes)
        return self._legs[route.name][1], route

    @property
    def _spare(self) -> Servable:
        """Version for requests without a route: the latest one, a rolled-back one only without others."""
        rolled_back = {route.version for route in self._router.routes if route.rolled_back is not None}
        if self._latest.id.version not in rolled_back:
            return self._latest
        others = [each for each in self.parts if each.id.version not in rolled_back]
        return max(others, key=lambda each: each.id.version, default=self._latest)

    @property
    def _receivers(self) -> list[Servable]:
        """Versions that requests without a version may go to."""
        return [*(servable for route, servable in self._legs.values() if route.open), self._spare]

    def _submit(
        self, request: InferenceRequest, sink: ResponseSink, now_ns: int, servable: Servable, route: Route | None
    ) -> Inflight:
        if route is None:
            return servable.submit(request, sink, now_ns)
        route.requests += 1
        router, shadow = self._router, self._shadow
        shadow_traffic = router.shadow_traffic
        copied = shadow is not None and shadow_traffic is not None and shadow_traffic.sample(request)
        if not copied and route.window is None:
            return servable.submit(request, sink, now_ns)
        route_sink = _RouteSink(sink, router, route, now_ns, request if copied else None, shadow)
        try:
            return servable.submit(request, route_sink, now_ns)
        except ModserveError as error:
            router.on_end(route, now_ns, error)
            raise

    @property
    def unready_reason(self) -> str | None:
        """Reason that no version can take requests; None if one can."""
        reasons = [servable.unready_reason for servable in self._receivers]
        return None if None in reasons else reasons[0]

    @property
    def engine_report(self) -> Mapping[str, object]:
        return engine_report(self._latest)

    @property
    def outstanding(self) -> int:
        return sum(each.outstanding for each in self.parts if isinstance(each, RequestHolder))

    @property
    def open_sequences(self) -> int:
        return sum(keeper.open_sequences for keeper in self._keepers)

    def has_sequence(self, key: SequenceKey) -> bool:
        return any(keeper.has_sequence(key) for keeper in self._keepers)

    def abandon_sequence(self, key: SequenceKey) -> None:
        for keeper in self._keepers:
            keeper.abandon_sequence(key)

    async def check_ready(self) -> bool:
        """True if any version that requests go to is ready."""
        for servable in self._receivers:
            if servable.unready_reason is None and (
                not isinstance(servable, ReadinessChecker) or await servable.check_ready()
            ):
                return True
        return False

    async def drain(self) -> None:
        for each in self.parts:
            await each.drain()

    async def close(self) -> None:
        for each in self.parts:
            await each.close()


class _RouteSink:
    """Implements `core.requests.response.ResponseSink` before a request's own sink, which gets outcomes first."""

    __slots__ = ("_began_ns", "_copied", "_route", "_router", "_shadow", "_sink")

    def __init__(
        self,
        sink: ResponseSink,
        router: Router,
        route: Route,
        began_ns: int,
        copied: InferenceRequest | None,
        shadow: Servable | None,
    ) -> None:
        self._sink = sink
        self._router = router
        self._route = route
        self._began_ns = began_ns
        self._copied = copied
        """The request, if the shadow gets a copy of it."""
        self._shadow = shadow

    def settle(self, outcome: Outcome, final: bool) -> None:
        hand_over(self._sink, outcome, final)
        if final:
            self._router.on_end(self._route, self._began_ns, outcome)
            copied, shadow, shadow_traffic = self._copied, self._shadow, self._router.shadow_traffic
            if copied is not None and shadow is not None and isinstance(outcome, InferenceResponse):
                assert shadow_traffic is not None, "it has sampled the request: this is a bug"
                shadow_traffic.copy(copied, outcome, shadow)
