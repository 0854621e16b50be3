"""Snapshots for the console: figures of the last second, from two readings, and the changes since the last snapshot.

A page gets a whole snapshot first, then changes. Models are identified by an opaque key.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from modserve.core.statistics.summary import Sketch
from modserve.core.statistics.time_parts import advice

from .counters import Counters, ModelCounters, RequestCounters, ServerCounters
from .figures import quantiles, rate, recent, sketch_of
from .streams import is_quiet, stream_row
from .tenants import tenant_rows

_AS_READ: Final = ("name", "version", "state", "reason", "load_ms", "engine", "instances", "lost", "memory")
"""Values of a model that are shown unchanged."""
_QUIET: Mapping[str, Any] = {
    "requests": 0.0,
    "failed": 0.0,
    "inferences": 0.0,
    "batches": 0.0,
    "p50": None,
    "p99": None,
    "batch": None,
    "hits": 0.0,
    "misses": 0.0,
    "pending": 0,
    "in_flight": 0,
    "sequences": -1,
    "total": None,
    "failures": {},
    "closed": {},
    "sizes": [],
    "size_bounds": [],
    "since_load": None,
    "parts": None,
    "advice": "",
    "stream": None,
}
"""Figures of an idle model: rates per second, milliseconds, mean batch size, counts since its load."""
_RATES: Final = ("requests", "failed", "batches", "hits", "misses")


class Snapshot:
    """Snapshot of one server. Call `next` once a second, with a reading and its time in seconds."""

    def __init__(self) -> None:
        self._reading: Counters | None = None
        self._models: dict[str, ModelCounters] = {}
        self._read_at = 0.0
        self._rows: dict[str, dict[str, Any]] = {}
        self._server: dict[str, Any] = {}
        self._at_ms = 0
        self._whole = b""
        """Event with the whole snapshot, created on demand."""

    def next(self, reading: Counters, now: float, at_ms: int, workers: Mapping[str, int] | None = None) -> bytes:
        """Return the event with the changes since the last reading.

        `at_ms`: Unix time. `workers`: their number, if there are several.
        """
        seconds = 0.0 if self._reading is None else now - self._read_at
        rows: dict[str, dict[str, Any]] = {}
        changed: dict[str, dict[str, Any]] = {}
        latency = Sketch()
        models = {f"{model['version']}:{model['name']}": model for model in reading["models"]}
        for key, model in models.items():
            before, old = self._models.get(key), self._rows.get(key)
            quiet = old is not None and is_quiet(old["stream"]) and not any(old[name] for name in _RATES)
            if old is not None and quiet and before == model:
                rows[key] = old
                continue
            rows[key] = row = _row(model, None if before is None else before["counts"], seconds, latency, old)
            if old is None:
                changed[key] = row
            elif old != row:
                changed[key] = {name: value for name, value in row.items() if old[name] != value}
        gone = [key for key in self._rows if key not in rows]
        self._server = _server(reading["server"], self._reading, seconds, rows.values(), latency)
        old_tenants = None if self._reading is None else self._reading["tenants"]
        if tenants := tenant_rows(reading["tenants"], old_tenants, seconds):
            self._server["tenants"] = tenants
        if workers is not None:
            self._server["workers"] = dict(workers)
        self._reading, self._models, self._read_at = reading, models, now
        self._rows, self._at_ms, self._whole = rows, at_ms, b""
        return event("changes", {"at": at_ms, "server": self._server, "models": changed, "gone": gone})

    def whole(self) -> bytes:
        """Return the event with the whole snapshot; it stays the same until the next reading."""
        if not self._whole:
            self._whole = event("whole", {"at": self._at_ms, "server": self._server, "models": self._rows})
        return self._whole


def event(name: str, content: object) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(content))


def encode(content: object) -> bytes:
    """Encode as JSON. Lone surrogates, as in undecodable file names, become "?"."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return json.dumps(content, ensure_ascii=False).encode(errors="replace")


