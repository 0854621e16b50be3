"""An engine does not run ahead of a client further than it may."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from modserve.core.errors import Code, cancelled, internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget
from modserve.resources.flow import MOST_HELD, RESPONSE_BYTES, Flow, pace
from modserve.testing import RecordingSink, inflight

LARGE = MOST_HELD // 64 - RESPONSE_BYTES
"""Of these an engine may be 64 ahead."""
RESPONSES = 20 * 64


def never(waiting: int) -> None:
    raise AssertionError(f"nobody stalls here, but {waiting} wait")


def give(flow: Flow, size: int) -> None:
    flow.on_response(size)
    flow.wait()


def in_a_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_an_engine_is_one_response_ahead_while_the_servers_memory_is_used_up() -> None:
    memory = MemoryBudget(1000)
    flow = Flow(never, stalled_s=60, memory=memory)
    give(flow, 0)
    give(flow, 0)
    memory.force(1000)
    goes_on = threading.Event()

    def engine() -> None:
        give(flow, 0)
        goes_on.set()

    flow.on_sent()
    flow.on_sent()
    give(flow, 0)  # the first one that waits
    thread = in_a_thread(engine)
    assert not goes_on.wait(0.05)
    flow.on_sent()
    assert goes_on.wait(30)
    thread.join(30)


@pytest.mark.parametrize(("size", "most"), [(LARGE, 64), (0, 8192), (2 * MOST_HELD, 1)], ids=["large", "empty", "huge"])
def test_an_engine_waits_for_its_client(size: int, most: int) -> None:
    flow, responses, given, sent, ahead = Flow(never, stalled_s=60), most + 100, 0, 0, []
    full, unsent = threading.Event(), threading.Semaphore(0)

    def engine() -> None:
        nonlocal given
        for _ in range(responses):
            given += 1
            ahead.append(given - sent)
            flow.on_response(size)
            unsent.release()
            if len(ahead) == most:
                full.set()
            flow.wait()

    thread = in_a_thread(engine)
    assert full.wait(30)
    for _ in range(responses):
        assert unsent.acquire(timeout=30)
        sent += 1
        flow.on_sent()
    thread.join(30)
    assert given == responses
    assert max(ahead) == most


def test_what_small_responses_hold_is_given_back() -> None:
    flow = Flow(never, stalled_s=0)
    for _ in range(3):
        for _ in range(63):
            give(flow, LARGE)
        for _ in range(63):
            flow.on_sent()


def test_answers_that_were_not_counted_give_nothing_back() -> None:
    stalls: list[int] = []
    flow = Flow(stalls.append, stalled_s=0)
    for _ in range(100):
        flow.on_sent()
    for _ in range(64):
        give(flow, LARGE)
    assert stalls == [64]


class Waited(threading.Condition):
    """Says that somebody waits, holding the lock until it is so."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


