"""The interface between a connection and the request that it serves."""

from typing import Protocol


class HttpCall(Protocol):
    """A request, or its long response, as its connection drives it. A connection has one at a time."""

    @property
    def begun(self) -> bool:
        """True if the response's head is written."""

    @property
    def filler(self) -> bytes:
        """Bytes that may be written now and mean nothing to a client of HTTP/1.1; empty if there are none."""

    @property
    def left(self) -> int:
        """Bytes of the response that are complete and not with the transport yet."""

    def pause(self) -> None:
        """Write no more: the client does not take what was written."""

    def resume(self) -> None:
        """Write on: the client takes more."""

    def cancel(self) -> None:
        """Cancel the call: the client has disconnected."""
