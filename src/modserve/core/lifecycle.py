"""The states of a model version, and which may follow which."""

import enum
from dataclasses import dataclass


class State(enum.Enum):
    """As the repository index spells them (protocol: model repository extension)."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.UNKNOWN: frozenset({State.LOADING, State.UNAVAILABLE}),
    State.LOADING: frozenset({State.READY, State.UNAVAILABLE}),
    State.READY: frozenset({State.UNLOADING, State.READY}),  # READY again: loaded anew beside the one that served
    State.UNLOADING: frozenset({State.UNAVAILABLE, State.LOADING}),
    State.UNAVAILABLE: frozenset({State.LOADING}),
}

UNLOADED = "unloaded"
"""How the one kind of reason begins that does not make a server unready: the version was unloaded on purpose.

More follows for an ensemble that went since a model it is made of was unloaded.
"""


@dataclass(frozen=True, slots=True)
class VersionState:
    """What is known of a version: its state, and why it is in it (empty when there is nothing to say)."""

    state: State = State.UNKNOWN
    reason: str = ""
    load_ns: int = 0
    """How long the last successful load took."""

    def advance(self, state: State, reason: str = "", load_ns: int = 0) -> "VersionState":
        """The following state. Raises RuntimeError for a step which the table does not have; that is a bug."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a version can not go from {self.state.name} to {state.name}: this is a bug")
        return VersionState(state, reason, load_ns or self.load_ns)

    @property
    def unloaded(self) -> bool:
        """Whether the version is there no more because somebody wanted that."""
        return self.reason.startswith(UNLOADED)

    @property
    def failed(self) -> bool:
        """Whether there is no such version because something went wrong."""
        return self.state is State.UNAVAILABLE and not self.unloaded

    @property
    def holds_up_readiness(self) -> bool:
        """Triton's strict readiness: every listed version must be READY, but for those unloaded on purpose.

        Unlike in Triton, also while that is under way: it may take as long as the longest request.
        """
        return self.state not in (State.READY, State.UNLOADING) and not self.unloaded


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A line of the repository index; `version` is None where the model has none to speak of.

    A model that was never loaded has one line, without a version and in state UNKNOWN.
    """

    name: str
    version: int | None
    state: State
    reason: str
    load_ns: int = 0

    @property
    def unloaded(self) -> bool:
        """Whether the version is there no more because somebody wanted that."""
        return self.state is State.UNAVAILABLE and self.reason.startswith(UNLOADED)
