"""Decides when a version loses its weight, by the failures and latencies of its latest requests."""

from collections import deque

from modserve.core.configuration.routing_config import Rollback

_QUANTILE = 0.95


class RequestWindow:
    """The latest requests of one route, at most `most` of them and, with `span_ns`, none older than that."""

    __slots__ = ("_entries", "_most", "_span_ns", "failures")

    def __init__(self, most: int, span_ns: int = 0) -> None:
        self._most = most
        self._span_ns = span_ns
        self._entries: deque[tuple[int, int, bool]] = deque()
        """End, duration and failure of each request."""
        self.failures = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, now_ns: int, duration_ns: int, failed: bool) -> None:
        self._entries.append((now_ns, duration_ns, failed))
        self.failures += failed
        if len(self._entries) > self._most:
            self._drop()
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Drop what is too old."""
        if self._span_ns:
            self.forget_before(now_ns - self._span_ns)

    def forget_before(self, ns: int) -> None:
        while self._entries and self._entries[0][0] < ns:
            self._drop()

    @property
    def began_ns(self) -> int:
        """Start of the first request; 0 if there are none."""
        return self._entries[0][0] - self._entries[0][1] if self._entries else 0

    def _drop(self) -> None:
        self.failures -= self._entries.popleft()[2]

    def p95_ns(self) -> int:
        """Return the 95th percentile of the durations of requests that did not fail; 0 if there are none."""
        durations = sorted([duration for _, duration, failed in self._entries if not failed])
        return durations[min(len(durations) - 1, int(len(durations) * _QUANTILE))] if durations else 0


def verdict(rule: Rollback, canary: RequestWindow, baseline: RequestWindow | None) -> str:
    """Reason with figures why the canary loses its weight; empty if it keeps it.

    Drops the baseline's requests from before the canary's first one. Over the same time, bad requests of a client and a
    slow machine affect both.
    """
    count = len(canary)
    if count < rule.least_requests:
        return ""
    if baseline is not None:
        baseline.forget_before(canary.began_ns)
    share = canary.failures / count
    if rule.error_share and share > rule.error_share:
        usual = 0.0 if baseline is None else baseline.failures / max(len(baseline), rule.least_requests)
        if share - usual > rule.error_share:
            failed = f"{canary.failures} of the last {count} requests failed ({share:.1%})"
            return f"{failed}, and at most {rule.error_share:.1%} may{_beside(rule, usual)}"
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


def _beside(rule: Rollback, usual: float) -> str:
    return f" beyond the {usual:.1%} of '{rule.baseline}'" if usual else ""
