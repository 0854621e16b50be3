"""Tables of samples and their sums over workers, for metrics pages and for `documents` with other figures.

Counters and histograms are added, and so are gauges of each worker's own things. Gauges with the same value in all
workers, or with the worst worker's value, are the largest; gauges in `LEAST` are the smallest.

JSON figures are converted to tables of samples and back, so that the documents of several workers add up like pages.

A sample is the path to a value: one that is neither an object nor a list of objects, or the counts of a sketch by
bucket, which are many. A row of a list is in the path by its naming fields, whatever its position.
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
LEAST = frozenset(
    {
        "modserve_drain_phase",
        "modserve_ready",
        "modserve_repository_read_timestamp_seconds",
        "process_start_time_seconds",
    }
)


_GROWING = frozenset({"counter", "histogram", "summary"})

Sample: TypeAlias = Any
"""Name and labels as rendered on the page; in documents the path, a tuple."""
Owner: TypeAlias = tuple[tuple[str, str], ...]
"""Name and version of a model, as in a row of a document."""


class SampleTable(NamedTuple):
    """Values of a family by sample: numbers on a page, any JSON values in documents."""

    kind: str
    text: str
    values: dict[Sample, Any]
    exemplars: dict[Sample, str]
    rule: str = "sum"
    """Key in `RULES` for combining workers."""

    def counts(self, sample: Sample) -> bool:
        """True if the sample only grows."""
        return self.kind in _GROWING and not (self.kind == "summary" and 'quantile="' in sample)

    def empty(self) -> "SampleTable":
        return self._replace(values={}, exemplars={})


Families: TypeAlias = Mapping[str, SampleTable]


class WorkerPage(NamedTuple):
    """Report of one worker."""

    families: Families
    absent: AbstractSet[Sample] = frozenset()
    """Samples that the worker lacks now, but which it or a predecessor process had before."""
    gone: AbstractSet[Sample] = frozenset()
    """Absent samples that this process itself had, for example of unloaded models."""
    owners: AbstractSet[Owner] = frozenset()
    """Model versions that the worker has now: their samples stay, though they count from 0 after a load."""


class Question(NamedTuple):
    """A question to all workers at the same time."""

    name: str
    former: str = ""
    """The previous question of the same worker."""
    orphans: Collection[Sample] = ()
    """Series that no worker had then. A worker forgets them, unless another question has come in between."""


def samples_of(families: Iterable[Family]) -> dict[str, SampleTable]:
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
    """Return the model version of a sample; empty if it has none, or is an engine's own, which may end it."""
    if isinstance(sample, tuple):
        return sample[1][:2] if len(sample) > 1 and isinstance(sample[1], tuple) else ()
    labels = dict(_LABELS.findall(sample)) if sample.startswith(RESERVED) else {}
    return (("name", labels["model"]), ("version", labels["version"])) if len(labels) == 2 else ()


def merge(pages: Sequence[WorkerPage]) -> tuple[dict[str, SampleTable], frozenset[Sample]]:
    """Return the families of all workers, and the omitted samples, which no worker has any more.

    A sample that one worker lacks is reported as long as another has it; otherwise the sum would fall while a model is
    unloaded in one worker after the other. Families and samples keep the order of their first occurrence.
    """
    orphans = _orphans(pages)
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
                    values[sample] = _worse(before, value)  # quantiles do not add up: the worst worker's counts
                elif value is not None:
                    values[sample] = combine(before, value)
            total.exemplars.update(samples.exemplars)  # from one of several workers
    return totals, orphans


def _orphans(pages: Sequence[WorkerPage]) -> frozenset[Sample]:
    gone = {sample for page in pages for sample in page.gone}
    if gone:
        owners = {each for page in pages for each in page.owners}
        gone = {sample for sample in gone if owner(sample) not in owners}
        for page in pages:
            for table in page.families.values():
                gone -= (table.values.keys() & gone) - page.absent
    return frozenset(gone)


def families_of(tables: Families) -> list[Family]:
    """Return the families of a metrics page."""
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
    """Return the sum of numbers, of counts by key, or of lists by index; for lists of different lengths, the first."""
    if isinstance(a, dict):
        return a | {key: a.get(key, 0) + count for key, count in b.items()}
    if isinstance(a, list):
        return [add(*pair) for pair in zip(a, b, strict=True)] if len(a) == len(b) else a or b
    return a + b


def fell(a: Any, b: Any) -> bool:
    """Return whether `b` has started again since it was `a`."""
    if isinstance(a, dict):
        return any(b.get(key, 0) < count for key, count in a.items())
    if isinstance(a, list):
        return len(a) != len(b) or any(map(fell, a, b))
    return bool(b < a)


def _add_known(a: Any, b: Any) -> Any:
    """Return the sum of figures; -1 stands for no figure."""
    return add(a, b) if isinstance(a, list) or a >= 0 <= b else max(a, b)


def _worst(a: str, b: str) -> str:
    """Return the first state or text that reports more than that all is well."""
    return b if a in ("running", "READY", "") else a


def _worse(a: float, b: float) -> float:
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
    "worst": _worst,
    "joined": lambda a, b: a + b,
}
"""Combined value of two workers, by the name of the rule."""
KEPT: Mapping[str, Callable[[Any, Any], Any]] = {rule: RULES[rule] for rule in ("known", "latest")}
"""Rules that keep one value of consecutive processes; under all others the values add up."""


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
"""Rules for combining several workers' values, by field name. Other numbers only grow, and are added.

For other texts, the first worker's value is used.
"""
_COUNTERS: Final = frozenset({"sum", "known", "latest"})


def tables(document: object) -> dict[str, SampleTable]:
    """Return a table for each rule."""
    made: dict[str, SampleTable] = {}
    for path, value in _values((), document):
        number = isinstance(value, int | float | list | dict) and not isinstance(value, bool)
        rule = _RULES.get(path[-1]) or ("sum" if number else "first")
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
    """An object, or the rows of a list; not `live` if only counts of removed things are left of it."""

    def __init__(self, empty: object = ...) -> None:
        self.values: dict[Any, Any] = {}
        self.live = False
        self.empty = empty
        """Value in a worker where it has no content."""


def document(families: Families) -> dict[str, Any]:
    """Return the document with these values. A value that is empty in one worker only is not empty."""
    root = _Node()
    for table in families.values():
        for (*way, last), value in table.values.items():
            node = root
            for part in way:
                if not isinstance(inner := node.values.get(part, ...), _Node):
                    inner = node.values[part] = _Node(inner)
                node = inner
                node.live |= table.kind == "gauge"
            if isinstance(inner := node.values.get(last), _Node):
                inner.empty = value
            else:
                node.values[last] = value
    made: dict[str, Any] = _finish(root)
    return made


def _finish(node: _Node) -> Any:
    values = node.values
    if values and all(isinstance(key, tuple) for key in values):
        rows = sorted(values.items(), key=lambda row: _order(row[0]))
        # A model version disappears with its last worker; a batch size or a tenant does not.
        return [dict(key) | _finish(row) for key, row in rows if row.live or len(key) == 1]
    return {
        key: value if not isinstance(value, _Node) else value.empty if _is_past(value) else _finish(value)
        for key, value in values.items()
    }


def _is_past(node: _Node) -> bool:
    return node.empty is None and not node.live


def _order(names: tuple[tuple[str, object], ...]) -> list[tuple[int, str]]:
    texts = [str(value) for _, value in names]
    return [(int(text), "") if text.isdecimal() else (-1, text) for text in texts]
