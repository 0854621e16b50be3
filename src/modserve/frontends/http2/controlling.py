"""What the frames do that carry no part of a call: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM (RFC 9113, section 6)."""

from . import frames
from .budgets import TOO_MANY_PINGS, TOO_MANY_UPDATES
from .frames import (
    ACK,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    LARGEST_WINDOW,
    PROTOCOL_ERROR,
    Http2Error,
)
from .headers import SIZE_UPDATE
from .keeping import FAREWELL, Keeping, spent
from .site import Site


class Controlling(Keeping):
    """Each method raises `Http2Error` for what ends the connection. WINDOW_UPDATE has a budget of its own, and each of
    the others counts as noise."""

    __slots__ = ("_settled",)

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._settled = False
        """The client's first SETTINGS have come."""

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if self._settled:
            self.count_noise()
        if flags & ACK:
            if payload:
                raise Http2Error(FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has content")
            return
        self._settled = True
        initial_window = self.initial_window
        for name, value in frames.read_settings(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise Http2Error(FLOW_CONTROL_ERROR, "a window is larger than 2^31-1")
                initial_window = value
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                    raise Http2Error(PROTOCOL_ERROR, f"no frame can have {value} bytes at most")
                self.longest_frame = value
            elif name == frames.HEADER_TABLE_SIZE and value < self.site.limits.table:
                self.table_update = SIZE_UPDATE
            elif name == frames.ENABLE_PUSH and value > 1:
                raise Http2Error(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if initial_window != self.initial_window:  # once, however often the frame says it: each stream is looked at
            self.count_noise(1 + len(self.streams) // 32)
            self.change_initial_window(initial_window)
        self.control(frames.SETTINGS_ACK)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        self.count_noise()
        if flags & ACK:
            if payload == FAREWELL and self.goodbye:
                self.say_goodbye()
            return
        policies, now = self.site.policies, self.site.loop.time()
        idle = not self.streams and not policies.keepalive_when_idle
        least = policies.ping_interval_idle if idle else policies.ping_interval
        if self.pinged and now - self.pinged < least and policies.ping_strikes:
            self.strikes += 1
            if self.strikes > policies.ping_strikes:
                raise spent(TOO_MANY_PINGS)
        self.pinged = now
        self.control(frames.ping(payload, ack=True))

    def _on_window_update(self, number: int, size: int) -> None:
        self.updates -= 1
        if self.updates < 0:
            raise spent(TOO_MANY_UPDATES)
        if not number:
            self.window += size
            if not size or self.window > LARGEST_WINDOW:
                code = FLOW_CONTROL_ERROR if size else PROTOCOL_ERROR
                raise Http2Error(code, "the connection's window grows by 0, or beyond 2^31-1")
            return
        stream = self.streams.get(number)
        if stream is not None:
            stream.window += size
            if not size or stream.window > LARGEST_WINDOW:
                self.wrong(stream, FLOW_CONTROL_ERROR if size else PROTOCOL_ERROR)
            else:
                self.opened_window(stream)
        elif number > self.highest:
            raise Http2Error(PROTOCOL_ERROR, f"WINDOW_UPDATE is on stream {number}, which was never opened")

    def _on_reset(self, number: int) -> None:
        if number > self.highest:
            raise Http2Error(PROTOCOL_ERROR, f"RST_STREAM is on stream {number}, which was never opened")
        stream = self.streams.pop(number, None)
        if stream is None:
            self.count_noise()
            return
        self.drop(stream)
        self.count_rapid(stream)
