"""A frame of ``modserve top`` and its texts."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..terminal import count, duration, size, table
from .figures import ServerLine, TopRow, TopSnapshot


@dataclass(frozen=True, slots=True)
class Frame:
    """Contents of the screen at one time. `history` has the requests/s of all models, one value per frame."""

    url: str
    snapshot: TopSnapshot
    rows: Sequence[TopRow]
    history: Sequence[float]
    remark: str
    servers: Sequence[ServerLine] = ()
    """Each, where there are several."""


_SHARES: Final = "queue/in/infer/out %"
HEAD = ("model", "version", "state", "req/s", "queue", "batch", "mean", "p50", "p99", _SHARES, "err/s", "errors")
RIGHT = "   rrrrrrrrr"


def cells(row: TopRow) -> tuple[str, ...]:
    """Return the texts of a row."""
    return (
        row.model,
        row.version,
        row.state or "-",
        _number(row.per_second),
        "-" if row.waiting < 0 else count(row.waiting),
        "-" if row.batch < 0 else f"{row.batch:.1f}",
        *("-" if each < 0 else duration(each) for each in (row.mean, row.p50, row.p99)),
        "/".join(map(str, row.shares)) or "-",
        _number(row.errors_per_second),
        count(row.errors),
    )


SERVER_HEAD = ("server", "state", *HEAD[3:])
SERVER_RIGHT = RIGHT[1:]


def server_cells(line: ServerLine) -> tuple[str, ...]:
    """Return the texts of a server's row."""
    figures = ("-",) * (len(SERVER_HEAD) - 2) if line.figures is None else cells(line.figures)[3:]
    return (line.url, line.state, *figures)


def _number(value: float) -> str:
    if value < 0:
        return "-"
    return count(value) if value >= 100 or value == 0 else f"{value:.1f}"


_DRAIN: Final = {1: "draining", 2: "stopping", 3: "stopping", 4: "drained"}


def summary(frame: Frame) -> str:
    """Return a line on the server as a whole."""
    snapshot = frame.snapshot
    parts = [frame.url]
    if snapshot.ready is not None:
        parts.append("ready" if snapshot.ready else _DRAIN.get(snapshot.drain_phase, "not ready"))
    if frame.history:
        parts.append(f"{_number(frame.history[-1])} requests/s")
    for value, text in ((snapshot.in_flight, "in flight"), (snapshot.connections, "connections")):
        if value >= 0:
            parts.append(f"{count(value)} {text.removesuffix('s') if value == 1 else text}")
    if snapshot.memory >= 0:
        parts.append(f"{size(snapshot.memory)} resident")
    return ", ".join(parts)


def advice_line(frame: Frame) -> str:
    """Return advice on the slowest model; empty if there is none."""
    slowest = max(frame.rows, key=lambda row: row.mean, default=None)
    return f"{slowest.model}: {slowest.advice}" if slowest is not None and slowest.advice else ""


def text_lines(frame: Frame) -> Iterator[str]:
    """Yield a frame in lines."""
    yield f"{time.strftime('%H:%M:%S')} {summary(frame)}"
    if frame.remark:
        yield frame.remark
    if frame.servers:
        yield from table(SERVER_HEAD, [server_cells(line) for line in frame.servers], SERVER_RIGHT)
        yield ""
    if frame.rows:
        yield from table(HEAD, [cells(row) for row in frame.rows], RIGHT)
    if advice := advice_line(frame):
        yield advice
    yield ""
