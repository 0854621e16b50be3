"""Responses leave in the order of their requests."""

import itertools

import pytest

from modserve.core.errors import cancelled, internal
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.scheduling.ordering import ResponseOrder
from modserve.testing import RecordingSink

RESPONSE = InferenceResponse("m", 1, {})


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_whatever_order_they_end_in(order: tuple[int, ...]) -> None:
    heard: list[int] = []

    class Sink(RecordingSink):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def settle(self, outcome: Outcome, final: bool) -> None:
            heard.append(self.number)

    ordered = ResponseOrder()
    sinks = [ordered.next(Sink(number)) for number in range(3)]
    for count, number in enumerate(order, start=1):
        sinks[number].settle(RESPONSE, True)
        assert heard == list(range(len(heard)))
        assert len(heard) >= (count if order[:count] == tuple(range(count)) else 0)
    assert heard == [0, 1, 2]


def test_several_responses_failures_and_ends() -> None:
    first, second, third = sinks = [RecordingSink() for _ in range(3)]
    ordered = ResponseOrder()
    a, b, c = [ordered.next(sink) for sink in sinks]
    b.settle(RESPONSE, False)
    c.settle(internal("oops"), True)
    a.settle(RESPONSE, False)
    assert (len(first.responses), second.settled, third.settled) == (1, 0, 0)
    a.settle(None, True)
    assert (first.ended, len(second.responses), third.settled) == (1, 1, 0)
    b.settle(internal("no"), False)
    b.settle(RESPONSE, True)
    assert (len(second.errors), len(second.responses), second.ended, third.ended) == (1, 2, 1, 1)


def test_one_that_was_not_taken_holds_nobody_up() -> None:
    sink = RecordingSink()
    ordered = ResponseOrder()
    refused, taken = ordered.next(RecordingSink()), ordered.next(sink)
    ordered.withdraw(refused)
    taken.settle(RESPONSE, True)
    assert sink.ended == 1


def test_a_client_that_cancels_while_it_hears_what_was_held_back() -> None:
    heard: list[str] = []

    class Sink(RecordingSink):
        def settle(self, outcome: Outcome, final: bool) -> None:
            heard.append("response" if isinstance(outcome, InferenceResponse) else "failure")
            if len(heard) == 1:
                second.settle(cancelled(), True)

    last = RecordingSink()
    ordered = ResponseOrder()
    first, second, third = ordered.next(RecordingSink()), ordered.next(Sink()), ordered.next(last)
    second.settle(RESPONSE, False)
    second.settle(RESPONSE, False)
    third.settle(RESPONSE, True)
    first.settle(None, True)
    assert heard == ["response", "response", "failure"]
    assert last.ended == 1


def test_a_sink_that_raises_holds_nobody_up() -> None:
    class Raising(RecordingSink):
        def settle(self, outcome: Outcome, final: bool) -> None:
            raise RuntimeError("the sink broke")

    last = RecordingSink()
    ordered = ResponseOrder()
    first, second, third = [ordered.next(sink) for sink in (Raising(), Raising(), last)]
    second.settle(RESPONSE, True)
    first.settle(RESPONSE, True)
    third.settle(RESPONSE, True)
    assert last.ended == 1
