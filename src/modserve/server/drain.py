"""Drain of a server: it leaves service step by step, and finishes accepted requests. It begins once, permanently.

1. *Notice*: the server reports that it is not ready, but serves everything, so that load balancers stop using it.
2. *Closing*: no new connections. Clients of open ones are told to go elsewhere; requests sent meanwhile are served.
3. *Finishing*: new requests are refused. Accepted requests are finished, and begun sequences continue.
4. *Drained*: nothing is in flight. The models stay loaded until the process ends.
"""

import asyncio
import enum
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

_log = logging.getLogger(__name__)


class DrainPhase(enum.IntEnum):
    """Phase of the drain."""

    SERVING = 0
    NOTICE = 1
    CLOSING = 2
    FINISHING = 3
    DRAINED = 4


class DrainReport(NamedTuple):
    """Report of a drain: True if nothing is in flight, requests in flight by model, and duration in seconds."""

    drained: bool
    in_flight: Mapping[str, int]
    seconds: float


class DrainTimes(NamedTuple):
    """Seconds for the notice, and for everything after it. `share`: part of the latter that clients may take."""

    notice: float = 0.0
    grace: float = 30.0
    share: float = 1.0


class DrainedPorts(Protocol):
    """Interface of a server's ports."""

    def connections(self) -> Mapping[str, int]:
        """Return the number of open connections by protocol."""

    async def retire(self, seconds: float, replaced: bool) -> None:
        """Accept no new connections, tell clients of open ones to go elsewhere, and receive requests that are arriving.

        Takes at most `seconds`. `replaced`: as in `Drain.run`.
        """

    async def finish(self, end: float) -> None:
        """Close connections once their calls have ended. Return when all are closed, or at `end` (loop clock)."""


class NoPorts:
    """Ports of an embedded server, which has none."""

    def connections(self) -> Mapping[str, int]:
        return {}

    async def retire(self, seconds: float, replaced: bool) -> None:
        pass

    async def finish(self, end: float) -> None:
        pass


class DrainedServer(Protocol):
    """Interface of a server to drain."""

    def give_notice(self) -> None:
        """Become not ready; everything else continues."""

    def retire(self) -> None:
        """Notify watchers that this server is about to stop."""

    def stop_accepting(self) -> None:
        """Refuse new requests."""

    async def finish(self) -> None:
        """Wait until nothing is in flight."""

    def in_flight(self) -> dict[str, int]: ...


class Drain:
    """Drain of a server, for the event loop's thread. The server's creator sets `times`, and `ports` if any."""

    def __init__(self, server: DrainedServer) -> None:
        self._server = server
        self.times = DrainTimes()
        self.ports: DrainedPorts = NoPorts()
        self.phase = DrainPhase.SERVING
        self.closed_at = 0.0
        """End of the notice, on the loop's clock."""
        self._hurried = asyncio.Event()
        self._noticed: float | None = None
        self._task: asyncio.Task[DrainReport] | None = None

    def give_notice(self) -> None:
        """Begin the notice, unless it has begun."""
        if self._noticed is None:
            self._noticed = asyncio.get_running_loop().time()
            self.phase = max(self.phase, DrainPhase.NOTICE)
            if self.times.notice:
                _log.info("%s", notice_line(self.times.notice, self.ports.connections(), self._server.in_flight()))
            self._server.give_notice()

    def hurry(self) -> None:
        """End the notice early."""
        self._hurried.set()

    async def run(self, replaced: bool = False) -> DrainReport:
        """Drain the server, or wait for a drain that has begun. Cancelling the caller does not end it.

        `replaced`: other processes continue to serve at the same ports, so no notice is needed.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._steps(replaced), name="drain")
        return await asyncio.shield(self._task)

    @property
    def over(self) -> bool:
        return self._task is not None and self._task.done()

    async def _steps(self, replaced: bool) -> DrainReport:
        loop, server, times = asyncio.get_running_loop(), self._server, self.times
        begun = loop.time()
        if not replaced:
            self.give_notice()
        if self._noticed is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._noticed + times.notice):
                    await self._hurried.wait()
        self.phase = DrainPhase.CLOSING
        self.closed_at = loop.time()
        end = self.closed_at + times.grace
        _log.info("%s", stopping_line(server.in_flight(), times.grace))
        server.retire()
        await self.ports.retire(times.grace * times.share / 2, replaced)
        self.phase = DrainPhase.FINISHING
        server.stop_accepting()
        if any((open_ports := self.ports.connections()).values()):
            _log.info(
                "new requests are refused; %s, in flight: %s",
                _format_connections(open_ports),
                _format_counts(server.in_flight()),
            )
        drained = True
        try:
            async with asyncio.timeout_at(end), asyncio.TaskGroup() as finishing:
                finishing.create_task(self.ports.finish(end))
                finishing.create_task(server.finish())
        except TimeoutError:
            drained = False
        # After the drain, only executions with disconnected clients may still run; the shutdown abandons them.
        left, seconds = {} if drained else server.in_flight(), loop.time() - begun
        if drained:
            self.phase = DrainPhase.DRAINED
            _log.info("drained: all accepted requests are finished, after %.1f s", seconds)
        else:
            _log.warning("not drained within %g s: in flight are %s", times.grace, _format_counts(left))
        return DrainReport(drained, left, seconds)


def _format_counts(counts: Mapping[str, int]) -> str:
    """Format the requests in flight by model."""
    return ", ".join(f"{count} of model '{name}'" for name, count in sorted(counts.items())) or "none"


def notice_line(seconds: float, connections: Mapping[str, int], in_flight: Mapping[str, int]) -> str:
    """Return the log line at the start of the notice."""
    return (
        f"draining: not ready any more, and all requests are served for {seconds:g} s; "
        f"{_format_connections(connections)}, in flight: {_format_counts(in_flight)}"
    )


def stopping_line(in_flight: Mapping[str, int], seconds: float) -> str:
    """Return the log line for closing the ports."""
    if not in_flight:
        return "stopping: no new requests, and none are in flight"
    return (
        f"stopping: no new requests; those in flight have {seconds:g} s: {_format_counts(in_flight)}. "
        "A second SIGTERM or SIGINT (Ctrl-C) ends the server at once."
    )


def _format_connections(connections: Mapping[str, int]) -> str:
    counts = [f"{count} {protocol}" for protocol, count in connections.items() if count]
    return f"connections: {', '.join(counts) or 'none'}"
