"""Metric families, with samples stored as lines of the metrics page.

A page of 200 models has some 25,000 lines. Samples as objects, each with a mapping of labels, would take as long to
create as to write; hence families hold text.

Pages are created on a thread, while the event loop runs. Code that creates many lines calls `breathe` in between: it
releases the interpreter's lock for a moment, which the loop would otherwise get only after 5 ms.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from modserve.core.runtime.failures import count_failure
from modserve.core.statistics.histogram import Exemplar, Histogram

BREATH = 16
"""Number of histograms, or some hundred lines, between calls of `breathe`."""

_SMALL = 1_000_000
"""Upper bound of numbers written without an exponent."""


class Labels:
    """Labels of samples, escaped and sorted by name as on Triton's page."""

    __slots__ = ("_around", "_pairs", "of", "text")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.of = labels
        self._pairs = sorted((name, f'{name}="{escape_value(value)}"') for name, value in labels.items())
        self.text = ",".join(pair for _, pair in self._pairs)
        self._around: dict[str, tuple[str, str]] = {}

    def having(self, name: str, value: str) -> str:
        """Return the text with one more label, in sorted order."""
        around = self._around.get(name)
        if around is None:
            before = ",".join(pair for other, pair in self._pairs if other < name)
            behind = ",".join(pair for other, pair in self._pairs if other > name)
            around = self._around[name] = (f"{before}," if before else "") + f'{name}="', f",{behind}" if behind else ""
        return f'{around[0]}{escape_value(value)}"{around[1]}'


Rows: TypeAlias = Iterable[tuple[str, float]]
"""Rendered labels without braces, and values."""


class Family:
    """Metric family of the page. `exemplars`: OpenMetrics exemplars of some `lines`, by index."""

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
"""Returns families, created for each page."""


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
    """Return the ends of bucket labels, with the space before the value."""
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
    """Let another thread run that waits for the interpreter's lock."""
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


# The metrics page


def render(collectors: Iterable[Collector], openmetrics: bool = False) -> bytes:
    """Return the page with the families of these collectors."""
    return page(collect_families(collectors), openmetrics)


def collect_families(collectors: Iterable[Collector]) -> Iterator[Family]:
    for collect in collectors:
        try:  # a failing collector costs only its own families
            yield from collect()
        except Exception as error:
            count_failure("metrics", error)


def page(families: Iterable[Family], openmetrics: bool = False) -> bytes:
    """Render a page in Prometheus' text format 0.0.4 or OpenMetrics. As in Triton, families without samples are
    omitted.

    OpenMetrics requires counters to be named ``<name>_total``. Counters that Triton names differently have the type
    ``unknown`` there, as names are the same in both formats.
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
    """Return the name of a family and its type."""
    if not openmetrics or each.kind != "counter":
        return each.name, each.kind
    stem = each.name.removesuffix("_total")
    return (stem, each.kind) if stem != each.name else (each.name, "unknown")


def _lines(each: Family, openmetrics: bool) -> Sequence[str]:
    if openmetrics and each.exemplars:
        return [line + each.exemplars.get(place, "") for place, line in enumerate(each.lines)]
    return each.lines
