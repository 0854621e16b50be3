"""Aggregation of several workers' metrics pages and JSON documents.

Counters and histograms are summed. Gauges are summed, too, except those in `LARGEST` and `LEAST`: of these, the largest
or smallest value counts.

For aggregation, `tables` converts a JSON document to tables of samples, and `document` converts them back. A sample of
a document is the path to a value. Objects and lists of objects are not values but parts of paths. A row of a list is in
the path by the fields that identify it (`_NAMES`), not by its position. The counts of a sketch by bucket are one value.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isnan
from typing import Any, Final, NamedTuple, TypeAlias

from modserve.observability.families import Family, number
from modserve.observability.prometheus import RESERVED

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
"""Gauges with the same value in all workers, or for which the largest value is the worst."""
LEAST = frozenset(
    {
        "modserve_drain_phase",
        "modserve_ready",
        "modserve_repository_read_timestamp_seconds",
        "process_start_time_seconds",
    }
)
"""Gauges for which the smallest value counts."""

_CUMULATIVE_KINDS = frozenset({"counter", "histogram", "summary"})

Sample: TypeAlias = Any
"""Name and labels, as on the page. In documents, the path: a tuple."""
Owner: TypeAlias = tuple[tuple[str, str], ...]
"""Name and version of a model, with the field names of a document."""


class SampleTable(NamedTuple):
    """Values of a metric family by sample: numbers on a page, any JSON values in documents."""

    kind: str
    text: str
    values: dict[Sample, Any]
    exemplars: dict[Sample, str]
    rule: str = "sum"
    """Rule in `RULES` that combines the values of workers."""

    def is_cumulative(self, sample: Sample) -> bool:
        """True if the sample never decreases."""
        return self.kind in _CUMULATIVE_KINDS and not (self.kind == "summary" and 'quantile="' in sample)

    def empty(self) -> "SampleTable":
        return self._replace(values={}, exemplars={})


Families: TypeAlias = Mapping[str, SampleTable]


class WorkerPage(NamedTuple):
    """Report of one worker."""

    families: Families
    absent: AbstractSet[Sample] = frozenset()
    """Samples that this worker, or its process before a restart, had before and does not have now."""
    gone: AbstractSet[Sample] = frozenset()
    """Absent samples that this process had, for example of unloaded models."""
    owners: AbstractSet[Owner] = frozenset()
    """Model versions that the worker has now. Their samples stay, although a load resets them to 0."""


class Question(NamedTuple):
    """Request for the pages of all workers at the same time."""

    name: str
    former: str = ""
    """Name of the previous question of the same worker."""
    orphans: Collection[Sample] = ()
    """Samples that no worker had at the previous question. A worker drops them if that was its last question."""


def samples_of(families: Iterable[Family]) -> dict[str, SampleTable]:
    """Return the tables of a metrics page, by family."""
    made: dict[str, SampleTable] = {}
    for each in families:
        rule = "least" if each.name in LEAST else "largest" if each.name in LARGEST else "sum"
        samples = made[each.name] = SampleTable(each.kind, each.text, {}, {}, rule)
        for place, line in enumerate(each.lines):
            sample, _, value = line.rpartition(" ")
            samples.values[sample] = float(value)
            if place in each.exemplars:
                samples.exemplars[sample] = each.exemplars[place]
    return made


_LABELS = re.compile(r'[{,](model|version)="((?:[^"\\]|\\.)*)"')


def owner(sample: Sample) -> Owner:
    """Return the model version of a sample; empty if it has none.

    Also empty for metrics that engines define, because engines may remove them.
    """
    if isinstance(sample, tuple):
        return sample[1][:2] if len(sample) > 1 and isinstance(sample[1], tuple) else ()
    labels = dict(_LABELS.findall(sample)) if sample.startswith(RESERVED) else {}
    return (("name", labels["model"]), ("version", labels["version"])) if len(labels) == 2 else ()


def merge(pages: Sequence[WorkerPage]) -> tuple[dict[str, SampleTable], frozenset[Sample]]:
    """Return the combined families of all workers, and the samples that it omits because no worker has them any more.

    A sample stays as long as one worker has it. Otherwise the sum would fall while the workers unload a model one after
    the other. Families and samples keep the order of their first occurrence.
    """
    orphans = _find_orphans(pages)
    totals: dict[str, SampleTable] = {}
    for page in pages:
        for name, samples in page.families.items():
            total = totals.setdefault(name, samples.empty())
            values, combine, summary = total.values, RULES[samples.rule], samples.kind == "summary"
            for sample, value in samples.values.items():
                before = values.get(sample)
                if before is None:
                    if sample not in orphans:
                        values[sample] = value
                elif summary and 'quantile="' in sample:
                    values[sample] = _larger(before, value)  # quantiles cannot be summed: take the worst
                elif value is not None:
                    values[sample] = combine(before, value)
            total.exemplars.update(samples.exemplars)  # the last worker's
    return totals, orphans


def _find_orphans(pages: Sequence[WorkerPage]) -> frozenset[Sample]:
    gone = {sample for page in pages for sample in page.gone}
    if gone:
        owners = {each for page in pages for each in page.owners}
        gone = {sample for sample in gone if owner(sample) not in owners}
        for page in pages:
            for table in page.families.values():
                gone -= (table.values.keys() & gone) - page.absent
    return frozenset(gone)


def families_of(tables: Families) -> list[Family]:
    """Return the families of a metrics page with the values of these tables."""
    made = []
    for name, samples in tables.items():
        family = Family(name, samples.kind, samples.text)
        for sample, value in samples.values.items():
            if sample in samples.exemplars:
                family.exemplars[len(family.lines)] = samples.exemplars[sample]
            family.lines.append(f"{sample} {number(value)}")
        made.append(family)
    return made


def add(a: Any, b: Any) -> Any:
    """Return the sum of numbers, of counts by key or of lists by index.

    For lists of different lengths, return the first one that is not empty.
    """
    if isinstance(a, dict):
        return a | {key: a.get(key, 0) + count for key, count in b.items()}
    if isinstance(a, list):
        return [add(*pair) for pair in zip(a, b, strict=True)] if len(a) == len(b) else a or b
    return a + b


def was_reset(a: Any, b: Any) -> bool:
    """True if a counter was reset: its value was `a`, and `b` is lower."""
    if isinstance(a, dict):
        return any(b.get(key, 0) < count for key, count in a.items())
    if isinstance(a, list):
        return len(a) != len(b) or any(map(was_reset, a, b))
    return bool(b < a)


def _add_known(a: Any, b: Any) -> Any:
    """Return the sum of two values. -1 stands for an unknown value."""
    return add(a, b) if isinstance(a, list) or a >= 0 <= b else max(a, b)


def _first_problem(a: str, b: str) -> str:
    """Return the first state or text that reports a problem."""
    return b if a in ("running", "READY", "") else a


def _larger(a: float, b: float) -> float:
    """Return the larger value; NaN stands for a worker without requests."""
    return b if isnan(a) else a if isnan(b) else max(a, b)


RULES: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum": add,
    "known": _add_known,
    "held": _add_known,
    "latest": max,
    "largest": max,
    "least": min,
    "first": lambda a, b: a,
    "worst": _first_problem,
    "joined": lambda a, b: a + b,
}
"""Functions that combine the values of two workers, by the name of the rule."""
KEPT: Mapping[str, Callable[[Any, Any], Any]] = {rule: RULES[rule] for rule in ("known", "latest")}
"""Rules that also combine the values of a worker's consecutive processes. With other rules, these are summed."""


