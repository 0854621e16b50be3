"""The status of several servers: a row for each, and their sums."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from . import status_report
from .server_set import Outcome, failure_text, failure_verb
from .status_report import ServerStatus, VersionUsage, find_troubled, hint
from .terminal import count, duration, indent_lines, plural, table

_HEAD = ("server", "state", "versions", "requests", "failed", "mean")


def all_ready(servers: Sequence[Outcome[ServerStatus]]) -> bool:
    return all(each.error is None and each.value.health.ready for each in servers)


def lines(servers: Sequence[Outcome[ServerStatus]], *, colours: bool = False) -> Iterator[str]:
    """Yield the table, and below it the obstacles of each server that is not ready."""
    reached = [each.value for each in servers if each.error is None]
    rows = [_row(each) for each in servers]
    ready = sum(each.health.ready for each in reached)
    total = _total([usage for each in reached for usage in each.usage.values()])
    states = Counter(row.state or "not loaded" for each in reached for row in each.versions)
    rows.append((plural(len(servers), "server"), f"{ready} ready", _states(states), *_figures(total)))
    yield from table(_HEAD, rows, "   rrr", colours=colours)
    for each in servers:
        if each.error is not None:
            yield f"\n{each.url} {failure_verb(each.error)}:"
            yield from indent_lines(failure_text(each.error, each.url))
            continue
        for row in each.value.health.reasons or find_troubled(each.value):
            yield f"\n{each.url}: {row.model} {row.version or '-'} is {row.state or 'not loaded'}"
            yield from indent_lines(row.reason)
        yield from (f"\n{each.url}: not shown: {text}{hint(text)}" for text in each.value.unknown)


def _row(each: Outcome[ServerStatus]) -> tuple[str, ...]:
    if each.error is not None:
        return (each.url, "no response", *("-" * (len(_HEAD) - 2)))
    ready = each.value.health.ready
    states = Counter(row.state or "not loaded" for row in each.value.versions)
    used = list(each.value.usage.values())
    figures = _figures(_total(used)) if used else ("-",) * 3
    word = "ready" if ready else each.value.health.phase or "not ready"
    return (each.url, word, _states(states) if each.value.has_index else "-", *figures)


def _states(states: Counter[str]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"


def _total(used: Sequence[VersionUsage]) -> VersionUsage:
    total = VersionUsage()
    for each in used:
        total = total.plus(each)
    return total


def _figures(total: VersionUsage) -> tuple[str, str, str]:
    mean = duration(total.seconds / total.requests) if total.requests else "-"
    return count(total.requests), count(total.failures), mean


def document(servers: Sequence[Outcome[ServerStatus]]) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
    rows = [
        {"url": each.url, "error": each.error.message}
        if each.error is not None
        else status_report.document(each.value, each.url)
        for each in servers
    ]
    sums = {name: sum(int(row.get(name, 0)) for row in rows) for name in ("requests", "failures")}
    return {"ready": all_ready(servers), **sums, "servers": rows}
