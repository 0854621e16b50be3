"""The states of a loaded model version in service, and which event leads from which to which.

`Model` owns its state and is the only one that changes it, by `after`. What belongs to it knows nothing of states:

- *Queues.* One takes requests. A change in place that makes a new one stops the old one, which is *former* until
  it is empty. Former queues exist in every state, run what they have first, and are told of free instances in
  the order in which they were replaced; the present queue comes last.
- *Instances.* The pool has them, and tells the model of losses and recoveries. Those that a change removed leave when
  they have nothing left to do, in any state, and closing the model waits for that.
- *Drain.* The queues refuse new requests themselves, since sequences that have begun may continue. So the state decides
  only whether the queue is asked at all: without an instance it is not, and requests are refused at once.

What stands before a model has states of its own, which are not mixed with these: the response cache keeps responses or
has stopped to (`cached`), and a model that comes and goes is somewhere on its way into memory or out of it
(`models.residency.waiting`). Such a model is drained only while it stays in memory, so it is RESIDENT whenever this
table is in DRAINING.
"""

import enum
from collections.abc import Mapping


class Service(enum.Enum):
    """Fate of a request that arrives now."""

    OPEN = "it queues"
    STRANDED = "it is refused, since no instance is left; what waits goes on waiting until an attempt to make one fails"
    DRAINING = "it is refused, unless it continues a sequence"
    DRAINING_STRANDED = "it is refused, since no instance is left, even if it continues a sequence"
    CLOSED = "it is refused, and nothing waits any more"

    @property
    def takes(self) -> bool:
        """True if the queue is asked."""
        return self not in (Service.STRANDED, Service.DRAINING_STRANDED)

    @property
    def drains(self) -> bool:
        """True if a new queue is stopped from the start."""
        return self in (Service.DRAINING, Service.DRAINING_STRANDED)


class ServiceEvent(enum.Enum):
    LOST = "the last instance was lost, or could not be made anew"
    HEALTHY = "an instance is there"
    CHANGE = "another configuration is applied in place"
    DRAIN = "nothing new is to be taken"
    CLOSE = "the engine is let go of"


TRANSITIONS: Mapping[Service, Mapping[ServiceEvent, Service]] = {
    Service.OPEN: {
        ServiceEvent.LOST: Service.STRANDED,
        ServiceEvent.HEALTHY: Service.OPEN,
        ServiceEvent.CHANGE: Service.OPEN,
        ServiceEvent.DRAIN: Service.DRAINING,
        ServiceEvent.CLOSE: Service.CLOSED,
    },
    Service.STRANDED: {
        ServiceEvent.LOST: Service.STRANDED,
        ServiceEvent.HEALTHY: Service.OPEN,
        ServiceEvent.CHANGE: Service.STRANDED,
        ServiceEvent.DRAIN: Service.DRAINING_STRANDED,
        ServiceEvent.CLOSE: Service.CLOSED,
    },
    Service.DRAINING: {
        ServiceEvent.LOST: Service.DRAINING_STRANDED,
        ServiceEvent.HEALTHY: Service.DRAINING,
        ServiceEvent.CHANGE: Service.DRAINING,
        ServiceEvent.DRAIN: Service.DRAINING,
        ServiceEvent.CLOSE: Service.CLOSED,
    },
    Service.DRAINING_STRANDED: {
        ServiceEvent.LOST: Service.DRAINING_STRANDED,
        ServiceEvent.HEALTHY: Service.DRAINING,
        ServiceEvent.CHANGE: Service.DRAINING_STRANDED,
        ServiceEvent.DRAIN: Service.DRAINING_STRANDED,
        ServiceEvent.CLOSE: Service.CLOSED,
    },
    # Instances may still be lost, or turn out to have been made, while the engine closes.
    Service.CLOSED: {
        ServiceEvent.LOST: Service.CLOSED,
        ServiceEvent.HEALTHY: Service.CLOSED,
        ServiceEvent.DRAIN: Service.CLOSED,
        ServiceEvent.CLOSE: Service.CLOSED,
    },
}


def after(state: Service, event: ServiceEvent) -> Service:
    """Return the next state. Raises RuntimeError for an event that cannot happen in a state; that is a bug."""
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise RuntimeError(f"{event.name} cannot happen to a model that is {state.name}: this is a bug")
    return following
