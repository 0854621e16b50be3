"""Shared state of a port's connections: limits, policies, clock, and flushing at the end of a turn."""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mypy_extensions import mypyc_attr

from modserve.core.runtime.failures import count_failure
from modserve.core.runtime.log_limit import LogInterval
from modserve.core.runtime.periodic import PeriodicTask
from modserve.core.runtime.turn import turn_of
from modserve.frontends.listening import peer_of
from modserve.frontends.places import LINGERING, ConnectionPlaces

from . import frames
from .endings import INTERNAL, REASONS, CloseReason
from .fields import HTTP_NAMES, FieldNames, HeaderField
from .headers import Head
from .limits import LIMITS, ConnectionLimits
from .policies import Policies
from .stream import Stream, StreamSender, TickClock

_log = logging.getLogger(__name__)


_JITTER: Final = 0.1
"""Relative variation of connections' ages, so that connections made together do not end together."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PortConnection(ABC):
    """A connection's interface for its port."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        """Open streams by number."""

    @abstractmethod
    def check(self, now: float, passed: float) -> None:
        """Check time limits; `passed` is the time since the last check."""

    @abstractmethod
    def go_away(self) -> None:
        """Send GOAWAY: finish current streams, and then close (RFC 9113, section 6.8)."""

    @abstractmethod
    def close_when_done(self) -> None:
        """Finish current streams, and then close."""

    @abstractmethod
    def abort(self) -> None:
        """Close the connection without sending anything."""

    @abstractmethod
    def drop(self, ending: CloseReason) -> None:
        """Close the connection without sending anything, and count the reason."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Port:
    """An HTTP/2 port. Subclasses interpret the requests."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        policies: Policies,
        limits: ConnectionLimits = LIMITS,
        spread: Callable[[], float] = random.random,
        names: FieldNames = HTTP_NAMES,
    ) -> None:
        """`names`: header fields with a meaning for this port."""
        self.names = names
        self.loop = loop
        self.turn = turn_of(loop)
        self.policies = policies
        self.limits = limits
        self.spread = spread
        self.connections: set[PortConnection] = set()
        self.idle = asyncio.Event()
        """Set while there is no connection."""
        self.idle.set()
        self.clock = TickClock(loop.time())
        self._unaware = 0
        """Number of connections with clients that have not confirmed the GOAWAY."""
        self._all_aware = asyncio.Event()
        self.greeting = frames.settings(make_settings(limits)) + frames.window_update(
            0, limits.connection_window - frames.DEFAULT_WINDOW
        )
        self.last_descriptor = 0
        """Highest descriptor for connections; higher ones are for other ports. 0: no limit."""
        self.endings = dict.fromkeys(REASONS, 0)
        """Connections closed early by the server, by reason."""
        self._places: ConnectionPlaces[PortConnection] = ConnectionPlaces()
        self._turned_away = LogInterval()
        self._cut_off = LogInterval()
        self._unflushed: list[StreamSender] = []
        self._ticking = PeriodicTask("grpc_timeouts", self.policies.tick, self.tick)

    # For subclasses

    def understand(self, fields: list[HeaderField], size: int) -> Head:
        """Parse a head. `size`: size of the whole list, of which `fields` may be the start. Raises `MalformedError`."""
        return Head(fields, size)

    def open(self, connection: StreamSender, number: int, head: Head, window: int, room: int) -> Stream:
        """Return a new stream, opened by a client."""
        raise NotImplementedError

    def count_unsent(self, change: int) -> None:
        """Count a change of the bytes held by transports for clients that do not read."""

    # For connections

    def add_connection(self, connection: PortConnection, peer: object, descriptor: int) -> bool:
        """Add a connection if there is room; when descriptors are few, an address with more connections loses one.

        Refusals are logged from time to time.
        """
        self._places.add(connection, peer)
        if self.last_descriptor and descriptor > self.last_descriptor:
            near = descriptor <= self.last_descriptor + LINGERING
            other = self._places.make_room(connection) if near else None
            if other is None:
                self._places.remove(connection)
                self._refuse()
                return False
            other.close_when_done()
        self.connections.add(connection)
        self.idle.clear()
        return True

    def remove_connection(self, connection: PortConnection) -> None:
        self.connections.discard(connection)
        self._places.remove(connection)
        if not self.connections:
            self.idle.set()

    async def say_goodbye(self, seconds: float) -> None:
        """Send GOAWAY to all clients; return when they have confirmed it, or after `seconds`."""
        self._all_aware.clear()
        for connection in list(self.connections):
            connection.go_away()
        if self._unaware:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_aware.wait()

    def await_goodbye(self) -> None:
        """Count a client with an unconfirmed GOAWAY."""
        self._unaware += 1

    def confirm_goodbye(self) -> None:
        """Note that a client has confirmed the GOAWAY, or is lost."""
        self._unaware -= 1
        if not self._unaware:
            self._all_aware.set()

    def _refuse(self) -> None:
        refused = self._turned_away.due(self.loop.time())
        if refused:
            _log.warning(
                "%d gRPC connections are open, and few descriptors are left, which other ports need: %d new ones were "
                "refused; raise the limit on open files (ulimit -n)",
                len(self.connections),
                refused,
            )

    def count_end(self, ending: CloseReason, transport: asyncio.Transport, text: str = "") -> None:
        """Count a connection closed by the server. Clients that exceeded a limit are logged from time to time."""
        self.endings[ending.reason] += 1
        if not ending.limit:
            return
        count = self._cut_off.due(self.loop.time())
        if count:
            _log.warning(
                "the gRPC connection of %s is ended: %s (limit '%s': %s)%s",
                _address(peer_of(transport)),
                text or ending.text,
                ending.reason,
                ending.limit,
                f"; {count - 1} more since the last such line" if count > 1 else "",
            )

    def end_time(self) -> float:
        """Return the time at which a new connection gets its GOAWAY; 0 for never."""
        age = self.policies.age
        return self.loop.time() + age * (1 - _JITTER + 2 * _JITTER * self.spread()) if age else 0.0

    def flush_later(self, sender: StreamSender) -> None:
        """Flush the sender at the end of this turn of the event loop."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(sender)

    def start_ticking(self) -> None:
        self._ticking.start(self.loop)

    def stop_ticking(self) -> None:
        self._ticking.stop()

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for sender in unflushed:
            try:
                sender.flush_in_turn()
            except Exception:  # other connections have output as well
                _log.exception("a gRPC connection is dropped, since it could not be written to, unforeseen")
                sender.drop(INTERNAL)

    def tick(self) -> None:
        now = self.loop.time()
        passed = self.clock.advance(now)
        for connection in list(self.connections):
            try:
                connection.check(now, passed)
            except Exception as error:  # other connections have time limits, too
                count_failure(self._ticking.name, error)
                connection.drop(INTERNAL)


def _address(peer: object) -> str:
    if isinstance(peer, tuple) and len(peer) >= 2:
        return f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"
    return str(peer or "an unknown client")


def make_settings(limits: ConnectionLimits) -> dict[int, int]:
    """Return the settings sent to clients."""
    values = {
        frames.HEADER_TABLE_SIZE: limits.table,
        frames.INITIAL_WINDOW_SIZE: limits.stream_window,
        frames.MAX_FRAME_SIZE: limits.frame,
        frames.MAX_HEADER_LIST_SIZE: limits.header_list,
    }
    if limits.streams:
        values[frames.MAX_CONCURRENT_STREAMS] = limits.streams
    return values
