"""Queues that share between tenants: what runs next, with whom, and who is refused."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_queued import Bench, batcher, many
from test_queues_agree import ACTIONS, Driven

from modserve.core.configuration.model_config import DynamicBatching, QueuePolicy
from modserve.core.errors import OverloadedError
from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant
from modserve.scheduling import batching
from modserve.scheduling.fair_queue import FairQueue, rows
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import QueueSettings
from modserve.testing import inflight

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


def fair_queue(**more: Any) -> FairQueue:
    return FairQueue(QueueSettings(**{"sums": True, **more}), rows)


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_a_single_tenant_has_the_queue_that_there_is_without_tenants(actions: list[tuple[Any, ...]]) -> None:
    fair, levels = Driven(fair_queue()), Driven(LevelQueue(QueueSettings(sums=True)))
    for action in actions:
        assert fair.act(*action) == levels.act(*action)


def tenants_of(batch: list[Inflight]) -> Counter[str]:
    return Counter("" if each.request.tenant is None else each.request.tenant.name for each in batch)


def test_a_queue_without_tenants_is_that_of_before() -> None:
    bench = Bench()
    bench.submit(*many(5))
    assert isinstance(bench.scheduler.waiting, LevelQueue)
    bench.submit(inflight(tenant=A))
    assert isinstance(bench.scheduler.waiting, FairQueue)


def test_who_floods_does_not_hold_up_who_does_not() -> None:
    bench = Bench()
    bench.submit(*many(100, tenant=A))
    (urgent,) = bench.submit(inflight(tenant=B))
    bench.finish()
    bench.finish()
    assert urgent in [entry for batch in bench.runner.batches[:3] for entry in batch]


def test_how_many_of_each_tenant_wait() -> None:
    bench = Bench()
    bench.submit(*many(3))
    assert bench.scheduler.waiting_by_tenant() == {}
    bench.submit(*many(3, tenant=A), *many(2, tenant=B))
    waiting = bench.scheduler.waiting_by_tenant()
    assert waiting == +tenants_of([each for each in bench.scheduler.waiting if each.request.tenant is not None])
    assert set(waiting) == {"a", "b"}
    while bench.scheduler.count:
        bench.finish()
    assert bench.scheduler.waiting_by_tenant() == {}


def test_a_batch_fills_across_tenants() -> None:
    bench = batcher()
    bench.submit(inflight())
    bench.enqueue(*many(100, tenant=A), *many(2, tenant=B), *many(100, tenant=C))
    bench.finish()
    assert tenants_of(bench.runner.batches[1]) == {"a": 3, "b": 2, "c": 3}
    bench.finish()
    assert tenants_of(bench.runner.batches[2]) == {"a": 4, "c": 4}


REQUESTS = st.lists(st.tuples(st.sampled_from([None, A, B, C]), st.integers(1, 3), st.integers(1, 3)), max_size=12)
"""Tenants, rows and levels."""


def looks(queue: FairQueue) -> list[object]:
    """Return all that a queue says while it waits, and the order in which its requests run."""
    candidates = [(each.count, each.size, each.elements, each.oldest_ns, each.whole) for each in queue.candidates()]
    parts = [(queue.ahead(2, each), queue.share(each, 10), queue.waiting(each)) for each in (None, A, B, C)]
    order = [each.request.id for each in queue]
    return [candidates, parts, order, queue.waiting_by_tenant()]


@settings(max_examples=100, deadline=None)
@given(REQUESTS, REQUESTS)
def test_when_all_have_run_the_queue_is_as_new(
    former: list[tuple[Tenant | None, int, int]], later: list[tuple[Tenant | None, int, int]]
) -> None:
    used, new = fair_queue(ripe_size=4), fair_queue(ripe_size=4)
    for tenant, size, level in former:
        used.append(inflight(size, tenant=tenant, shape_key=1), level)
    if former:
        (group,) = used.candidates()
        assert len(used.take(group, len(former))) == len(former)
    assert used.count == 0
    for queue in (used, new):
        for number, (tenant, size, level) in enumerate(later):
            entry = inflight(size, tenant=tenant, shape_key=size % 2)
            entry.request.id = str(number)
            queue.append(entry, level)
    while later and used.count:
        assert looks(used) == looks(new)
        for queue in (used, new):
            queue.take(next(iter(queue.candidates())), 1)
    assert new.count == 0


def test_shares_go_by_rows_and_weights() -> None:
    bench = batcher()
    bench.submit(inflight())
    heavy = Tenant("heavy", 3)
    bench.enqueue(*many(400, tenant=A, batch_size=4), *many(800, tenant=heavy))
    size: Counter[str] = Counter()
    for _ in range(100):
        bench.finish()
        for entry in bench.runner.batches[-1]:
            size[entry.request.tenant.name] += entry.batch_size  # type: ignore[union-attr]
    assert size["heavy"] / sum(size.values()) == pytest.approx(0.75, abs=0.03)


def test_priorities_order_the_requests_of_a_tenant_and_not_the_tenants() -> None:
    policy = DynamicBatching(priority_levels=3, default_priority_level=2)
    bench = Bench(batching.direct, policy=policy)
    bench.submit(inflight())
    low, normal = inflight(tenant=B, priority=3), inflight(tenant=B)
    bench.enqueue(*many(5, tenant=A, priority=1), low, normal)
    for _ in range(4):
        bench.finish()
    order = [batch[0] for batch in bench.runner.batches[1:]]
    assert [entry.request.tenant for entry in order] == [A, B, A, B]
    assert order[1::2] == [normal, low]


def test_other_shapes_of_a_tenant_are_not_overtaken_for_ever() -> None:
    policy = DynamicBatching(look_ahead=8)
    bench = Bench(batching.dynamic(policy, 4), policy=policy)
    bench.submit(inflight())
    (odd,) = bench.enqueue(inflight(tenant=A, shape_key="y"))
    bench.enqueue(*many(200, tenant=A, shape_key="x"), *many(40, tenant=B, shape_key="x"))
    while odd not in bench.runner.batches[-1]:
        bench.finish()
    assert len(bench.runner.batches) <= 6


def test_what_waits_goes_on_waiting_in_its_order_when_the_first_tenant_comes() -> None:
    bench = batcher(default_timeout_ns=1000, priority_levels=2, default_priority_level=2)
    bench.submit(inflight())
    low, high = bench.enqueue(inflight(priority=2), inflight(priority=1))
    (late,) = bench.enqueue(inflight(tenant=A))
    assert isinstance(bench.scheduler.waiting, FairQueue)
    assert list(bench.scheduler.waiting) == [high, late, low]
    bench.clock.advance(1000)
    assert [entry for entry, _ in bench.dropped] == [low, high, late]


# Who is refused


def full(bench: Bench, entry: Inflight) -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        bench.scheduler.enqueue(entry)
    return caught.value


def test_a_tenant_alone_may_fill_the_queue_and_another_one_has_its_share_all_the_same() -> None:
    bench = batcher(max_queue_size=10)
    bench.submit(inflight(tenant=A))
    bench.enqueue(*many(10, tenant=A))
    error = full(bench, inflight(tenant=A))
    assert (error.message, error.too_many) == ("[request id: <id_unknown>] Exceeds maximum queue size", False)
    bench.enqueue(*many(5, tenant=B))
    error = full(bench, inflight(tenant=B))
    assert error.too_many
    assert (
        "Exceeds maximum queue size of tenant 'b': 5 of its requests wait, allowed 5, its share of 10" in error.message
    )
    assert full(bench, inflight(tenant=A)).too_many


def test_a_tenants_own_limit_takes_the_place_of_its_share() -> None:
    bench = batcher(max_queue_size=10)
    small = Tenant("small", queue_size=2)
    bench.submit(inflight(tenant=A))
    bench.enqueue(*many(2, tenant=small))
    error = full(bench, inflight(tenant=small))
    assert error.message.endswith("of tenant 'small': 2 of its requests wait, allowed 2")


def test_a_tenants_own_limit_holds_where_the_queue_has_none() -> None:
    bench = batcher()
    small = Tenant("small", queue_size=2)
    bench.submit(inflight(tenant=A))
    bench.enqueue(*many(2, tenant=small))
    assert full(bench, inflight(tenant=small)).too_many


def test_places_are_given_back_by_tenant() -> None:
    bench = batcher(max_queue_size=4)
    bench.submit(inflight())
    entries = bench.enqueue(*many(4, tenant=A))
    entries[1].cancel()
    bench.enqueue(inflight(tenant=A))
    full(bench, inflight(tenant=A))
    bench.finish()
    bench.enqueue(*many(4, tenant=A))


# Anything


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("come"),
            st.integers(0, 3),
            st.integers(1, 3),
            st.sampled_from(["x", "x", "y"]),
            st.integers(1, 2),
            st.sampled_from([0, 0, 0, 5]),
        ),
        st.tuples(st.just("finish")),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("time"), st.integers(1, 6)),
    ),
    max_size=80,
)
TENANTS = (None, A, Tenant("b", 2), Tenant("c", 0.2, queue_size=3))


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([0, 3]), st.sampled_from([0, 4, 1024]), st.sampled_from([0, 0, 6]))
def test_whatever_comes_runs_once_in_the_order_of_its_tenant(
    steps: list[tuple[Any, ...]], delay: int, look_ahead: int, size: int
) -> None:
    policy = DynamicBatching(
        max_queue_delay_ns=delay,
        priority_levels=2,
        default_priority_level=2,
        look_ahead=look_ahead,
        default_policy=QueuePolicy(size),
    )
    bench = Bench(batching.dynamic(policy, 4), policy=policy)
    accepted: list[Inflight] = []
    for action, *values in steps:
        if action == "come":
            number, batch_size, shape, priority, deadline = values
            entry = inflight(
                batch_size,
                tenant=TENANTS[number],
                shape_key=shape,
                priority=priority,
                deadline_ns=deadline and bench.clock.now_ns() + deadline,
            )
            try:
                bench.submit(entry)
            except OverloadedError:
                continue
            accepted.append(entry)
        elif action == "finish" and bench.runner.running:
            bench.finish()
        elif action == "cancel" and accepted:
            accepted[values[0] % len(accepted)].cancel()
        elif action == "time":
            bench.clock.advance(values[0])
    bench.scheduler.hurry()
    bench.clock.run()
    while bench.runner.running:
        bench.finish()
    ran = [entry for batch in bench.runner.batches for entry in batch]
    assert len(ran) == len(set(ran))
    assert set(ran) | {entry for entry, _ in bench.dropped} == set(accepted)
    assert bench.scheduler.count == 0
    for batch in bench.runner.batches:
        assert len({entry.shape_key for entry in batch}) == 1
        assert sum(entry.batch_size for entry in batch) <= 4
    lines: dict[object, list[int]] = {}
    for entry in ran:
        tenant = entry.request.tenant
        line = (tenant and tenant.name, entry.request.parameters["priority"], entry.shape_key)
        lines.setdefault(line, []).append(accepted.index(entry))
    assert all(order == sorted(order) for order in lines.values())
