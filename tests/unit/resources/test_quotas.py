"""Limits of tenants and of a whole server, by a clock turned by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.errors import ModserveError, OverloadedError, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.shared_permit import SharedPermit
from modserve.core.tenants import Tenant
from modserve.resources.quotas import Quotas
from modserve.testing import inflight

SECOND = 1_000_000_000


class Bench:
    def __init__(self, most: int = 0, processes: int = 1) -> None:
        self.now_ns = 5 * SECOND
        self.quotas = Quotas(most, processes, lambda: self.now_ns)

    def send(self, tenant: Tenant | None = None, rows: int = 1) -> Inflight:
        entry = inflight(rows, tenant=tenant)
        return self.quotas.accept(entry.request, rows, lambda request: entry)

    def refused(self, tenant: Tenant | None = None, rows: int = 1) -> OverloadedError:
        with pytest.raises(OverloadedError) as caught:
            self.send(tenant, rows)
        return caught.value


def test_requests_a_second_with_room_for_one_second() -> None:
    bench, tenant = Bench(), Tenant("a", requests_per_second=5)
    for _ in range(5):
        bench.send(tenant)
    error = bench.refused(tenant)
    assert error.message.endswith("tenant 'a' sends more than its 'requests_per_second' of 5; try again in 0.2 s")
    assert (error.too_many, error.retry_after_ns) == (True, SECOND // 5)
    bench.now_ns += error.retry_after_ns - 1
    bench.refused(tenant)
    bench.now_ns += 1
    bench.send(tenant)
    bench.refused(tenant)
    assert bench.quotas.figures["a"].results == {
        "accepted": 6,
        "refused_rate": 3,
        "refused_concurrency": 0,
        "refused_model": 0,
    }


def test_a_request_with_more_rows_than_a_second_has_is_paid_for_afterwards() -> None:
    bench, tenant = Bench(), Tenant("a", rows_per_second=10)
    bench.send(tenant, rows=64)
    error = bench.refused(tenant)
    assert error.retry_after_ns == (64 - 10 + 1) * SECOND // 10
    bench.now_ns += error.retry_after_ns
    bench.send(tenant)


def test_tokens_are_counted_when_they_are_known() -> None:
    bench, tenant = Bench(), Tenant("a", tokens_per_second=100)
    bench.send(tenant)
    bench.quotas.spend_tokens(tenant, 1100)
    error = bench.refused(tenant)
    assert "'tokens_per_second' of 100" in error.message
    assert error.retry_after_ns == 10 * SECOND
    bench.now_ns += 10 * SECOND
    bench.send(tenant)


def test_slow_rates_let_one_request_through() -> None:
    bench, tenant = Bench(), Tenant("a", requests_per_second=0.1)
    bench.send(tenant)
    assert bench.refused(tenant).retry_after_ns == 10 * SECOND


def test_concurrency_is_given_back_when_a_request_is_settled() -> None:
    bench, tenant = Bench(), Tenant("a", concurrency=2)
    first, second = bench.send(tenant), bench.send(tenant)
    error = bench.refused(tenant)
    assert "tenant 'a' has 2 requests in flight, and its 'concurrency' is 2; wait for one" in error.message
    assert error.too_many
    assert error.retry_after_ns == SECOND
    bench.now_ns += SECOND // 2
    first.settle(InferenceResponse("model", 1, {}))
    first.settle(InferenceResponse("model", 1, {}))
    bench.send(tenant)
    assert bench.refused(tenant).retry_after_ns == SECOND // 4
    second.cancel()
    second.cancel()
    bench.send(tenant)
    assert bench.quotas.tenants["a"].in_flight == 2


def test_a_request_that_its_model_refuses_holds_nothing() -> None:
    bench, tenant = Bench(most=1), Tenant("a", concurrency=1)

    def refuse(request: InferenceRequest) -> Inflight:
        raise invalid("no")

    with pytest.raises(ModserveError, match="no"):
        bench.quotas.accept(inflight(tenant=tenant).request, 1, refuse)
    bench.send(tenant)


def test_several_requests_that_count_as_one_hold_one_permit_until_the_last_is_over() -> None:
    bench, tenant = Bench(), Tenant("a", concurrency=1, requests_per_second=1)
    entries = [inflight(tenant=tenant) for _ in range(3)]
    with bench.quotas.submission(entries[0].request, 3) as permit:
        shared = SharedPermit(permit)
        for entry in entries:
            shared.hold()
            entry.permit = shared
        shared.release()
    assert (bench.quotas.in_flight, bench.quotas.figures["a"].accepted, bench.quotas.figures["a"].rows) == (1, 1, 3)
    for entry in entries:
        assert "has 1 requests in flight" in bench.refused(tenant).message
        entry.cancel()
        entry.settle(InferenceResponse("model", 1, {}))
    assert bench.quotas.in_flight == 0


def test_a_call_whose_model_is_full_holds_nothing() -> None:
    bench, tenant = Bench(), Tenant("a", concurrency=1)
    with pytest.raises(OverloadedError, match="full"), bench.quotas.submission(inflight(tenant=tenant).request, 3):
        raise OverloadedError("full")
    assert bench.quotas.figures["a"].results == {
        "accepted": 0,
        "refused_rate": 0,
        "refused_concurrency": 0,
        "refused_model": 1,
    }
    bench.send(tenant)


def test_who_is_refused_by_one_limit_uses_up_nothing_of_the_others() -> None:
    bench, tenant = Bench(), Tenant("a", requests_per_second=2, rows_per_second=3)
    bench.send(tenant, rows=3)
    for _ in range(5):
        assert "rows_per_second" in bench.refused(tenant, rows=3).message
    bench.now_ns += SECOND
    bench.send(tenant, rows=1)
    bench.send(tenant, rows=1)


def test_one_tenant_does_not_use_up_what_another_one_has() -> None:
    bench = Bench()
    bench.send(Tenant("a", requests_per_second=1))
    bench.refused(Tenant("a", requests_per_second=1))
    bench.send(Tenant("b", requests_per_second=1))


def test_new_limits_hold_at_once_and_what_was_used_stays_used() -> None:
    bench = Bench()
    bench.send(Tenant("a", requests_per_second=1))
    bench.refused(Tenant("a", requests_per_second=1))
    bench.refused(Tenant("a", requests_per_second=100))
    bench.now_ns += SECOND // 100
    bench.send(Tenant("a", requests_per_second=100))
    bench.send(Tenant("a"))


def test_the_whole_server_takes_so_many_and_no_more() -> None:
    bench = Bench(most=2)
    first, _ = bench.send(), bench.send(Tenant("a"))
    error = bench.refused()
    assert not error.too_many
    assert "the server has accepted 2 requests that are not over, and takes 2 at most" in error.message
    first.cancel()
    bench.send()


def test_limits_are_divided_among_processes() -> None:
    bench, tenant = Bench(processes=4), Tenant("a", requests_per_second=8, concurrency=6)
    bench.send(tenant)
    bench.send(tenant)
    assert "concurrency" in bench.refused(tenant).message
    assert bench.quotas.tenants["a"].buckets["requests_per_second"].rate == 2


def test_tenants_that_use_nothing_are_forgotten() -> None:
    bench = Bench()
    held = bench.send(Tenant("held", requests_per_second=1))
    for number in range(5000):
        bench.send(Tenant(str(number), requests_per_second=10)).cancel()
        bench.now_ns += SECOND
    assert len(bench.quotas.tenants) < 2000
    held.cancel()
    assert bench.quotas.in_flight == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, SECOND)), max_size=60),
    st.integers(1, 20),
)
def test_nobody_gets_more_than_its_rate_and_a_second_of_it(steps: list[tuple[int, int, int]], rate: int) -> None:
    bench, tenant = Bench(), Tenant("a", rows_per_second=rate, concurrency=3)
    start_ns, rows, running = bench.now_ns, [0], list[Inflight]()
    for action, count, ns in steps:
        bench.now_ns += ns if action == 0 else 0
        if action == 1 and running:
            running.pop().settle(InferenceResponse("model", 1, {}))
        elif action > 1:
            try:
                running.append(bench.send(tenant, count))
            except OverloadedError:
                continue
            rows.append(count)
        assert bench.quotas.in_flight == len(running) <= 3
    allowed = rate * ((bench.now_ns - start_ns) / SECOND + 1)
    assert sum(rows) <= allowed + max(rows)


# Figures


class Queues:
    """A model with so many waiting requests of each tenant. Implements `core.tenants.TenantQueues`."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def waiting_by_tenant(self) -> dict[str, int]:
        return self.counts


