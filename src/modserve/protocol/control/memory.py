"""Response of ``GET /v2/memory``, an extension of ours."""

from collections.abc import Iterable

from modserve.core.residency import MemoryReport, residency
from modserve.core.servable import Servable
from modserve.protocol.json.json_text import JsonObject


def json(total: MemoryReport, servables: Iterable[Servable]) -> JsonObject:
    """Return the memory report: sizes in bytes, times in milliseconds. Only models loaded on demand are listed."""
    return {
        "limit": total.limit,
        "held": total.held,
        "models": [
            {
                "name": each.id.name,
                "version": str(each.id.version),
                "state": report.presence.value,
                "resident": report.resident,
                "size": report.size,
                "files": report.files,
                "pinned": report.pinned,
                "waiting": report.waiting,
                "loads": report.loads,
                "failed_loads": report.failed_loads,
                "evictions": report.evictions,
                "load_ms": report.load_ns // 1_000_000,
                "waited_ms": report.waited_ns // 1_000_000,
                **({"problem": report.problem} if report.problem else {}),
            }
            for each in servables
            if (report := residency(each)) is not None
        ],
    }
