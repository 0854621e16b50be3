"""Shared state of a port's connections: limits, policies, the clock, and the writing at the end of a turn."""

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
"""Part of its age by which a connection's end varies, so that connections made together do not end together."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PortConnection(ABC):
    """A connection as its port sees it."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        """Open streams by their number."""

    @abstractmethod
    def check(self, now: float, passed: float) -> None:
        """Look for what takes too long; `passed` is the time since the last look."""

    @abstractmethod
    def go_away(self) -> None:
        """Let what is under way finish, and then close (RFC 9113, section 6.8)."""

    @abstractmethod
    def close_when_done(self) -> None:
        """Let the streams that are under way now finish, and then close."""

    @abstractmethod
    def abort(self) -> None:
        """End it without another byte."""

    @abstractmethod
    def drop(self, ending: CloseReason) -> None:
        """End it without another byte, and count why."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Port:
    """An HTTP/2 port. A subclass defines the meaning of requests."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        policies: Policies,
        limits: ConnectionLimits = LIMITS,
        spread: Callable[[], float] = random.random,
        names: FieldNames = HTTP_NAMES,
    ) -> None:
        """`names`: of fields that mean something here."""
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
        """Connections whose clients have not confirmed that they go elsewhere."""
        self._all_aware = asyncio.Event()
        self.greeting = frames.settings(make_settings(limits)) + frames.window_update(
            0, limits.connection_window - frames.DEFAULT_WINDOW
        )
        self.last_descriptor = 0
        """Highest descriptor for connections; the rest is for other ports. 0: any may be theirs."""
        self.endings = dict.fromkeys(REASONS, 0)
        """Connections that the server has ended before their time, by the reason."""
        self._places: ConnectionPlaces[PortConnection] = ConnectionPlaces()
        self._turned_away = LogInterval()
        self._cut_off = LogInterval()
        self._unflushed: list[StreamSender] = []
        self._ticking = PeriodicTask("grpc_timeouts", self.policies.tick, self.tick)

    # What a subclass does

    def understand(self, fields: list[HeaderField], size: int) -> Head:
        """Read a head. `size`: bytes of the whole list, of which `fields` may be the beginning. Raises
        `MalformedError`."""
        return Head(fields, size)

    def open(self, connection: StreamSender, number: int, head: Head, window: int, room: int) -> Stream:
        """Return the stream that a client has opened."""
        raise NotImplementedError

    def count_unsent(self, change: int) -> None:
        """Count a change of the bytes that wait in transports for clients that do not read."""

    # What it does

    def add_connection(self, connection: PortConnection, peer: object, descriptor: int) -> bool:
        """Add a connection. True if there is room; if descriptors are few, an address with more of them loses one.

        Refusals get into the log, from time to time.
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
        """Tell all clients to go elsewhere; returns when they have confirmed it, or after `seconds`."""
        self._all_aware.clear()
        for connection in list(self.connections):
            connection.go_away()
        if self._unaware:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_aware.wait()

    def await_goodbye(self) -> None:
        """Count a client that has been told to go elsewhere."""
        self._unaware += 1

    def confirm_goodbye(self) -> None:
        """Note that a client has confirmed it, or is lost."""
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
        """Count a connection that the server ends. Clients that passed a limit are logged, from time to time."""
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
        """Return the time at which a connection made now is told to end; 0: never."""
        age = self.policies.age
        return self.loop.time() + age * (1 - _JITTER + 2 * _JITTER * self.spread()) if age else 0.0

    def flush_later(self, sender: StreamSender) -> None:
        """Write what the connection has to say when this turn of the event loop is over."""
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
            except Exception:  # others have something to say as well
                _log.exception("a gRPC connection is dropped, since it could not be written to, unforeseen")
                sender.drop(INTERNAL)

    def tick(self) -> None:
        now = self.loop.time()
        passed = self.clock.advance(now)
        for connection in list(self.connections):
            try:
                connection.check(now, passed)
            except Exception as error:  # others have time that passes as well
                count_failure(self._ticking.name, error)
                connection.drop(INTERNAL)


def _address(peer: object) -> str:
    if isinstance(peer, tuple) and len(peer) >= 2:
        return f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"
    return str(peer or "an unknown client")


def make_settings(limits: ConnectionLimits) -> dict[int, int]:
    """Return the settings that clients are told."""
    values = {
        frames.HEADER_TABLE_SIZE: limits.table,
        frames.INITIAL_WINDOW_SIZE: limits.stream_window,
        frames.MAX_FRAME_SIZE: limits.frame,
        frames.MAX_HEADER_LIST_SIZE: limits.header_list,
    }
    if limits.streams:
        values[frames.MAX_CONCURRENT_STREAMS] = limits.streams
    return values
