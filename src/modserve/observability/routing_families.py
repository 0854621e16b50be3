"""The metrics of the routings between the versions of models."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from modserve.core.configuration.routing_config import RouteFigures, ShadowFigures

Family: TypeAlias = tuple[str, str, str, list[tuple[dict[str, str], float]]]
"""Name, kind, help, and the samples with their labels."""

_ROUTES: tuple[tuple[str, str, str, Callable[[RouteFigures], float]], ...] = (
    ("modserve_routing_requests", "counter", "Requests that named no version, by route", lambda r: r.requests),
    ("modserve_routing_share", "gauge", "The share of these requests that a route gets", lambda r: r.share),
    ("modserve_routing_rolled_back", "gauge", "1 when a route has lost its weight by a rule", lambda r: r.rolled_back),
)


def routing_families(figures: Sequence[RouteFigures | ShadowFigures]) -> Iterator[Family]:
    routes = [
        ({"model": each.model, "route": each.route, "version": str(each.version)}, each)
        for each in figures
        if isinstance(each, RouteFigures)
    ]
    for name, kind, text, value in _ROUTES:
        yield name, kind, text, [(labels, value(each)) for labels, each in routes]
    shadows = [
        ({"model": each.model, "version": str(each.version)}, each)
        for each in figures
        if isinstance(each, ShadowFigures)
    ]
    outcomes = [
        ({**labels, "outcome": outcome}, float(count))
        for labels, each in shadows
        for outcome, count in each.outcomes.items()
    ]
    text = "Copies of requests for a shadow, by outcome"
    yield "modserve_routing_shadow", "counter", text, outcomes
    in_flight = [(labels, float(each.in_flight)) for labels, each in shadows]
    yield "modserve_routing_shadow_in_flight", "gauge", "Copies of requests in flight", in_flight
