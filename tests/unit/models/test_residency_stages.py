"""The stages of a model that comes and goes: every stage and every event."""

from itertools import product

import pytest

from modserve.core.residency import Presence
from modserve.models.residency.waiting import TRANSITIONS, Stage, StageEvent, after

ABSENT, WAITING, LOADING, RESIDENT, HELD_BACK, LEAVING = Stage

STEPS = {
    StageEvent.WANTED: {ABSENT: WAITING},
    StageEvent.ROOM: {WAITING: LOADING},
    StageEvent.NO_ROOM: {LOADING: WAITING},
    StageEvent.ARRIVED: {LOADING: RESIDENT},
    StageEvent.FAILED: {ABSENT: ABSENT, WAITING: ABSENT, LOADING: ABSENT, LEAVING: LEAVING},
    StageEvent.HOLD: {RESIDENT: HELD_BACK, HELD_BACK: HELD_BACK},
    StageEvent.RELEASE: {stage: stage for stage in Stage} | {HELD_BACK: RESIDENT},
    StageEvent.EVICT: {RESIDENT: LEAVING, HELD_BACK: LEAVING},
    StageEvent.LEFT: {LEAVING: ABSENT},
}


@pytest.mark.parametrize(("stage", "event"), list(product(Stage, StageEvent)), ids=lambda each: each.name)
def test_every_stage_and_event(stage: Stage, event: StageEvent) -> None:
    following = STEPS[event].get(stage)
    if following is None:
        with pytest.raises(RuntimeError, match=f"{event.name} cannot happen to a model that is {stage.name}"):
            after(stage, event)
    else:
        assert after(stage, event) is following


def test_the_table_is_complete() -> None:
    assert set(TRANSITIONS) == set(Stage)
    assert set(STEPS) == set(StageEvent)


def test_every_stage_leads_to_every_other() -> None:
    """A model that comes and goes never gets stuck."""
    for begin in Stage:
        seen, pending = {begin}, [begin]
        while pending:
            new = set(TRANSITIONS[pending.pop()].values()) - seen
            seen |= new
            pending += new
        assert seen == set(Stage)


def test_what_reports_say() -> None:
    assert [stage.presence for stage in Stage] == [
        Presence.ABSENT,
        Presence.WAITING,
        Presence.LOADING,
        Presence.RESIDENT,
        Presence.RESIDENT,
        Presence.LEAVING,
    ]
