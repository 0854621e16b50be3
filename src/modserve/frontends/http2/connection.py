"""HTTP/2 connection: puts its parts together, owns the transport, and ends a client that makes no progress.

The transport calls it like an `asyncio.Protocol`. The first four of its parts do no I/O, and know nothing of the rest:

- `FrameReader`: bytes → frames
- `Windows`: what both sides may send; `Budgets`: what the client may do besides; `Keepalive`: who may ping, and when
- `Receiver`: what the frames do
- `Sender`: what goes out, and when

A connection that has `failed` sends nothing more, and is closed when the client has seen why.
"""

import asyncio
import logging
import ssl
from functools import partial
from typing import Final, cast, final

from modserve.core.runtime.turn import BURST

from . import frames
from .budgets import Budgets
from .endings import INTERNAL, KEEPALIVE, NO_SETTINGS, PROTOCOL, UNFINISHED, UNREAD, CloseReason
from .frame_reader import FrameReader
from .frames import PROTOCOL_ERROR, Http2Error
from .keepalive import Keepalive
from .port import Http2Port, PortConnection
from .receiver import Receiver
from .sender import Sender
from .stream import Stream
from .windows import Windows

_log = logging.getLogger(__name__)

_KEEPALIVE: Final = b"keepaliv"

_WRITE_BUFFER: Final = 1024 * 1024
"""Bytes that the transport holds before the client counts as not reading."""

_LOST_AT_ONCE: Final = 100
"""Calls of a lost connection that end in one turn of the event loop."""