_NAMES: Final = ("name", "version", "revision", "batch_size", "type", "id")
"""Fields that identify a row of a list."""

_RULES: Mapping[str, str] = {
    **dict.fromkeys((*_NAMES, "at_ms", "size_bounds", "weight"), "first"),
    **dict.fromkeys(("byte_size", "in_flight", "instances", "lost", "memory", "pending", "sequences"), "held"),
    **dict.fromkeys(("rss", "request_memory", "request_memory_limit", "model_memory", "model_memory_limit"), "held"),
    **dict.fromkeys(("serving", "share", "waiting", "workers"), "held"),
    **dict.fromkeys(("last_inference", "longest", "starts"), "latest"),
    **dict.fromkeys(("by_token", "load_ms"), "largest"),
    **dict.fromkeys(("engine", "phase", "reason", "state"), "worst"),
    "kv_cache": "joined",
    "ready": "least",
    "recorded": "known",
}
"""Rules by field name. Other numbers are counters and are summed. Other texts come from the first worker."""
_COUNTERS: Final = frozenset({"sum", "known", "latest"})


def tables(document: object) -> dict[str, SampleTable]:
    """Convert a document to one table for each rule."""
    made: dict[str, SampleTable] = {}
    for path, value in _values((), document):
        is_number = isinstance(value, int | float | list | dict) and not isinstance(value, bool)
        rule = _RULES.get(path[-1]) or ("sum" if is_number else "first")
        if rule not in made:
            made[rule] = SampleTable("counter" if rule in _COUNTERS else "gauge", "", {}, {}, rule)
        made[rule].values[path] = value
    return made


def _values(path: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict) and value and not isinstance(next(iter(value)), int):
        for key, each in value.items():
            yield from _values((*path, key), each)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for row in value:
            yield from _values((*path, tuple((name, row[name]) for name in _NAMES if name in row)), row)
    else:
        yield path, value


class _Node:
    """An object or the rows of a list. Not `live` if only counters are left of it, as of an unloaded model."""

    def __init__(self, empty: object = ...) -> None:
        self.values: dict[Any, Any] = {}
        self.live = False
        self.empty = empty
        """Value of a worker that has no object or list here, such as null."""


def document(families: Families) -> dict[str, Any]:
    """Convert tables to a document. If only some workers have an object or a list, the document has it."""
    root = _Node()
    for table in families.values():
        for (*parents, key), value in table.values.items():
            node = root
            for part in parents:
                if not isinstance(inner := node.values.get(part, ...), _Node):
                    inner = node.values[part] = _Node(inner)
                node = inner
                node.live |= table.kind == "gauge"
            if isinstance(inner := node.values.get(key), _Node):
                inner.empty = value
            else:
                node.values[key] = value
    made: dict[str, Any] = _to_json(root)
    return made


def _to_json(node: _Node) -> Any:
    values = node.values
    if values and all(isinstance(key, tuple) for key in values):
        rows = sorted(values.items(), key=lambda row: _row_order(row[0]))
        # A model version disappears when no worker has it any more; a batch size or a tenant stays.
        return [dict(key) | _to_json(row) for key, row in rows if row.live or len(key) == 1]
    return {
        key: value if not isinstance(value, _Node) else value.empty if _is_removed(value) else _to_json(value)
        for key, value in values.items()
    }


def _is_removed(node: _Node) -> bool:
    return node.empty is None and not node.live


def _row_order(names: tuple[tuple[str, object], ...]) -> list[tuple[int, str]]:
    texts = [str(value) for _, value in names]
    return [(int(text), "") if text.isdecimal() else (-1, text) for text in texts]
