"""Metrics created by engines, in addition to the server's own: families by name, with series by labels.

A server has one `MetricStore`. Every loaded model version has a `StoredMetrics`, and every metric that its engine
creates is a `StoredMetric`. A series is one value shared by its holders: instances of one model, or several models. It
exists while it has a holder, and a family while a model that declared it is loaded, like Triton's reference counts in
``MetricFamily::Remove``. Names, kinds and holders change under the store's lock, and values under the lock of their
series, so that updates of different metrics do not contend.
"""

import math
import re
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn, TypeAlias, cast, get_args

from ..errors import internal, invalid, unsupported
from .histogram import Histogram

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram"]

_KINDS: tuple[str, ...] = get_args(MetricKind)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

_Labels: TypeAlias = tuple[tuple[str, str], ...]


class FamilySnapshot(NamedTuple):
    """A family and its values at one time. `rows` contain numbers or histograms."""

    name: str
    help: str
    kind: MetricKind
    rows: list[tuple[dict[str, str], float | Histogram]]


@dataclass(slots=True, eq=False)
class _Series:
    labels: _Labels
    histogram: Histogram | None
    value: float = 0.0
    holders: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> float | Histogram:
        with self.lock:
            return self.value if self.histogram is None else self.histogram.copy()


@dataclass(slots=True, eq=False)
class _Family:
    name: str
    help: str
    kind: MetricKind
    series: dict[_Labels, _Series] = field(default_factory=dict)
    holders: int = 0

    @property
    def sample_names(self) -> set[str]:
        return _sample_names(self.name, self.kind)


class MetricStore:
    """Metrics of all engines of a server. `reserved` are name prefixes of the server's own metrics.

    `shared` are names with such a prefix that engines may use, as the server has no such metrics.
    """

    def __init__(self, reserved: tuple[str, ...] = (), shared: frozenset[str] = frozenset()) -> None:
        self.reserved = reserved
        self.shared = shared
        self.lock = threading.RLock()
        self.families: dict[str, _Family] = {}

    def __repr__(self) -> str:
        return f"MetricStore({len(self.families)} families)"

    def of_model(self) -> "StoredMetrics":
        """Return the metrics of one model version."""
        return StoredMetrics(self)

    def read(self, names: Container[str] | None = None) -> list[FamilySnapshot]:
        """Return the families with metrics, sorted by name and labels; `names` selects some of them."""
        with self.lock:
            every = [
                (family, list(family.series.values()))
                for name, family in sorted(self.families.items())
                if names is None or name in names
            ]
        return [
            FamilySnapshot(
                family.name,
                family.help,
                family.kind,
                [(dict(one.labels), one.read()) for one in sorted(series, key=lambda each: each.labels)],
            )
            for family, series in every
            if series
        ]


