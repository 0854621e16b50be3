"""Phases of a connection's reading."""

from enum import Enum, auto


class ConnectionPhase(Enum):
    """Phase of a connection. It only moves forward."""

    OPEN = auto()
    """Requests are read."""
    LAST = auto()
    """The request at hand, or the refusal just written, is the last: what follows is dropped."""
    ENDED = auto()
    """The client has sent its last byte, but still reads. What it has sent is served, unless it was LAST before."""
