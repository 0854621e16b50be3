"""What front ends see of the trace of a request."""

from typing import Protocol

from .servable import Servable, Submitter


class RequestTrace(Submitter, Protocol):
    """Submit the request through it, and it sees the answers before the sink does."""

    def stamp(self, activity: str, ns: int = 0) -> None:
        """An activity of the front end happens now, or happened at `ns` of the monotonic clock."""
        ...

    def end(self) -> None:
        """The answer has been sent, or nobody waits for it any more. May be called again."""
        ...


class ParentTrace:
    """A sink that belongs to a trace, for models that ask other models: their requests can be traced with it."""

    __slots__ = ()

    def stamp(self, activity: str, ns: int = 0) -> None:
        """An activity of the model, as `RequestTrace` has those of the front end."""

    def child(self, servable: Servable) -> Submitter:
        """What to submit such a request through, once."""
        raise NotImplementedError
