"""Flow control of one connection (RFC 9113, section 5.2): bytes of DATA on all its streams together.

What each stream may send and receive is counted by `Stream`.
"""

from typing import final

from .frames import DEFAULT_WINDOW, FLOW_CONTROL_ERROR, LARGEST_WINDOW, PROTOCOL_ERROR, Http2Error


@final
class Windows:
    """Flow control of one connection, in both directions. Each method raises `Http2Error` for a violation."""

    def __init__(self, room: int) -> None:
        """`room`: bytes that the client may send ahead of what has been acknowledged."""
        self.left = DEFAULT_WINDOW
        """Bytes that the server may send."""
        self.initial = DEFAULT_WINDOW
        """Bytes that the server may send on a new stream."""
        self.unacknowledged = 0
        """Bytes that have come since the last WINDOW_UPDATE."""
        self.enough = room // 2
        """Unacknowledged bytes that are worth a WINDOW_UPDATE."""
        self._room = room

    def count_received(self, size: int) -> None:
        self.unacknowledged += size
        if self.unacknowledged > self._room:
            raise Http2Error(FLOW_CONTROL_ERROR, "more bytes came than the connection's window allows")

    def acknowledge(self) -> int:
        """Let the client send as much again as came, and return how much that is."""
        size, self.unacknowledged = self.unacknowledged, 0
        return size

    def widen(self, size: int) -> None:
        """Let the server send `size` bytes more."""
        self.left += size
        if not size or self.left > LARGEST_WINDOW:
            code = FLOW_CONTROL_ERROR if size else PROTOCOL_ERROR
            raise Http2Error(code, "the connection's window grows by 0, or beyond 2^31-1")

    def count_sent(self, size: int) -> None:
        self.left -= size

    def change_initial(self, size: int) -> int:
        """Change the initial window of streams; returns the growth of the windows of open streams."""
        change, self.initial = size - self.initial, size
        return change
