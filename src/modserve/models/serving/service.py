"""States of a loaded model version in service, and their transitions.

`Model` owns its state, and alone changes it, by `after`. Its parts do not depend on the state:

- *Queues.* One accepts requests. An in-place change that creates a new one stops the old one, which is *former* until
  it is empty. Former queues exist in every state, run their requests first, and get free instances in the order in
  which they were replaced; the current queue comes last.
- *Instances.* The pool has them, and reports losses and recoveries to the model. Instances removed by a change leave
  once they have finished, in any state, and closing the model waits for that.
- *Drain.* The queues themselves refuse new requests, since begun sequences may continue. The state only decides
  whether a queue gets the request: without an instance, requests are refused at once.

Wrappers of a model have their own, separate states: the response cache is in use or stopped (`cached`), and an
on-demand model is in memory, entering or leaving it (`models.residency.waiting`). Such a model is drained only while it
stays in memory, so it is RESIDENT whenever this state is DRAINING.
"""

import enum
from collections.abc import Mapping


class Service(enum.Enum):
    """Treatment of a request that arrives now."""

    OPEN = "it queues"
    STRANDED = "it is refused, since no instance is left; what waits goes on waiting until an attempt to make one fails"
    DRAINING = "it is refused, unless it continues a sequence"
    DRAINING_STRANDED = "it is refused, since no instance is left, even if it continues a sequence"
    CLOSED = "it is refused, and nothing waits any more"

    @property
    def takes(self) -> bool:
        """True if the queue gets the request."""
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
    # Instances may still be lost, or be completed, while the engine closes.
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