@final
class Http2Connection(PortConnection):
    """A connection, called by its transport and its port."""

    def __init__(self, port: Http2Port) -> None:
        super().__init__()
        self._port = port
        # By the clock; 0: not at all.
        self._made = port.clock.seconds
        self._active = False
        """Bytes have come since the last tick."""
        self._half = 0.0
        """Time at which an incomplete frame or header block was first seen."""
        self._ends = port.end_time()
        self._goodbye = 0.0
        """Time at which the second GOAWAY is sent without the reply to the ping."""
        self._closed_by = 0.0
        """Time at which a failed connection is closed, whatever the client does."""
        self.failed = False
        self.windows = Windows(port.limits.connection_window)
        self.budgets = Budgets(port.limits)
        self._keepalive = Keepalive(port.policies, self._made)
        self._reader = FrameReader(port.limits)
        self.sender = Sender(port, self.streams, self.windows, self.budgets)
        self._receiver = Receiver(port, self.streams, self.windows, self.budgets, self._keepalive, self.sender)
        self._burst = 0
        """Bytes that have come since reading last rested."""
        self._paused_reading = False
        """Frames that are there wait for the next turn."""

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = transport.get_extra_info("socket")
        made = cast(asyncio.Transport, transport)
        descriptor = 0 if opened is None else opened.fileno()
        if not self._port.add_connection(self, transport.get_extra_info("peername"), descriptor):
            made.abort()
            return
        self.sender.on_connect(made)
        made.set_write_buffer_limits(_WRITE_BUFFER)
        agreed: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if agreed is not None and agreed.selected_alpn_protocol() not in ("h2", None):
            self.abort()
            return
        made.write(self._port.greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.remove_connection(self)
        self._receiver.end_farewell()
        self.sender.on_disconnect()
        lost = [stream for stream in self.streams.values() if not stream.over]
        self.streams.clear()
        for stream in lost:
            stream.close()
        self._lose(lost)

    def _lose(self, streams: list[Stream]) -> None:
        """End the calls of a connection that is gone, some in each turn of the event loop."""
        for stream in streams[:_LOST_AT_ONCE]:
            stream.on_lost()
        if len(streams) > _LOST_AT_ONCE:
            self._port.loop.call_soon(partial(self._lose, streams[_LOST_AT_ONCE:]))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.sender.pause()

    def resume_writing(self) -> None:
        self.sender.resume()

    def data_received(self, data: bytes) -> None:
        self._active = True
        sender = self.sender
        if self.failed or sender.transport is None:
            return
        sender.hold_back()
        reader = self._reader
        try:
            read = reader.read(data, self._receiver)
            if reader.too_much:
                self._pause_reading()
            if self._half and (read or not reader.unfinished) and not reader.in_block:
                self._half = 0.0
        except Http2Error as error:
            self._fail(error.code, error.message, error.ending)
        except Exception:
            _log.exception("closing a gRPC connection: handling its input failed unexpectedly")
            self._fail(frames.INTERNAL_ERROR, INTERNAL.text, INTERNAL)
        if sender.ready:
            turn = self._port.turn
            turn.begin()
            for stream in sender.ready:
                if not stream.over:
                    try:
                        stream.begin()
                    except Exception:  # it is the end of this stream, and of no other
                        _log.exception("ending a gRPC call: starting it failed unexpectedly")
                        stream.on_error()
            sender.ready.clear()
            turn.end()
        if self.windows.unacknowledged >= self.windows.enough and not self.failed:
            sender.control(frames.window_update(0, self.windows.acknowledge()))
        self._burst += len(data)
        if self._burst >= BURST:
            self._burst = 0
            self._pause_reading()
        sender.flush()

    def _pause_reading(self) -> None:
        """Read on in the next turn of the event loop: others come first."""
        transport = self.sender.transport
        if not self._paused_reading and transport is not None and not transport.is_closing():
            self._paused_reading = True
            transport.pause_reading()
            self._port.loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        self._paused_reading = False
        transport = self.sender.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            if self._reader.unfinished:
                self.data_received(b"")

    # The end

    def _fail(self, code: int, text: str, ending: CloseReason = PROTOCOL) -> None:
        """End the connection, and say why."""
        self.failed = True
        transport = self.sender.transport
        if transport is None:
            return
        self._port.count_end(ending, transport, text)
        self.sender.say_last(frames.going_away(self._receiver.highest, code, text.encode()))
        self._receiver.drop_all()
        # Closing with unread bytes would reset the connection, and the client might not see why.
        self._closed_by = self._port.loop.time() + self._port.limits.farewell
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def go_away(self) -> None:
        sender, receiver = self.sender, self._receiver
        if sender.closing or self.failed or sender.transport is None:
            sender.close_when_done()
        elif not receiver.leaving:
            self._goodbye = self._port.loop.time() + self._port.limits.farewell
            receiver.announce_leaving()

    def close_when_done(self) -> None:
        sender = self.sender
        if sender.closing or self.failed or sender.transport is None:
            sender.close_when_done()
        else:
            self._receiver.go_away()
        sender.flush()

    def abort(self) -> None:
        self.sender.abort()

    def drop(self, ending: CloseReason) -> None:
        self.sender.drop(ending)

    # Time

    def check(self, now: float, passed: float) -> None:
        sender, receiver = self.sender, self._receiver
        if sender.transport is None:
            return
        if self.failed:  # what is under way to the client has some time, and nothing else is sent
            if now >= self._closed_by:
                self.abort()
            return
        self.budgets.pass_time(passed)
        if self._active:
            self._active = False
            self._keepalive.on_data(now)
        self._check_client(now)
        if receiver.leaving and now >= self._goodbye:
            receiver.go_away()
        if self._ends and now >= self._ends:
            grace = self._port.policies.grace
            if sender.closing and grace:
                self.abort()
            self._ends = now + grace if grace else 0.0
            self.go_away()
        sender.check_streams(now)

    def _check_client(self, now: float) -> None:
        """End the connection if what has to come has not come for too long."""
        limits, sender = self._port.limits, self.sender
        if not self._half and self._reader.unfinished:
            self._half = now
        if not self._reader.settled:
            if now - self._made > limits.preface:
                self.drop(NO_SETTINGS)
        elif sender.paused:
            if sender.is_blocked(now):
                self.drop(UNREAD)
        elif self._half and now - self._half > limits.silence:
            text = f"the rest of a frame has not come for {limits.silence:g} s"
            self._fail(PROTOCOL_ERROR, text, UNFINISHED)
        elif self._keepalive.is_dead(now):
            self.drop(KEEPALIVE)
        elif self._keepalive.begin_ping(now, sender.sent, not self.streams):
            sender.control(frames.ping(_KEEPALIVE))
