"""One HTTP/2 connection: its beginning, its end, and what it is looked at for meanwhile.

The transport calls it like an `asyncio.Protocol`. `Sending` and `Reading` are its two halves, and `Keeping` has the
limits that clients run into.
"""

import asyncio
import ssl
from functools import partial
from typing import Final, cast

from . import frames
from .budgets import KEEPALIVE, NO_SETTINGS, UNFINISHED, UNREAD, after
from .reading import Reading
from .site import Site
from .stream import Stream

_KEEPALIVE: Final = b"keepaliv"

_WRITE_BUFFER: Final = 1024 * 1024
"""Bytes that the transport holds before the client counts as not reading."""

_LOST_AT_ONCE: Final = 100
"""Calls of a lost connection that end in one turn of the event loop."""


class Connection(Reading):
    """Its callers: the transport, the site's ticks and `flush`, and its streams."""

    __slots__ = ("_ends", "_heard", "_keepalive_sent", "_made", "_unsent")

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        # By the site's clock:
        self._made = site.seconds
        self._heard = site.seconds
        self._keepalive_sent = 0.0
        self._ends = site.age()
        self._unsent = 0

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = transport.get_extra_info("socket")
        if opened is not None and self.site.refuses(opened.fileno()):
            cast(asyncio.Transport, transport).abort()
            return
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_WRITE_BUFFER)
        self.site.opened(self)
        agreed: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if agreed is not None and agreed.selected_alpn_protocol() not in ("h2", None):
            self.abort()
            return
        self.transport.write(self.site.greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.site.closed(self)
        self._out.clear()
        self._hold(0)
        self._rest = b""
        lost = [stream for stream in self.streams.values() if not stream.over]
        self.streams.clear()
        for stream in lost:
            stream.over = True
            stream.pending = stream.final = None
        self._lose(lost)
        self._sendable = self._watched = self._stream = self._block = self._blocks = None

    def _lose(self, streams: list[Stream]) -> None:
        """End the calls of a connection that is gone, some in each turn of the event loop."""
        for stream in streams[:_LOST_AT_ONCE]:
            stream.lost()
        if len(streams) > _LOST_AT_ONCE:
            self.site.loop.call_soon(partial(self._lose, streams[_LOST_AT_ONCE:]))

    def eof_received(self) -> bool:
        return False

    # Time, and the end

    def _send_keepalive(self, now: float) -> None:
        most = self.site.policies.pings_without_data
        if not most or self.pings_sent < most:
            self.pings_sent += 1
            self._keepalive_sent = now
            self.control(frames.ping(_KEEPALIVE))

    def check(self, now: float, passed: float) -> None:
        """Look for what takes too long; `passed` is the time since the last look."""
        limits, policies, transport = self.site.limits, self.site.policies, self.transport
        if transport is None:
            return
        if self.failed:  # what is under way to the client has some time, and nothing else is sent
            if self.closed_by and now >= self.closed_by:
                self.abort()
            return
        self.updates = after(self.updates, int(limits.updates_a_second * passed), limits.updates)
        self.noise = after(self.noise, int(limits.noise_a_second * passed), limits.noise)
        self.resets = after(self.resets, int(limits.resets_a_second * passed), limits.resets)
        if self._active:
            self._active = False
            self._heard = now
            self._keepalive_sent = 0.0
        if not self._half and (self._rest or self._block is not None):
            self._half = now
        if self.closed_by and now >= self.closed_by:
            self.abort()
        elif not self._settled:
            if now - self._made > limits.preface:
                self.drop_all(NO_SETTINGS)
        elif self.paused:
            unsent = transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self.moved = unsent, now
            elif now - self.moved > limits.blockage:
                self.drop_all(UNREAD)
        elif self._half and now - self._half > limits.silence:
            text = f"the rest of a frame has not come for {limits.silence:g} s"
            self.fail(frames.PROTOCOL_ERROR, text, UNFINISHED)
        elif self._keepalive_sent:
            if now - self._keepalive_sent > policies.keepalive_timeout:
                self.drop_all(KEEPALIVE)
        elif now - self._heard > policies.keepalive and (self.streams or policies.keepalive_when_idle):
            self._send_keepalive(now)
        if self.goodbye and now >= self.goodbye:
            self.say_goodbye()
        if self._ends and now >= self._ends:
            if self.closing and policies.grace:
                self.abort()
            self._ends = now + policies.grace if policies.grace else 0.0
            self.go_away()
        if self._watched:
            self.check_streams(now)
