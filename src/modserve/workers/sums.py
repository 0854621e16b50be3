"""Combines the answers of several workers: repository index, failures, drain."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.server import DrainReport


def index(answers: Mapping[int, Iterable[IndexEntry]], noun: str = "worker") -> list[IndexEntry]:
    """Return every model version with its state: READY if it is READY on all workers, otherwise the state of one of
    them.

    If the states differ, the reason names that worker.
    """
    rows: dict[tuple[str, int], list[tuple[int, IndexEntry]]] = {}
    for worker, entries in sorted(answers.items()):
        for entry in entries:
            rows.setdefault((entry.name, entry.version or 0), []).append((worker, entry))
    return [_of_all(rows[key], noun) for key in sorted(rows)]


def _of_all(entries: Sequence[tuple[int, IndexEntry]], noun: str) -> IndexEntry:
    if len({entry.state for _, entry in entries}) == 1:
        return entries[0][1]
    worker, entry = next((worker, entry) for worker, entry in entries if entry.state is not LifecycleState.READY)
    never_loaded = entry.version is None and entry.state is LifecycleState.UNKNOWN
    reason = entry.reason or ("not loaded" if never_loaded else entry.state.value)
    return replace(entry, reason=f"{noun} {worker}: {reason}")


def failures(lists: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the failures recorded by all workers, latest first, with identical failures combined."""
    by_texts: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in sorted((each for failures in lists for each in failures), key=lambda each: int(each["last_ms"])):
        texts = tuple(one[name] for name in ("protocol", "model", "version", "status", "message"))
        before = by_texts.pop(texts, None)
        if before is not None:
            first_ms = min(before["first_ms"], one["first_ms"])
            one = {**one, "count": before["count"] + one["count"], "first_ms": first_ms}
        by_texts[texts] = one
    return list(reversed(by_texts.values()))


def drain(reports: Sequence[DrainReport]) -> DrainReport:
    """Return the report on the drain of all workers."""
    left: Counter[str] = Counter()
    for report in reports:
        left.update(report.in_flight)
    return DrainReport(all(each.drained for each in reports), dict(left), max(each.seconds for each in reports))
