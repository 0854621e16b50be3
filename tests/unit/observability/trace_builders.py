"""A tracer that writes at once, and requests for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modserve.core.configuration.trace_settings import TraceLevel, TraceSettings
from modserve.observability.trace import Tracer
from modserve.observability.trace_file import Writer


class AtOnce(Writer):
    """Writes on the caller's thread."""

    def put(self, work: Callable[[], None], size: int = 0) -> bool:
        self._do(work, 0)
        return True


def tracer(path: Path, level: TraceLevel = TraceLevel.TIMESTAMPS, **settings: int) -> Tracer:
    """Its file is `trace.json` in `path`; it traces every request unless it is told otherwise."""
    given: dict[str, Any] = {"rate": 1, **settings}
    return Tracer(TraceSettings(level, file=str(path / "trace.json"), **given), AtOnce())


def files(path: Path) -> dict[str, list[int]]:
    """The ids of the traces in each file, by the name's end."""
    found = {}
    for file in sorted(path.glob("trace.json*")):
        records = json.loads(file.read_bytes())
        found[file.name.removeprefix("trace.json")] = list(dict.fromkeys(record["id"] for record in records))
    return found
