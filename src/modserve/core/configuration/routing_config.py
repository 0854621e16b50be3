"""Routing of requests without a version to the READY versions of a model: values, and figures of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Shadow:
    """Version that gets copies of requests; its responses are compared with those of the clients, and dropped."""

    route: str
    """A label, or a version in digits, as in all that follows."""
    share: float
    """Share of the requests, above 0 and at most 1."""
    tolerance: float
    """The largest relative difference at which two elements of floating point are the same."""
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Condition under which a version loses its weight. A limit of 0 is disabled; at least one is set."""

    route: str
    baseline: str
    """Route that `p95_ratio` compares latency with."""
    error_share: float = 0.0
    p95_ns: int = 0
    p95_ratio: float = 0.0
    last_requests: int = 200
    """Number of latest requests per route to consider."""
    last_ns: int = 0
    """Maximum age of the requests to consider; 0: unlimited."""
    least_requests: int = 20
    """Minimum number of requests for a decision."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of one model."""

    labels: Mapping[str, int] = field(default_factory=dict)
    """Names for versions."""
    split: Mapping[str, float] = field(default_factory=dict)
    """The weights of the routes, in the order in which they were written; empty: all requests go to the latest."""
    sticky: str = ""
    """Request parameter that pins equal values to the same version; empty: each request goes by the weights."""
    shadow: Shadow | None = None
    rollback: Rollback | None = None
    allow_missing: bool = False
    """True if its versions may be missing when the routing is set."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The routing as written, in JSON's values."""

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