class StoredMetrics:
    """Implementation of `backends.api.ModelMetrics` for one model version."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._families: dict[str, _Family] = {}
        self._metrics: set[StoredMetric] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"StoredMetrics({len(self._families)} families, {len(self._metrics)} metrics)"

    def family(self, name: str, help: str, kind: MetricKind) -> None:
        _check_family(name, help, kind)
        with self._store.lock:
            self._check_open()
            if name not in self._families:
                self._families[name] = family = self._declare(name, help, kind)
                family.holders += 1
            elif self._families[name].kind != kind:
                raise _other_kind(self._families[name], kind)

    def metric(
        self, family: str, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> "StoredMetric":
        with self._store.lock:
            self._check_open()
            declared = self._families.get(family)
            if declared is None:
                raise invalid(f"metric family '{family}' was not declared by this model")
            key = _check_labels(declared, labels or {})
            bounds = _check_buckets(declared, buckets)
            series = declared.series.get(key)
            if series is None:
                timed = family in self._store.shared and family.endswith("_seconds")
                histogram = None if bounds is None else Histogram(bounds, 1e9 if timed else 0.0)
                series = declared.series[key] = _Series(key, histogram)
            series.holders += 1
            metric = StoredMetric(self, declared, series)
            self._metrics.add(metric)
            return metric

    def drop(self, metric: "StoredMetric", family: _Family, series: _Series) -> None:
        """Remove a closed metric, and its series if it was the last holder."""
        with self._store.lock:
            if metric not in self._metrics:
                return
            self._metrics.remove(metric)
            series.holders -= 1
            if not series.holders:
                del family.series[series.labels]

    def close(self) -> None:
        """Remove the metrics held only by this unloaded version. May be called again."""
        with self._store.lock:
            self._closed = True
            for metric in list(self._metrics):
                metric.close()
            for name, family in self._families.items():
                family.holders -= 1
                if not family.holders:
                    del self._store.families[name]
            self._families.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise internal("the model has been unloaded and no longer has metrics")

    def _declare(self, name: str, help: str, kind: MetricKind) -> _Family:
        """Return the family with this name, new or existing. The first declaration sets its help text."""
        store = self._store
        if name in store.families:
            if store.families[name].kind != kind:
                raise _other_kind(store.families[name], kind)
            return store.families[name]
        if name.startswith(store.reserved) and name not in store.shared:
            raise invalid(f"metric family '{name}': this prefix is reserved for the server's own metrics")
        for other in store.families.values():
            for sample in sorted(_sample_names(name, kind) & other.sample_names):
                raise invalid(
                    f"metric family '{name}' has samples named '{sample}', as {other.kind} '{other.name}' has"
                )
        family = store.families[name] = _Family(name, help, kind)
        return family


class StoredMetric:
    """Implementation of `backends.api.ModelMetric`."""

    __slots__ = ("_family", "_owner", "_series")

    def __init__(self, owner: StoredMetrics, family: _Family, series: _Series) -> None:
        self._owner = owner
        self._family = family
        self._series: _Series | None = series

    def __repr__(self) -> str:
        return f"StoredMetric({self._family.name})"

    def increment(self, value: float = 1.0) -> None:
        series = self._live()
        if self._family.kind == "histogram":
            self._refuse("incremented", "observe")
        if value < 0 and self._family.kind == "counter":
            raise invalid(f"counter '{self._family.name}' can only be incremented by 0 or more, not by {value:g}")
        with series.lock:
            series.value += float(value)

    def set(self, value: float) -> None:
        series = self._live()
        if self._family.kind != "gauge":
            self._refuse("set", "increment" if self._family.kind == "counter" else "observe")
        with series.lock:
            series.value = float(value)

    def observe(self, value: float, times: int = 1) -> None:
        series = self._live()
        if series.histogram is None:
            self._refuse("observed", "increment")
        with series.lock:
            series.histogram.observe(float(value), times)

    def value(self) -> float:
        series = self._live()
        if series.histogram is not None:
            raise unsupported(f"histogram '{self._family.name}' has no single value to return")
        return series.value

    def close(self) -> None:
        series, self._series = self._series, None
        if series is not None:
            self._owner.drop(self, self._family, series)

    def _live(self) -> _Series:
        if self._series is None:
            raise internal(f"a metric of family '{self._family.name}' was used after it was closed")
        return self._series

    def _refuse(self, done: str, right: str) -> NoReturn:
        family = self._family
        raise unsupported(f"{family.kind} '{family.name}' cannot be {done}: use '{right}'")


def _sample_names(name: str, kind: MetricKind) -> set[str]:
    return {name, f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}


def _other_kind(family: _Family, kind: str) -> Exception:
    return invalid(f"metric family '{family.name}' is already a {family.kind} and cannot also be a {kind}")


def _check_family(name: str, help: str, kind: str) -> None:
    if kind not in _KINDS:
        raise invalid(f"metric family '{name}' is of kind '{kind}', expected one of {', '.join(_KINDS)}")
    if not _NAME.fullmatch(name):
        raise invalid(
            f"'{name}' is not a name for a metric family: it takes letters, digits, '_' and ':', and does not "
            "start with a digit"
        )
    _check_text(help, f"the description of metric family '{name}'")


def _check_labels(family: _Family, labels: Mapping[str, str]) -> _Labels:
    """Return the labels as a key. Raises INVALID_ARG for names invalid in Prometheus, and for non-text values."""
    for name, value in cast(Mapping[object, object], labels).items():  # mypy does not check engines
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or (name, family.kind) == ("le", "histogram"):
            raise invalid(
                f"'{name}' is not a name for a label of {family.kind} '{family.name}': it takes letters, digits and "
                "'_', and does not start with a digit or '__'; 'le' is reserved for histogram buckets"
            )
        _check_text(value, f"label '{name}' of {family.kind} '{family.name}'")
    return tuple(sorted(labels.items()))


def _check_text(value: object, label: str) -> None:
    """Raise INVALID_ARG for a text that cannot be encoded, as it would break the whole page."""
    if not isinstance(value, str):
        raise invalid(f"{label} is of type {type(value).__name__}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{label} cannot be written as UTF-8") from error


def _check_buckets(family: _Family, buckets: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the upper bounds without the implied infinity; None for other kinds. Raises INVALID_ARG."""
    who = f"{family.kind} '{family.name}'"
    if family.kind != "histogram":
        if buckets is not None:
            raise invalid(f"{who} has no buckets, but buckets were passed for one of its metrics")
        return None
    if buckets is None:
        raise invalid(f"a metric of {who} needs buckets: their upper bounds, ascending")
    bounds = tuple(float(bound) for bound in buckets)
    if bounds and bounds[-1] == math.inf:
        bounds = bounds[:-1]
    if not all(low < high for low, high in zip((-math.inf, *bounds), (*bounds, math.inf), strict=True)):
        raise invalid(f"the buckets of {who} are {list(buckets)}, expected numbers, each greater than the one before")
    return bounds
