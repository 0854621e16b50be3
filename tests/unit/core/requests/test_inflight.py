"""A request in flight settles exactly once."""

import itertools
from collections.abc import Callable

import pytest

from modserve.core.errors import Code, ModserveError, internal, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.testing import RecordingSink, inflight

RESPONSE = InferenceResponse("model", 1, {})
ACTS: dict[str, Callable[[Inflight], None]] = {
    "respond": lambda entry: entry.settle(RESPONSE),
    "fail": lambda entry: entry.settle(internal("broken")),
    "complete": lambda entry: entry.settle(None),
    "cancel": lambda entry: entry.cancel(),
}


def told(sink: RecordingSink) -> str:
    """What the client was told, once and no more."""
    assert sink.ended == 1
    if not sink.settled:
        return "complete"
    if sink.responses:
        return "respond"
    return "cancel" if sink.errors[0].code is Code.CANCELLED else "fail"


@pytest.mark.parametrize("first", ACTS)
def test_the_first_settles_and_the_others_are_dropped(first: str) -> None:
    for others in itertools.product(ACTS, repeat=2):
        sink = RecordingSink()
        entry = inflight(sink=sink)
        for act in (first, *others):
            ACTS[act](entry)
            assert entry.settled
        assert told(sink) == first, others


@pytest.mark.parametrize("end", ACTS)
def test_answers_before_the_final_one_do_not_settle(end: str) -> None:
    sink = RecordingSink()
    entry = inflight(sink=sink)
    entry.settle(RESPONSE, final=False)
    entry.settle(RESPONSE, final=False)
    assert not entry.settled
    ACTS[end](entry)
    assert entry.settled
    assert sink.ended == 1
    assert sink.settled == (2 if end == "complete" else 3)


def test_a_failure_that_is_not_final_lets_the_request_go_on() -> None:
    sink = RecordingSink()
    entry = inflight(sink=sink)
    entry.settle(internal("once"), final=False)
    entry.settle(RESPONSE)
    assert (len(sink.errors), len(sink.responses), sink.ended) == (1, 1, 1)


def test_cancelling_tells_the_queue_first_and_once() -> None:
    sink = RecordingSink()
    entry = inflight(sink=sink)
    heard: list[tuple[Inflight, bool]] = []
    entry.on_cancel = lambda which: heard.append((which, which.settled))
    entry.cancel()
    entry.cancel()
    assert heard == [(entry, False)]
    assert entry.cancelled
    assert (sink.errors[0].code, sink.errors[0].message) == (Code.CANCELLED, "")


def test_what_the_queue_says_of_a_cancelled_request_wins() -> None:
    sink = RecordingSink()
    entry = inflight(sink=sink)
    entry.on_cancel = lambda which: which.settle(invalid("from the queue"))
    entry.cancel()
    assert [error.message for error in sink.errors] == ["from the queue"]


def test_cancelling_a_settled_request_changes_nothing() -> None:
    entry = inflight()
    entry.settle(RESPONSE)
    entry.on_cancel = lambda which: pytest.fail("it is no longer in a queue")
    entry.cancel()
    assert not entry.cancelled


def test_the_deadline_is_the_requests_own() -> None:
    assert inflight(deadline_ns=7).deadline_ns == 7
    assert inflight().deadline_ns == 0


@pytest.mark.parametrize(("deadline", "limit", "expected"), [(0, 0, 0), (7, 0, 7), (0, 7, 7), (7, 9, 7), (9, 7, 7)])
def test_the_latest_begin_is_the_earlier_of_both_limits(deadline: int, limit: int, expected: int) -> None:
    entry = inflight(deadline_ns=deadline)
    entry.queue_limit_ns = limit
    assert entry.begin_by_ns == expected


@pytest.mark.parametrize("final", [True, False])
def test_a_sink_that_cannot_take_a_response_gets_an_error_as_its_last_outcome(final: bool) -> None:
    class Picky(RecordingSink):
        def settle(self, outcome: Outcome, final: bool = True) -> None:
            if not isinstance(outcome, ModserveError):
                raise TypeError("no such response")
            super().settle(outcome, final)

    sink, stopped = Picky(), list[Inflight]()
    entry = inflight(sink=sink)
    entry.on_cancel = stopped.append
    entry.settle(RESPONSE, final)
    entry.settle(RESPONSE)
    assert [error.message for error in sink.errors][:1] == ["failed to deliver the response: no such response"]
    assert entry.settled
    assert stopped == ([] if final else [entry])


def test_a_sink_that_takes_nothing_raises_nothing() -> None:
    class Broken(RecordingSink):
        def settle(self, outcome: Outcome, final: bool = True) -> None:
            raise TypeError("nothing at all")

    entry = inflight(sink=Broken())
    entry.settle(RESPONSE)
    assert entry.settled
