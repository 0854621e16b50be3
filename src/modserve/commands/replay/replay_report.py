"""The result of a replay, for people and as JSON.

It compares the responses to a request with the recorded ones.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from modserve.client.errors import ClientError
from modserve.client.input_values import Result
from modserve.commands.bench.percentiles import percentiles_ms
from modserve.commands.tensor_comparison import ElementTolerance, compare_elements
from modserve.commands.terminal import count, plural, table
from modserve.core.errors import Code
from modserve.core.tensors.tensor import Tensor, format_shape
from modserve.protocol.failures import STATUS
from modserve.recording.record import RecordedOutcome, RecordedTensor, RequestRecord

from .record_index import CUT, RecordIndex, RecordPlace

_EXACT = ElementTolerance(0.0, 0.0)
_LONGEST_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two values, or of substitutes for them, as texts. `tensor` is empty for whole responses."""

    recorded: str
    replayed: str
    response: int = 0
    """0-based number among the responses to the request."""
    tensor: str = ""
    index: tuple[int, ...] | None = None
    """Index of the first different element; None for other differences."""
    unlike: int = 0
    elements: int = 0
    largest: float = 0.0


@dataclass(slots=True, eq=False)
class RecordComparison:
    """Comparison of a record. `largest` is the largest error by floating-point output, within the tolerance or not."""

    differences: list[Difference] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Replayed:
    """Responses to a replayed request, and the failure instead of or after them."""

    results: list[Result] = field(default_factory=list)
    failure: ClientError | None = None
    took_ns: int = 0


def compare_record(
    record: RequestRecord, replayed: Replayed, tolerances: Mapping[str, ElementTolerance]
) -> RecordComparison:
    comparison = RecordComparison()
    responses = [each for each in record.outcomes if each.outputs]
    results = [each for each in replayed.results if each.tensors]
    failure = next((each for each in record.outcomes if each.code is not None), None)
    difference = _failures(failure, replayed.failure)
    if difference is None and len(responses) != len(results):
        difference = Difference(_count(len(responses)), _count(len(results)))
    if difference is not None:
        comparison.differences.append(difference)
    for number, (response, result) in enumerate(zip(responses, results, strict=False)):
        _outputs(number, response, result, tolerances, comparison)
    return comparison


def _failures(recorded: RecordedOutcome | None, replayed: ClientError | None) -> Difference | None:
    """Compare failures by kind only: the protocol has no others, and texts may improve."""
    code = None if recorded is None else recorded.code
    if code is None and replayed is None:
        return None
    if code is not None and replayed is not None and replayed.status == STATUS[code].http:
        return None
    message = "" if recorded is None else recorded.message
    return Difference(
        "success" if code is None else _failure(code, message),
        "success" if replayed is None else _failure(replayed.code, replayed.message),
    )


def _failure(code: Code, message: str) -> str:
    return f"{code.name}: {message[:_LONGEST_MESSAGE]}"


def _count(number: int) -> str:
    return f"{number} response{'' if number == 1 else 's'}"


def _outputs(
    number: int,
    response: RecordedOutcome,
    result: Result,
    tolerances: Mapping[str, ElementTolerance],
    comparison: RecordComparison,
) -> None:
    recorded = response.outputs or {}
    for name in dict.fromkeys((*recorded, *result.tensors)):
        old, new = recorded.get(name), result.tensors.get(name)
        if old is None or new is None or (old.datatype, old.shape) != (new.datatype, new.shape):
            difference = Difference(_describe(old), _describe(new), number, name)
            comparison.differences.append(difference)
        elif old.content is not None:
            elements = compare_elements(old.content, new, tolerances.get(old.datatype.name, _EXACT))
            if old.datatype.json_kind == "float":
                comparison.largest[name] = max(comparison.largest.get(name, 0.0), elements.largest)
            if elements.unlike:
                values = elements.first, elements.second, number, name, elements.index
                difference = Difference(*values, elements.unlike, elements.elements, elements.largest)
                comparison.differences.append(difference)


def _describe(tensor: RecordedTensor | Tensor | None) -> str:
    return "no such output" if tensor is None else f"{tensor.datatype.name} {format_shape(tensor.shape)}"


def took_ns(outcomes: Sequence[RecordedOutcome]) -> int:
    """Return the time from the request's arrival to its last outcome."""
    return round(outcomes[-1].after_us * 1000) if outcomes else 0


LEVELS = (50.0, 90.0, 99.0)
_KEPT = 1000
"""Differences that are kept for the report; others are counted."""


@dataclass(slots=True, eq=False)
class ModelResult:
    """Results of the recorded requests to a model."""

    records: int = 0
    equal: int = 0
    different: int = 0
    largest: dict[str, float] = field(default_factory=dict)
    recorded_ns: "array[int]" = field(default_factory=lambda: array("q"))
    replayed_ns: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(slots=True, eq=False)