def figures(bench: Bench, name: str) -> dict[str, int]:
    return {result: count for result, count in bench.quotas.figures[name].results.items() if count}


def test_what_became_of_the_requests_of_each_tenant() -> None:
    bench, a, b = Bench(), Tenant("a", concurrency=1), Tenant("b")
    first = bench.send(a, rows=3)
    bench.refused(a)
    bench.send(b)
    bench.send()
    bench.quotas.spend_tokens(b, 7)

    def no_room(request: InferenceRequest) -> Inflight:
        raise OverloadedError("Exceeds maximum queue size")

    with pytest.raises(OverloadedError):
        bench.quotas.accept(inflight(1, tenant=b).request, 1, no_room)
    assert figures(bench, "a") == {"accepted": 1, "refused_concurrency": 1}
    assert figures(bench, "b") == {"accepted": 1, "refused_model": 1}
    reports = {each.name: each for each in bench.quotas.reports([Queues({"a": 1}), object()])}
    assert list(reports) == ["a", "b"]  # not those of nobody
    assert [(each.rows, each.tokens, each.in_flight, each.waiting) for each in reports.values()] == [
        (3, 0, 1, 1),
        (1, 7, 1, 0),
    ]
    assert first.permit is not None
    first.permit.release()
    assert bench.quotas.reports(())[0].in_flight == 0


