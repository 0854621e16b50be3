import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from modserve.resources import garbage


class Node:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as it was, whatever a test makes of it."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    yield
    gc.set_threshold(*thresholds)
    if frozen:
        gc.freeze()
    else:
        gc.unfreeze()


def test_what_is_there_is_set_aside_without_its_garbage() -> None:
    gone, kept = weakref.ref(Node()), Node()
    garbage.freeze()
    assert gone() is None
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (garbage.YOUNG, garbage.MIDDLE, garbage.OLD)
    assert kept not in gc.get_objects()


def test_garbage_among_what_was_frozen_is_found_the_next_time() -> None:
    node = Node()
    gone = weakref.ref(node)
    garbage.freeze()
    del node
    gc.collect()
    assert gone() is not None
    garbage.freeze()
    assert gone() is None


async def test_changes_of_models_are_followed_by_one_look_when_they_are_over() -> None:
    class Loop:
        def __init__(self) -> None:
            self.timers: list[asyncio.TimerHandle] = []

        def call_later(self, delay: float, callback: object) -> asyncio.TimerHandle:
            assert callback is garbage.freeze
            loop = asyncio.get_running_loop()
            self.timers.append(asyncio.TimerHandle(delay, garbage.freeze, (), loop))
            return self.timers[-1]

    loop = Loop()
    freezer = garbage.Freezer(loop)  # type: ignore[arg-type]  # all that it uses
    freezer.changed()
    freezer.changed()
    assert [(timer.when(), timer.cancelled()) for timer in loop.timers] == [
        (garbage.QUIET_S, True),
        (garbage.QUIET_S, False),
    ]
