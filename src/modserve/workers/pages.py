"""Merges the metrics pages of several workers into one.

Pages are in Prometheus' text format or in OpenMetrics, all in the same. Counters and histograms are added up, and so
are gauges that count what each worker has for itself. Gauges that say the same of every worker, or what the worst of
them sees, are the largest; those of `LEAST` are the smallest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan

LARGEST = frozenset(
    {
        "modserve_build_info",
        "modserve_engine_candidate_error",
        "modserve_engine_candidate_seconds",
        "modserve_engine_info",
        "modserve_event_loop_lag_seconds",
        "modserve_model_state",
        "modserve_oldest_execution_seconds",
        "modserve_oldest_waiting_seconds",
        "modserve_routing_rolled_back",
        "modserve_routing_share",
        "modserve_tuner_batch_size",
        "modserve_tuner_delay_seconds",
        "modserve_tuner_p99_goal_seconds",
        "modserve_tuner_p99_seconds",
        "modserve_engine_installed_info",
        "nv_cpu_memory_total_bytes",
        "nv_cpu_memory_used_bytes",
        "nv_cpu_utilization",
        "nv_energy_consumption",
        "nv_gpu_memory_total_bytes",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_power_limit",
        "nv_gpu_power_usage",
        "nv_gpu_utilization",
        "nv_model_load_duration_secs",
        "process_max_fds",
        "python_info",
    }
)
LEAST = frozenset({"modserve_drain_phase", "modserve_ready", "process_start_time_seconds"})


_END = "# EOF"
_EXEMPLAR = " # {"


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    kind: str = "untyped"
    samples: dict[str, float] = field(default_factory=dict)
    """By name and labels, as they are written."""
    exemplars: dict[str, str] = field(default_factory=dict)
    """What OpenMetrics has behind the values: of several workers one."""


def merged(pages: Sequence[bytes]) -> bytes:
    """The page of all workers. Families and samples keep the order in which they come first."""
    families: dict[str, _Family] = {}
    for page in pages:
        _add(page.decode(), families)
    lines: list[str] = []
    for family in families.values():
        lines += family.head
        exemplars = family.exemplars
        lines += [f"{sample} {_number(value)}{exemplars.get(sample, '')}" for sample, value in family.samples.items()]
    lines.append("")
    return "\n".join(lines).encode()


def _add(page: str, families: dict[str, _Family]) -> None:
    family, new = _Family(), False
    combine: Callable[[float, float], float] = _sum
    for line in page.split("\n"):
        if line == _END:
            continue
        if line.startswith("# "):
            _, keyword, name, rest = line.split(" ", 3)
            if keyword == "HELP":
                new = name not in families
                family = families.setdefault(name, _Family())
                combine = _rule(name)
            else:
                family.kind = rest
            if new:
                family.head.append(line)
        elif line:
            line, mark, exemplar = line.partition(_EXEMPLAR)
            sample, _, text = line.rpartition(" ")
            if mark:
                family.exemplars[sample] = mark + exemplar
            value, before = float(text), family.samples.get(sample)
            if before is None:
                family.samples[sample] = value
            elif family.kind == "summary" and 'quantile="' in sample:
                family.samples[sample] = _worse(before, value)  # quantiles do not add up: that of the worst worker
            else:
                family.samples[sample] = combine(before, value)


def _worse(a: float, b: float) -> float:
    """A worker without requests has none."""
    return b if isnan(a) else a if isnan(b) else max(a, b)


def _sum(a: float, b: float) -> float:
    return a + b


def _rule(name: str) -> Callable[[float, float], float]:
    if name in LEAST:
        return min
    return max if name in LARGEST else _sum


def _number(value: float) -> str:
    """As it is written on a page, whole numbers with one decimal place."""
    if isnan(value):
        return "NaN"
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value) or repr(value)


def with_workers(page: bytes, serving: int, restarts: int, openmetrics: bool = False) -> bytes:
    """The page with what it says of the workers themselves."""
    total = "" if openmetrics else "_total"
    lines = (
        "# HELP modserve_workers Worker processes that are serving",
        "# TYPE modserve_workers gauge",
        f"modserve_workers {_number(float(serving))}",
        f"# HELP modserve_worker_restarts{total} Worker processes started to replace others",
        f"# TYPE modserve_worker_restarts{total} counter",
        f"modserve_worker_restarts_total {_number(float(restarts))}",
        "# EOF\n" if openmetrics else "",
    )
    return page + "\n".join(lines).encode()
