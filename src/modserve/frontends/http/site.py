"""What all connections of the HTTP front end share."""

import asyncio
import errno
import logging
import os
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any, Protocol, TypeAlias

from modserve.server import Server
from modserve.settings import HttpSettings

from .responses import BINARY_HEAD, JSON_HEAD, dated
from .routes import InferRoute

_log = logging.getLogger(__name__)

Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_HEADS = 1024
_MEMORABLE = 2048
"""Bytes of the longest head worth remembering; longer ones could fill the memory."""

_TICK = 1.0
"""Seconds between two looks at all connections; the resolution of time-outs and of the Date header."""

_TURN = 0.001
"""Seconds in each turn of the event loop for requests that clients have sent ahead, over all connections."""

_CALLS = 16
"""Calls of the application for such requests in each turn: they take their time later, in tasks of their own."""

_WARN = 10.0
"""Seconds between two warnings that there are too many connections."""

_INFERENCE = b"POST /v2/models/"
_VOLATILE_NAMES = (
    "baggage|b3|cookie|date|sentry-trace|traceparent|tracestate|uber-trace-id|"
    "x-amzn-trace-id|x-b3-[a-z]+|x-cloud-trace-context|x-correlation-id|x-datadog-[a-z-]+|x-envoy-attempt-count|"
    "x-forwarded-for|x-forwarded-port|x-ot-span-context|x-real-ip|x-request-id|x-request-start"
)
"""Headers that proxies and tracing write anew for each request, and that nothing here reads."""

_VOLATILE_NAME = re.compile(_VOLATILE_NAMES, re.IGNORECASE)
# Only whole lines of valid characters, that no folded line follows: others are for the parser to refuse.
_VOLATILE = re.compile(rb"\r\n(?:%b):[\t\x20-\x7e\x80-\xff]*(?=\r\n[^ \t])" % _VOLATILE_NAMES.encode(), re.IGNORECASE)


class OpenConnection(Protocol):
    """A connection as its listener needs it."""

    def close_when_idle(self) -> None:
        """Answer what is under way, then close."""
        ...

    def abort(self) -> None: ...

    def check(self, now: float) -> None:
        """End the connection if its client has done nothing for too long at `now`, in seconds of the loop's clock."""
        ...

    def go_on(self) -> None:
        """Read on in what the client has sent ahead."""
        ...


class Turns:
    """Shares the event loop's turns out between the connections whose clients have sent requests ahead.

    Such requests may be answered as soon as they are read, and there may be thousands: all connections together get
    `seconds` in each turn of the loop, and `_CALLS` calls of the application, so that it also gets to the others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = _TURN) -> None:
        self.seconds = seconds
        self._loop = loop
        self._waiting: deque[OpenConnection] = deque()
        self._end: float | None = None
        """When this turn's time is over; None before anybody has asked for some of it."""
        self.calls = 0
        """Calls of the application that were begun in this turn, or before it."""

    def time_left(self) -> bool:
        """Whether one more request may be begun in this turn."""
        now = self._loop.time()
        if self._end is None:
            self._end = now + self.seconds
            self.calls = 0
            self._loop.call_soon(self._next)
            return True
        return now < self._end and self.calls < _CALLS

    def later(self, connection: OpenConnection) -> None:
        """Call the connection's `go_on` in one of the next turns."""
        self._waiting.append(connection)

    def _next(self) -> None:
        self._end = None
        for _ in range(len(self._waiting)):
            self._waiting.popleft().go_on()
            if not self.time_left():
                return


class Site:
    """The server behind a listener, its limits, and its connections.

    `heads` remembers what the head of an inference request means, byte for byte: clients send the same one again and
    again. Behind proxies no two heads are the same, so `lines` remembers what is left of heads without the lines that
    change with each request. What both hold is bounded.
    """

    def __init__(
        self,
        server: Server,
        app: AsgiApp,
        tasks: asyncio.TaskGroup,
        loop: asyncio.AbstractEventLoop,
        options: HttpSettings,
    ) -> None:
        self.server = server
        self.memory = server.memory
        self.app = app
        self.tasks = tasks
        self.loop = loop
        self.options = options
        self.turns = Turns(loop)
        self.connections: set[OpenConnection] = set()
        self.heads: dict[bytes, InferRoute] = {}
        self.lines: dict[bytes, InferRoute] = {}
        restriction = options.restrictions.get("inference")
        self._looks_at_lines = options.header_pattern is None and (
            restriction is None or _VOLATILE_NAME.fullmatch(restriction.name) is None
        )
        self.closing = False
        self.idle = asyncio.Event()
        """Set while there is no connection."""
        self.idle.set()
        self._ticking: asyncio.TimerHandle | None = None
        self._turned_away = 0
        self._next_warning = 0.0
        self.date = b""
        """The Date line of responses (RFC 9110, 6.6.1)."""
        self.binary_head = BINARY_HEAD
        self.json_head = JSON_HEAD
        """The templates of responses' heads, with the date."""
        self._set_date()

    def opened(self, connection: OpenConnection) -> None:
        self.connections.add(connection)
        self.idle.clear()

    def closed(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.idle.set()

    # Time

    def start_ticking(self) -> None:
        """Look at the connections' time-outs from now on, until `stop_ticking`."""
        self._ticking = self.loop.call_later(_TICK, self._tick)

    def stop_ticking(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    def _tick(self) -> None:
        self._ticking = self.loop.call_later(_TICK, self._tick)
        self._set_date()
        now = self.loop.time()
        self._look_for_descriptors(now)
        for connection in list(self.connections):
            connection.check(now)

    def _look_for_descriptors(self, now: float) -> None:
        """Warn when no connection could be accepted any more, on any port: not every event loop tells of it."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and now >= self._next_warning:
                self._next_warning = now + _WARN
                _log.warning("new connections cannot be accepted: %s. Raise the limit (ulimit -n)", error.strerror)

    def _set_date(self) -> None:
        self.date = b"Date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        self.binary_head = dated(BINARY_HEAD, self.date)
        self.json_head = dated(JSON_HEAD, self.date)

    # How many connections there may be

    def is_full(self) -> bool:
        limit = self.options.max_connections
        return limit > 0 and len(self.connections) >= limit

    def turned_away(self) -> None:
        """Count a connection above the limit, and warn from time to time."""
        self._turned_away += 1
        now = self.loop.time()
        if now >= self._next_warning:
            self._next_warning = now + _WARN
            _log.warning(
                "%d HTTP connections are open, which is the limit (--http-max-connections): %d new ones were refused",
                self.options.max_connections,
                self._turned_away,
            )
            self._turned_away = 0

    # The memory of heads

    def known(self, head: bytes) -> InferRoute | None:
        """What a head means that `heads` may not have, but that is like one seen before."""
        route = self.heads.get(head)
        if route is None and self._looks_at_lines and len(head) <= _MEMORABLE and head.startswith(_INFERENCE):
            route = self.lines.get(_VOLATILE.sub(b"", head))
            if route is not None:
                _keep(self.heads, head, route)
        return route

    def remember(self, head: bytes, route: InferRoute) -> None:
        if len(head) > _MEMORABLE:
            return
        _keep(self.heads, head, route)
        if self._looks_at_lines:
            _keep(self.lines, _VOLATILE.sub(b"", head), route)


def _keep(memory: dict[bytes, InferRoute], key: bytes, route: InferRoute) -> None:
    if len(memory) >= _HEADS:
        memory.clear()
    memory[key] = route
