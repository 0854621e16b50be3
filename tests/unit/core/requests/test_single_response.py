"""Calls with one response take exactly one, also from a decoupled model."""

from collections.abc import Callable

import pytest

from modserve.core.errors import Code, ModserveError, internal
from modserve.core.requests.response import InferenceResponse, SingleResponseSink, hand_over

FIRST, SECOND = InferenceResponse("m", 1, {}), InferenceResponse("m", 1, {})
OOPS = internal("oops")


class Taken(SingleResponseSink):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[InferenceResponse | ModserveError] = []

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        self.outcomes.append(outcome)


@pytest.mark.parametrize(
    ("tell", "outcome"),
    [
        (lambda sink: sink.settle(FIRST, True), FIRST),
        (lambda sink: (sink.settle(FIRST, False), sink.settle(None, True)), FIRST),
        (lambda sink: sink.settle(OOPS, True), OOPS),
        (lambda sink: (sink.settle(OOPS, False), sink.settle(FIRST, True)), OOPS),
        (lambda sink: (sink.settle(FIRST, False), sink.settle(OOPS, True)), OOPS),
    ],
    ids=["final", "then the end", "failure", "failure first", "failure later"],
)
def test_one(tell: Callable[[Taken], object], outcome: InferenceResponse | ModserveError) -> None:
    sink = Taken()
    tell(sink)
    assert sink.outcomes == [outcome]


def test_a_response_waits_for_the_end() -> None:
    sink = Taken()
    sink.settle(FIRST, False)
    assert sink.outcomes == []


@pytest.mark.parametrize(
    ("tell", "code", "text"),
    [
        (lambda sink: sink.settle(None, True), Code.INTERNAL, "the model sent no response"),
        (
            lambda sink: (sink.settle(FIRST, False), sink.settle(SECOND, True)),
            Code.UNSUPPORTED,
            "this call doesn't support models with decoupled transaction policy that respond more than once, as model "
            "'m' did; use ModelStreamInfer over gRPC, infer_stream or generate_stream over HTTP",
        ),
    ],
    ids=["none", "two"],
)
def test_none_or_two(tell: Callable[[Taken], object], code: Code, text: str) -> None:
    sink = Taken()
    tell(sink)
    (outcome,) = sink.outcomes
    assert isinstance(outcome, ModserveError)
    assert (outcome.code, outcome.message) == (code, text)


def test_a_delivery_that_fails_is_made_up_for_by_an_error() -> None:
    class Picky(Taken):
        def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
            if not isinstance(outcome, ModserveError):
                raise TypeError("no such response")
            super().deliver(outcome)

    sink = Picky()
    assert not hand_over(sink, FIRST, True)
    assert hand_over(sink, SECOND, True)
    assert [str(outcome) for outcome in sink.outcomes] == ["failed to deliver the response: no such response"]
