"""What is said while models load: nothing if that is quick, then a line now and then."""

from collections.abc import Callable
from typing import Any

import pytest

from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.observability.progress import (
    EVERY_S,
    FIRST_S,
    ON_A_TERMINAL_S,
    LaterLoads,
    LoadingProgress,
    progress_text,
)


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Stage:
    """A clock, an event loop and a log that a test can see."""

    terminal = False

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.timer = Timer()
        self.shown: list[str] = []
        self.states = [LifecycleState.READY, LifecycleState.LOADING, LifecycleState.UNAVAILABLE]

    def is_closed(self) -> bool:
        return False

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        self.due.append((seconds, call))
        return self.timer

    def show(self, text: str) -> None:
        self.shown.append(text)

    def index(self) -> list[IndexEntry]:
        return [IndexEntry(f"m{number}", 1, state, "") for number, state in enumerate(self.states)]

    def run(self, seconds: float) -> None:
        after, call = self.due.pop()
        self.now += seconds
        assert after == seconds
        call()


def progress(stage: Stage) -> LoadingProgress:
    any_stage: Any = stage
    return LoadingProgress(stage.index, any_stage, lambda: stage.now, any_stage)


def test_a_line_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "modserve")
    stage = Stage()
    with progress(stage):
        stage.run(FIRST_S)
        stage.states[1] = LifecycleState.READY
        stage.run(EVERY_S)
    assert caplog.messages == ["loading 3 models: 1 ready, 1 failed, 2 s", "loading 3 models: 2 ready, 1 failed, 7 s"]
    assert stage.timer.cancelled
    assert not stage.shown


def test_a_bar_on_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.terminal = True
    with progress(stage):
        stage.run(FIRST_S)
        stage.run(ON_A_TERMINAL_S)
    assert stage.shown[0] == "[#############.......] loading 3 models: 1 ready, 1 failed, 2 s"
    assert stage.shown[-1] == ""
    assert not caplog.messages


def test_nothing_of_a_quick_start(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    with progress(stage):
        pass
    assert (caplog.messages, stage.shown, stage.timer.cancelled) == ([], [], True)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0, 0, 0, 2.4), "looking for models, 2 s"),
        ((1, 0, 0, 5.0), "loading 1 model: 0 ready, 5 s"),
    ],
)
def test_texts(counts: tuple[int, int, int, float], text: str) -> None:
    assert progress_text(*counts) == text


def later_loads(stage: Stage) -> LaterLoads:
    any_stage: Any = stage
    return LaterLoads(any_stage, lambda: stage.now, any_stage)


def test_later_loads_have_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "modserve")
    stage = Stage()
    loads = later_loads(stage)
    loads.start()
    loads.begins("a", 1)
    stage.run(FIRST_S)
    loads.begins("b", 1)
    loads.begins("b", 2)
    loads.ends("b", 1, failed=True)
    stage.run(EVERY_S)
    loads.ends("a", 1, failed=False)
    stage.run(EVERY_S)
    assert not stage.timer.cancelled
    loads.ends("b", 2, failed=False)
    assert stage.timer.cancelled
    assert caplog.messages == [
        "loading model 'a', version 1: 2 s",
        "loading 3 models: 0 ready, 1 failed, 7 s",
        "loading 3 models: 1 ready, 1 failed, 12 s",
    ]
    stage.due.clear()
    loads.begins("c", 4)
    stage.run(FIRST_S)
    assert caplog.messages[-1] == "loading model 'c', version 4: 2 s"


def test_the_line_of_later_loads_on_a_terminal() -> None:
    stage = Stage()
    stage.terminal = True
    loads = later_loads(stage)
    loads.start()
    loads.begins("a", 1)
    loads.begins("b", 1)
    loads.ends("b", 1, failed=False)
    stage.run(FIRST_S)
    loads.ends("a", 1, failed=False)
    assert stage.shown == ["[##########..........] loading 2 models: 1 ready, 2 s", ""]


def test_loads_that_begin_with_the_start_are_its_own() -> None:
    stage = Stage()
    loads = later_loads(stage)
    loads.begins("a", 1)
    loads.start()
    loads.ends("a", 1, failed=False)
    assert not stage.due
