"""Decides when a version loses its weight, by the failures and latencies of its latest requests."""

from collections import deque
from dataclasses import dataclass

from modserve.core.configuration.routing_config import Rollback

_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A route has lost its weight."""

    reason: str
    """With figures."""
    at_ms: int
    """Milliseconds since 1970."""


class RequestWindow:
    """The latest requests of one route, at most `most` of them and, with `span_ns`, none older than that."""

    __slots__ = ("_entries", "_most", "_span_ns", "failures")

    def __init__(self, most: int, span_ns: int = 0) -> None:
        self._most = most
        self._span_ns = span_ns
        self._entries: deque[tuple[int, int]] = deque()
        """When each ended, and how long it took; -1 if it failed."""
        self.failures = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, now_ns: int, duration_ns: int, failed: bool) -> None:
        self._entries.append((now_ns, -1 if failed else duration_ns))
        self.failures += failed
        if len(self._entries) > self._most:
            self._drop()
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Drop what is too old."""
        while self._span_ns and self._entries and self._entries[0][0] < now_ns - self._span_ns:
            self._drop()

    def _drop(self) -> None:
        self.failures -= self._entries.popleft()[1] < 0

    def p95_ns(self) -> int:
        """What 95 of 100 of the requests that did not fail stayed below; 0 if there are none."""
        durations = sorted([duration for _, duration in self._entries if duration >= 0])
        return durations[min(len(durations) - 1, int(len(durations) * _QUANTILE))] if durations else 0


def verdict(rule: Rollback, canary: RequestWindow, baseline: RequestWindow | None) -> str:
    """Why the version is to lose its weight, with figures; empty if it may go on."""
    count = len(canary)
    if count < rule.least_requests:
        return ""
    share = canary.failures / count
    if rule.error_share and share > rule.error_share:
        failed = f"{canary.failures} of the last {count} requests failed ({share:.1%})"
        return f"{failed}, and at most {rule.error_share:.1%} may"
    if not (rule.p95_ns or rule.p95_ratio) or count - canary.failures < rule.least_requests:
        return ""
    p95_ns = canary.p95_ns()
    slow = f"95 % of the last {count} requests took up to {p95_ns / 1e6:.1f} ms"
    if rule.p95_ns and p95_ns > rule.p95_ns:
        return f"{slow}, and at most {rule.p95_ns / 1e6:.1f} ms are allowed"
    if rule.p95_ratio and baseline is not None and len(baseline) - baseline.failures >= rule.least_requests:
        usual_ns = baseline.p95_ns()
        if p95_ns > usual_ns * rule.p95_ratio:
            ratio = f"{p95_ns / max(1, usual_ns):.2f} times the {usual_ns / 1e6:.1f} ms of '{rule.baseline}'"
            return f"{slow}, {ratio}, and at most {rule.p95_ratio:g} times that is allowed"
    return ""
