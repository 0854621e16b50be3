"""``modserve status``: whether a server is ready, what is in the way, and what it has done."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .access import access
from .facts import Facts, Version, look
from .http_calls import HttpCalls
from .syntax import add_access, add_json, add_watch, parser, run
from .tables import COLOURS, PLAIN, again, count, duration, indented, pairs, takes_colours

PARSER = parser(
    "status",
    "Says whether a server is ready, which models are in the way and why, and what it has done.",
    "  modserve status\n  modserve status --url http://10.0.0.7:8000 --watch\n  modserve status --json",
    "0 ready, 1 not ready or not reached, 2 a wrong command line",
)
add_watch(PARSER)
add_json(PARSER)
add_access(PARSER, 10.0)
HELP = PARSER.format_help()


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    return run(PARSER, words, _work)


def _work(options: Namespace) -> int:
    calls = HttpCalls(access(options))

    def draw() -> tuple[int, str]:
        facts = look(calls)
        text = (
            json.dumps(document(facts, calls.url), indent=2)
            if options.json
            else "\n".join(lines(facts, calls.url, colours=takes_colours()))
        )
        return int(not facts.health.ready), text

    try:
        return again(options.watch, draw)
    finally:
        calls.close()


def lines(facts: Facts, url: str, *, colours: bool = False) -> Iterator[str]:
    """What a person reads."""
    word = "ready" if facts.health.ready else "not ready"
    if colours:
        word = f"{COLOURS['READY' if facts.health.ready else 'UNAVAILABLE']}{word}{PLAIN}"
    phase = f" ({facts.health.phase})" if facts.health.phase and not facts.health.ready else ""
    yield f"{url}: {' '.join(filter(None, (facts.name, facts.version)))}, {word}{phase}"
    yield ""
    yield from pairs(list(_rows(facts)))
    for row in facts.health.reasons or _troubled(facts):
        yield ""
        yield f"{row.model} {row.version or '-'} is {row.state or 'not loaded'}"
        yield from indented(row.reason)
    for text in facts.unknown:
        yield f"\nleft out: {text}"


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    states = Counter(row.state or "not loaded" for row in facts.versions)
    models = len({row.model for row in facts.versions})
    listed = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    yield "models", f"{models}, versions: {listed or 'none'}"
    used = facts.usage.values()
    requests, failures = sum(each.requests for each in used), sum(each.failures for each in used)
    executions = sum(each.executions for each in used)
    yield "requests", f"{count(requests)} responded to, {count(failures)} failed"
    if executions:
        yield "batches", f"{count(executions)}, of {sum(each.inferences for each in used) / executions:.1f} on average"
    if requests:
        mean, queue = (sum(times) / requests for times in _times(facts))
        yield "mean time", f"{duration(mean)}, of which {duration(queue)} in queues"


def _times(facts: Facts) -> tuple[list[float], list[float]]:
    used = facts.usage.values()
    return [each.seconds for each in used], [each.queue_seconds for each in used]


def _troubled(facts: Facts) -> list[Version]:
    """What has a reason to tell, if the server does not say what is in the way."""
    return [row for row in facts.versions if row.state != "READY" and row.reason not in ("", "unloaded")]


def document(facts: Facts, url: str) -> dict[str, Any]:
    """For programs. Names stay; more may be added."""
    used = facts.usage.values()
    return {
        "url": url,
        "name": facts.name,
        "version": facts.version,
        "ready": facts.health.ready,
        "phase": facts.health.phase,
        "reasons": [as_json(row) for row in facts.health.reasons],
        "versions": dict(Counter(row.state or "not loaded" for row in facts.versions)),
        "requests": sum(each.requests for each in used),
        "failures": sum(each.failures for each in used),
        "left_out": list(facts.unknown),
    }


def as_json(row: Version) -> dict[str, str]:
    return {"model": row.model, "version": row.version, "state": row.state, "reason": row.reason}
