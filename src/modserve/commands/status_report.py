"""The status of a server as text and as JSON.

The state and statistics of a running server and its models, from calls of the protocol.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modserve.client.transport import ENGINE, HEALTH, INDEX, SERVER, STATISTICS
from modserve.core.servable import engine_title

from .errors import RefusedError
from .remote_server import RemoteServer, advice_on
from .terminal import COLOURS, PLAIN, count, duration, indent_lines, pairs


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row of the repository index. `version` is empty for a model without one, `state` for one never loaded."""

    model: str
    version: str
    state: str
    reason: str

    @property
    def key(self) -> tuple[str, str]:
        return self.model, self.version


@dataclass(frozen=True, slots=True)
class VersionUsage:
    """The statistics of a model version since it was loaded. Times are sums over all requests."""

    requests: int = 0
    inferences: int = 0
    executions: int = 0
    failures: int = 0
    cache_hits: int = 0
    total_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    last_ms: int = 0
    """Time of the last request, in milliseconds since the epoch; 0: never."""

    @property
    def seconds(self) -> float:
        return self.total_ns / 1e9

    @property
    def queue_seconds(self) -> float:
        return self.queue_ns / 1e9

    @property
    def parts_ns(self) -> list[int]:
        """The parts of `total_ns`, as `PARTS` names them."""
        return [self.queue_ns, self.input_ns, self.infer_ns, self.output_ns]

    def since(self, before: "VersionUsage") -> "VersionUsage":
        return VersionUsage(*(getattr(self, name) - getattr(before, name) for name in _COUNTS))

    def plus(self, other: "VersionUsage") -> "VersionUsage":
        return VersionUsage(*(getattr(self, name) + getattr(other, name) for name in _COUNTS))

    def mean_ms(self, part: str) -> float:
        """Return the mean time per request in ms, for ``total``, ``queue``, ``input``, ``infer`` and ``output``."""
        total: int = getattr(self, f"{part}_ns")
        return total / self.requests / 1e6 if self.requests else 0.0


_COUNTS = tuple(name for name in VersionUsage.__dataclass_fields__ if name != "last_ms")


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a server. `reasons` are the versions that are not ready, if the server reports them."""

    ready: bool
    phase: str = ""
    reasons: Sequence[IndexRow] = ()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Status of a server. `unknown` are its refusals of calls. Without index or usage, there are no numbers."""

    name: str
    version: str
    health: Health
    versions: Sequence[IndexRow]
    usage: Mapping[tuple[str, str], VersionUsage] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    has_index: bool = True
    has_usage: bool = True


def server_status(server: RemoteServer) -> ServerStatus:
    """Read a server's status, without the restricted parts. Raises UnreachableError."""
    unknown: list[str] = []
    row = _or_refused(lambda: server.call(SERVER), {}, unknown)
    versions = _or_refused(lambda: index(server), None, unknown)
    used = _or_refused(lambda: usage(server), None, unknown)
    name, version = row.get("name", "a server"), row.get("version", "")
    texts = tuple(dict.fromkeys(unknown))
    known = versions is not None, used is not None
    return ServerStatus(str(name), str(version), health(server), versions or [], used or {}, texts, *known)


def _or_refused(call: Any, otherwise: Any, unknown: list[str]) -> Any:
    try:
        return call()
    except RefusedError as error:
        unknown.append(error.message)
        return otherwise


def health(server: RemoteServer) -> Health:
    """Return the server's readiness for inference, and the obstacles."""
    body = server.call(HEALTH)
    return Health(bool(body.get("ready")), str(body.get("phase", "")), [_row(row) for row in body.get("reasons", ())])


def index(server: RemoteServer) -> list[IndexRow]:
    """Return every model version, in any state."""
    return [_row(row) for row in server.call(INDEX)]


def _row(row: Mapping[str, Any]) -> IndexRow:
    return IndexRow(*(str(row.get(name, "")) for name in ("name", "version", "state", "reason")))


def usage(server: RemoteServer, model: str = "", version: int | None = None) -> dict[tuple[str, str], VersionUsage]:
    """Return the usage by model and version; that of all models without a name."""
    document = server.call(STATISTICS, model, version)
    rows = document.get("model_stats", ()) if isinstance(document, dict) else ()
    return {(row["name"], row.get("version", "")): _usage(row) for row in rows}


def _usage(row: Mapping[str, Any]) -> VersionUsage:
    stats = row.get("inference_stats", {})

    def part(name: str, field: str) -> int:
        return int(stats.get(name, {}).get(field, 0))

    return VersionUsage(
        part("success", "count"),
        int(row.get("inference_count", 0)),
        int(row.get("execution_count", 0)),
        part("fail", "count"),
        part("cache_hit", "count"),
        part("success", "ns"),
        part("queue", "ns"),
        part("compute_input", "ns"),
        part("compute_infer", "ns"),
        part("compute_output", "ns"),
        int(row.get("last_inference", 0)),
    )


def engine(server: RemoteServer, row: IndexRow) -> tuple[str, str]:
    """Return the engine of a version, and why it was chosen if it was, in words; empty if the server does not tell.

    gRPC has no such call.
    """
    try:
        body = server.call(ENGINE, row.model, int(row.version))
    except RefusedError:
        return "", ""
    return (engine_title(body), str(body.get("reason") or "")) if isinstance(body, dict) else ("", "")


def lines(status: ServerStatus, url: str, *, colours: bool = False) -> Iterator[str]:
    """Yield the status as text."""
    word = "ready" if status.health.ready else "not ready"
    if colours:
        word = f"{COLOURS['READY' if status.health.ready else 'UNAVAILABLE']}{word}{PLAIN}"
    phase = f" ({status.health.phase})" if status.health.phase and not status.health.ready else ""
    yield f"{url}: {' '.join(filter(None, (status.name, status.version)))}, {word}{phase}"
    yield ""
    yield from pairs(list(_rows(status)))
    for row in status.health.reasons or find_troubled(status):
        yield ""
        yield f"{row.model} {row.version or '-'} is {row.state or 'not loaded'}"
        yield from indent_lines(row.reason)
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
    """Return advice on a refusal, to append to its text; empty if there is none."""
    advice = advice_on(text)
    return f" ({advice})" if advice else ""


def find_troubled(status: ServerStatus) -> list[IndexRow]:
    """Return the versions that are not READY and have a reason."""
    return [row for row in status.versions if row.state != "READY" and row.reason not in ("", "unloaded")]


def document(status: ServerStatus, url: str) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
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