def test_figures_of_more_tenants_than_anybody_can_read_are_added_up() -> None:
    bench = Bench()
    for number in range(3000):
        request = bench.send(Tenant(f"t{number}"))
        assert request.permit is not None
        if number < 2990:
            request.permit.release()
    assert len(bench.quotas.figures) == 1001
    report = next(
        each for each in bench.quotas.reports([Queues({"t2999": 1}), Queues({"t1": 2})]) if each.name == "(others)"
    )
    assert (report.results["accepted"], report.in_flight, report.waiting) == (2000, 10, 1)
    bench.send(Tenant("t0"))  # has been forgotten, but not what it had
    assert bench.quotas.figures["t0"].accepted == 2
    bench.send(Tenant("(others)"))
    assert bench.quotas.figures["(others)"].accepted == 2001


def test_the_times_of_accepted_requests_are_counted_by_tenant() -> None:
    bench, tenant = Bench(), Tenant("a", concurrency=2)
    requests = [bench.send(tenant), bench.send(tenant), bench.send()]
    bench.refused(tenant)
    with pytest.raises(OverloadedError), bench.quotas.submission(inflight(1, tenant=Tenant("b")).request, 1):
        raise OverloadedError("the queue is full", 0)
    for entry in requests:
        bench.now_ns += SECOND
        entry.settle(invalid("it failed"))
    times = {name: each.durations for name, each in bench.quotas.figures.items()}
    assert {name: (sum(each.buckets), each.total) for name, each in times.items()} == {
        "a": (2, 3.0 * SECOND),
        "b": (0, 0),
    }


def test_requests_are_counted_for_tenants_and_where_the_server_has_a_limit() -> None:
    tenants = (None, Tenant("a"))
    assert [Bench().quotas.limits(tenant) for tenant in tenants] == [False, True]
    assert [Bench(most=1).quotas.limits(tenant) for tenant in tenants] == [True, True]
