"""What was measured, as tables, as JSON and as a picture."""

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from curve_chart import Curves, draw

from .dialects import WAYS
from .loads import Window, median
from .models import DESCRIPTIONS, THREADS

Cell = tuple[str, str, int]
"""Model, way and connections."""


@dataclass(frozen=True)
class Server:
    """What a server costs as a whole."""

    key: str
    name: str
    start_seconds: float
    ready_mb: float
    after_mb: float
    shared_once_mb: float
    idle_cpu: float

    def costs(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name not in ("key", "name")}


@dataclass
class Results:
    connections: Sequence[int]
    servers: list[Server] = field(default_factory=list)
    windows: dict[Cell, dict[str, list[Window]]] = field(default_factory=dict)
    """By cell, and by the server's name."""
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""

    def cells(self, model: str, way: str) -> list[Cell]:
        return [cell for cell in self.windows if cell[:2] == (model, way)]

    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _, _ in self.windows))

    def ways(self, model: str) -> list[str]:
        return [way for way in WAYS.values() if self.cells(model, way)]


def text(results: Results, engine: str, cores: int, window: str) -> str:
    """The whole report: all latencies at all loads, and the ratios."""
    lines = [_conditions(engine, cores, window)]
    for model in results.models():
        for way in results.ways(model):
            lines += ["", f"`{model}` ({DESCRIPTIONS[model]}), {way}:", "", *_way_table(results, model, way)]
    lines += ["", *_server_table(results)]
    if ratios := _ratio_tables(results):
        lines += ["", *ratios]
    return "\n".join([*lines, *_notes(results)])


