"""Shared state of all connections of the HTTP front end."""

import asyncio
import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from contextvars import Context
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from modserve.access.credentials import Credentials
from modserve.core.errors import ModserveError
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.origin import AGENT, CHAINS, Origin
from modserve.core.runtime.failures import count_failure
from modserve.core.runtime.log_limit import LogInterval
from modserve.core.runtime.periodic import PeriodicTask
from modserve.core.runtime.turn import turn_of
from modserve.core.tenants import Tenant
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.http.direct import MODULES, DirectCalls
from modserve.frontends.http.infer import CallContext
from modserve.frontends.places import LINGERING, ConnectionPlaces
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.request_head import RequestHead
from modserve.server import Server
from modserve.settings import HttpSettings, PlatformRoutes

from .head_reader import HeadReader
from .responses import BINARY_HEAD, JSON_HEAD, add_date

if TYPE_CHECKING:
    from modserve.access.authority import Authority
    from modserve.access.identity import Identity

    from .platform_paths import PlatformPaths

_log = logging.getLogger(__name__)

Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_TICK = 1.0
"""Seconds between checks of all connections: the resolution of time-outs and of the Date header."""

_TURN = 0.001
"""Seconds of each turn of the event loop for pipelined requests, over all connections."""

_CALLS = 16
"""Application calls for pipelined requests in each turn; their work happens later, in tasks of their own."""

STATUSES = 600
"""Upper bound of HTTP's status codes."""

AHEAD = 64 * 1024
"""Bytes that a client may send ahead before the server stops reading from it."""

SMALL_BODY = 64 * 1024
"""Size in bytes of a body that does not count as memory if it arrives in one piece."""


def _paths(routes: PlatformRoutes, server: Server) -> "PlatformPaths":
    from .platform_paths import PlatformPaths

    return PlatformPaths(routes, server)


class OpenConnection(Protocol):
    """A connection's interface for this module and the listener. `check` takes the event loop's time in seconds."""

    @property
    def unaware(self) -> bool: ...
    @property
    def arriving(self) -> bool: ...
    def close_when_idle(self) -> None: ...
    def abort(self) -> None: ...
    def check(self, now: float) -> None: ...
    def advance(self) -> None: ...


class Hold:
    """A share of `size` bytes in the server's memory budget, held by one connection for one purpose."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self.size = 0

    def resize(self, size: int) -> None:
        """Change the size. Raises MemoryExhaustedError and changes nothing on failure."""
        if size > self.size:
            self._memory.take(size - self.size)
        else:
            self._memory.give_back(self.size - size)
        self.size = size

    def force(self, size: int) -> None:
        """Resize without ever raising; may overshoot the budget."""
        self._memory.give_back(self.size)
        self._memory.force(size)
        self.size = size


class Turns:
    """Shares the event loop's turns among connections with pipelined requests.

    There may be thousands of such requests, and each may be served as soon as it is parsed. To leave the loop time for
    everything else, all connections together get `seconds` and `_CALLS` calls of the application in each turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = _TURN) -> None:
        self.seconds = seconds
        self._loop = loop
        self._waiting: OrderedDict[OpenConnection, None] = OrderedDict()
        """Connections in order of arrival, each once."""
        self._end: float | None = None
        """Time at which this turn is over; None until it is first asked for."""
        self.calls = 0
        """Application calls since this turn began."""

    def time_left(self) -> bool:
        """Return True if another request may begin in this turn."""
        now = self._loop.time()
        if self._end is None:
            self._end = now + self.seconds
            self.calls = 0
            self._loop.call_soon(self._next)
            return True
        return now < self._end and self.calls < _CALLS

    def later(self, connection: OpenConnection) -> None:
        """Call the connection's `advance` in one of the next turns."""
        self._waiting[connection] = None

    def _next(self) -> None:
        self._end = None
        for _ in range(len(self._waiting)):
            self._waiting.popitem(last=False)[0].advance()
            if not self.time_left():
                return


