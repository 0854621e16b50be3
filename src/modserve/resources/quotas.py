"""Limits of each tenant in a server process: requests, rows and tokens per second, and concurrent requests.

A request is counted when it is accepted. Its permit is returned when it is settled, exactly once, by the request
itself, whatever its outcome. A call with several requests, such as one with many texts, counts as one. Rates are token
buckets for a second's worth. A single request may exceed a full bucket: the tenant then waits until it has paid. Tokens
are counted when they are known, which may be after the response: a tenant in debt is throttled on its next request.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from modserve.core.errors import OverloadedError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.statistics.histogram import Histogram
from modserve.core.statistics.model_statistics import LATENCY_BUCKETS_NS
from modserve.core.tenants import Tenant, TenantReport, waiting_by_tenant

_SECOND_NS: Final = 1_000_000_000
_MEAN_SHARE = 0.1
_SWEEP_FROM = 1024
_MOST_COUNTED: Final = 1000
"""Number of tenants with figures of their own, since an issuer of tokens can name any number of tenants."""
OTHERS: Final = "(others)"
"""Name for all further tenants together."""


@dataclass(slots=True, eq=False)
class TenantFigures:
    """Totals of a tenant, which only grow."""

    accepted: int = 0
    refused_rate: int = 0
    refused_concurrency: int = 0
    refused_model: int = 0
    """Requests refused by the model: its queue was full, or the request would have been late."""
    rows: int = 0
    tokens: int = 0
    durations: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS_NS))
    """Durations of accepted requests in nanoseconds, with any outcome."""

    @property
    def results(self) -> dict[str, int]:
        """Numbers of requests by result."""
        return {
            "accepted": self.accepted,
            "refused_rate": self.refused_rate,
            "refused_concurrency": self.refused_concurrency,
            "refused_model": self.refused_model,
        }


@dataclass(slots=True, eq=False)
class TokenBucket:
    """Bucket for a second's worth of a tenant's rate, filled steadily. May be in debt."""

    rate: float
    """Per second."""
    level: float = 0.0
    filled_ns: int = 0

    def __post_init__(self) -> None:
        self.level = self.size

    @property
    def size(self) -> float:
        return max(1.0, self.rate)

    def wait_ns(self, amount: float, now_ns: int) -> int:
        """Return the time until an amount is available; 0 if it is. Larger amounts than a bucket need a full one."""
        if now_ns > self.filled_ns:
            passed_s = (now_ns - self.filled_ns) / _SECOND_NS
            self.level = min(self.size, self.level + passed_s * self.rate)
            self.filled_ns = now_ns
        missing = min(amount, self.size) - self.level
        return -int(-missing / self.rate * _SECOND_NS // 1) if missing > 1e-9 else 0


@dataclass(slots=True, eq=False)
class TenantUsage:
    """Current usage of a tenant."""

    tenant: Tenant | None
    figures: TenantFigures
    buckets: dict[str, TokenBucket] = field(default_factory=dict)
    """Buckets by the field of `Tenant` that has the rate."""
    in_flight: int = 0
    mean_ns: float = 0.0
    """Mean duration of recent requests; 0 before the first has ended."""

    def resize(self, tenant: Tenant | None, processes: int) -> None:
        """Apply the tenant's current limits. Past usage still counts."""
        self.tenant = tenant
        for name, bucket in list(self.buckets.items()):
            rate = None if tenant is None else getattr(tenant, name)
            if rate is None:
                del self.buckets[name]
            else:
                bucket.rate = rate / processes
                bucket.level = min(bucket.level, bucket.size)


