"""Reports about the server itself, as a status and a document: for probes, and at its drain."""

from typing import Any, Final, TypeAlias

from modserve.core.lifecycle import IndexEntry
from modserve.server import DrainPhase, Server

Report: TypeAlias = tuple[int, dict[str, Any]]


def phase(server: Server) -> str:
    """Return the phase of the server's life, or of its drain."""
    drain = server.drain_phase
    return server.phase.value if drain is DrainPhase.SERVING or not server.leaving else _DRAIN[drain]


def exiting(server: Server) -> Report | None:
    """Return the report of a server that stops; None while it does not."""
    return (503, {"error": "Server exiting", "phase": phase(server)}) if server.leaving else None


async def live(server: Server) -> Report:
    """Report for ``/v2/health/live``. While load balancers still turn away from it, the server lives."""
    report = exiting(server) if server.retiring or not server.live else None
    return report or (200, {"live": True})


async def ready(server: Server) -> Report:
    """Report for ``/v2/health/ready``."""
    readiness = await server.readiness()
    if readiness.ready:
        return 200, {"ready": True}
    reasons = [_reason(entry) for entry in readiness.reasons]
    return exiting(server) or (400, {"ready": False, "phase": server.phase.value, "reasons": reasons})


async def health(server: Server) -> Report:
    """Report for ``/health``, the path of tools for vLLM, TEI and llama.cpp: like `ready`, but 503 when not ready."""
    status, content = await ready(server)
    return (200 if status == 200 else 503), content


_DRAIN: Final = {DrainPhase.NOTICE: "draining", DrainPhase.DRAINED: "drained"} | dict.fromkeys(
    (DrainPhase.SERVING, DrainPhase.CLOSING, DrainPhase.FINISHING), "stopping"
)


async def drain(server: Server) -> Report:
    """Report for ``/v2/health/drain``: when the server is drained, or its time for that is over."""
    report = await server.drain()
    seconds = round(report.seconds, 3)
    return 200, {"drained": report.drained, "in_flight": dict(report.in_flight), "seconds": seconds}


def _reason(entry: IndexEntry) -> dict[str, str]:
    version = "" if entry.version is None else str(entry.version)
    return {"name": entry.name, "version": version, "state": entry.state.value, "reason": entry.reason}
