"""Chooses the route of a request: by weights in turn, or by the hash of a key."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modserve.core.version import RolledBack

from .rollback import RequestWindow


@dataclass(slots=True, eq=False)
class Route:
    """A way through the split, which leads to one version."""

    name: str
    """As it was written: a label, or a version in digits."""
    version: int
    weight: float
    credit: float = 0.0
    """What it is owed, in weights: it is between minus and plus the sum of all weights."""
    requests: int = 0
    rolled_back: RolledBack | None = None
    window: RequestWindow | None = None
    """Its latest requests, where a rule looks at them."""

    @property
    def open(self) -> bool:
        """Whether it takes requests, if its version is READY."""
        return self.weight > 0 and self.rolled_back is None


def next_route(routes: Iterable[Route]) -> Route:
    """The route whose turn it is: of any number of calls, each route gets its share to within one, evenly mixed.

    Each is credited its weight, and the one with the most credit pays for all. There must be one.
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
    """The route of all requests with `key`. It changes for as few keys as possible when weights or routes do.

    Each route draws a number from the key, the smaller the larger its weight, and the smallest wins (rendezvous
    hashing with weights).
    """
    digest = _digest(key.encode("utf-8", "surrogatepass"))  # of a key that may be long
    return min(routes, key=lambda route: _drawn(digest, route.name) / route.weight)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _drawn(key: bytes, name: str) -> float:
    """A number with an exponential distribution."""
    number = int.from_bytes(_digest(key + name.encode()), "little")
    return -math.log((number + 1) / (2**64 + 1))
