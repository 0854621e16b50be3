"""Routing of requests without a version to the READY versions of a model: settings and figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Shadow:
    """Version that receives copies of requests. Its responses are compared with the clients' responses and dropped."""

    route: str
    """A label or a version number, like all routes below."""
    share: float
    """Share of the requests, above 0 and at most 1."""
    tolerance: float
    """Largest relative difference between floating-point elements that count as equal."""
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Condition for setting a version's weight to 0. A limit of 0 is disabled; at least one limit is set."""

    route: str
    baseline: str
    """Route with the latency to compare with, for `p95_ratio`."""
    error_share: float = 0.0
    p95_ns: int = 0
    p95_ratio: float = 0.0
    last_requests: int = 200
    """Number of latest requests to consider for each route."""
    last_ns: int = 0
    """Maximum age of the requests to consider; 0: unlimited."""
    least_requests: int = 20
    """Minimum number of requests for a decision."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Routing of one model."""

    labels: Mapping[str, int] = field(default_factory=dict)
    """Label → version."""
    split: Mapping[str, float] = field(default_factory=dict)
    """Route → weight, in the order as written; empty: all requests go to the latest version."""
    sticky: str = ""
    """Request parameter. Requests with equal values go to the same version; empty: they are distributed by weight."""
    shadow: Shadow | None = None
    rollback: Rollback | None = None
    allow_missing: bool = False
    """True if versions may be missing when the routing is set."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The routing as written, as JSON values."""

    def version(self, route: str) -> int:
        return self.labels[route] if route in self.labels else int(route)


@dataclass(frozen=True, slots=True)
class RouteFigures:
    """Figures of one route of a model's split, for the metrics page."""

    model: str
    route: str
    version: int
    share: float
    """Current share of the requests without a version."""
    requests: int
    rolled_back: bool


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """Outcomes of copied requests, for the metrics page."""

    model: str
    version: int
    outcomes: Mapping[str, int]
    in_flight: int
