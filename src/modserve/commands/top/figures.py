"""Figures of ``modserve top``, computed from a server's metrics page or statistics.

A `TopSnapshot` has the counters at one time. Two snapshots, some seconds apart, give rates and recent latencies.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modserve.commands.status_report import VersionUsage
from modserve.core.statistics.summary import FINE_FAMILY, LONGEST_FAMILY, Sketch
from modserve.core.statistics.time_parts import PARTS, advice

Key = tuple[str, str]
"""Model and version."""


@dataclass(slots=True)
class ModelCounts:
    """Counts of a model version. `waiting` is -1 and `durations` empty if the server does not report them."""

    requests: float = 0
    failures: float = 0
    inferences: float = 0
    executions: float = 0
    seconds: float = 0
    queue: float = 0
    """Part of `seconds`, like the next three."""
    input: float = 0
    infer: float = 0
    output: float = 0
    waiting: float = -1
    state: str = ""
    durations: Sketch = field(default_factory=Sketch)
    """Durations of successful requests."""


@dataclass(slots=True)
class TopSnapshot:
    """Snapshot of a server's counts. `at` is in monotonic seconds."""

    at: float
    models: dict[Key, ModelCounts] = field(default_factory=lambda: defaultdict(ModelCounts))
    in_flight: float = -1
    connections: float = -1
    memory: float = -1
    ready: bool | None = None
    drain_phase: int = 0
    """Drain phase from the server's metrics; 0 in service."""


_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_COUNTERS = {
    "nv_inference_request_success": ("requests", 1),
    "nv_inference_request_failure": ("failures", 1),
    "nv_inference_count": ("inferences", 1),
    "nv_inference_exec_count": ("executions", 1),
    "nv_inference_request_duration_us": ("seconds", 1e6),
    "nv_inference_queue_duration_us": ("queue", 1e6),
    "nv_inference_compute_input_duration_us": ("input", 1e6),
    "nv_inference_compute_infer_duration_us": ("infer", 1e6),
    "nv_inference_compute_output_duration_us": ("output", 1e6),
}
"""Metric family → the field of `ModelCounts` that it adds to, and the divisor for its unit."""
_SUMS = [name for name, _ in _COUNTERS.values()]


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the samples of a page in Prometheus' text format, as name, labels and value."""
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is None or line.startswith("#"):
            continue
        labels = {name: re.sub(r"\\(.)", r"\1", text) for name, text in _LABEL.findall(match[2] or "")}
        try:
            yield match[1], labels, float(match[3])
        except ValueError:
            continue


def from_metrics(page: str, at: float) -> TopSnapshot:
    """Read a metrics page of modserve or Triton, which has fewer metrics."""
    snapshot, longest = TopSnapshot(at), dict[Key, int]()
    for name, labels, value in samples(page):
        key = labels.get("model", ""), labels.get("version", "")
        if name in _COUNTERS:
            counts, (attribute, unit) = snapshot.models[key], _COUNTERS[name]
            setattr(counts, attribute, getattr(counts, attribute) + value / unit)
        elif name == "nv_inference_pending_request_count":
            snapshot.models[key].waiting = value
        elif name == FINE_FAMILY:
            snapshot.models[key].durations.observe(round(float(labels["seconds"]) * 1e9), int(value))
        elif name == LONGEST_FAMILY:
            longest[key] = round(value * 1e9)
        elif name == "modserve_model_state" and key[1]:
            snapshot.models[key].state = labels["state"]
        elif name == "modserve_requests_in_flight":
            snapshot.in_flight = max(0, snapshot.in_flight) + value
        elif name == "modserve_connections":
            snapshot.connections = max(0, snapshot.connections) + value
        elif name == "modserve_ready":
            snapshot.ready = value == 1
        elif name == "modserve_drain_phase":
            snapshot.drain_phase = int(value)
        elif name == "process_resident_memory_bytes":
            snapshot.memory = value
    for key, ns in longest.items():  # after the counts, which set the longest to the middle of a bucket
        snapshot.models[key].durations.longest = ns
    return snapshot


def from_statistics(used: Mapping[Key, VersionUsage], at: float) -> TopSnapshot:
    """Read the protocol's statistics, which lack queue lengths and percentiles."""
    snapshot = TopSnapshot(at)
    for key, each in used.items():
        counts = ModelCounts(each.requests, each.failures, each.inferences, each.executions, each.seconds)
        counts.queue, counts.input, counts.infer, counts.output = (ns / 1e9 for ns in each.parts_ns)
        snapshot.models[key] = counts
    return snapshot


