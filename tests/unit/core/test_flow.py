"""An engine does not run ahead of a client further than it may."""

import threading
from collections.abc import Callable

import pytest

from modserve.core.errors import internal
from modserve.core.flow import MOST_UNSENT, Flow
from modserve.testing import inflight

RESPONSES = 20 * MOST_UNSENT


def never() -> None:
    raise AssertionError("nobody stalls here")


def in_a_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_an_engine_waits_for_its_client() -> None:
    flow, given, sent, ahead = Flow(never), 0, 0, []
    full = threading.Event()

    def engine() -> None:
        nonlocal given
        for _ in range(RESPONSES):
            given += 1
            ahead.append(given - sent)
            if len(ahead) == MOST_UNSENT:
                full.set()
            flow.given()

    thread = in_a_thread(engine)
    assert full.wait(10)
    for _ in range(RESPONSES):
        sent += 1
        flow.sent()
    thread.join(10)
    assert given == RESPONSES
    assert max(ahead) == MOST_UNSENT


@pytest.mark.parametrize("before", [True, False], ids=["before", "while it waits"])
def test_nobody_sends_any_more(before: bool) -> None:
    flow, full = Flow(never), threading.Event()

    def engine() -> None:
        for index in range(RESPONSES):
            if index == MOST_UNSENT - 1:
                full.set()
            flow.given()

    if before:
        flow.release()
    thread = in_a_thread(engine)
    assert full.wait(10)
    flow.release()
    thread.join(10)
    assert not thread.is_alive()


def test_a_client_that_takes_nothing_is_given_up_once() -> None:
    given, stalls = 0, []
    flow = Flow(lambda: stalls.append(given), stalled_s=0.001)
    while given < 3 * MOST_UNSENT:
        given += 1
        flow.given()
    assert stalls == [MOST_UNSENT]


async def test_no_waiting_for_answers_that_are_held_back() -> None:
    entry = inflight()
    entry.ordered = True
    entry.pace()
    entry.sent()
    assert entry.flow is None


@pytest.mark.parametrize("settle", ["cancel", "fail"])
async def test_a_request_that_is_over_keeps_no_engine(settle: str) -> None:
    entry = inflight()
    entry.pace()
    flow = entry.flow
    assert flow is not None
    if settle == "fail":
        entry.fail(internal("late"))
    else:
        entry.cancel()
    for _ in range(RESPONSES):
        flow.given()
