"""Tenants in the console: requests of each, its share of the rows, and its refusals."""

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from modserve.core.servable import base
from modserve.server import Server

from .figures import rate

MOST_ROWS: Final = 50
"""Tenants in the table, those with the most requests of the last second first."""


class TenantCounters(TypedDict):
    accepted: int
    refused: int
    rows: int
    in_flight: int
    waiting: int


def tenant_counters(server: Server) -> dict[str, TenantCounters]:
    """Return the counters by the tenant's name; empty while there has been none."""
    return {
        each.name: {
            "accepted": each.results["accepted"],
            "refused": sum(each.results.values()) - each.results["accepted"],
            "rows": each.rows,
            "in_flight": each.in_flight,
            "waiting": each.waiting,
        }
        for each in server.quotas.reports(base(servable) for servable in server.ready_models())
    }


def tenant_rows(
    now: Mapping[str, TenantCounters], before: Mapping[str, TenantCounters] | None, seconds: float
) -> list[dict[str, Any]]:
    """Return rows of the table: rates a second, and the share of all tenants' rows since the reading `before`."""
    table = []
    for name, counts in now.items():
        old = counts if before is None or not seconds else before.get(name)
        accepted, refused, rows = (
            counts[key] - (0 if old is None else old[key]) for key in ("accepted", "refused", "rows")
        )
        table.append((accepted + refused, rows, name, refused))
    total = sum(rows for _, rows, _, _ in table)
    table.sort(key=lambda row: (-row[0], row[2]))
    return [
        {
            "name": name,
            "requests": rate(sent, seconds) if seconds else 0.0,
            "share": round(rows / total, 3) if total else None,
            "waiting": now[name]["waiting"],
            "in_flight": now[name]["in_flight"],
            "refused": rate(refused, seconds) if seconds else 0.0,
            "refused_total": now[name]["refused"],
        }
        for sent, rows, name, refused in table[:MOST_ROWS]
    ]
