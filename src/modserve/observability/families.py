"""Families of metrics, whose samples are lines of the page as soon as they are made.

A page of 200 models has some 25,000 lines. Samples that are objects, each with a mapping of its labels, take as long
again to make as to write, so that families hold text.

Pages are made on a thread, while the event loop goes on. Code that makes many lines calls `breathe` in between: the
interpreter's lock is free for a moment then, and the loop need not wait for the 5 ms after which it would get it.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from modserve.core.runtime.failures import count_failure
from modserve.core.statistics.histogram import Exemplar, Histogram

BREATH = 16
"""Histograms, or some hundred lines, after which `breathe` is called."""

_SMALL = 1_000_000
"""Numbers below it are written without an exponent."""


class Labels:
    """The labels of samples, escaped and sorted by name as on Triton's page."""

    __slots__ = ("_around", "_pairs", "of", "text")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.of = labels
        self._pairs = sorted((name, f'{name}="{escape_value(value)}"') for name, value in labels.items())
        self.text = ",".join(pair for _, pair in self._pairs)
        self._around: dict[str, tuple[str, str]] = {}

    def having(self, name: str, value: str) -> str:
        """Return the text with one more label, in its place."""
        around = self._around.get(name)
        if around is None:
            before = ",".join(pair for other, pair in self._pairs if other < name)
            behind = ",".join(pair for other, pair in self._pairs if other > name)
            around = self._around[name] = (f"{before}," if before else "") + f'{name}="', f",{behind}" if behind else ""
        return f'{around[0]}{escape_value(value)}"{around[1]}'


Rows: TypeAlias = Iterable[tuple[str, float]]
"""Labels as they are written, without braces, and values."""


class Family:
    """Metric family of the page. `exemplars` are what OpenMetrics has behind some of the `lines`, by their places."""

    __slots__ = ("exemplars", "kind", "lines", "name", "text")

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.lines: list[str] = []
        self.exemplars: dict[int, str] = {}

    def add(self, rows: Rows) -> "Family":
        name = self.name
        self.lines += [
            f"{name}{{{labels}}} {number(value)}" if labels else f"{name} {number(value)}" for labels, value in rows
        ]
        return self


Collector: TypeAlias = Callable[[], Iterable[Family]]
"""Makes families, anew for each page."""


def family(name: str, kind: str, text: str, rows: Rows) -> Family:
    return Family(name, kind, text).add(rows)


def format_labels(labels: Mapping[str, str]) -> str:
    return Labels(labels).text


def histogram_family(name: str, text: str, unit: float, rows: Iterable[tuple[str, Histogram]]) -> Family:
    """Return a family of histograms, a row for each set of labels. Bounds and sums are divided by `unit`."""
    made = Family(name, "histogram", text)
    lines = made.lines
    for place, (labels, histogram) in enumerate(rows):
        if place % BREATH == BREATH - 1:
            breathe()
        begin = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
        braced = f"{{{labels}}}" if labels else ""
        running, first = 0, len(lines)
        for limit, count in zip(_limits(histogram.bounds, unit), list(histogram.buckets), strict=True):
            running += count
            lines.append(f"{begin}{limit}{running}.0" if running < _SMALL else f"{begin}{limit}{number(running)}")
        lines.append(f"{name}_count{braced} {number(running)}")
        lines.append(f"{name}_sum{braced} {number(histogram.total / unit)}")
        for bucket, exemplar in list((histogram.exemplars or {}).items()):
            made.exemplars[first + bucket] = _exemplar(exemplar, unit)
    return made


def _exemplar(exemplar: Exemplar, unit: float) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {exemplar.value / unit!r} {exemplar.unix_s:.3f}'


@lru_cache(256)
def _limits(bounds: Sequence[float], unit: float) -> list[str]:
    """Return the ends of the labels of buckets, with the space before the value."""
    return [f'le="{limit}"}} ' for limit in (*(number(bound / unit) for bound in bounds), "+Inf")]


def summary_family(
    name: str, text: str, rows: Iterable[tuple[Labels, int, float, Iterable[tuple[str, float]]]]
) -> Family:
    """Return a summary family from rows of labels, count, sum, and values by quantile."""
    made = Family(name, "summary", text)
    for place, (labels, count, total, quantiles) in enumerate(rows):
        if place % BREATH == BREATH - 1:
            breathe()
        made.lines += [f"{name}{{{labels.having('quantile', rank)}}} {number(value)}" for rank, value in quantiles]
        made.lines.append(f"{name}_count{{{labels.text}}} {number(count)}")
        made.lines.append(f"{name}_sum{{{labels.text}}} {number(total)}")
    return made


def breathe() -> None:
    """Let a thread run that waits for the interpreter's lock."""
    time.sleep(0)


def number(value: float) -> str:
    """Format a number like Prometheus."""
    if type(value) is int and 0 <= value < _SMALL:
        return f"{value}.0"
    value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    if value < _SMALL or "e" in text:
        return text
    whole, _, fraction = text.partition(".")
    mantissa = f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0").rstrip(".")
    return f"{mantissa}e+{len(whole) - 1:02d}"


def escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def escape_value(text: str) -> str:
    return escape(text).replace('"', r"\"")


# The page


def render(collectors: Iterable[Collector], openmetrics: bool = False) -> bytes:
    """Return the page of what these collectors have to say."""
    return page(collect_families(collectors), openmetrics)


def collect_families(collectors: Iterable[Collector]) -> Iterator[Family]:
    for collect in collectors:
        try:  # one that fails takes nothing but its own families from the page
            yield from collect()
        except Exception as error:
            count_failure("metrics", error)


def page(families: Iterable[Family], openmetrics: bool = False) -> bytes:
    """Write a page in Prometheus' text format 0.0.4 or OpenMetrics. Like Triton's, it has no families without samples.

    OpenMetrics wants counters to be called ``<name>_total``. Those that Triton calls otherwise are ``unknown`` in it:
    names are the same in both formats.
    """
    lines: list[str] = []
    for each in families:
        breathe()
        samples = _lines(each, openmetrics)
        if not samples:
            continue
        name, kind = _head(each, openmetrics)
        lines.append(f"# HELP {name} {(escape_value if openmetrics else escape)(each.text)}")
        lines.append(f"# TYPE {name} {kind}")
        lines += samples
    lines.append("# EOF\n" if openmetrics else "")
    return "\n".join(lines).encode()


def _head(each: Family, openmetrics: bool) -> tuple[str, str]:
    """Return the name of a family and its kind."""
    if not openmetrics or each.kind != "counter":
        return each.name, each.kind
    stem = each.name.removesuffix("_total")
    return (stem, each.kind) if stem != each.name else (each.name, "unknown")


def _lines(each: Family, openmetrics: bool) -> Sequence[str]:
    if openmetrics and each.exemplars:
        return [line + each.exemplars.get(place, "") for place, line in enumerate(each.lines)]
    return each.lines
