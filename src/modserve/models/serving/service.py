"""The states of a loaded model version in service, and which event leads from which to which.

`Model` owns its state and is the only one that changes it, by `after`. What belongs to it knows nothing of states:

- *Queues.* One takes requests. A change in place that makes a new one stops the old one, which is *former* until
  nothing waits there. Former queues exist in every state, run what they have first, and are told of free instances in
  the order in which they were replaced; the present queue comes last.
- *Instances.* The pool has them, and tells the model of losses and recoveries. Those that a change removed leave when
  they have nothing left to do, in any state, and closing the model waits for that.
- *Drain.* The queues refuse what is new themselves, since sequences that have begun may continue. So the state decides
  only whether the queue is asked at all: without an instance it is not, and requests are refused at once.

What stands before a model has states of its own, which are not mixed with these: the response cache keeps responses or
has stopped to (`cached`), and a model that comes and goes is somewhere on its way into memory or out of it
(`models.residency.presence`). Such a model is drained only while it stays in memory, so it is RESIDENT whenever this
table is in DRAINING.
"""

import enum
from collections.abc import Mapping


class Service(enum.Enum):
    """What becomes of a request that comes now."""

    OPEN = "it queues"
    STRANDED = "it is refused, since no instance is left; what waits goes on waiting until an attempt to make one fails"
    DRAINING = "it is refused, unless it continues a sequence"
    DRAINING_STRANDED = "it is refused, since no instance is left, even if it continues a sequence"
    CLOSED = "it is refused, and nothing waits any more"

    @property
    def takes(self) -> bool:
        """Whether the queue is asked."""
        return self not in (Service.STRANDED, Service.DRAINING_STRANDED)

    @property
    def drains(self) -> bool:
        """Whether a new queue is stopped from the start."""
        return self in (Service.DRAINING, Service.DRAINING_STRANDED)


class Event(enum.Enum):
    LOST = "the last instance was lost, or could not be made anew"
    HEALTHY = "an instance is there"
    CHANGE = "another configuration is applied in place"
    DRAIN = "nothing new is to be taken"
    CLOSE = "the engine is let go of"


TRANSITIONS: Mapping[Service, Mapping[Event, Service]] = {
    Service.OPEN: {
        Event.LOST: Service.STRANDED,
        Event.HEALTHY: Service.OPEN,
        Event.CHANGE: Service.OPEN,
        Event.DRAIN: Service.DRAINING,
        Event.CLOSE: Service.CLOSED,
    },
    Service.STRANDED: {
        Event.LOST: Service.STRANDED,
        Event.HEALTHY: Service.OPEN,
        Event.CHANGE: Service.STRANDED,
        Event.DRAIN: Service.DRAINING_STRANDED,
        Event.CLOSE: Service.CLOSED,
    },
    Service.DRAINING: {
        Event.LOST: Service.DRAINING_STRANDED,
        Event.HEALTHY: Service.DRAINING,
        Event.CHANGE: Service.DRAINING,
        Event.DRAIN: Service.DRAINING,
        Event.CLOSE: Service.CLOSED,
    },
    Service.DRAINING_STRANDED: {
        Event.LOST: Service.DRAINING_STRANDED,
        Event.HEALTHY: Service.DRAINING,
        Event.CHANGE: Service.DRAINING_STRANDED,
        Event.DRAIN: Service.DRAINING_STRANDED,
        Event.CLOSE: Service.CLOSED,
    },
    # Instances may still be lost, or turn out to have been made, while the engine closes.
    Service.CLOSED: {
        Event.LOST: Service.CLOSED,
        Event.HEALTHY: Service.CLOSED,
        Event.DRAIN: Service.CLOSED,
        Event.CLOSE: Service.CLOSED,
    },
}


def after(state: Service, event: Event) -> Service:
    """The next state. Raises RuntimeError for an event that cannot happen in a state; that is a bug."""
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise RuntimeError(f"{event.name} cannot happen to a model that is {state.name}: this is a bug")
    return following
