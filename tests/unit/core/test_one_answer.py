"""Calls with one answer take exactly one, also from a decoupled model."""

from collections.abc import Callable

import pytest

from modserve.core.errors import Code, ModserveError, internal
from modserve.core.response import InferenceResponse, OneAnswer

FIRST, SECOND = InferenceResponse("m", 1, {}), InferenceResponse("m", 1, {})
OOPS = internal("oops")


class Taken(OneAnswer):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[InferenceResponse | ModserveError] = []

    def settle(self, outcome: InferenceResponse | ModserveError) -> None:
        self.outcomes.append(outcome)


@pytest.mark.parametrize(
    ("tell", "outcome"),
    [
        (lambda sink: sink.respond(FIRST, True), FIRST),
        (lambda sink: (sink.respond(FIRST, False), sink.complete()), FIRST),
        (lambda sink: sink.fail(OOPS, True), OOPS),
        (lambda sink: (sink.fail(OOPS, False), sink.respond(FIRST, True)), OOPS),
        (lambda sink: (sink.respond(FIRST, False), sink.fail(OOPS, True)), OOPS),
    ],
    ids=["final", "then the end", "failure", "failure first", "failure later"],
)
def test_one(tell: Callable[[Taken], object], outcome: InferenceResponse | ModserveError) -> None:
    sink = Taken()
    tell(sink)
    assert sink.outcomes == [outcome]


def test_an_answer_waits_for_the_end() -> None:
    sink = Taken()
    sink.respond(FIRST, False)
    assert sink.outcomes == []


@pytest.mark.parametrize(
    ("tell", "code", "text"),
    [
        (lambda sink: sink.complete(), Code.INTERNAL, "the model gave no response"),
        (
            lambda sink: (sink.respond(FIRST, False), sink.respond(SECOND, True)),
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