class HttpContext:
    """Shared state of a listener's connections: server, limits, and the connections.

    Without `inferences`, the application serves inferences as well, and without `direct` all other calls. With an
    `authority`, the application also answers callers that are unknown or lack the permission.
    """

    def __init__(
        self,
        server: Server,
        app: AsgiApp,
        tasks: asyncio.TaskGroup,
        loop: asyncio.AbstractEventLoop,
        options: HttpSettings,
        inferences: bool = True,
        direct: DirectCalls | None = None,
        authority: "Authority | None" = None,
    ) -> None:
        self.server = server
        self.memory = server.memory
        self.app = app
        self.tasks = tasks
        self.loop = loop
        self.options = options
        self.direct = direct
        # With an authority, other calls use the caller's view of the server.
        self.calls = CallContext(server, options) if direct is None or authority is not None else direct.context
        self.access = server.access_log
        self.turns = Turns(loop)
        self.turn = turn_of(loop)
        self.connections: set[OpenConnection] = set()
        traced = server.tracer.propagates or server.access_log is not None
        self.authority = authority
        self._context_of: Callable[[Authority, Credentials, Identity], Context] | None = None
        if authority is not None:
            from modserve.access.caller import context_of

            self._context_of = context_of
        routes = () if direct is None else MODULES
        self.platform = None if options.routes is None or not inferences else _paths(options.routes, server)
        """Paths by which a platform calls the server, if any."""
        keyed = authority is not None
        names = AGENT if traced else frozenset()
        names |= CHAINS if server.failure_log.proxies.networks else frozenset()
        self.heads = HeadReader(options, traced, inferences, routes, keyed, self.platform, names)
        self.statuses = [0] * STATUSES
        """Responses by status, without health checks: these would hide other failures."""
        self._places: ConnectionPlaces[OpenConnection] = ConnectionPlaces()
        self.closing = False
        self.idle = asyncio.Event()
        """Set while there is no connection."""
        self.idle.set()
        self._unaware: set[OpenConnection] = set()
        """Connections with clients that do not know of the stop, and may have sent another request."""
        self._all_aware = asyncio.Event()
        self._ticking = PeriodicTask("http_timeouts", _TICK, self._tick)
        self._turned_away, self._unaccepted = LogInterval(), LogInterval()
        self.date = b""
        """The Date line of responses (RFC 9110, 6.6.1), with the server's load if every response reports it."""
        self._load_line = b""
        self.load_lines: dict[str, bytes] = {}
        """Header lines with the load, by format, for requests that ask for it."""
        self.binary_head = BINARY_HEAD
        self.json_head = JSON_HEAD
        self.platform_head = BINARY_HEAD  # for inferences by a platform's path
        """Templates of response heads, with the date."""
        self._set_date()

    def admission(
        self, head: RequestHead, origin: Origin, certificate: Credentials
    ) -> tuple[Tenant | None, Context | None]:
        """Return the tenant of a call that bypasses the application, and unless it is an inference, the caller's
        context.

        Both are None if the caller is unknown or lacks the permission. `origin` gets the caller's name.
        """
        authority, context_of, model = self.authority, self._context_of, head.model
        assert authority is not None, "there are no callers without keys: this is a bug"
        assert context_of is not None, "it comes with the authority: this is a bug"
        shown = head.credentials or certificate
        identity = authority.recognise(shown)
        if identity is None or not (identity.allows("infer", model) if model else identity.may("infer")):
            return None, None
        origin.caller = identity.name
        return identity.tenant, context_of(authority, shown, identity) if head.route else None

    def by_body(self, head: RequestHead, body: Buffer) -> RequestHead:
        """Return the head of a renamed request, once its body has arrived."""
        return head if self.platform is None else self.platform.by_body(head, body)

    def spell_outcome(self, outcome: Body | ModserveError) -> Body | ModserveError:
        """Return the outcome of a renamed inference in the client's format."""
        return outcome if self.platform is None else self.platform.spell_outcome(outcome)

    def add_connection(self, connection: OpenConnection, peer: object) -> bool:
        """Add a connection if there is room; at the limit, an address with more connections loses one."""
        self.connections.add(connection)
        self.idle.clear()
        limit = self.options.max_connections
        if not limit:
            return True
        self._places.add(connection, peer)
        if len(self.connections) <= limit:
            return True
        other = self._places.make_room(connection) if len(self.connections) <= limit + LINGERING else None
        if other is None:
            self._places.remove(connection)
            return False
        other.close_when_idle()
        return True

    def remove_connection(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        self._places.remove(connection)
        if not self.connections:
            self.idle.set()
        self._unaware.discard(connection)
        if not self._unaware:
            self._all_aware.set()

    async def say_goodbye(self, seconds: float) -> None:
        """Serve each connection once more, with a response that announces the close.

        Returns when all clients know of it, except clients with requests under way, or after `seconds`.
        """
        self.closing = True
        self._unaware = {connection for connection in self.connections if connection.unaware}
        if self._unaware and seconds > 0:
            self._all_aware.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_aware.wait()

    # Time

    def start_ticking(self) -> None:
        """Check the connections' time-outs until `stop_ticking`."""
        self._ticking.start(self.loop)

    def stop_ticking(self) -> None:
        self._ticking.stop()

    def _tick(self) -> None:
        self._set_date()
        now = self.loop.time()
        self._look_for_descriptors(now)
        for connection in list(self.connections):
            try:
                connection.check(now)
            except Exception as error:  # other connections have time-outs, too
                count_failure(self._ticking.name, error)

    def _look_for_descriptors(self, now: float) -> None:
        """Warn when no port can accept connections any more; some event loops do not report this."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._unaccepted.due(now):
                _log.warning("new connections cannot be accepted: %s. Raise the limit (ulimit -n)", error.strerror)

    def report_load(self, line: bytes, by_format: dict[str, bytes]) -> None:
        """Set the header lines with the load of the following responses."""
        self.load_lines = by_format
        if line or self._load_line:
            self._load_line = line
            self._set_date()

    def _set_date(self) -> None:
        self.date = b"Date: %b\r\n%b" % (formatdate(time.time(), usegmt=True).encode(), self._load_line)
        self.binary_head = add_date(BINARY_HEAD, self.date)
        self.json_head = add_date(JSON_HEAD, self.date)
        if self.platform is not None:
            self.platform_head = add_date(self.platform.binary_head, self.date)

    # The number of connections

    def turn_away(self) -> tuple[str, bool]:
        """Count a connection above the limit, and log a warning from time to time.

        Return the message for its client, and whether there is room for the connection until that is read.
        """
        now = self.loop.time()
        if count := self._turned_away.due(now):
            _log.warning(
                "%d HTTP connections are open, which is the limit (--http-max-connections): %d new ones were refused",
                self.options.max_connections,
                count,
            )
        limit = self.options.max_connections
        message = f"the server has {limit} connections open, which is its limit; try again later"
        return message, len(self.connections) <= limit + LINGERING