def _row(
    model: ModelCounters,
    before: RequestCounters | None,
    seconds: float,
    latency: Sketch,
    old: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the figures of a model, with `old` from a second ago; add its latest requests to `latency`.

    The parts of the time cover the last second with requests; before the first one, the time since the load.
    """
    row: dict[str, Any] = {**{name: model[name] for name in _AS_READ}, **_QUIET}
    counts = model["counts"]
    if counts is None:
        return row
    row["pending"], row["in_flight"], row["sequences"] = counts["pending"], counts["in_flight"], counts["sequences"]
    row["total"] = {name: counts[name] for name in ("success", "inferences", "batches", "restarts", "cache")}
    row["failures"], row["closed"] = counts["failures"], counts["closed"]
    row["sizes"], row["size_bounds"] = counts["sizes"], counts["size_bounds"]
    row["stream"] = stream_row(counts["stream"], None if before is None else before["stream"], seconds)
    row["since_load"] = quantiles(sketch_of(counts["latency"]))
    row["parts"], row["advice"] = _parts(model["name"], counts["times"], counts["success"])
    if before is None or not seconds or _is_other(before, counts):
        return row
    latest = recent(counts["latency"], before["latency"])
    failed = sum(counts["failures"].values()) - sum(before["failures"].values())
    succeeded = counts["success"] - before["success"]
    inferences, batches = counts["inferences"] - before["inferences"], counts["batches"] - before["batches"]
    row["requests"] = rate(succeeded + failed, seconds)
    row["failed"] = rate(failed, seconds)
    row["inferences"], row["batches"] = rate(inferences, seconds), rate(batches, seconds)
    if batches and inferences:  # which are counted when they end
        row["batch"] = round(inferences / batches, 2)
    if counts["cache"] and before["cache"]:
        row["hits"], row["misses"] = (
            rate(now - then, seconds) for now, then in zip(counts["cache"], before["cache"], strict=True)
        )
    row["p50"], row["p99"] = quantiles(latest)
    if succeeded:
        times = [now - then for now, then in zip(counts["times"], before["times"], strict=True)]
        row["parts"], row["advice"] = _parts(model["name"], times, succeeded)
    elif old is not None:
        row["parts"], row["advice"] = old["parts"], old["advice"]
    latency.add(latest)
    return row


def _parts(name: str, times: Sequence[int], requests: int) -> tuple[list[float] | None, str]:
    """Return the parts of a request's mean time in ms, None without requests; and advice on the largest."""
    total, *parts = times
    return [round(ns / requests / 1e6, 4) for ns in parts] if requests else None, advice(name, total, parts)


def _is_other(before: RequestCounters, counts: RequestCounters) -> bool:
    """True if the model was reloaded between the readings, and counts from 0 on."""
    return (
        counts["success"] < before["success"]
        or counts["batches"] < before["batches"]
        or len(counts["cache"]) != len(before["cache"])
    )


def _server(
    reading: ServerCounters,
    before: Counters | None,
    seconds: float,
    rows: Any,
    latency: Sketch,
) -> dict[str, Any]:
    """Return the sums of all models, the quantiles of all their requests, and the process's figures."""
    server: dict[str, Any] = {**reading}
    models = list(rows)
    for name in ("requests", "inferences", "batches", "hits", "misses"):
        server[name] = round(sum(row[name] for row in models), 1)
    server["pending"] = sum(row["pending"] for row in models)
    server["in_flight"] = sum(row["in_flight"] for row in models)
    keepers = [row["sequences"] for row in models if row["sequences"] >= 0]
    server["sequences"] = sum(keepers) if keepers else -1
    server["batch"] = (
        round(server["inferences"] / server["batches"], 2) if server["batches"] and server["inferences"] else None
    )
    server["failed"] = server["cpu"] = 0.0
    if before is not None and seconds:
        server["failed"] = rate(reading["failures"] - before["server"]["failures"], seconds)
        server["cpu"] = round(max(0.0, reading["cpu_s"] - before["server"]["cpu_s"]) / seconds, 3)
    del server["cpu_s"]
    server["p50"], server["p99"] = quantiles(latency)
    return server
