"""What the server's own probes are told, as a status and a document."""

from typing import Any, TypeAlias

from modserve.core.lifecycle import IndexEntry
from modserve.server import Server

Report: TypeAlias = tuple[int, dict[str, Any]]


def exiting(server: Server) -> Report | None:
    """The report of a server that stops; None while it does not."""
    return (503, {"error": "Server exiting"}) if server.leaving else None


async def live(server: Server) -> Report:
    """For ``/v2/health/live``."""
    return exiting(server) or (200, {"live": True})


async def ready(server: Server) -> Report:
    """For ``/v2/health/ready``."""
    readiness = await server.readiness()
    if readiness.ready:
        return 200, {"ready": True}
    reasons = [_reason(entry) for entry in readiness.reasons]
    return exiting(server) or (400, {"ready": False, "phase": server.phase.value, "reasons": reasons})


def _reason(entry: IndexEntry) -> dict[str, str]:
    version = "" if entry.version is None else str(entry.version)
    return {"name": entry.name, "version": version, "state": entry.state.value, "reason": entry.reason}
