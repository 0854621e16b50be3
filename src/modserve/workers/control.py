"""The socket of a worker: it serves calls of the other workers, and HTTP like the port.

Operations of engines on the models of a server that is one of several.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from modserve.core.errors import unsupported
from modserve.core.requests.memory import MemoryBudget
from modserve.frontends.errors import to_client_error
from modserve.frontends.http.wire.context import AsgiApp, Message
from modserve.routing.router import RouteRollback
from modserve.server import Phase
from modserve.server.local import LocalServer

from . import pickles
from .journal import Journal, ServerChange
from .pages import Question
from .peers import CALL, GONE

_WHILE_STOPPING = frozenset({"status", "state", "tell", "give_notice", "drain"})
"""The calls that a worker still responds to when it is about to end."""


class WorkerControl:
    """Calls of the other workers to this one. `tell` has its figures; `leave` begins its end."""

    def __init__(
        self,
        server: LocalServer,
        tell: Callable[[str, Question, bool], Awaitable[bytes]],
        leave: Callable[[], None],
    ) -> None:
        self._server = server
        self._leave = leave
        self._one = asyncio.Lock()
        """Lock held by the change that is made: it may not be undone before it is complete."""
        self._journal = Journal(server)
        self.caught_up = asyncio.Event()
        """The worker has the state of the others."""
        self._calls: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "status": self._status,
            "state": self._state,
            "tell": tell,
            "change": self.change,
            "undo": self._undo,
            "roll_back": self.roll_back,
            "leave": self._end,
            "give_notice": self._give_notice,
            "drain": self._drain,
            "model_trouble": server.model_trouble,
            "repository_index": server.repository_index,
            "regions": server.regions,
            "failures": server.failures,
        }

    def answers(self, method: str) -> bool:
        """True if a call still gets a response; otherwise the caller goes on without this worker."""
        return self._server.phase is not Phase.STOPPING or method in _WHILE_STOPPING

    async def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method; return its result, or the ModserveError that it raises."""
        try:
            return await self._calls[method](*arguments)
        except Exception as error:
            return pickles.portable_error(to_client_error(error, method))

    async def change(self, change: ServerChange, number: str = "") -> None:
        """Make a change of a client's, which waits until this worker has the state of the others."""
        await self.caught_up.wait()
        async with self._one:
            await self._make(change, number)

    async def replay(self, change: ServerChange) -> None:
        """Make a change that another worker has made before."""
        async with self._one:
            await self._make(change, "")

    async def _make(self, change: ServerChange, number: str) -> None:
        before = self._journal.before(change)
        await getattr(self._server, change.method)(*change.arguments)
        self._journal.record(change, before, number)

    async def _undo(self, change: ServerChange, number: str) -> None:
        await self.caught_up.wait()
        async with self._one:
            for each in self._journal.undo(change, number):
                await self._make(each, "")

    async def roll_back(self, rollback: RouteRollback) -> None:
        self._server.routings.roll_back(rollback)
        if rollback.model in self._server.model_names():
            self._server.rank(rollback.model)

    async def _end(self) -> None:
        self._leave()

    async def _give_notice(self) -> None:
        self._server.draining.give_notice()

    async def _drain(self) -> tuple[Any, ...]:
        """Return the fields of `DrainReport`."""
        return tuple(await self._server.drain())

    async def _status(self) -> tuple[Any, ...]:
        """Return the fields of `WorkerStatus`."""
        server = self._server
        reasons = [] if server.ready else server.unready_reasons()
        return server.ready, server.phase.value, self.caught_up.is_set(), reasons

    async def _state(self) -> tuple[list[ServerChange], list[RouteRollback]]:
        return self._journal.state(), self._server.routings.rollbacks


def worker_app(control: WorkerControl, app: AsgiApp) -> AsgiApp:
    """Return the application at a worker's own socket: calls of the others, and `app` for people."""

    async def serve(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        if scope["path"] != CALL:
            await app(scope, receive, send)
            return
        if (body := await _whole_body(receive)) is None:
            return  # the other worker has ended
        method, arguments = pickles.loads(body)
        answers = control.answers(method)
        body = pickles.dumps(await control.call(method, arguments)) if answers else b""
        await send({"type": "http.response.start", "status": 200 if answers else GONE, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return serve


async def _whole_body(receive: Callable[[], Awaitable[Message]]) -> bytes | None:
    """None where the connection is lost before."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


class EngineControl:
    """Implements `models.serving.calls.ModelControl`: what the engines of one worker may do to the server's models.

    A load or unload by an engine would be one worker's alone, and may come while all of them load: it is refused.
    """

    def __init__(self, server: LocalServer, why_not: str) -> None:
        """`why_not`: what an engine is told that tries to."""
        self._server = server
        self._why_not = why_not

    @property
    def memory(self) -> MemoryBudget:
        return self._server.memory

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        raise unsupported(f"a model cannot load model '{name}': {self._why_not}")

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        raise unsupported(f"a model cannot unload model '{name}': {self._why_not}")

    async def check_callable(self, name: str, version: int | None) -> bool:
        return await self._server.check_callable(name, version)
