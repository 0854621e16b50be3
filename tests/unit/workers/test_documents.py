"""Statistics, figures of the console and counts of routings of several workers."""

from typing import Any

from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.workers.pages import WorkerPage, document, merge, tables


def summed(*documents: object) -> dict[str, Any]:
    return document(merge([WorkerPage(tables(each)) for each in documents])[0])


def statistics(*answers: pb.ModelStatisticsResponse) -> pb.ModelStatisticsResponse:
    return pb.ModelStatisticsResponse(**summed(*map(to_json, answers)))


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
    (total,) = statistics(first, second).model_stats
    assert total == model(last=5, count=42, b1=2, b2=7, b4=4)
    assert first.model_stats[0].inference_count == 2, "what came in was changed"


def test_models_that_one_worker_has_stay() -> None:
    total = statistics(answer(model("a", count=1)), answer(model("b", count=2), model("a", count=3)))
    assert [(one.name, one.inference_count) for one in total.model_stats] == [("a", 4), ("b", 2)]


def test_responses_are_added_up_by_their_number() -> None:
    first, second = model(), model()
    first.response_stats["0"].success.CopyFrom(duration(1, 5))
    second.response_stats["0"].success.CopyFrom(duration(2, 6))
    second.response_stats["1"].fail.CopyFrom(duration(3, 7))
    (total,) = statistics(answer(first), answer(second)).model_stats
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
    assert list(statistics(first, second).tenant_stats) == [tenant("a", 9, 0, 0), expected]
    assert first.tenant_stats[0].rows == 3, "what came in was changed"


def report(requests: int, share: float = 0.5, same: int = 0, **canary: object) -> dict[str, Any]:
    routes = [
        {"name": "b", "version": 1, "weight": 1, "share": 1 - share, "requests": 10},
        {"name": "a", "version": 2, "weight": 1, "share": share, "requests": requests, **canary},
    ]
    return {"routes": routes, "requests_without_key": requests, "shadow": {"version": "a", "same": same}}


def test_a_routing_has_the_counts_of_all_workers() -> None:
    failure = {"reason": "it failed", "at_ms": 3}
    total = summed(report(5, same=3), report(2, 0.0, same=4, rolled_back=failure), report(1))
    assert total == {
        "routes": [
            {"name": "a", "version": 2, "weight": 1, "share": 1.0, "requests": 8, "rolled_back": failure},
            {"name": "b", "version": 1, "weight": 1, "share": 2.0, "requests": 30},
        ],
        "requests_without_key": 8,
        "shadow": {"version": "a", "same": 7},
    }


def test_a_model_version_goes_with_its_last_worker_and_a_tenant_stays() -> None:
    versions, tenants = [{"name": "m", "version": "1", "done": 1}], [{"name": "t", "done": 2}]
    served = WorkerPage(tables({"models": versions, "tenants": tenants}))
    past = WorkerPage({name: table for name, table in served.families.items() if table.kind == "counter"})
    assert document(merge([past])[0]) == {"models": [], "tenants": tenants}
    assert document(merge([past, served])[0])["models"] == [{**versions[0], "done": 2}]


def test_a_document_alone_stays_as_it_is() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "m", "version": "", "counts": None, "none": [], "closed": {}, "ready": True, "reason": ""}
    ]
    assert summed({"models": rows, "empty": [], "nothing": {}}) == {"models": rows, "empty": [], "nothing": {}}


def test_what_is_empty_in_one_worker_only_is_not_empty() -> None:
    rows: list[dict[str, Any]] = [
        {"counts": None, "sizes": [], "closed": {}},
        {"counts": {"done": 1, "pending": 2}, "sizes": [3]},
    ]
    rows[1]["closed"] = {"full": 4}
    whole = {"counts": {"done": 1, "pending": 2}, "sizes": [3], "closed": {"full": 4}}
    assert summed(*rows) == summed(*reversed(rows)) == whole
    assert summed(rows[0], {"counts": {"done": 1}}) == rows[0], "of a dead worker, and nothing is known besides"
    assert summed({"counts": {"done": 1}}, rows[0]) == rows[0]