@dataclass(frozen=True, slots=True)
class TopRow:
    """Displayed figures of a model version. Numbers are -1 if unknown. Times are in seconds.

    `shares` are the shares of `PARTS` in the requests' time, in percent; empty without requests.
    """

    model: str
    version: str
    state: str
    per_second: float
    waiting: float
    batch: float
    mean: float
    p50: float
    p99: float
    shares: Sequence[int]
    errors_per_second: float
    errors: float
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a version since the last snapshot and over the whole window. Rates are -1 if unknown."""

    state: str
    per_second: float
    errors_per_second: float
    waiting: float
    errors: float
    window: ModelCounts


def activities(snapshots: Sequence[TopSnapshot]) -> dict[Key, Activity]:
    """Return the activities at the last snapshot: rates since the previous one, counts since the first."""
    last = snapshots[-1]
    before = snapshots[-2] if len(snapshots) > 1 else last
    return {key: _activity(key, last, before, snapshots[0]) for key in last.models}


def _activity(key: Key, last: TopSnapshot, before: TopSnapshot, first: TopSnapshot) -> Activity:
    now = last.models[key]
    was, old = (_earlier(key, snapshot, now) for snapshot in (before, first))
    span = max(last.at - before.at, 1e-9)
    window = ModelCounts(
        **{name: getattr(now, name) - getattr(old, name) for name in _SUMS},
        durations=now.durations.since(old.durations),
    )
    is_first = last is before
    return Activity(
        now.state,
        -1 if is_first else (now.requests - was.requests) / span,
        -1 if is_first else (now.failures - was.failures) / span,
        now.waiting,
        now.failures,
        window,
    )


def total(parts: Sequence[Activity]) -> Activity:
    """Return the total of several servers or versions."""
    window = ModelCounts()
    for part in parts:
        for name in _SUMS:
            setattr(window, name, getattr(window, name) + getattr(part.window, name))
        window.durations.add(part.window.durations)
    states = Counter(part.state for part in parts)
    return Activity(
        next(iter(states), "") if len(states) < 2 else f"{states['READY']} of {len(parts)} READY",
        _sum_known([part.per_second for part in parts]),
        _sum_known([part.errors_per_second for part in parts]),
        _sum_known([part.waiting for part in parts]),
        sum(part.errors for part in parts),
        window,
    )


def _sum_known(values: Sequence[float]) -> float:
    """Return the sum of the known values; -1 if there are none."""
    known = [value for value in values if value >= 0]
    return sum(known) if known else -1


def rows(snapshots: Sequence[TopSnapshot]) -> list[TopRow]:
    """Return the last snapshot's rows, busiest model first: rates since the previous one, times since the first."""
    return sort_rows(activities(snapshots))


def sort_rows(activities: Mapping[Key, Activity]) -> list[TopRow]:
    """Return the rows, busiest model first."""
    made = [_row(key, activity) for key, activity in activities.items()]
    return sorted(made, key=lambda row: (-row.per_second, row.model, row.version))


def _row(key: Key, activity: Activity) -> TopRow:
    window = activity.window
    parts = [getattr(window, part) for part in PARTS]
    return TopRow(
        *key,
        activity.state,
        activity.per_second,
        activity.waiting,
        window.inferences / window.executions if window.executions > 0 else -1,
        window.seconds / window.requests if window.requests > 0 else -1,
        quantile(window.durations, 0.5),
        quantile(window.durations, 0.99),
        [round(100 * part / window.seconds) for part in parts] if window.seconds > 0 else (),
        activity.errors_per_second,
        activity.errors,
        advice(key[0], window.seconds, parts),
    )


@dataclass(frozen=True, slots=True)
class ServerLine:
    """Line of one of several servers: its state as text, and the total figures of its models."""

    url: str
    state: str
    figures: TopRow | None = None


def server_line(url: str, trouble: str, last: TopSnapshot | None, own: Mapping[Key, Activity]) -> ServerLine:
    """Return the line of a server. `trouble` is the reason for missing figures."""
    if trouble or last is None:
        return ServerLine(url, trouble or "no response")
    state = "-" if last.ready is None else "ready" if last.ready else "not ready"
    return ServerLine(url, state, _row((url, ""), total(list(own.values()))))


def sum_line(title: str, state: str, models: Iterable[Sequence[Activity]]) -> ServerLine:
    """Return the line with the total of all servers."""
    return ServerLine(title, state, _row((title, ""), total([part for parts in models for part in parts])))


def _earlier(key: Key, snapshot: TopSnapshot, now: ModelCounts) -> ModelCounts:
    """Return the counts in an earlier snapshot; zeros if the model was reloaded since."""
    counts = snapshot.models.get(key)
    return ModelCounts() if counts is None or counts.requests > now.requests else counts


def quantile(durations: Sketch, share: float) -> float:
    """Return a quantile in seconds; -1 without durations."""
    return durations.quantile(share) / 1e9 if durations.counts else -1
