"""Merges the metrics pages of several workers into one.

Counters and histograms are added up, and so are gauges that count what each worker has for itself. Gauges that say the
same of every worker, or what the worst of them sees, are the largest; those of `LEAST` are the smallest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isnan
from typing import NamedTuple, TypeAlias

from modserve.observability.families import Family, number

LARGEST = frozenset(
    {
        "modserve_build_info",
        "modserve_certificate_end_timestamp_seconds",
        "modserve_container_memory_limit_bytes",
        "modserve_container_memory_used_bytes",
        "modserve_engine_candidate_error",
        "modserve_engine_candidate_seconds",
        "modserve_engine_info",
        "modserve_key_end_timestamp_seconds",
        "modserve_key_set_read_timestamp_seconds",
        "modserve_model_state",
        "modserve_oldest_execution_seconds",
        "modserve_oldest_waiting_seconds",
        "modserve_request_longest_seconds",
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
LEAST = frozenset(
    {
        "modserve_drain_phase",
        "modserve_ready",
        "modserve_repository_read_timestamp_seconds",
        "process_start_time_seconds",
    }
)


class SampleTable(NamedTuple):
    """The samples of a family, by name and labels as they are written."""

    kind: str
    text: str
    values: dict[str, float]
    exemplars: dict[str, str]

    def counts(self, sample: str) -> bool:
        """Whether the sample only grows."""
        return self.kind in _GROWING and 'quantile="' not in sample

    def empty(self) -> "SampleTable":
        return SampleTable(self.kind, self.text, {}, {})


_GROWING = frozenset({"counter", "histogram", "summary"})

Families: TypeAlias = Mapping[str, SampleTable]


class WorkerPage(NamedTuple):
    """What one worker tells."""

    families: Families
    absent: AbstractSet[str] = frozenset()
    """Samples that the worker does not have now: it had them before, or a process whose place it has taken."""
    gone: AbstractSet[str] = frozenset()
    """Those of them that this process itself had: of models that were unloaded, say."""


def samples_of(families: Iterable[Family]) -> dict[str, SampleTable]:
    made: dict[str, SampleTable] = {}
    for each in families:
        samples = made[each.name] = SampleTable(each.kind, each.text, {}, {})
        for place, line in enumerate(each.lines):
            sample, _, value = line.rpartition(" ")
            samples.values[sample] = float(value)
            if place in each.exemplars:
                samples.exemplars[sample] = each.exemplars[place]
    return made


def merged(pages: Sequence[WorkerPage]) -> tuple[list[Family], frozenset[str]]:
    """The families of all workers, and the samples left out, which no worker has any more.

    What one worker has no more is told as long as another has it, or the sum would fall while a model is unloaded in
    one worker after the other. Families and samples keep the order in which they come first.
    """
    orphans = _orphans(pages)
    totals: dict[str, SampleTable] = {}
    for page in pages:
        for name, samples in page.families.items():
            total, combine = totals.setdefault(name, samples.empty()), _rule(name)
            for sample, value in samples.values.items():
                before = total.values.get(sample)
                if before is None:
                    total.values[sample] = value
                elif 'quantile="' in sample and samples.kind == "summary":
                    total.values[sample] = _worse(before, value)  # quantiles do not add up: that of the worst worker
                else:
                    total.values[sample] = combine(before, value)
            total.exemplars.update(samples.exemplars)  # of several workers one
    return [_family(name, samples, orphans) for name, samples in totals.items()], orphans


def _orphans(pages: Sequence[WorkerPage]) -> frozenset[str]:
    gone = {sample for page in pages for sample in page.gone}
    if gone:
        for page in pages:
            for table in page.families.values():
                gone -= (table.values.keys() & gone) - page.absent
    return frozenset(gone)


def _family(name: str, samples: SampleTable, orphans: AbstractSet[str]) -> Family:
    made = Family(name, samples.kind, samples.text)
    for sample, value in samples.values.items():
        if sample in orphans:
            continue
        if sample in samples.exemplars:
            made.exemplars[len(made.lines)] = samples.exemplars[sample]
        made.lines.append(f"{sample} {number(value)}")
    return made


def _worse(a: float, b: float) -> float:
    """A worker without requests has none."""
    return b if isnan(a) else a if isnan(b) else max(a, b)


def _sum(a: float, b: float) -> float:
    return a + b


def _rule(name: str) -> Callable[[float, float], float]:
    if name in LEAST:
        return min
    return max if name in LARGEST else _sum
