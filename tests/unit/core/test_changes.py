"""Notifying listeners that something changed."""

from contextlib import ExitStack

from modserve.core.changes import Changes


def test_listeners_are_notified_while_they_listen() -> None:
    changes = Changes()
    notified: list[str] = []
    changes.notify()
    with changes.listening(lambda: notified.append("outer")):
        with changes.listening(lambda: notified.append("inner")):
            changes.notify()
        changes.notify()
    changes.notify()
    assert notified == ["outer", "inner", "outer"]


def test_a_listener_may_stop_listening_when_it_is_notified() -> None:
    changes = Changes()
    notified: list[str] = []
    first = ExitStack()
    first.enter_context(changes.listening(first.close))
    with changes.listening(lambda: notified.append("second")):
        changes.notify()
        changes.notify()
    assert notified == ["second", "second"]
