"""The status of a server as text and as JSON."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .remote_server import advice_on
from .server_status import IndexRow, ServerStatus
from .terminal import COLOURS, PLAIN, count, duration, indented, pairs


def lines(status: ServerStatus, url: str, *, colours: bool = False) -> Iterator[str]:
    """The status as text."""
    word = "ready" if status.health.ready else "not ready"
    if colours:
        word = f"{COLOURS['READY' if status.health.ready else 'UNAVAILABLE']}{word}{PLAIN}"
    phase = f" ({status.health.phase})" if status.health.phase and not status.health.ready else ""
    yield f"{url}: {' '.join(filter(None, (status.name, status.version)))}, {word}{phase}"
    yield ""
    yield from pairs(list(_rows(status)))
    for row in status.health.reasons or troubled(status):
        yield ""
        yield f"{row.model} {row.version or '-'} is {row.state or 'not loaded'}"
        yield from indented(row.reason)
    for text in status.unknown:
        yield f"\nnot shown: {text}{hint(text)}"


def _rows(status: ServerStatus) -> Iterator[tuple[str, str]]:
    states = Counter(row.state or "not loaded" for row in status.versions)
    models = len({row.model for row in status.versions})
    listed = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    yield "models", f"{models}, versions: {listed or 'none'}" if status.has_index else "-"
    used = status.usage.values()
    requests, failures = sum(each.requests for each in used), sum(each.failures for each in used)
    executions = sum(each.executions for each in used)
    yield "requests", f"{count(requests)} succeeded, {count(failures)} failed" if status.has_usage else "-"
    if executions:
        yield "batches", f"{count(executions)}, of {sum(each.inferences for each in used) / executions:.1f} on average"
    if requests:
        mean, queue = (sum(times) / requests for times in _times(status))
        yield "mean time", f"{duration(mean)}, of which {duration(queue)} in queues"


def _times(status: ServerStatus) -> tuple[list[float], list[float]]:
    used = status.usage.values()
    return [each.seconds for each in used], [each.queue_seconds for each in used]


def hint(text: str) -> str:
    """What helps against a refusal, after its text; empty if nothing is known."""
    advice = advice_on(text)
    return f" ({advice})" if advice else ""


def troubled(status: ServerStatus) -> list[IndexRow]:
    """What has a reason to tell, if the server does not say what is in the way."""
    return [row for row in status.versions if row.state != "READY" and row.reason not in ("", "unloaded")]


def document(status: ServerStatus, url: str) -> dict[str, Any]:
    """For programs. Names stay; more may be added."""
    used = status.usage.values()
    return {
        "url": url,
        "name": status.name,
        "version": status.version,
        "ready": status.health.ready,
        "phase": status.health.phase,
        "reasons": [as_json(row) for row in status.health.reasons],
        "versions": dict(Counter(row.state or "not loaded" for row in status.versions)),
        "requests": sum(each.requests for each in used),
        "failures": sum(each.failures for each in used),
        "left_out": list(status.unknown),
    }


def as_json(row: IndexRow) -> dict[str, str]:
    return {"model": row.model, "version": row.version, "state": row.state, "reason": row.reason}
