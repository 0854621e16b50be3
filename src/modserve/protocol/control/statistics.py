"""The statistics extension's response, one message for both wires."""

from collections.abc import Iterable

from modserve.core.servable import Servable, resident_bytes
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics
from modserve.core.statistics.model_statistics import Duration
from modserve.core.tenants import TenantReport
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.protocol.json.json_text import JsonObject

_BATCH_DURATIONS = ("compute_input", "compute_infer", "compute_output")
_DURATIONS = ("success", "fail", "queue", *_BATCH_DURATIONS, "cache_hit", "cache_miss")
_RESPONSE_DURATIONS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def message(servables: Iterable[Servable], tenants: Iterable[TenantReport] = ()) -> pb.ModelStatisticsResponse:
    """Return cumulative statistics of model versions since their load, and of tenants since the server's start."""
    return pb.ModelStatisticsResponse(
        model_stats=[_model(servable) for servable in servables], tenant_stats=[_tenant(each) for each in tenants]
    )


def json(response: pb.ModelStatisticsResponse) -> JsonObject:
    """Return the statistics in Triton's form; tenants only where there are any."""
    document = to_json(response)
    if not response.tenant_stats:
        del document["tenant_stats"]
    return document


def batches_json(servable: Servable) -> JsonObject:
    """Return why batches were closed, the latest ones, newest first, and choices by run times: an extension of ours."""
    statistics = servable.statistics
    choice = {} if statistics.choice is None else {"choice": _choice(statistics.choice)}
    return {
        "name": servable.id.name,
        "version": str(servable.id.version),
        "close_reasons": dict(statistics.close_reasons),
        "recent": [
            {
                "end_ms": batch.end_ms,
                "batch_size": batch.batch_size,
                "requests": batch.requests,
                "close_reason": batch.close_reason,
                "waited_us": batch.waited_ns // 1000,
                "compute_us": batch.compute_ns // 1000,
                **({"elements": batch.elements, "padding": batch.padding} if servable.config.fills_up else {}),
            }
            for batch in reversed(statistics.recent)
        ],
        **choice,
    }


def _choice(choice: ChoiceStatistics) -> JsonObject:
    return {
        **({"batches": dict(choice.batches)} if choice.batches else {}),
        "trials": choice.trials,
        "trials_share": round(choice.trial_ns / max(1, choice.run_ns), 4),
        "utilisation": round(choice.utilisation, 2),
        "costs": [{"rows": rows, "length": length, "us": round(ns / 1000)} for rows, length, ns in choice.costs],
    }


def _model(servable: Servable) -> pb.ModelStatistics:
    statistics = servable.statistics
    return pb.ModelStatistics(
        name=servable.id.name,
        version=str(servable.id.version),
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
        inference_stats=pb.InferStatistics(**_durations(statistics, _DURATIONS)),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=size, **_durations(batch, _BATCH_DURATIONS))
            for size, batch in sorted(statistics.batches.items())
        ],
        response_stats={
            str(index): pb.InferResponseStatistics(**_durations(response, _RESPONSE_DURATIONS))
            for index, response in sorted(statistics.responses.items())
        },
        memory_usage=_memory(servable),
    )


def _tenant(report: TenantReport) -> pb.TenantStatistics:
    return pb.TenantStatistics(
        name=report.name,
        requests=report.results,
        rows=report.rows,
        tokens=report.tokens,
        in_flight=report.in_flight,
        waiting=report.waiting,
    )


def _memory(servable: Servable) -> list[pb.MemoryUsage]:
    """Return the memory that a model holds; empty where it was not measured, as for ensembles."""
    size = resident_bytes(servable)
    return [] if size < 0 else [pb.MemoryUsage(type="CPU", id=0, byte_size=size)]


def _durations(statistics: object, names: Iterable[str]) -> dict[str, pb.StatisticDuration]:
    durations: dict[str, Duration] = {name: getattr(statistics, name) for name in names}
    return {name: pb.StatisticDuration(count=each.count, ns=each.ns) for name, each in durations.items()}
