"""Member of several workers: its sockets for the others, and its part in joint changes."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from modserve.core.configuration.trace_settings import TraceSettings
from modserve.core.errors import ModserveError
from modserve.core.runtime.background import Background
from modserve.core.servable import Servable
from modserve.frontends.http.application import Application
from modserve.frontends.http.wire.connection import HttpConnection
from modserve.frontends.http.wire.context import HttpContext
from modserve.observability.families import Family, family
from modserve.observability.families import page as written
from modserve.routing.router import RouteRollback
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings

from .control import EngineControl, WorkerControl, worker_app
from .coordinator import Coordinator
from .fleet_server import FleetServer
from .identity import WorkerIdentity
from .journal import ServerChange
from .pages import Families, families_of, samples_of
from .peers import Peers
from .sequences import SequenceForwarder, SequenceReceiver, with_owners
from .tally import PAGE, Tally

_log = logging.getLogger(__name__)

_ONE_OF_MANY = (
    "it runs in one of several workers, and the others would not do the same. Let a client do it, or start the server "
    "with --workers=1"
)
_RESTARTS = "modserve_worker_restarts_total"


class Member:
    """A worker among others. `start` opens its sockets, `stop` closes them."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.identity = identity
        self._peers = Peers(identity)
        self._coordinator = Coordinator(identity, self._peers)
        self._forwarder = SequenceForwarder(identity)
        self._receiver: SequenceReceiver | None = None
        self._tally = Tally(self._peers, identity)
        self._control: WorkerControl | None = None
        self._context: HttpContext | None = None
        self._sockets: list[asyncio.Server] = []
        self._telling = Background("rollback")
        self._missed: tuple[list[ServerChange], list[RouteRollback]] = [], []
        """Changes in the others, by clients and rules of routings, before this worker existed."""

    @property
    def count(self) -> int:
        return self.identity.count

    @property
    def place(self) -> tuple[int, int]:
        return self.identity.index, self.identity.count

    @property
    def replaces(self) -> bool:
        """True if it takes the place of a worker that has ended, while others serve."""
        return self.identity.starts > 0

    # What a worker's own server is made with

    def with_owners(self, servable: Servable) -> Servable:
        return with_owners(servable, self._forwarder)

    def engine_control(self, own: LocalServer) -> EngineControl:
        return EngineControl(own, _ONE_OF_MANY)

    def trace(self, settings: TraceSettings) -> TraceSettings:
        """Each worker writes files of its own: two processes cannot keep one JSON array complete."""
        return replace(settings, file=f"{settings.file}.worker-{self.identity.index}") if settings.file else settings

    def roll_back_elsewhere(self, rollback: RouteRollback) -> None:
        """Roll back in the other workers: the observation of one worker is enough for all of them."""
        self._telling.start(self._peers.tell("roll_back", rollback))

    async def give_notice(self) -> bool:
        """Say in all workers that they are not ready, if all of them are to end; False if not, or if at once."""
        if not self.identity.stopping.exists() or self._control is None:
            return False
        await asyncio.gather(self._control.call("give_notice", ()), self._peers.ask_all("give_notice"))
        return True

    @property
    def drained(self) -> bool:
        """True if a client has had all workers drained."""
        return self.identity.draining.exists()

    def server(self, own: LocalServer) -> FleetServer:
        """Return the server for the ports: all workers as one server."""
        self._tally.serve(own, self.identity.index, self.identity.starts)
        return FleetServer(own, self.identity, self._peers, self._coordinator, self._tally)

    # Life

    async def start(
        self,
        server: LocalServer,
        tasks: asyncio.TaskGroup,
        families: Callable[[bool], Awaitable[list[Family]]],
        max_json: int,
    ) -> None:
        """Open the sockets for the other workers; from then on their changes come here, too.

        `families` are what is on the metrics page of this worker, with sketches of durations if its argument is true.
        """
        options = HttpSettings(max_json=max_json, max_connections=0, idle_timeout=0, client_timeout=0)
        control = self._control = WorkerControl(server, self._tally.tell, _leave)
        receiver = self._receiver = SequenceReceiver(server)
        self._tally.sources[PAGE] = partial(self._samples, families)
        loop = asyncio.get_running_loop()
        app = worker_app(control, Application(server, options))
        context = self._context = HttpContext(server, app, tasks, loop, options)
        async with self._coordinator.lock():
            self._missed = await self._coordinator.state()
            if not any(self._missed):
                control.caught_up.set()
            for path, protocol in (
                (self.identity.sequence_socket(self.identity.index), receiver.link),
                (self.identity.control_socket(self.identity.index), lambda: HttpConnection(context)),
            ):
                with suppress(FileNotFoundError):
                    os.unlink(path)
                self._sockets.append(await loop.create_unix_server(protocol, path, backlog=256))

    async def catch_up(self) -> None:
        """Do what clients have changed in the others before. Meanwhile, new changes wait."""
        assert self._control is not None, "it has started: this is a bug"
        changes, rollbacks = self._missed
        for change in changes:
            try:
                await self._control.replay(change)
            except ModserveError as error:
                _log.error("this worker cannot repeat a change of the others: %s: %s", change, error.message)
        for rollback in rollbacks:
            await self._control.roll_back(rollback)
        self._control.caught_up.set()

    def on_served(self) -> None:
        """The models are loaded, and the ports open."""
        self.identity.mark(self.identity.index).touch()

    async def all_served(self) -> None:
        """Wait until each worker has served."""
        pause = 0.01
        while not all(self.identity.mark(index).exists() for index in self.identity.others):
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def page(self, openmetrics: bool = False, fine: bool = False) -> bytes:
        """Return the metrics of all workers."""
        tables = await self._tally.whole(PAGE, fine)
        return await asyncio.to_thread(lambda: written(families_of(tables), openmetrics))

    async def _samples(self, families: Callable[[bool], Awaitable[list[Family]]], fine: bool) -> Families:
        """Return the metrics of this worker."""
        restarts = self.identity.starts - self._tally.counts(PAGE).before(_RESTARTS)
        made = [
            *await families(fine),
            family("modserve_workers", "gauge", "Worker processes that are serving", [("", 1)]),
            family(_RESTARTS, "counter", "Worker processes started to replace others", [("", restarts)]),
        ]
        return await asyncio.to_thread(samples_of, made)

    async def stop(self) -> None:
        """Close the sockets for the other workers."""
        for each in self._sockets:
            each.close()
        self._forwarder.close()
        if self._receiver is not None:
            self._receiver.close()
        if (context := self._context) is not None:
            for connection in list(context.connections):
                connection.abort()
            await context.idle.wait()
        self._coordinator.close()


def _leave() -> None:
    """End this worker in order: the supervisor starts another in its place."""
    os.kill(os.getpid(), signal.SIGTERM)
