"""Compares the responses to a request with those that were recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modserve.client.errors import ClientError
from modserve.client.values import Result
from modserve.core.errors import Code
from modserve.core.tensors.tensor import Tensor, format_shape
from modserve.protocol.failures import STATUS
from modserve.recording.record import RecordedOutcome, RecordedTensor, RequestRecord

from ..tensor_comparison import ElementTolerance, compare_elements

_EXACT = ElementTolerance(0.0, 0.0)
_LONGEST_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """`recorded` and `replayed` are values, or what there is in their place. `tensor` is empty for whole responses."""

    recorded: str
    replayed: str
    response: int = 0
    """Its number among the responses to the request, from 0."""
    tensor: str = ""
    index: tuple[int, ...] | None = None
    """Of the first element that differs; None for what is no element."""
    unlike: int = 0
    elements: int = 0
    largest: float = 0.0


@dataclass(slots=True, eq=False)
class RecordComparison:
    """`largest` is the largest error by output of floating-point numbers, within the tolerance or not."""

    differences: list[Difference] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Replayed:
    """The responses of a server to a request, and the failure that came in their place or after them."""

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
    """Failures are alike if they are of one kind: the protocol has no others, and texts may get better."""
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
            difference = Difference(_described(old), _described(new), number, name)
            comparison.differences.append(difference)
        elif old.content is not None:
            elements = compare_elements(old.content, new, tolerances.get(old.datatype.name, _EXACT))
            if old.datatype.json_kind == "float":
                comparison.largest[name] = max(comparison.largest.get(name, 0.0), elements.largest)
            if elements.unlike:
                values = elements.first, elements.second, number, name, elements.index
                difference = Difference(*values, elements.unlike, elements.elements, elements.largest)
                comparison.differences.append(difference)


def _described(tensor: RecordedTensor | Tensor | None) -> str:
    return "no such output" if tensor is None else f"{tensor.datatype.name} {format_shape(tensor.shape)}"


def took_ns(outcomes: Sequence[RecordedOutcome]) -> int:
    """From the arrival of the request to its last outcome."""
    return round(outcomes[-1].after_us * 1000) if outcomes else 0