class ReplayReport:
    """Results of replaying the records in `index` to `url`."""

    index: RecordIndex
    url: str
    seconds: float = 0.0
    models: dict[str, ModelResult] = field(default_factory=dict)
    differences: list[tuple[RecordPlace, Difference]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Requests that were not sent or not compared, by the reason."""

    def __post_init__(self) -> None:
        for place in self.index.places:
            self.models.setdefault(place.model, ModelResult()).records += 1
            if place.hindrance:
                self.left_out[place.hindrance] += 1

    def add(
        self, place: RecordPlace, record: RequestRecord, replayed: Replayed, comparison: RecordComparison | None
    ) -> None:
        """Add a replayed request; without a `comparison` its responses are not compared."""
        result = self.models[place.model]
        result.recorded_ns.append(took_ns(record.outcomes))
        result.replayed_ns.append(replayed.took_ns)
        if comparison is None:
            self.left_out[CUT] += 1
            return
        if comparison.differences:
            result.different += 1
        else:
            result.equal += 1
        for name, largest in comparison.largest.items():
            result.largest[name] = max(result.largest.get(name, 0.0), largest)
        for difference in comparison.differences[: _KEPT - len(self.differences)]:
            self.differences.append((place, difference))

    def end(self, seconds: float) -> None:
        """Record the duration, and sort the differences by time. All requests are sent."""
        self.seconds = seconds
        self.differences.sort(key=lambda row: (row[0].at_us, row[0].run, row[0].number))

    @property
    def equal(self) -> int:
        return sum(each.equal for each in self.models.values())

    @property
    def different(self) -> int:
        return sum(each.different for each in self.models.values())

    def document(self) -> dict[str, Any]:
        """Return the report of ``--json``."""
        return {
            "url": self.url,
            "files": self.index.files,
            "records": len(self.index.places),
            "equal": self.equal,
            "different": self.different,
            "not_compared": dict(self.left_out),
            "remarks": self.index.remarks,
            "seconds": self.seconds,
            "models": {
                name: {
                    "records": each.records,
                    "equal": each.equal,
                    "different": each.different,
                    "largest_error": each.largest,
                    "recorded_ms": _quantiles(each.recorded_ns),
                    "replayed_ms": _quantiles(each.replayed_ns),
                }
                for name, each in sorted(self.models.items())
            },
            "differences": [
                {"record": str(place), "model": place.model, **asdict(difference)}
                for place, difference in self.differences
            ],
        }

    def text(self, shown: int) -> Iterator[str]:
        """Yield the lines for people, with at most `shown` differences."""
        yield from self._head()
        yield ""
        rows = [
            (name, count(each.records), count(each.equal), count(each.different), _largest(each.largest))
            for name, each in sorted(self.models.items())
        ]
        yield from table(("model", "records", "equal", "different", "largest error"), rows, " rrr")
        if self.differences:
            yield ""
            yield from self._different(shown)
        for reason, number in sorted(self.left_out.items()):
            yield f"{plural(number, 'request')} not compared: {reason}"
        headless = sum(each.has_left_out for each in self.index.places)
        if headless:
            yield f"{plural(headless, 'request')} without parameters that were headers: these are never recorded"
        yield from self.index.remarks
        if any(each.replayed_ns for each in self.models.values()):
            yield ""
            yield from self._latencies()

    def _head(self) -> Iterator[str]:
        places = self.index.places
        where = f"{plural(len(places), 'request')} in {plural(self.index.files, 'file')}"
        if places:
            where += f", recorded from {_time(places[0].at_us)} to {_time(places[-1].at_us)}"
        yield where
        result = f"{count(self.equal)} equal, {count(self.different)} different"
        yield f"sent to {self.url} in {self.seconds:.1f} s: {result}"

    def _different(self, shown: int) -> Iterator[str]:
        rows = []
        for place, each in self.differences[:shown]:
            where = f"{each.tensor}{'' if each.index is None else list(each.index)}"
            if each.response:
                where = f"response {each.response + 1} {where}".strip()
            number = f"{each.unlike} of {each.elements}" if each.unlike else ""
            rows.append((str(place), where, each.recorded, each.replayed, number, _number(each.largest)))
        yield from table(("request", "first difference", "recorded", "now", "elements", "largest error"), rows)
        if len(self.differences) > shown:
            yield f"… and {count(len(self.differences) - shown)} more: --show N shows N, --json all"
        if len(self.differences) == _KEPT:
            yield f"beyond {count(_KEPT)} differences, requests are only counted"

    def _latencies(self) -> Iterator[str]:
        rows = []
        for name, each in sorted(self.models.items()):
            for kind, latencies in (("recorded", each.recorded_ns), ("now", each.replayed_ns)):
                if latencies:
                    rows.append((name, kind, *(f"{value:.2f}" for value in _quantiles(latencies).values())))
        yield from table(("latency, ms", "", *(f"p{level:g}" for level in LEVELS)), rows, "  rrr")
        yield "recorded: in the server, from a request's arrival to its last response; now: as this client sees it"


def _quantiles(latencies: "array[int]") -> dict[str, float]:
    return {f"p{level:g}": value for level, value in percentiles_ms(latencies, LEVELS).items()}


def _largest(largest: Mapping[str, float]) -> str:
    if not largest:
        return ""
    name = max(largest, key=lambda name: largest[name])
    return f"{_number(largest[name]) or '0'} in {name}"


def _number(value: float) -> str:
    return f"{value:.3g}" if value else ""


def _time(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
