"""What the connections of a port share: limits, policies, the clock, and the writing at the end of a turn."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from modserve.core.runtime.turn import turn_of

from . import frames
from .budgets import INTERNAL, REASONS, Ending
from .decoding import Fields
from .headers import Head
from .limits import LIMITS, ConnectionLimits
from .stream import Stream

if TYPE_CHECKING:
    from .connection import Connection
    from .sending import Sending

_log = logging.getLogger(__name__)

_WARN: Final = 10.0
"""Seconds between two warnings that connections were refused, or ended."""

_TICK: Final = 1.0
"""Seconds between two looks at all connections, unless a policy needs them more often."""

_JITTER: Final = 0.1
"""By how much of it the age of a connection varies, so that those made together do not end together."""


@dataclass(frozen=True, slots=True)
class Policies:
    """How connections are kept and ended; times in seconds, 0: never."""

    keepalive: float = 7200.0
    """Silence of a client after which it is sent a ping."""
    keepalive_timeout: float = 20.0
    """Until it must have sent anything."""
    keepalive_when_idle: bool = False
    pings_without_data: int = 2
    """Pings that are sent with no data in between; 0: any number."""
    ping_interval: float = 300.0
    """A client that pings more often, without data in between, gets a strike."""
    ping_interval_idle: float = 7200.0
    """The same without streams, unless `keepalive_when_idle`."""
    ping_strikes: int = 2
    """Strikes that it may have; 0: any number."""
    age: float = 0.0
    """After which a connection is told to end."""
    grace: float = 0.0
    """What its streams may still take."""

    @property
    def tick(self) -> float:
        times = [each for each in (self.keepalive, self.keepalive_timeout, self.age, self.grace) if each]
        return max(0.02, min([_TICK, *(each / 4 for each in times)]))


@mypyc_attr(allow_interpreted_subclasses=True)
class Site:
    """One port. A subclass says what requests mean."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        policies: Policies,
        limits: ConnectionLimits = LIMITS,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.loop = loop
        self.turn = turn_of(loop)
        self.policies = policies
        self.limits = limits
        self.most_work = limits.work
        self.longest_data = limits.frame
        self.connection_window = limits.connection_window
        """These three are asked for with each frame, and quicker to read than the limits themselves."""
        self.spread = spread
        self.connections: set[Connection] = set()
        self.idle = asyncio.Event()
        """Set while there is no connection."""
        self.idle.set()
        self.seconds = loop.time()
        """The loop's clock at the last tick."""
        self.received = 0
        """How often bytes have come."""
        self.greeting = frames.settings(announced(limits)) + frames.window_update(
            0, limits.connection_window - frames.DEFAULT_WINDOW
        )
        self.last_descriptor = 0
        """Connections whose file descriptor is beyond it are refused: the rest is for other ports. 0: any may be."""
        self.endings = dict.fromkeys(REASONS, 0)
        """Connections that the server has ended before their time, by the reason."""
        self._turned_away = Seldom()
        self._cut_off = Seldom()
        self._dirty: list[Sending] = []
        self._ticking: asyncio.TimerHandle | None = None

    # What a subclass does

    def understand(self, fields: Fields, size: int) -> Head:
        """`size`: bytes of the whole list, of which `fields` may be the beginning. Raises `MalformedError`."""
        return Head(fields, size)

    def open(self, connection: "Sending", number: int, head: Head, window: int, room: int) -> Stream:
        """A client has opened a stream."""
        raise NotImplementedError

    def count_unsent(self, change: int) -> None:
        """So many bytes more, or less, wait in transports for clients that do not read."""

    # What it does

    def opened(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self.idle.clear()

    def closed(self, connection: "Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.idle.set()

    def refuses(self, descriptor: int) -> bool:
        """Whether a connection with this descriptor is one too many; that it is goes to the log from time to time."""
        if not self.last_descriptor or descriptor <= self.last_descriptor:
            return False
        refused = self._turned_away.due(self.loop.time())
        if refused:
            _log.warning(
                "%d gRPC connections are open, and few descriptors are left, which other ports need: %d new ones were "
                "refused; raise the limit on open files (ulimit -n)",
                len(self.connections),
                refused,
            )
        return True

    def ended(self, ending: Ending, transport: asyncio.Transport, text: str = "") -> None:
        """The server ends a connection. A client that has passed a limit gets into the log, from time to time."""
        self.endings[ending.reason] += 1
        if not ending.limit:
            return
        count = self._cut_off.due(self.loop.time())
        if count:
            _log.warning(
                "the gRPC connection of %s is ended: %s (limit '%s': %s)%s",
                _address(transport.get_extra_info("peername")),
                text or ending.text,
                ending.reason,
                ending.limit,
                f"; {count - 1} more since the last such line" if count > 1 else "",
            )

    def age(self) -> float:
        """When a connection that is made now is told to end; 0: never."""
        age = self.policies.age
        return self.loop.time() + age * (1 - _JITTER + 2 * _JITTER * self.spread()) if age else 0.0

    def flush_later(self, connection: "Sending") -> None:
        """Write what the connection has to say when this turn of the event loop is over."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(connection)

    def start_ticking(self) -> None:
        self._ticking = self.loop.call_later(self.policies.tick, self._tick)

    def stop_ticking(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.scheduled = False
            try:
                connection.flush()
            except Exception:  # others have something to say as well
                _log.exception("dropping a gRPC connection: writing to it failed unexpectedly")
                connection.drop_all(INTERNAL)

    def _tick(self) -> None:
        self.start_ticking()
        self.tick()

    def tick(self) -> None:
        before, self.seconds = self.seconds, self.loop.time()
        passed = self.seconds - before
        for connection in list(self.connections):
            try:
                connection.check(self.seconds, passed)
            except Exception:  # others have time that passes as well
                _log.exception("dropping a gRPC connection: checking it failed unexpectedly")
                connection.drop_all(INTERNAL)


def _address(peer: object) -> str:
    if isinstance(peer, tuple) and len(peer) >= 2:
        return f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"
    return str(peer or "an unknown client")


class Seldom:
    """What may happen often, and is said once in a while."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 0.0

    def due(self, now: float) -> int:
        """It has happened: how often since it was last said, or 0 if it is not to be said yet."""
        self._count += 1
        if now < self._next:
            return 0
        self._next = now + _WARN
        count, self._count = self._count, 0
        return count


def announced(limits: ConnectionLimits) -> dict[int, int]:
    """The settings that clients are told."""
    values = {
        frames.HEADER_TABLE_SIZE: limits.table,
        frames.INITIAL_WINDOW_SIZE: limits.stream_window,
        frames.MAX_FRAME_SIZE: limits.frame,
        frames.MAX_HEADER_LIST_SIZE: limits.header_list,
    }
    if limits.streams:
        values[frames.MAX_CONCURRENT_STREAMS] = limits.streams
    return values
