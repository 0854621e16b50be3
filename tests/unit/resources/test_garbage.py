import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from modserve.resources import garbage

FREEZING = """
import gc, weakref
from modserve.resources import garbage

class Node:
    def __init__(self):
        self.itself = self

gone, kept = weakref.ref(Node()), Node()
later = weakref.ref(kept)
garbage.freeze()
assert gone() is None
assert gc.get_freeze_count() > 0
assert gc.get_threshold() == (garbage.YOUNG, garbage.MIDDLE, garbage.OLD)
assert not any(each is kept for each in gc.get_objects())
del kept
gc.collect()
garbage.freeze()
assert later() is not None
garbage.collect()
assert later() is None
"""


def test_what_is_there_is_set_aside_and_garbage_among_it_is_found_the_next_time() -> None:
    """In a process of its own: here, thousands of tests would be gone through."""
    subprocess.run([sys.executable, "-c", FREEZING], check=True)


class Loop:
    """As much of an event loop as is used."""

    def __init__(self) -> None:
        self.timers: list[asyncio.TimerHandle] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.timers.append(asyncio.TimerHandle(delay, callback, (), asyncio.get_running_loop()))
        return self.timers[-1]


class Served:
    """A model that serves."""


async def test_changes_of_models_are_followed_by_one_look_when_they_are_over() -> None:
    loop = Loop()
    freezer = garbage.Freezer(loop, list)  # type: ignore[arg-type]  # all that it uses
    freezer.on_change()
    freezer.on_change()
    assert [(timer.when(), timer.cancelled()) for timer in loop.timers] == [
        (garbage.QUIET_S, True),
        (garbage.QUIET_S, False),
    ]


async def test_a_start_is_followed_by_no_second_look() -> None:
    loop = Loop()
    freezer = garbage.Freezer(loop, list)  # type: ignore[arg-type]
    freezer.on_change()
    freezer.freeze()
    assert [timer.cancelled() for timer in loop.timers] == [True]


def test_everything_is_looked_through_only_when_a_model_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the event loop for a tenth of a second, when clients have come."""
    looks: list[str] = []
    monkeypatch.setattr(garbage, "freeze", lambda: looks.append("frozen"))
    monkeypatch.setattr(garbage, "collect", lambda: looks.append("collected"))
    models: list[Served] = []
    freezer = garbage.Freezer(Loop(), lambda: models)  # type: ignore[arg-type]
    one, two = Served(), Served()
    for models[:] in ([one], [one, two], [one, two], [two], [two, Served()], [two]):
        freezer.freeze()
    assert looks == ["frozen", "frozen", "frozen", "collected", "frozen", "collected"]


async def test_everything_is_looked_through_when_nobody_waits_or_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    monkeypatch.setattr(garbage, "freeze", lambda: looks.append("frozen"))
    monkeypatch.setattr(garbage, "collect", lambda: looks.append("collected"))
    loop = Loop()
    models: list[Served] = [Served()]
    requests = 0
    freezer = garbage.Freezer(loop, lambda: models, lambda: requests)  # type: ignore[arg-type]
    freezer.freeze()

    def later(come: int) -> None:
        """So many requests end before the timer does."""
        nonlocal requests
        requests += come
        loop.timers[-1]._run()

    freezer.on_change()
    later(5)
    assert looks == ["frozen"] * 2, "no model has gone: that takes no time"

    models[:] = [Served()]
    freezer.on_change()
    later(5)
    later(1)
    assert looks == ["frozen"] * 2
    later(0)
    assert looks == ["frozen"] * 2 + ["collected"]

    models[:] = [Served()]
    freezer.on_change()
    for _ in range(garbage.MOST_LOOKS - 1):
        later(1)
    assert looks[3:] == []
    later(1)
    assert looks[3:] == ["collected"]
    assert {timer.when() for timer in loop.timers} == {garbage.QUIET_S, garbage.IDLE_S}