@pytest.mark.parametrize("before", [True, False], ids=["before", "while it waits"])
def test_nobody_sends_any_more(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, waited = Flow(never, stalled_s=60), Waited()
    monkeypatch.setattr(flow, "_changed", waited)

    def engine() -> None:
        for _ in range(RESPONSES):
            give(flow, LARGE)

    if before:
        flow.release()
    thread = in_a_thread(engine)
    if not before:
        assert waited.begun.wait(30)
        flow.release()
    thread.join(30)
    assert not thread.is_alive()
    assert waited.begun.is_set() is not before


def test_a_client_that_takes_a_little_now_and_then_is_given_up_too() -> None:
    """It would keep the model's instance from everybody else for as long as it likes."""
    stalls: list[int] = []
    flow = Flow(stalls.append, stalled_s=30, longest_s=0.05)
    for _ in range(63):
        give(flow, LARGE)
    ended = threading.Event()

    def reader() -> None:
        while not ended.wait(0.001):
            flow.on_progress()

    thread = in_a_thread(reader)
    give(flow, LARGE)
    ended.set()
    thread.join(30)
    assert (stalls, flow.slow) == ([64], True)
    give(flow, LARGE)  # which nobody waits for any more


def test_a_client_that_takes_nothing_is_given_up_once() -> None:
    given = 0
    stalls: list[tuple[int, int]] = []
    flow = Flow(lambda waiting: stalls.append((given, waiting)), stalled_s=0.001)
    while given < 3 * 64:
        given += 1
        give(flow, LARGE)
    assert stalls == [(64, 64)]


class Turns(threading.Condition):
    """Nobody waits for real: each time somebody would, `turn` happens, and then the time is over."""

    def __init__(self, turn: Callable[[], object]) -> None:
        super().__init__()
        self.turn = turn

    def wait(self, timeout: float | None = None) -> bool:
        self.turn()
        return False


@pytest.mark.parametrize("what", ["on_sent", "on_progress"])
def test_a_client_that_takes_something_in_time_is_waited_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns < 50:
            getattr(flow, what)()

    stalls: list[int] = []
    flow = Flow(stalls.append)
    monkeypatch.setattr(flow, "_changed", Turns(turn))
    for _ in range(200):
        flow.on_response(LARGE)
    flow.wait()
    assert turns == 50
    assert stalls == [200 - 49 if what == "on_sent" else 200]


async def test_no_waiting_for_answers_that_are_held_back() -> None:
    entry = inflight()
    entry.ordered = True
    pace(entry, MemoryBudget(), asyncio.get_running_loop())
    entry.on_sent()
    entry.on_progress()
    assert entry.flow is None


@pytest.mark.parametrize("settle", ["cancel", "fail"])
async def test_a_request_that_is_over_keeps_no_engine(settle: str) -> None:
    entry = inflight()
    pace(entry, MemoryBudget(), asyncio.get_running_loop())
    flow = entry.flow
    assert isinstance(flow, Flow)
    if settle == "fail":
        entry.settle(internal("late"))
    else:
        entry.cancel()
    for _ in range(RESPONSES):
        give(flow, LARGE)


async def test_who_is_given_up_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordingSink()
    entry = inflight(sink=sink)
    left: list[Inflight] = []
    entry.on_cancel = left.append
    pace(entry, MemoryBudget(), asyncio.get_running_loop())
    flow = entry.flow
    assert isinstance(flow, Flow)
    monkeypatch.setattr(flow, "_changed", Turns(lambda: None))
    for _ in range(64):
        give(flow, LARGE)
    await asyncio.sleep(0)
    (error,) = sink.errors
    assert error.code is Code.UNAVAILABLE
    assert error.message == "the client did not read its responses for 10 s; 64 responses waited for it"
    assert entry.cancelled
    assert left == [entry]
    entry.cancel()
    assert sink.errors == [error] != [cancelled()]


class Later:
    """Calls back when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.calls.append((seconds, callback))


def test_who_does_not_wait_is_called_when_there_is_room() -> None:
    called: list[str] = []
    flow = Flow(never, most=1)
    flow.on_room(lambda: called.append("at once"))
    flow.on_response(0)
    flow.on_response(0)
    assert not flow.room
    flow.on_room(lambda: called.append("later"))
    flow.on_room(lambda: called.append("and later"))
    assert called == ["at once"]
    flow.on_sent()
    assert flow.room
    assert called == ["at once", "later", "and later"]
    flow.on_sent()
    assert len(called) == 3


def test_who_does_not_wait_is_called_when_it_is_over() -> None:
    called: list[str] = []
    flow = Flow(never, most=1)
    flow.on_response(0)
    flow.on_response(0)
    flow.on_room(lambda: called.append("over"))
    flow.release()
    assert called == ["over"]


def test_a_callback_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []
    flow = Flow(never, most=1)
    flow.on_response(0)
    flow.on_response(0)
    flow.on_room(lambda: [].pop())
    flow.on_room(lambda: called.append("the other"))
    flow.on_sent()
    assert called == ["the other"]
    assert "an engine failed when it was notified of room" in caplog.text


def test_a_client_that_takes_nothing_is_given_up_without_anybody_waiting() -> None:
    later, called, waiting = Later(), list[str](), list[int]()
    flow = Flow(waiting.append, stalled_s=10, longest_s=300, most=1, later=later)
    flow.on_response(0)
    flow.on_response(0)
    flow.on_room(lambda: called.append("room"))
    [(seconds, look)] = later.calls
    assert seconds == 10
    flow.on_progress()
    look()  # something has moved: another 10 s
    assert waiting == []
    later.calls[1][1]()
    assert (waiting, called, flow.slow) == ([2], ["room"], False)
    assert flow.room


def test_a_wait_that_is_over_is_not_looked_at() -> None:
    later, called = Later(), list[str]()
    flow = Flow(never, stalled_s=10, most=1, later=later)
    flow.on_response(0)
    flow.on_response(0)
    flow.on_room(lambda: called.append("first"))
    flow.on_sent()
    flow.on_response(0)
    flow.on_room(lambda: called.append("second"))
    later.calls[0][1]()
    assert called == ["first"]


def test_a_client_that_takes_too_long_in_all_is_given_up() -> None:
    later, waiting = Later(), list[int]()
    flow = Flow(waiting.append, stalled_s=10, longest_s=0, most=1, later=later)
    flow.on_response(0)
    flow.on_response(0)
    flow.on_room(lambda: None)
    flow.on_progress()
    later.calls[0][1]()
    assert (waiting, flow.slow) == ([2], True)