class Permit:
    """Permit of an accepted request. Implements `core.requests.inflight.RequestPermit`."""

    __slots__ = ("_figures", "_quotas", "_start_ns", "_usage")

    def __init__(self, quotas: "Quotas", usage: TenantUsage, start_ns: int) -> None:
        self._quotas = quotas
        self._usage: TenantUsage | None = usage
        self._start_ns: int | None = start_ns
        self._figures = usage.figures

    def count(self, rows: int) -> None:
        """Count the submitted request."""
        self._figures.accepted += 1
        self._figures.rows += rows

    def give_back(self, error: BaseException) -> None:
        """Return the permit of a request that could not be submitted."""
        self._start_ns = None
        self.release()
        if isinstance(error, OverloadedError):
            self._figures.refused_model += 1

    def release(self) -> None:
        """Return the permit of an ended request. Idempotent."""
        usage, self._usage = self._usage, None
        if usage is not None:
            self._quotas.over(usage, self._start_ns)


class Quotas:
    """Limits requests in flight in this process, in total and by tenant.

    `most`: total limit, 0 for none. A tenant's limits are for the whole server, and divided equally among its
    `processes`.
    """

    def __init__(self, most: int = 0, processes: int = 1, clock: Callable[[], int] | None = None) -> None:
        self.most = most
        self.in_flight = 0
        """Requests in flight; not counted without a limit or a tenant."""
        self.refused = 0
        """Number of requests refused by `most`."""
        self.tenants: dict[str, TenantUsage] = {}
        self.figures: dict[str, TenantFigures] = {}
        """Figures by tenant: a thousand at most, and `OTHERS` for the rest."""
        self._processes = processes
        self._clock = clock or time.monotonic_ns
        self._sweep_at = _SWEEP_FROM

    def __repr__(self) -> str:
        return f"Quotas({self.in_flight} in flight, {len(self.tenants)} tenants)"

    def accept(self, request: InferenceRequest, rows: int, submit: Callable[[InferenceRequest], Inflight]) -> Inflight:
        """Submit a request, which is counted until it is settled.

        Raises `OverloadedError` at a limit, and the errors of `submit`; the request is not counted then.
        """
        permit = self.admit(request, rows)
        try:
            inflight = submit(request)
        except BaseException as error:
            permit.give_back(error)
            raise
        permit.count(rows)
        inflight.permit = permit
        return inflight

    @contextmanager
    def submission(self, request: InferenceRequest, rows: int) -> Iterator[Permit]:
        """Count a call with `rows` rows, and submit its requests in the block; `request` represents all of them.

        Raises `OverloadedError` at a limit. The permit is released if the block fails.
        """
        permit = self.admit(request, rows)
        try:
            yield permit
        except BaseException as error:
            permit.give_back(error)
            raise
        permit.count(rows)

    def limits(self, tenant: Tenant | None) -> bool:
        """True if requests of the tenant, or without a tenant, are counted."""
        return tenant is not None or self.most > 0

    def admit(self, request: InferenceRequest, rows: int) -> Permit:
        """Count a request with `rows` rows. Raises `OverloadedError` at a limit."""
        if self.most and self.in_flight >= self.most:
            self.refused += 1
            raise OverloadedError(
                f"{request.label}the server has accepted {self.in_flight} requests that are not over, and takes "
                f"{self.most} at most (--max-accepted-requests); try again later"
            )
        now_ns = self._clock()
        usage = self._usage(request.tenant)
        if usage.tenant is not None:
            self._check(usage, usage.tenant, request, rows, now_ns)
        self.in_flight += 1
        usage.in_flight += 1
        return Permit(self, usage, now_ns)

    def spend_tokens(self, tenant: Tenant | None, tokens: int) -> None:
        """Count the tokens of a tenant's request or response."""
        if tenant is None:
            return
        usage = self._usage(tenant)
        usage.figures.tokens += tokens
        if tenant.tokens_per_second is not None:
            bucket = self._bucket(usage, "tokens_per_second", tenant.tokens_per_second)
            bucket.wait_ns(0, self._clock())
            bucket.level -= tokens

    def over(self, usage: TenantUsage, start_ns: int | None) -> None:
        """Remove a counted request; `start_ns` is None if it was not accepted."""
        self.in_flight -= 1
        usage.in_flight -= 1
        assert usage.in_flight >= 0, "a request was given back more often than accepted: this is a bug"
        if start_ns is None:
            return
        ns = self._clock() - start_ns
        usage.figures.durations.observe(ns)
        usage.mean_ns += _MEAN_SHARE * (ns - usage.mean_ns) if usage.mean_ns else ns

    def reports(self, queues: Iterable[object]) -> list[TenantReport]:
        """Return each tenant's totals and usage, by name. `queues` may contain `core.tenants.TenantQueues`."""
        if not self.figures:
            return []
        in_flight: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        for name, usage in self.tenants.items():
            if usage.tenant is not None:
                in_flight[self._figure_name(name)] += usage.in_flight
        for queue in queues:
            for name, count in waiting_by_tenant(queue).items():
                queued[self._figure_name(name)] += count
        return [
            TenantReport(name, each.results, each.rows, each.tokens, in_flight[name], queued[name])
            for name, each in sorted(self.figures.items())
        ]

    def _figure_name(self, name: str) -> str:
        return name if name in self.figures else OTHERS

    def _usage(self, tenant: Tenant | None) -> TenantUsage:
        name = "" if tenant is None else tenant.name
        usage = self.tenants.get(name)
        if usage is None:
            if len(self.tenants) >= self._sweep_at:
                self._sweep()
            usage = self.tenants[name] = TenantUsage(tenant, self._figures(tenant))
        elif usage.tenant is not tenant and usage.tenant != tenant:
            usage.resize(tenant, self._processes)
        return usage

    def _figures(self, tenant: Tenant | None) -> TenantFigures:
        if tenant is None:
            return TenantFigures()
        figures = self.figures.get(tenant.name)
        if figures is None:
            name = tenant.name if len(self.figures) < _MOST_COUNTED else OTHERS
            figures = self.figures.setdefault(name, TenantFigures())
        return figures

    def _check(self, usage: TenantUsage, tenant: Tenant, request: InferenceRequest, rows: int, now_ns: int) -> None:
        """Check all limits, then all buckets: a request refused by one limit uses up nothing of the others."""
        concurrency = tenant.concurrency
        if concurrency is not None:
            part = max(1, -(-concurrency // self._processes))
            if usage.in_flight >= part:
                usage.figures.refused_concurrency += 1
                wait_ns = int(usage.mean_ns / part) or _SECOND_NS
                what = f"has {usage.in_flight} requests in flight, and its 'concurrency' is {concurrency}"
                raise _refusal(request, what, "wait for one of their responses", wait_ns)
        amounts = (
            ("requests_per_second", tenant.requests_per_second, 1),
            ("rows_per_second", tenant.rows_per_second, rows),
            ("tokens_per_second", tenant.tokens_per_second, 0),
        )
        pay: list[tuple[TokenBucket, int]] = []
        for name, rate, amount in amounts:
            if rate is None:
                continue
            bucket = self._bucket(usage, name, rate)
            wait_ns = bucket.wait_ns(amount, now_ns)
            if wait_ns:
                usage.figures.refused_rate += 1
                what = f"sends more than its '{name}' of {rate:g}"
                raise _refusal(request, what, f"try again in {wait_ns / 1e9:.3g} s", wait_ns)
            pay.append((bucket, amount))
        for bucket, amount in pay:
            bucket.level -= amount

    def _bucket(self, usage: TenantUsage, name: str, rate: float) -> TokenBucket:
        bucket = usage.buckets.get(name)
        if bucket is None:
            bucket = usage.buckets[name] = TokenBucket(rate / self._processes, filled_ns=self._clock())
        return bucket

    def _sweep(self) -> None:
        """Forget tenants without usage that would have full buckets."""
        now_ns = self._clock()
        for name, usage in list(self.tenants.items()):
            full = all(not bucket.wait_ns(bucket.size, now_ns) for bucket in usage.buckets.values())
            if full and not usage.in_flight:
                del self.tenants[name]
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self.tenants))


def _refusal(request: InferenceRequest, reason: str, advice: str, wait_ns: int) -> OverloadedError:
    name = request.tenant.name if request.tenant is not None else ""
    return OverloadedError(f"{request.label}tenant '{name}' {reason}; {advice}", wait_ns, too_many=True)
