"""Combines the answers of several workers: statistics, the repository index, the routing of a model, a drain."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.pb import inference as pb
from modserve.server import DrainReport


def statistics(answers: Iterable[pb.ModelStatisticsResponse]) -> pb.ModelStatisticsResponse:
    """Counts and durations of each model version are added up, and of each tenant; the last inference is the latest."""
    models: dict[tuple[str, str], pb.ModelStatistics] = {}
    tenants: dict[str, pb.TenantStatistics] = {}
    for answer in answers:
        for tenant in answer.tenant_stats:
            _add_tenant(tenants.setdefault(tenant.name, pb.TenantStatistics(name=tenant.name)), tenant)
        for one in answer.model_stats:
            total = models.get((one.name, one.version))
            if total is None:
                total = models[one.name, one.version] = pb.ModelStatistics()
                total.CopyFrom(one)
            else:
                _add_model(total, one)
    return pb.ModelStatisticsResponse(
        model_stats=list(models.values()), tenant_stats=[tenants[name] for name in sorted(tenants)]
    )


def _add_tenant(total: pb.TenantStatistics, one: pb.TenantStatistics) -> None:
    for result, count in one.requests.items():
        total.requests[result] += count
    total.rows += one.rows
    total.tokens += one.tokens
    total.in_flight += one.in_flight
    total.waiting += one.waiting


def _add_model(total: pb.ModelStatistics, one: pb.ModelStatistics) -> None:
    total.last_inference = max(total.last_inference, one.last_inference)
    total.inference_count += one.inference_count
    total.execution_count += one.execution_count
    _add_durations(total.inference_stats, one.inference_stats)
    for mine, other in zip(total.memory_usage, one.memory_usage, strict=False):
        mine.byte_size += other.byte_size
    sizes = {batch.batch_size: batch for batch in total.batch_stats}
    for batch in one.batch_stats:
        if batch.batch_size in sizes:
            _add_durations(sizes[batch.batch_size], batch)
        else:
            total.batch_stats.append(batch)
    total.batch_stats.sort(key=lambda batch: batch.batch_size)
    for key, response in one.response_stats.items():
        if key in total.response_stats:
            _add_durations(total.response_stats[key], response)
        else:
            total.response_stats[key].CopyFrom(response)


def _add_durations(
    total: pb.InferStatistics | pb.InferBatchStatistics | pb.InferResponseStatistics,
    one: pb.InferStatistics | pb.InferBatchStatistics | pb.InferResponseStatistics,
) -> None:
    """Add up every duration that the message has."""
    for field, value in one.ListFields():
        if isinstance(value, pb.StatisticDuration):
            sum_: pb.StatisticDuration = getattr(total, field.name)
            sum_.count += value.count
            sum_.ns += value.ns


def index(answers: Mapping[int, Iterable[IndexEntry]], noun: str = "worker") -> list[IndexEntry]:
    """Every model version with its state; READY if it is that on all workers, else a state that one of them has.

    The reason says which worker that is, if others have another state.
    """
    rows: dict[tuple[str, int], list[tuple[int, IndexEntry]]] = {}
    for worker, entries in sorted(answers.items()):
        for entry in entries:
            rows.setdefault((entry.name, entry.version or 0), []).append((worker, entry))
    return [_of_all(rows[key], noun) for key in sorted(rows)]


def _of_all(entries: Sequence[tuple[int, IndexEntry]], noun: str) -> IndexEntry:
    if len({entry.state for _, entry in entries}) == 1:
        return entries[0][1]
    worker, entry = next((worker, entry) for worker, entry in entries if entry.state is not LifecycleState.READY)
    never_loaded = entry.version is None and entry.state is LifecycleState.UNKNOWN
    reason = entry.reason or ("not loaded" if never_loaded else entry.state.value)
    return replace(entry, reason=f"{noun} {worker}: {reason}")


def failures(lists: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The failures that each worker has kept, those that are alike as one, the latest first."""
    by_texts: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in sorted((each for failures in lists for each in failures), key=lambda each: int(each["last_ms"])):
        texts = tuple(one[name] for name in ("protocol", "model", "version", "status", "message"))
        before = by_texts.pop(texts, None)
        if before is not None:
            first_ms = min(before["first_ms"], one["first_ms"])
            one = {**one, "count": before["count"] + one["count"], "first_ms": first_ms}
        by_texts[texts] = one
    return list(reversed(by_texts.values()))


def routing(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The routing of a model, with the counts of all workers; `reports` are theirs, as of `Router.report`."""
    first, *others = reports
    total = deepcopy(first)
    for report in others:
        for mine, other in zip(total["routes"], report["routes"], strict=False):
            mine["requests"] += other["requests"]
            mine.update({key: other[key] for key in ("not_ready", "rolled_back") if key in other and key not in mine})
        _add_numbers(total, report, ("requests_without_key",))
        if "shadow" in total and "shadow" in report:
            _add_numbers(total["shadow"], report["shadow"], ("same", "different", "failed", "dropped", "in_flight"))
            total["shadow"] = {**report["shadow"], **total["shadow"]}
    for index, route in enumerate(total["routes"]):
        shares = [report["routes"][index]["share"] for report in reports if index < len(report["routes"])]
        route["share"] = round(sum(shares) / len(shares), 6)
    return total


def _add_numbers(total: dict[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name in total:
            total[name] += other.get(name, 0)


def drain(reports: Sequence[DrainReport]) -> DrainReport:
    """What has become of the drain of all workers."""
    left: Counter[str] = Counter()
    for report in reports:
        left.update(report.in_flight)
    return DrainReport(all(each.drained for each in reports), dict(left), max(each.seconds for each in reports))
