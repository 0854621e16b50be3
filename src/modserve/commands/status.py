"""``modserve status``: shows whether a server is ready, and its counts."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from .destination import destinations
from .server_set import connect_all
from .server_status import IndexRow, ServerStatus, server_status
from .syntax import add_destination, add_json, add_watch, parser
from .terminal import COLOURS, PLAIN, again, count, duration, indented, pairs, takes_colours

PARSER = parser(
    "status",
    "Shows whether a server is ready, which models are in the way and why, and request counts.\n"
    "Of several servers, it shows a row for each and their sums.",
    "  modserve status\n  modserve status --url http://10.0.0.7:8000 --watch\n"
    "  modserve status --url dns:///modserve.svc:8000\n  modserve status --json",
    "0 all ready, 1 not ready or unreachable, 2 wrong command line",
)
add_watch(PARSER)
add_json(PARSER)
add_destination(PARSER, 10.0, several=True)


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    with closing(connect_all(destinations(options))) as servers:

        def draw() -> tuple[int, str]:
            status = server_status(servers.servers[0])
            url = servers.servers[0].url
            text = (
                json.dumps(document(status, url), indent=2)
                if options.json
                else "\n".join(lines(status, url, colours=takes_colours()))
            )
            return int(not status.health.ready), text

        def draw_all() -> tuple[int, str]:
            from . import several_status

            outcomes = servers.call(server_status)
            text = (
                json.dumps(several_status.document(outcomes), indent=2)
                if options.json
                else "\n".join(several_status.lines(outcomes, colours=takes_colours()))
            )
            return int(not several_status.all_ready(outcomes)), text

        return again(options.watch, draw if len(servers.servers) == 1 else draw_all)


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
        yield f"\nnot shown: {text}"


def _rows(status: ServerStatus) -> Iterator[tuple[str, str]]:
    states = Counter(row.state or "not loaded" for row in status.versions)
    models = len({row.model for row in status.versions})
    listed = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    yield "models", f"{models}, versions: {listed or 'none'}"
    used = status.usage.values()
    requests, failures = sum(each.requests for each in used), sum(each.failures for each in used)
    executions = sum(each.executions for each in used)
    yield "requests", f"{count(requests)} succeeded, {count(failures)} failed"
    if executions:
        yield "batches", f"{count(executions)}, of {sum(each.inferences for each in used) / executions:.1f} on average"
    if requests:
        mean, queue = (sum(times) / requests for times in _times(status))
        yield "mean time", f"{duration(mean)}, of which {duration(queue)} in queues"


def _times(status: ServerStatus) -> tuple[list[float], list[float]]:
    used = status.usage.values()
    return [each.seconds for each in used], [each.queue_seconds for each in used]


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
