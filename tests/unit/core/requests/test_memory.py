import pickle

import pytest

from modserve.core.errors import Code
from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError, UnsentResponses
from modserve.protocol import failures
from modserve.protocol.failures import Spelling


def test_what_fits_is_held_until_it_is_given_back() -> None:
    budget = MemoryBudget(100)
    budget.take(60)
    budget.take(40)
    assert budget.held == 100
    budget.give_back(60)
    assert (budget.held, budget.peak, budget.refused) == (40, 100, 0)


def test_what_does_not_fit_is_refused_and_holds_nothing() -> None:
    budget = MemoryBudget(100)
    budget.take(60)
    with pytest.raises(MemoryExhaustedError, match=r"hold 60 of 100 bytes, and this one needs 41 more") as caught:
        budget.take(41)
    assert caught.value.code is Code.UNAVAILABLE
    assert (budget.held, budget.refused) == (60, 1)
    assert not budget.fits(41)
    assert budget.fits(40)


def test_a_request_that_can_never_fit_is_told_so() -> None:
    with pytest.raises(MemoryExhaustedError, match=r"needs 101 bytes of memory, and the server allows 100 bytes"):
        MemoryBudget(100).take(101)


def test_what_exists_already_is_held_beyond_the_limit() -> None:
    budget = MemoryBudget(100)
    budget.force(150)
    assert (budget.held, budget.peak) == (150, 150)
    with pytest.raises(MemoryExhaustedError):
        budget.take(1)


def test_without_a_limit_nothing_is_refused() -> None:
    budget = MemoryBudget()
    budget.take(2**62)
    assert budget.fits(2**62)
    assert budget.held == 2**62


def test_the_refusal_is_spelled_for_both_wires_and_survives_a_pipe() -> None:
    error = pickle.loads(pickle.dumps(MemoryExhaustedError("full")))
    assert isinstance(error, MemoryExhaustedError)
    assert error.message == "full"
    assert failures.spelling(error) == Spelling(503, 8, "RESOURCE_EXHAUSTED")


def test_responses_are_held_until_they_are_sent_or_dropped() -> None:
    budget = MemoryBudget(100)
    unsent = UnsentResponses(budget)
    for size in (70, 0, 50):
        unsent.add(size)
    assert budget.held == 120
    assert budget.full
    unsent.release_first()
    assert (budget.held, budget.full) == (50, False)
    unsent.release()
    unsent.release()
    assert budget.held == 0
