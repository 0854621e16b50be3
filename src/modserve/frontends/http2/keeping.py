"""What a connection does about clients that do too much or too little, and how it ends."""

from typing import Final

from . import frames
from .budgets import PROTOCOL, TOO_MANY_RESETS, TOO_MUCH_NOISE, Ending
from .frames import ENHANCE_YOUR_CALM, Http2Error
from .sending import Sending
from .site import Site
from .stream import Stream

FAREWELL: Final = b"farewell"
"""The ping between the two GOAWAYs."""

_RAPID: Final = 2.0
"""Seconds within which the end of a stream is before its time."""


def spent(ending: Ending) -> Http2Error:
    """What ends a connection whose client has done too much of something."""
    return Http2Error(ENHANCE_YOUR_CALM, ending.text, ending)


class Keeping(Sending):
    """Streams that end early or do not get on, budgets, and the farewell.

    `closing`: the client has been told to open no more streams; `last_stream` is the highest that is served.
    """

    __slots__ = ("closed_by", "failed", "goodbye", "highest", "last_stream")

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.highest = 0
        """The last stream that the client has opened."""
        self.last_stream = frames.LAST_STREAM
        self.failed = False
        """The client has been told that the connection is at its end, and why."""
        self.closed_by = 0.0
        """When it is closed, whatever the client does; 0: not yet."""
        self.goodbye = 0.0
        """When the second GOAWAY is sent without the reply to the ping; 0: none is due."""

    # Errors and limits

    def drop(self, stream: Stream) -> None:
        """The stream is over on both sides."""
        stream.over = stream.ended = True
        stream.pending = stream.final = None
        if self._watched is not None:
            self._watched.discard(stream)
        stream.lost()

    def refuse(self, number: int, code: int) -> None:
        """End a stream that has not begun."""
        self.control(frames.reset(number, code))
        self.count_reset()

    def wrong(self, stream: Stream, code: int) -> None:
        """The client has done on the stream what it must not (RFC 9113, section 5.4.2)."""
        self.streams.pop(stream.number, None)
        self.control(frames.reset(stream.number, code))
        self.drop(stream)
        self.count_reset()

    def count_noise(self, count: int = 1) -> None:
        self.noise -= count
        if self.noise < 0:
            raise spent(TOO_MUCH_NOISE)

    def count_reset(self) -> None:
        self.resets -= 1
        if self.resets < 0:
            raise spent(TOO_MANY_RESETS)

    def count_rapid(self, stream: Stream) -> None:
        """The client has reset a stream."""
        if self.site.seconds - stream.opened < _RAPID:
            self.count_reset()

    def check_streams(self, now: float) -> None:
        """End those of the watched streams that have not got on for too long."""
        limits = self.site.limits
        for stream in list(self._watched or ()):
            if stream.pending and now - stream.moved > limits.stall:
                self.reset(stream, frames.CANCEL)
                stream.lost()
            elif stream.expects():
                silence = now - stream.heard - self.site.policies.tick  # it was heard between two ticks
                if silence > limits.silence or now - stream.advanced > limits.silence * limits.silences:
                    stream.overdue()
            elif not stream.pending:
                self.unwatch(stream)
        if not self._watched:
            self._watched = None

    # The end

    def fail(self, code: int, text: str, ending: Ending = PROTOCOL) -> None:
        """End the connection, and say why."""
        self.failed = True
        if self.transport is None:
            return
        self.site.ended(ending, self.transport, text)
        self._out.append(frames.going_away(self.highest, code, text.encode()))
        self._write()
        for stream in list(self.streams.values()):
            self.streams.pop(stream.number, None)
            self.drop(stream)
        # Closing with unread bytes would reset the connection, and the client might not see why.
        self.closed_by = self.site.loop.time() + self.site.limits.farewell
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def go_away(self) -> None:
        """Let what is under way finish, and then close (RFC 9113, section 6.8).

        A client that does not know it yet may open streams for one more round trip.
        """
        if self.closing or self.failed or self.transport is None:
            self.closing = True
            return
        if self.goodbye:
            return
        self.goodbye = self.site.loop.time() + self.site.limits.farewell
        self.control(frames.going_away(frames.LAST_STREAM, frames.NO_ERROR))
        self.control(frames.ping(FAREWELL))

    def say_goodbye(self) -> None:
        self.goodbye = 0.0
        self.last_stream = self.highest
        self.closing = True
        self.control(frames.going_away(self.highest, frames.NO_ERROR))
        self._later()