def summary(results: Results, engine: str, cores: int, window: str) -> str:
    """The part of the report that benchmarks/results/tables.md shows: one table for each model."""
    loads = sorted({connections for _, _, connections in results.windows})
    middle = loads[len(loads) // 2]
    lines = [
        _conditions(engine, cores, window),
        "",
        f"Each cell has the requests/s and the p99 in ms at {middle} connections, and the CPU time per request in µs "
        f"at {', '.join(map(str, loads))} connections.",
    ]
    for model in results.models():
        lines += ["", f"`{model}` ({DESCRIPTIONS[model]}):", "", *_model_table(results, model, middle)]
    return "\n".join([*lines, "", *_server_table(results), *_notes(results)])


def _conditions(engine: str, cores: int, window: str) -> str:
    return (
        f"{cores} cores, {platform.machine()}, Python {platform.python_version()}; {engine} with {THREADS} thread in "
        f"every server; clients and servers share the cores. Medians of {window}. CPU is the CPU time per request of "
        "all processes of the server."
    )


def _notes(results: Results) -> list[str]:
    return ["", "Not measured:", "", *(f"- {note}" for note in results.notes)] if results.notes else []


def _model_table(results: Results, model: str, middle: int) -> list[str]:
    ways = results.ways(model)
    lines = [f"| server | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
    for server in results.servers:
        columns = []
        for way in ways:
            cells = results.cells(model, way)
            loads = {cell[2]: median(each) for cell in cells if (each := results.windows[cell].get(server.name))}
            columns.append(_cell(loads, middle))
        lines.append(f"| {server.name} | {' | '.join(columns)} |")
    return lines


def _cell(loads: Mapping[int, Window], middle: int) -> str:
    if middle not in loads:
        return "-"
    rate, times, _ = figures(loads[middle])
    p99 = times.split(", ")[1]
    cpu = ", ".join(f"{load.cpu_us:,.0f}" for load in loads.values())
    return f"{rate}<br>{p99}<br>{cpu}"


def _way_table(results: Results, model: str, way: str) -> list[str]:
    cells = results.cells(model, way)
    head = " | ".join(f"{count}: requests/s | p50, p99, p99.9 in ms | CPU" for _, _, count in cells)
    lines = [f"| server, connections | {head} |", "|---" * (3 * len(cells) + 1) + "|"]
    names = list(dict.fromkeys(name for cell in cells for name in results.windows[cell]))
    for name in names:
        columns = []
        for cell in cells:
            windows = results.windows[cell].get(name)
            columns.append(" | ".join(figures(median(windows))) if windows else "- | - | -")
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


def figures(window: Window) -> tuple[str, str, str]:
    """Rate, latencies and CPU. A percentile is left out where less than ten requests were above it."""
    rate = f"{window.per_second:,.0f}" if window.per_second >= 100 else f"{window.per_second:.1f}"
    if window.errors:
        rate += f" ({window.errors:,} of {window.count:,} failed)"
    shares = ((0.5, window.p50_us), (0.99, window.p99_us), (0.999, window.p999_us))
    times = [f"{us / 1e3:.3g}" if window.count * (1 - share) >= 9.99 else "-" for share, us in shares]
    return rate, ", ".join(times), f"{window.cpu_us:,.0f} µs"


def _server_table(results: Results) -> list[str]:
    lines = [
        "| server | start to the first responses | resident when ready | after the load | the same, shared pages once "
        "| CPU without requests |",
        "|---|---|---|---|---|---|",
    ]
    for each in results.servers:
        lines.append(
            f"| {each.name} | {each.start_seconds:.2f} s | {each.ready_mb:,.0f} MB | {each.after_mb:,.0f} MB "
            f"| {each.shared_once_mb:,.0f} MB | {each.idle_cpu:.1%} of a core |"
        )
    return lines


def _ratio_tables(results: Results) -> list[str]:
    """The figures of modserve, with one process and with workers, over those of each other server, window by window.

    Nothing if there is no other.
    """
    names = [server.name for server in results.servers]
    if len(names) < 2:
        return []
    others = [name for name in names if not name.startswith("modserve")]
    if not others:
        return _ratio_table(results, names[0], names[1:])
    workers = [name for name in names if name.startswith("modserve") and name.endswith(" workers")]
    tables = [_ratio_table(results, mine, others) for mine in dict.fromkeys([best_form(names), *workers])]
    return [line for table in tables for line in ("", *table)][1:]


def _ratio_table(results: Results, mine: str, others: Sequence[str]) -> list[str]:
    lines = [
        f"{mine} / others, medians of the windows' ratios: requests/s, CPU a request, p99.",
        "",
        "| | | connections | " + " | ".join(others) + " |",
        "|---" * (len(others) + 3) + "|",
    ]
    for cell, by_name in results.windows.items():
        if mine not in by_name:
            continue
        columns = [_ratios(by_name[mine], by_name.get(other, ())) for other in others]
        if any(column != "-" for column in columns):
            lines.append(f"| {cell[0]} | {cell[1]} | {cell[2]} | {' | '.join(columns)} |")
    return lines


def best_form(names: Sequence[str]) -> str:
    """Of the servers: modserve compiled, if it is there."""
    return next((name for name in names if name == "modserve compiled"), names[0])


def _ratios(mine: Sequence[Window], theirs: Sequence[Window]) -> str:
    pairs = [pair for pair in zip(mine, theirs, strict=False) if all(each.cpu_us and each.per_second for each in pair)]
    if not pairs:
        return "-"
    rate = statistics.median(own.per_second / other.per_second for own, other in pairs)
    cpu = statistics.median(own.cpu_us / other.cpu_us for own, other in pairs)
    p99 = statistics.median(own.p99_us / max(1.0, other.p99_us) for own, other in pairs)
    return f"{rate:.3g}, {cpu:.2g}, {p99:.2g}"


def figures_json(results: Results, engine: str, cores: int) -> dict[str, object]:
    return {
        "cores": cores,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "engine": engine,
        "servers": [{"name": server.name, "key": server.key, **_rounded(server.costs())} for server in results.servers],
        "cells": [
            {
                "model": model,
                "way": way,
                "connections": connections,
                "server": name,
                **_rounded(asdict(median(windows))),
                "windows": [_rounded(asdict(window)) for window in windows],
            }
            for (model, way, connections), by_name in results.windows.items()
            for name, windows in by_name.items()
            if windows
        ],
        "not_measured": results.notes,
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def picture(results: Results) -> str:
    """Latency (p99) against throughput: a row for each model, a panel for each way, a point for each load.

    A load with fewer than 100 requests has no point.
    """
    names = [server.name for server in results.servers]

    def panel(model: str, way: str) -> Curves:
        series = {}
        for name in names:
            windows = (results.windows[cell].get(name) for cell in results.cells(model, way))
            loads = [median(each) for each in windows if each]
            points = [(each.per_second, each.p99_us / 1e3) for each in loads if each.per_second and each.count >= 100]
            if points:
                series[name] = points
        return Curves(f"{model}, {way}", series)

    rows = [[panel(model, way) for way in results.ways(model)] for model in results.models()]
    counts = ", ".join(map(str, results.connections))
    return draw(rows, f"requests/s with {counts} connections", "p99 in ms")
