"""Statistics and the repository index of several workers."""

from typing import Any

from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.pb import inference as pb
from modserve.workers import sums


def duration(count: int, ns: int) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count, ns=ns)


def model(name: str = "a", last: int = 0, count: int = 0, **batches: int) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=name,
        version="1",
        last_inference=last,
        inference_count=count,
        execution_count=count,
        inference_stats=pb.InferStatistics(success=duration(count, 10 * count), queue=duration(count, count)),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=int(size[1:]), compute_infer=duration(number, 100 * number))
            for size, number in batches.items()
        ],
    )


def answer(*models: pb.ModelStatistics) -> pb.ModelStatisticsResponse:
    return pb.ModelStatisticsResponse(model_stats=list(models))


def test_counts_and_durations_are_added_up() -> None:
    first, second = answer(model(last=5, count=2, b1=2, b4=1)), answer(model(last=3, count=40, b2=7, b4=3))
    (total,) = sums.statistics([first, second]).model_stats
    assert total == model(last=5, count=42, b1=2, b2=7, b4=4)
    assert first.model_stats[0].inference_count == 2, "what came in was changed"


def test_models_that_one_worker_has_stay() -> None:
    total = sums.statistics([answer(model("a", count=1)), answer(model("b", count=2), model("a", count=3))])
    assert [(one.name, one.inference_count) for one in total.model_stats] == [("a", 4), ("b", 2)]


def test_responses_are_added_up_by_their_number() -> None:
    first, second = model(), model()
    first.response_stats["0"].success.CopyFrom(duration(1, 5))
    second.response_stats["0"].success.CopyFrom(duration(2, 6))
    second.response_stats["1"].fail.CopyFrom(duration(3, 7))
    (total,) = sums.statistics([answer(first), answer(second)]).model_stats
    assert total.response_stats["0"].success == duration(3, 11)
    assert total.response_stats["1"].fail == duration(3, 7)


def test_tenants_are_added_up_by_name() -> None:
    def tenant(name: str, accepted: int, refused: int, rest: int) -> pb.TenantStatistics:
        requests = {"accepted": accepted, "refused_rate": refused}
        return pb.TenantStatistics(
            name=name, requests=requests, rows=rest, tokens=rest + 1, in_flight=rest + 2, waiting=rest + 3
        )

    first = pb.ModelStatisticsResponse(tenant_stats=[tenant("b", 1, 2, 3)])
    second = pb.ModelStatisticsResponse(tenant_stats=[tenant("a", 9, 0, 0), tenant("b", 10, 20, 30)])
    expected = tenant("b", 11, 22, 33)
    expected.tokens, expected.in_flight, expected.waiting = 35, 37, 39
    assert list(sums.statistics([first, second]).tenant_stats) == [tenant("a", 9, 0, 0), expected]
    assert first.tenant_stats[0].rows == 3, "what came in was changed"


def entry(name: str, version: int | None, state: LifecycleState = LifecycleState.READY, reason: str = "") -> IndexEntry:
    return IndexEntry(name, version, state, reason)


def test_a_version_is_ready_if_it_is_everywhere() -> None:
    ready, lost = entry("a", 1), entry("a", 1, LifecycleState.UNAVAILABLE, "it broke")
    assert sums.index({0: [ready], 1: [ready]}) == [ready]
    assert sums.index({0: [ready], 1: [lost]}) == [entry("a", 1, LifecycleState.UNAVAILABLE, "worker 1: it broke")]


def test_a_model_that_one_worker_has_not_loaded_says_so() -> None:
    ready, never = entry("a", None), entry("a", None, LifecycleState.UNKNOWN)
    assert sums.index({1: [never], 0: [ready]}) == [entry("a", None, LifecycleState.UNKNOWN, "worker 1: not loaded")]


def test_versions_are_in_order_of_their_numbers() -> None:
    rows = [entry("b", None, LifecycleState.UNKNOWN), entry("a", 10), entry("a", 9)]
    assert [(each.name, each.version) for each in sums.index({0: rows})] == [("a", 9), ("a", 10), ("b", None)]


def report(requests: int, share: float = 0.5, same: int = 0, **canary: object) -> dict[str, Any]:
    routes = [{"name": "a", "share": 1 - share, "requests": 10}, {"name": "b", "share": share, "requests": requests}]
    routes[1].update(canary)
    return {"routes": routes, "requests_without_key": requests, "shadow": {"same": same, "in_flight": 1}}


def test_a_routing_has_the_counts_of_all_workers() -> None:
    first, failure = report(5, same=3), {"reason": "it failed", "at_ms": 3}
    total = sums.routing([first, report(2, 0.0, same=4, rolled_back=failure), report(1)])
    assert total == {
        "routes": [
            {"name": "a", "share": 0.666667, "requests": 30},
            {"name": "b", "share": 0.333333, "requests": 8, "rolled_back": failure},
        ],
        "requests_without_key": 8,
        "shadow": {"same": 7, "in_flight": 3},
    }
    assert first == report(5, same=3), "what came in was changed"


def test_the_routing_of_one_worker_is_that_of_all() -> None:
    assert sums.routing([report(5)]) == report(5)


def failure(message: str, count: int, first_ms: int, last_ms: int) -> dict[str, Any]:
    where = {"protocol": "http", "model": "a", "version": "1", "status": 400}
    return {**where, "message": message, "count": count, "first_ms": first_ms, "last_ms": last_ms}


def test_failures_of_workers_that_are_alike_are_one() -> None:
    first, second = [failure("no", 2, 3, 5), failure("bad", 1, 6, 6)], [failure("no", 4, 1, 7)]
    assert sums.failures([first, second]) == [failure("no", 6, 1, 7), failure("bad", 1, 6, 6)]
    assert sums.failures([]) == []
