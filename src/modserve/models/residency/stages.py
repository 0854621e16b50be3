"""The stages of a model that comes into memory and leaves it, and which event leads from which to which.

`OnDemandModel` owns its stage and is the only one that changes it, by `after`. What exists at which stage:

- A loaded model (`_inner`): while RESIDENT or HELD_BACK, and never otherwise.
- A task that brings it into memory (`_task`): while WAITING or LOADING. There may be one already while the model is
  LEAVING, for requests that came since; it waits for that end.
- A task that closes it (`_leaving`): while LEAVING.
- Requests that wait: at every stage but RESIDENT. Something always ends that: one of the two tasks, or the budget,
  which holds a model back only while it makes room for another one.

Draining is beside this, since it only bars the way to HELD_BACK, and pins the model. The budget (`memory`) sees an
occupant that is `movable` while there is a loaded model; it asks for HOLD, RELEASE and EVICT, and for nothing else.
"""

import enum
from collections.abc import Mapping

from modserve.core.residency import Presence


class Stage(enum.Enum):
    ABSENT = "not in memory"
    WAITING = "there is no room yet"
    LOADING = "being loaded"
    RESIDENT = "in memory"
    HELD_BACK = "in memory, but new requests wait"
    LEAVING = "being closed"

    @property
    def presence(self) -> Presence:
        """What reports say."""
        return Presence.RESIDENT if self is Stage.HELD_BACK else Presence[self.name]


class StageEvent(enum.Enum):
    WANTED = "somebody waits for the model"
    ROOM = "there is room for it"
    NO_ROOM = "it has turned out to be too large for the room that there was"
    ARRIVED = "it is loaded"
    FAILED = "it was not loaded, or nobody wants it any more"
    HOLD = "it is to become idle, since others need its memory"
    RELEASE = "it need not become idle any more, or does so no more: this comes whatever has become of the model"
    EVICT = "it is to leave"
    LEFT = "it is closed"


TRANSITIONS: Mapping[Stage, Mapping[StageEvent, Stage]] = {
    Stage.ABSENT: {StageEvent.WANTED: Stage.WAITING, StageEvent.FAILED: Stage.ABSENT, StageEvent.RELEASE: Stage.ABSENT},
    Stage.WAITING: {StageEvent.ROOM: Stage.LOADING, StageEvent.FAILED: Stage.ABSENT, StageEvent.RELEASE: Stage.WAITING},
    Stage.LOADING: {
        StageEvent.NO_ROOM: Stage.WAITING,
        StageEvent.ARRIVED: Stage.RESIDENT,
        StageEvent.FAILED: Stage.ABSENT,
        StageEvent.RELEASE: Stage.LOADING,
    },
    Stage.RESIDENT: {
        StageEvent.HOLD: Stage.HELD_BACK,
        StageEvent.EVICT: Stage.LEAVING,
        StageEvent.RELEASE: Stage.RESIDENT,
    },
    Stage.HELD_BACK: {
        StageEvent.HOLD: Stage.HELD_BACK,
        StageEvent.EVICT: Stage.LEAVING,
        StageEvent.RELEASE: Stage.RESIDENT,
    },
    # A task that was to bring it back may be cancelled meanwhile.
    Stage.LEAVING: {StageEvent.LEFT: Stage.ABSENT, StageEvent.FAILED: Stage.LEAVING, StageEvent.RELEASE: Stage.LEAVING},
}


def after(stage: Stage, event: StageEvent) -> Stage:
    """The next stage. Raises RuntimeError for an event that cannot happen at a stage; that is a bug."""
    following = TRANSITIONS[stage].get(event)
    if following is None:
        raise RuntimeError(f"{event.name} cannot happen to a model that is {stage.name}: this is a bug")
    return following
