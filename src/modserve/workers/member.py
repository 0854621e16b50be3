"""One of several workers: its sockets for the others, its part of what they do together."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from modserve.core.configuration.trace_settings import TraceSettings
from modserve.core.errors import unsupported
from modserve.core.requests.memory import MemoryBudget
from modserve.core.servable import Servable
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.rpc import Rpc
from modserve.frontends.grpc.service import own_rpcs
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.connection import Connection
from modserve.frontends.http.wire.context import AsgiApp, HttpContext
from modserve.routing.router import RouteRollback
from modserve.server import Server
from modserve.settings import GrpcSettings, HttpSettings, Settings

from . import private
from .changing import Changing, text_of
from .fleet import Fleet
from .journal import Change
from .place import Place
from .private import PrivateApp
from .sequences import Owner, Router, with_owners
from .shared import SharedRpcs, shared_app

_log = logging.getLogger(__name__)


class EngineControl:
    """Implements `models.serving.calls.ModelControl`: what the engines of one worker may do to the server's models.

    A load or unload by an engine would be one worker's alone, and may come while all of them load: it is refused.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def memory(self) -> MemoryBudget:
        return self._server.memory

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        raise unsupported(f"a model cannot load model '{name}': {_ONE_OF_MANY}")

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        raise unsupported(f"a model cannot unload model '{name}': {_ONE_OF_MANY}")

    async def check_callable(self, name: str, version: int | None) -> bool:
        return await self._server.check_callable(name, version)


_ONE_OF_MANY = (
    "it runs in one of several workers, and the others would not hear of it. Let a client do it, or start the server "
    "with --workers=1"
)


class Member:
    """A worker among others. `join` connects it with its server, `start` opens its sockets, `stop` closes them."""

    def __init__(self, place: Place, settings: Settings) -> None:
        self.place = place
        self._settings = settings
        self._fleet = Fleet(place)
        self._changing = Changing(place, self._fleet)
        self._router = Router(place)
        self._server: Server | None = None
        self._owner: Owner | None = None
        self._app: PrivateApp | None = None
        self._context: HttpContext | None = None
        self._sockets: list[asyncio.Server] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._missed: list[Change] = []
        """What clients have changed in the others before this worker was there."""

    @property
    def replaces(self) -> bool:
        """Whether it takes the place of a worker that has ended, while others serve."""
        return self.place.starts > 0

    # What the server is made with

    def around_model(self, servable: Servable) -> Servable:
        return with_owners(servable, self._router)

    def trace(self, settings: TraceSettings) -> TraceSettings:
        """Each worker writes files of its own: two processes cannot keep one JSON array complete."""
        return replace(settings, file=f"{settings.file}.worker-{self.place.index}") if settings.file else settings

    def join(self, server: Server) -> None:
        """From now on, the ports of `server` serve what concerns all workers for all of them."""
        self._server = server
        restrictions = self._settings.http.restrictions
        server.around_app = lambda app: shared_app(app, self._fleet, self._changing, server, restrictions)
        server.around_rpcs = SharedRpcs(self._fleet, self._changing, server).table
        server.routings.on_rollback = self._roll_back_elsewhere
        server.others_figures = self._others_figures

    async def _others_figures(self) -> tuple[list[Any], Mapping[str, int]]:
        """Of those that are there and respond in time."""
        replies = await self._fleet.others("GET", private.FIGURES)
        readings = [orjson.loads(reply.body) for reply in replies]
        restarts = self.place.starts + sum(count for count, _ in readings)
        workers = {"serving": 1 + len(readings), "count": self.place.count, "restarts": restarts}
        return [reading for _, reading in readings], workers

    def _roll_back_elsewhere(self, rollback: RouteRollback) -> None:
        """What one worker has seen of a version is enough for all of them."""
        task = asyncio.get_running_loop().create_task(self._fleet.tell(private.ROLLBACK, orjson.dumps(tuple(rollback))))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    # Life

    async def start(self, tasks: asyncio.TaskGroup, page: Callable[[bool], Awaitable[bytes]]) -> None:
        """Open the sockets for the other workers; from then on their changes come here, too. `page` is the own page."""
        server = self._server
        assert server is not None, "a member joins a server before it starts: this is a bug"
        options = HttpSettings(
            max_json=self._settings.http.max_json, max_connections=0, idle_timeout=0, client_timeout=0
        )
        limits = Dispatcher(server).inflater
        rpcs: Mapping[str, Rpc] = own_rpcs(server, GrpcSettings(), limits)
        whole: AsgiApp = create_app(server, options)
        app = self._app = PrivateApp(server, whole, rpcs, page, self.place.starts, _leave)
        owner = self._owner = Owner(server)
        loop = asyncio.get_running_loop()
        context = self._context = HttpContext(server, app, tasks, loop, options)
        async with self._changing.locked():
            self._missed = list(await self._changing.state() or ())
            if not self._missed:
                app.caught_up.set()
            for path, protocol in (
                (self.place.sequence_socket(self.place.index), owner.link),
                (self.place.control_socket(self.place.index), lambda: Connection(context)),
            ):
                with suppress(FileNotFoundError):
                    os.unlink(path)
                self._sockets.append(await loop.create_unix_server(protocol, path, backlog=256))

    async def catch_up(self) -> None:
        """Do what clients have changed in the others before. Meanwhile, new changes wait."""
        assert self._app is not None, "it has started: this is a bug"
        for change in self._missed:
            reply = await self._fleet.own("POST", change.target, change.body, ((private.REPLAY, "1"),))
            if not reply.ok:
                _log.error("this worker cannot do what the others have done: %s: %s", change.target, text_of(reply))
        self._app.caught_up.set()

    def served(self) -> None:
        """The models are loaded, and the ports open."""
        self.place.mark(self.place.index).touch()

    async def all_served(self) -> None:
        """Wait until each worker has served."""
        pause = 0.01
        while not all(self.place.mark(index).exists() for index in self.place.others):
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def page(self, openmetrics: bool = False) -> bytes:
        """The metrics of all workers."""
        return await self._fleet.page(openmetrics)

    async def stop(self) -> None:
        """Close the sockets for the other workers."""
        for each in self._sockets:
            each.close()
        self._router.close()
        if self._owner is not None:
            self._owner.close()
        if (context := self._context) is not None:
            for connection in list(context.connections):
                connection.abort()
            await context.idle.wait()
        self._changing.close()


def _leave() -> None:
    """End this worker in order: the supervisor starts another in its place."""
    os.kill(os.getpid(), signal.SIGTERM)
