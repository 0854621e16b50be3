"""Tenants of a server, and their limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol, runtime_checkable

from .errors import invalid

LARGEST_WEIGHT = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """User of a server, as its operator describes it. Tenants of the same `name` are the same tenant.

    While several tenants wait for a model, each gets a part of its executions in proportion to its `weight`. The limits
    hold in the whole server process, over all models; None stands for no limit. `requests_per_second`,
    `rows_per_second` and `tokens_per_second` are averages, above which a tenant may go for a second. `concurrency` is
    how many of its requests may be in flight. `queue_size` is how many may wait for one model; by default, the tenant's
    share of the model's `max_queue_size` by weight among the tenants that wait.

    Raises INVALID_ARG for numbers that make no sense.
    """

    name: str
    weight: float = 1.0
    requests_per_second: float | None = None
    rows_per_second: float | None = None
    tokens_per_second: float | None = None
    concurrency: int | None = None
    queue_size: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise invalid("the name of a tenant is empty, expected at least one character")
        if not 1 / LARGEST_WEIGHT <= self.weight <= LARGEST_WEIGHT:
            expected = f"expected a number from {1 / LARGEST_WEIGHT:.6f} to {LARGEST_WEIGHT:.0f}"
            raise invalid(f"the weight of tenant '{self.name}' is {self.weight}, {expected}")
        for each in fields(self)[2:]:
            limit = getattr(self, each.name)
            if limit is not None and not (limit > 0 and math.isfinite(limit)):
                expected = "expected a number above 0, or none for no limit"
                raise invalid(f"'{each.name}' of tenant '{self.name}' is {limit}, {expected}")


@dataclass(frozen=True, slots=True)
class TenantReport:
    """Usage of a server process by a tenant, since the start and at present."""

    name: str
    results: Mapping[str, int] = field(default_factory=dict)
    """Requests by what became of them: `accepted`, or why they were refused."""
    rows: int = 0
    tokens: int = 0
    in_flight: int = 0
    waiting: int = 0
    """Requests in flight that wait in a model's queue; an ensemble's request may wait several times."""


@runtime_checkable
class TenantQueues(Protocol):
    """A servable, or a scheduler, with a queue for each tenant."""

    def waiting_by_tenant(self) -> Mapping[str, int]:
        """Return the number of waiting requests by tenant name; tenants without any may be absent."""


def waiting_by_tenant(owner: object) -> Mapping[str, int]:
    """Return the waiting requests of a `TenantQueues` by tenant; empty for other objects."""
    return owner.waiting_by_tenant() if isinstance(owner, TenantQueues) else {}
