"""What a worker serves to the others: HTTP as at the port, RPCs as POSTs, and calls about the worker itself."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from modserve.core.errors import Code, ModserveError
from modserve.frontends.errors import to_client_error
from modserve.frontends.grpc.rpc import Rpc
from modserve.frontends.http.wire.context import AsgiApp, Message
from modserve.protocol import failures
from modserve.routing.router import RouteRollback
from modserve.server import Phase, Server

from .client import GONE
from .journal import RPC_PREFIX, Change, Journal, Subject, http_subject, rpc_subject

if TYPE_CHECKING:
    from modserve.frontends.http.console.counters import CounterReader

CODE = "modserve-code"
"""A header of a failed RPC's response: the name of the error's code; its text is the body."""
REPLAY = "modserve-replay"
"""A header of changes that bring a worker to the state of the others; those of clients wait until that is done."""
CHANGE = "modserve-change"
"""A header with the number of a change, by which it is undone."""
STATUS, STATE, UNDO = "/worker/status", "/worker/state", "/worker/undo"
"""What is behind `UNDO` is the target of the change to undo: the response has the changes that do so."""
PAGE, OPENMETRICS_PAGE = "/worker/page", "/worker/page/openmetrics"
"""The worker's own metrics page, in two formats."""
FIGURES = "/worker/figures"
"""What the console shows: how often this worker was started anew, and a reading."""
ROLLBACK = "/worker/rollback"
"""A version of a model was rolled back in another worker, as the body says: the values of a `RouteRollback`."""
LEAVE = "/worker/leave"
"""Lets the worker end in order, so that another takes its place."""

Headers: TypeAlias = Iterable[tuple[str, str]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class PrivateApp:
    """The application at a worker's own socket. `leave` begins its end.

    `page` makes the worker's metrics page, for True in OpenMetrics.
    """

    def __init__(
        self,
        server: Server,
        app: AsgiApp,
        rpcs: Mapping[str, Rpc],
        page: Callable[[bool], Awaitable[bytes]],
        restarts: int,
        leave: Callable[[], None],
    ) -> None:
        self._server = server
        self._app = app
        self._rpcs = rpcs
        self._leave = leave
        self._one = asyncio.Lock()
        """Held by the change that is made: nobody may undo it before it is complete."""
        self._restarts = restarts
        self._journal = Journal(server)
        self.caught_up = asyncio.Event()
        """The worker has the state of the others."""
        self._about: Mapping[str, Callable[[], bytes]] = {
            STATUS: self._status,
            STATE: self._state,
            FIGURES: self._figures,
        }
        self._page = page
        self._counters: CounterReader | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path in self._about:
            await respond(send, 200, self._about[path]())
        elif path in (PAGE, OPENMETRICS_PAGE):
            await respond(send, 200, await self._page(path == OPENMETRICS_PAGE))
        elif self._server.phase is Phase.STOPPING:
            await respond(send, 503, b"", ((GONE, "1"),))
        elif path == ROLLBACK:
            self._server.routings.roll_back(RouteRollback(*orjson.loads(await whole_body(receive))))
            await respond(send, 200, b"")
        elif path == LEAVE:
            self._leave()
            await respond(send, 200, b"")
        else:
            await self._serve(scope, path, receive, send)

    async def _serve(self, scope: Message, path: str, receive: Receive, send: Send) -> None:
        body = await whole_body(receive)
        rpc_path = path.removeprefix(UNDO).removeprefix(RPC_PREFIX)
        rpc = self._rpcs.get(rpc_path)
        message: Any = None if rpc is None else rpc.method.request.FromString(body)
        subject: Subject | None = None
        if rpc is not None:
            subject = rpc_subject(rpc_path, message)
        elif scope["method"] == "POST":
            subject = http_subject(path.removeprefix(UNDO))
        if subject is None:
            await self._respond(scope, rpc, message, body, send)
            return
        number, replay = _header(scope, CHANGE), bool(_header(scope, REPLAY))
        if not replay:
            await self.caught_up.wait()
        async with self._one:
            if path.startswith(UNDO):
                await respond(send, 200, _written(self._journal.undo(subject, number)))
                return
            before = self._journal.before(subject)
            if await self._respond(scope, rpc, message, body, send) < 400:
                change = Change(scope["raw_path"].decode("latin-1"), body)
                self._journal.record(subject, change, before, number)

    async def _respond(self, scope: Message, rpc: Rpc | None, message: Any, body: bytes, send: Send) -> int:
        """The status of the response."""
        if rpc is not None:
            return await _respond_rpc(rpc, message, send)
        return await _respond_http(self._app, scope, body, send)

    def _status(self) -> bytes:
        server = self._server
        entries = [] if server.ready else server.unready_reasons()
        reasons = [[entry.name, entry.version, entry.state.value, entry.reason] for entry in entries]
        return orjson.dumps(
            {
                "ready": server.ready,
                "phase": server.phase.value,
                "caught_up": self.caught_up.is_set(),
                "restarts": self._restarts,
                "reasons": reasons,
            }
        )

    def _figures(self) -> bytes:
        from modserve.frontends.http.console.counters import CounterReader
        from modserve.frontends.http.console.snapshot import encoded

        if self._counters is None:
            self._counters = CounterReader(self._server)
        return encoded([self._restarts, self._counters.read()])

    def _state(self) -> bytes:
        rollbacks = [Change(ROLLBACK, orjson.dumps(tuple(each))) for each in self._server.routings.rollbacks]
        return _written([*self._journal.state(), *rollbacks])


async def _respond_rpc(rpc: Rpc, message: Any, send: Send) -> int:
    """The status of the response."""
    try:
        body = (await rpc.handler(message, None)).SerializeToString()
    except Exception as error:
        failure = to_client_error(error, rpc.method.name)
        text = failures.public_message(failure).encode("utf-8", "surrogatepass")
        await respond(send, 400, text, ((CODE, failure.code.name),))
        return 400
    await respond(send, 200, body)
    return 200


async def _respond_http(app: AsgiApp, scope: Message, body: bytes, send: Send) -> int:
    status = 500

    async def observed(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    await app(scope, replayed(body), observed)
    return status


def failure_of(code: str, text: str) -> ModserveError:
    """The error of a failed RPC's response."""
    return ModserveError(Code[code] if code in Code.__members__ else Code.INTERNAL, text)


def _header(scope: Message, name: str) -> str:
    key = name.encode()
    return next((value.decode("latin-1") for header, value in scope["headers"] if header == key), "")


def coded(changes: Iterable[Change]) -> list[list[str]]:
    """The changes in a form that JSON has."""
    return [[change.target, base64.b64encode(change.body).decode()] for change in changes]


def decoded(changes: Iterable[list[str]]) -> list[Change]:
    return [Change(target, base64.b64decode(text)) for target, text in changes]


def _written(changes: Iterable[Change]) -> bytes:
    return orjson.dumps(coded(changes))


def changes_of(body: bytes) -> list[Change]:
    """The changes in a response to `STATE` or `UNDO`."""
    return decoded(orjson.loads(body))


# ASGI


async def whole_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def replayed(body: bytes) -> Receive:
    """What an application receives of a request whose body was read before."""
    left = [body]

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return {"type": "http.disconnect"}

    return receive


async def respond(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body, "more_body": False})
