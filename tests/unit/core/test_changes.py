"""Telling listeners that something changed."""

from contextlib import ExitStack

from modserve.core.changes import Changes


def test_listeners_are_told_while_they_listen() -> None:
    changes = Changes()
    told: list[str] = []
    changes.notify()
    with changes.told(lambda: told.append("outer")):
        with changes.told(lambda: told.append("inner")):
            changes.notify()
        changes.notify()
    changes.notify()
    assert told == ["outer", "inner", "outer"]


def test_a_listener_may_stop_listening_when_it_is_told() -> None:
    changes = Changes()
    told: list[str] = []
    first = ExitStack()
    first.enter_context(changes.told(first.close))
    with changes.told(lambda: told.append("second")):
        changes.notify()
        changes.notify()
    assert told == ["second", "second"]
