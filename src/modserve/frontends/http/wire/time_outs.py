"""Time-outs of inactive clients, checked once a second by received and sent data."""

from enum import Enum, auto

from modserve.settings import HttpSettings

from .reader import BODY, IDLE, PART, Reader

_SILENCES = 5
"""Time limit for a part of a body, as a multiple of the allowed silence, even for an active client."""


class CloseAction(Enum):
    """Ways to end a connection without a response."""

    CLOSE = auto()
    ABORT = auto()


class TimeOuts:
    """Activity of one client. Times are in seconds of the event loop's clock."""

    __slots__ = ("_options", "_part", "_part_since", "_since", "_unsent")

    def __init__(self, options: HttpSettings) -> None:
        self._options = options
        self._since = 0.0
        """Time of the client's last activity."""
        self._unsent = 0
        """Unsent bytes at that time."""
        self._part: tuple[int, int] | None = None
        """The part of a request that is arriving since `_part_since`."""
        self._part_since = 0.0

    def check(
        self, now: float, active: bool, unsent: int, stuck: bool, served: bool, reader: Reader
    ) -> CloseAction | str | None:
        """Return how the connection ends, if at all: a text refuses an incomplete request.

        `active`: data has arrived since the last check. `stuck`: the client reads nothing, or its last data is still
        unread. `served`: a request is being served, so the client may be silent.
        """
        if active or unsent != self._unsent:
            self._unsent, self._since = unsent, now
        idle_timeout, client_timeout = self._options.idle_timeout, self._options.client_timeout
        silent = now - self._since
        part, self._part = self._part, None
        if stuck:
            return CloseAction.ABORT if 0 < client_timeout <= silent else None
        if served or reader.rest:
            self._since = now
            return None
        if reader.state is IDLE:
            return CloseAction.CLOSE if 0 < idle_timeout <= silent else None
        in_body = reader.state is BODY
        self._part = reader.part
        if part != self._part:
            self._part_since = now
        elif in_body and 0 < client_timeout <= silent:
            return f"nothing more of the request's body has arrived for {client_timeout:g} s"
        elif 0 < (patience := client_timeout * (_SILENCES if in_body else 1)) <= now - self._part_since:
            # Regardless of its size: some clients send a byte from time to time.
            what = f"body has not advanced by {PART} bytes" if in_body else "head has not ended"
            return f"the request's {what} within {patience:g} s"
        return None
