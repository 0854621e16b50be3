"""The drain of a server: it leaves service step by step, and finishes what it has accepted. It begins once, for good.

1. *Notice*: the server is not ready, and serves everything, so that load balancers turn away from it.
2. *Closing*: no new connections. The clients of open ones are told to go elsewhere; what they send meanwhile is served.
3. *Finishing*: what is new is refused. Accepted requests are finished, and sequences that have begun go on.
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
    """Report of a drain: True if nothing is in flight, requests in flight by model, and the seconds that it took."""

    drained: bool
    in_flight: Mapping[str, int]
    seconds: float


class DrainTimes(NamedTuple):
    """Seconds for the notice, and from then on for all the rest. `share`: the part of these that clients may take."""

    notice: float = 0.0
    grace: float = 30.0
    share: float = 1.0


class DrainedPorts(Protocol):
    """The ports of a server."""

    def connections(self) -> Mapping[str, int]:
        """Return the number of open connections by protocol."""

    async def retire(self, seconds: float, replaced: bool) -> None:
        """Take no new connections, tell the clients of the others, and receive the requests that have begun to arrive.

        Takes `seconds` at most. `replaced`: as `Drain.run` has it.
        """

    async def finish(self, end: float) -> None:
        """End connections as soon as their calls are over; returns when all are, or at `end` on the loop's clock."""


class NoPorts:
    """Ports of a library: none."""

    def connections(self) -> Mapping[str, int]:
        return {}

    async def retire(self, seconds: float, replaced: bool) -> None:
        pass

    async def finish(self, end: float) -> None:
        pass


class DrainedServer(Protocol):
    """Interface of the server that is drained."""

    def give_notice(self) -> None:
        """Not ready from now on; all else goes on."""

    def retire(self) -> None:
        """Tell the watchers that this server is about to stop."""

    def stop_accepting(self) -> None:
        """Refuse what is new."""

    async def finish(self) -> None:
        """Return when nothing is in flight."""

    def in_flight(self) -> dict[str, int]: ...


class Drain:
    """Drain of a server, for the event loop's thread. The server's maker sets `times`, and `ports` if it has some."""

    def __init__(self, server: DrainedServer) -> None:
        self._server = server
        self.times = DrainTimes()
        self.ports: DrainedPorts = NoPorts()
        self.phase = DrainPhase.SERVING
        self.closed_at = 0.0
        """Start of the time for all that follows the notice, on the loop's clock."""
        self._hurried = asyncio.Event()
        self._noticed: float | None = None
        self._task: asyncio.Task[DrainReport] | None = None

    def give_notice(self) -> None:
        """The first step, if it has not been made."""
        if self._noticed is None:
            self._noticed = asyncio.get_running_loop().time()
            self.phase = max(self.phase, DrainPhase.NOTICE)
            if self.times.notice:
                _log.info("%s", notice_line(self.times.notice, self.ports.connections(), self._server.in_flight()))
            self._server.give_notice()

    def hurry(self) -> None:
        """Let the notice be over."""
        self._hurried.set()

    async def run(self, replaced: bool = False) -> DrainReport:
        """Drain the server, or wait for the drain that has begun. Cancelling the caller does not end it.

        `replaced`: other processes serve on at the same ports, so that no notice is needed.
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
        # Once drained, what may still run are executions whose clients have gone, and which the end gives up.
        left, seconds = {} if drained else server.in_flight(), loop.time() - begun
        if drained:
            self.phase = DrainPhase.DRAINED
            _log.info("drained: all accepted requests are finished, after %.1f s", seconds)
        else:
            _log.warning("not drained within %g s: in flight are %s", times.grace, _format_counts(left))
        return DrainReport(drained, left, seconds)


def _format_counts(counts: Mapping[str, int]) -> str:
    """Requests in flight, for people."""
    return ", ".join(f"{count} of model '{name}'" for name, count in sorted(counts.items())) or "none"


def notice_line(seconds: float, connections: Mapping[str, int], in_flight: Mapping[str, int]) -> str:
    """Return the log line for the beginning of the notice."""
    return (
        f"draining: not ready any more, and all requests are served for {seconds:g} s; "
        f"{_format_connections(connections)}, in flight: {_format_counts(in_flight)}"
    )


def stopping_line(in_flight: Mapping[str, int], seconds: float) -> str:
    """Return the log line for the closing of the ports."""
    if not in_flight:
        return "stopping: no new requests, and none are in flight"
    return (
        f"stopping: no new requests; those in flight have {seconds:g} s: {_format_counts(in_flight)}. "
        "A second SIGTERM or SIGINT (Ctrl-C) ends the server at once."
    )


def _format_connections(connections: Mapping[str, int]) -> str:
    counts = [f"{count} {protocol}" for protocol, count in connections.items() if count]
    return f"connections: {', '.join(counts) or 'none'}"
