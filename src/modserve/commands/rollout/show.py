"""The report of a rollout, as text and as JSON."""

from collections.abc import Iterator
from typing import Any

from ..terminal import indent_lines, table
from .rule import WatchCounts
from .steps import RolloutReport

_HEAD = ("server", "before", "outcome", "now")


def lines(report: RolloutReport) -> Iterator[str]:
    """Yield a table, and the result in a sentence."""
    rows = [(each.server.url, str(each.before), each.outcome, each.state) for each in report.servers]
    head, rule, *body = table(_HEAD, rows)
    yield ""
    yield head
    yield rule
    for text, each in zip(body, report.servers, strict=True):
        yield text
        yield from indent_lines(each.reason)
    yield ""
    yield f"{report.plan.model}: {sentence(report)}"


def sentence(report: RolloutReport) -> str:
    """Return the result in words."""
    if report.done:
        return f"rolled out to all servers ({report.why})"
    end = "all servers are as before"
    if not report.went_back:
        end = "not all servers are as before: the table has their states"
    return f"not rolled out: {report.why}; {end}"


def document(report: RolloutReport) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
    return {
        "model": report.plan.model,
        "version": report.plan.version,
        "result": "done" if report.done else "back" if report.went_back else "mixed",
        "why": report.why,
        "new": _counts(report.new),
        "others": _counts(report.others),
        "servers": [
            {
                "url": each.server.url,
                "before": list(each.before.versions),
                "outcome": each.outcome,
                "now": each.state,
                "reason": each.reason,
                "counts": _counts(each.counts),
            }
            for each in report.servers
        ],
    }


def _counts(counts: WatchCounts) -> dict[str, float]:
    return {"requests": counts.requests, "failures": counts.failures, "mean_ms": counts.mean * 1e3}
