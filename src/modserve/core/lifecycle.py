"""The states of a model version, and which may follow which."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class LifecycleState(enum.Enum):
    """States as spelled in the repository index (protocol: model repository extension)."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[LifecycleState, frozenset[LifecycleState]] = {
    LifecycleState.UNKNOWN: frozenset({LifecycleState.LOADING, LifecycleState.UNAVAILABLE}),
    LifecycleState.LOADING: frozenset({LifecycleState.READY, LifecycleState.UNAVAILABLE}),
    LifecycleState.READY: frozenset(
        {LifecycleState.UNLOADING, LifecycleState.READY}
    ),  # READY again: loaded anew beside the one that served
    LifecycleState.UNLOADING: frozenset({LifecycleState.UNAVAILABLE, LifecycleState.LOADING}),
    LifecycleState.UNAVAILABLE: frozenset({LifecycleState.LOADING}),
}

UNLOADED = "unloaded"
"""The beginning of the only reasons that do not make a server unready: the version was unloaded on purpose.

More text follows for an ensemble that was unloaded together with a model that it is made of.
"""


@dataclass(frozen=True, slots=True)
class VersionState:
    """The state of a version and the reason of the state, which is empty when there is nothing to say."""

    state: LifecycleState = LifecycleState.UNKNOWN
    reason: str = ""
    load_ns: int = 0
    """Duration of the last successful load."""

    def advance(self, state: LifecycleState, reason: str = "", load_ns: int = 0) -> "VersionState":
        """Return the next state. Raises RuntimeError for a step that `TRANSITIONS` lacks; that is a bug."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a version cannot go from {self.state.name} to {state.name}: this is a bug")
        return VersionState(state, reason, load_ns or self.load_ns)

    @property
    def unloaded(self) -> bool:
        return self.reason.startswith(UNLOADED)

    @property
    def failed(self) -> bool:
        return self.state is LifecycleState.UNAVAILABLE and not self.unloaded

    @property
    def holds_up_readiness(self) -> bool:
        """True if the version fails strict readiness, as Triton defines it: not READY, nor unloaded on purpose.

        Unlike in Triton, a version that is being unloaded does not count: that takes as long as its longest request.
        """
        return self.state not in (LifecycleState.READY, LifecycleState.UNLOADING) and not self.unloaded


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A line of the repository index; `version` is None if no version of the model can be named.

    A model that was never loaded has one line, without a version and in state UNKNOWN.
    """

    name: str
    version: int | None
    state: LifecycleState
    reason: str
    load_ns: int = 0

    @property
    def unloaded(self) -> bool:
        return self.state is LifecycleState.UNAVAILABLE and self.reason.startswith(UNLOADED)

    @property
    def failed(self) -> bool:
        return self.state is LifecycleState.UNAVAILABLE and not self.unloaded


def any_ready(entries: Sequence[IndexEntry]) -> bool:
    """Return True if any version is READY."""
    return any(entry.state is LifecycleState.READY for entry in entries)
