"""The calls that concern all workers, at the public ports: they go to all of them, from whichever they come in at."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

import orjson

from modserve.core.errors import ModserveError, unavailable
from modserve.frontends.grpc.rpc import Rpc, RpcCall
from modserve.frontends.http.rest.middleware import RestrictedApp
from modserve.frontends.http.wire.asgi import SLASH
from modserve.frontends.http.wire.context import AsgiApp, Message
from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.protocol.control import repository
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.restricted import Restriction
from modserve.server import Phase, Server

from . import private, sums
from .changing import Changing
from .client import PeerGoneError, Reply
from .fleet import Fleet
from .journal import NO_ROUTING, RPC_PREFIX, http_subject, is_shared_rpc, rpc_subject
from .private import Receive, Send

_INFERENCE = f"/{pb.SERVICE}/"
_HEALTH = f"/{health_pb.SERVICE}/"
_FORWARDED = (b"content-encoding", b"content-type")

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+|[a-z][a-z0-9_-]*))?"
_ROUTING = re.compile(r"/v2/models/[^/]+/routing")
_READ, _POST = frozenset({"GET", "HEAD"}), frozenset({"POST"})
_Answer: TypeAlias = Callable[[Message, bytes, Mapping[str, str]], Awaitable[Reply | None]]


class SharedApp:
    """An application that answers for all workers where that matters, and for this one with `app` otherwise."""

    def __init__(self, app: AsgiApp, fleet: Fleet, changing: Changing, server: Server) -> None:
        self._app = app
        self._fleet = fleet
        self._changing = changing
        self._server = server
        self._routes: tuple[tuple[frozenset[str], re.Pattern[str], _Answer], ...] = (
            (_READ, re.compile(r"/v2/health/ready"), self._ready),
            (_READ, re.compile(_MODEL + "/ready"), self._model_ready),
            (_READ, re.compile(r"/v2/models/stats"), self._statistics),
            (_READ, re.compile(_MODEL + "/stats"), self._statistics),
            (_READ, re.compile(r"/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/status"), self._regions),
            (_POST, re.compile(r"/v2/repository(?:/[^/]+)?/index"), self._index),
            (_READ, re.compile(r"/console/failures"), self._failures),
            (_READ, _ROUTING, self._routing),
            (frozenset({"DELETE"}), _ROUTING, self._delete_routing),
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        answer = None if scope["type"] != "http" else self._answer(scope)
        if answer is None:
            await self._app(scope, receive, send)
            return
        run, parts = answer
        body = await private.whole_body(receive)
        try:
            reply = None if self._server.phase is Phase.STOPPING else await run(scope, body, parts)
        except PeerGoneError:
            reply = None  # this worker is about to end, and says so itself
        if reply is None:
            await self._app(scope, private.replayed(body), send)
            return
        media_type = reply.headers.get("content-type", MIME_JSON)
        headers = (("content-type", media_type), ("content-length", str(len(reply.body))))
        await private.respond(send, reply.status, b"" if scope["method"] == "HEAD" else reply.body, headers)

    def _answer(self, scope: Message) -> tuple[_Answer, Mapping[str, str]] | None:
        """Who answers for all workers, and what the path says."""
        path: str = scope["path"]
        if scope["method"] == "POST" and http_subject(path) is not None:
            return self._change, {}
        for methods, pattern, run in self._routes:
            if scope["method"] in methods and (match := pattern.fullmatch(path)) is not None:
                return run, {name: value or "" for name, value in match.groupdict().items()}
        return None

    async def _change(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply:
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"] if name in _FORWARDED
        )
        return await self._changing.change(_target(scope), body, headers)

    async def _ready(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        if not self._server.ready:
            return None
        reasons = await self._fleet.unready()
        if not reasons:
            return None
        content = {"ready": False, "phase": self._server.phase.value, "reasons": reasons}
        return Reply(400, {}, orjson.dumps(content))

    async def _model_ready(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        replies = await self._fleet.gather("GET", _target(scope))
        return next((reply for reply in replies.values() if not reply.ok), None) or next(iter(replies.values()), None)

    async def _statistics(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        name, version = parts.get("model", "").replace(SLASH, "/"), parts.get("version", "")
        answers = await rpc_answers(
            self._fleet, "ModelStatistics", pb.ModelStatisticsRequest(name=name, version=version)
        )
        if not answers:
            return None
        total = sums.statistics(pb.ModelStatisticsResponse.FromString(body) for body in answers.values())
        return Reply(200, {}, orjson.dumps(to_json(total)))

    async def _regions(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        """A region that was unregistered while a request uses it is still there, in that worker."""
        replies = await self._fleet.gather("GET", _target(scope))
        each = [orjson.loads(reply.body) for reply in replies.values() if reply.ok]
        if not each:
            return None
        regions = {region["name"]: region for regions in each for region in regions}
        return Reply(200, {}, orjson.dumps(list(regions.values())))

    async def _failures(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        replies = await self._fleet.gather("GET", _target(scope))
        each = [orjson.loads(reply.body) for reply in replies.values() if reply.ok]
        return Reply(200, {}, orjson.dumps(sums.failures(each))) if each else None

    async def _index(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        try:
            only_ready = repository.only_ready(body)
        except ModserveError:
            return None
        index = await shared_index(self._fleet, only_ready)
        if index is None:
            return None
        rows = [{name: value for name, value in to_json(model).items() if value} for model in index.models]
        return Reply(200, {}, orjson.dumps(rows))

    async def _routing(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply | None:
        replies = await self._fleet.gather("GET", _target(scope))
        reports = [orjson.loads(reply.body) for reply in replies.values() if reply.ok]
        return Reply(200, {}, orjson.dumps(sums.routing(reports))) if reports else None

    async def _delete_routing(self, scope: Message, body: bytes, parts: Mapping[str, str]) -> Reply:
        return await self._changing.change(_target(scope), NO_ROUTING)


def shared_app(
    app: AsgiApp, fleet: Fleet, changing: Changing, server: Server, restrictions: Mapping[str, Restriction]
) -> AsgiApp:
    """`app` as all workers serve it together, behind the same restrictions as `app` itself."""
    shared: AsgiApp = SharedApp(app, fleet, changing, server)
    return RestrictedApp(shared, restrictions) if restrictions else shared


def _target(scope: Message) -> str:
    target: str = scope["raw_path"].decode("latin-1")
    return target


async def rpc_answers(fleet: Fleet, name: str, message: Any) -> dict[int, bytes]:
    """The serialised responses of all workers that serve and do not refuse, by their numbers."""
    replies = await fleet.gather("POST", f"{RPC_PREFIX}{_INFERENCE}{name}", message.SerializeToString())
    return {index: reply.body for index, reply in replies.items() if reply.ok}


async def shared_index(fleet: Fleet, only_ready: bool) -> pb.RepositoryIndexResponse | None:
    answers = await rpc_answers(fleet, "RepositoryIndex", pb.RepositoryIndexRequest())
    if not answers:
        return None
    each = {index: pb.RepositoryIndexResponse.FromString(body) for index, body in answers.items()}
    return sums.index(each, only_ready)


class SharedRpcs:
    """The table of calls of the gRPC port: some of its handlers answer for all workers."""

    def __init__(self, fleet: Fleet, changing: Changing, server: Server) -> None:
        self._fleet = fleet
        self._changing = changing
        self._server = server
        self._gathered: Mapping[str, Callable[[Any, Any], Awaitable[Any]]] = {
            f"{_INFERENCE}ServerReady": self._ready,
            f"{_INFERENCE}ModelReady": self._model_ready,
            f"{_INFERENCE}ModelStatistics": self._statistics,
            f"{_INFERENCE}RepositoryIndex": self._index,
            f"{_INFERENCE}SystemSharedMemoryStatus": self._system_regions,
            f"{_INFERENCE}CudaSharedMemoryStatus": self._cuda_regions,
            f"{_HEALTH}Check": self._check,
        }

    def table(self, own: Mapping[str, Rpc]) -> Mapping[str, Rpc]:
        """The rows of `own`, with other handlers where a call concerns all workers."""
        rpcs = dict(own)
        for path, rpc in own.items():
            if is_shared_rpc(path):
                rpcs[path] = rpc._replace(handler=self._change(path, rpc))
            elif path in self._gathered:
                rpcs[path] = rpc._replace(handler=self._after_own(rpc, self._gathered[path]))
        return rpcs

    def _change(self, path: str, rpc: Rpc) -> Callable[[Any, RpcCall], Awaitable[Any]]:
        async def handler(message: Any, call: RpcCall) -> Any:
            if self._server.phase is Phase.STOPPING or rpc_subject(path, message) is None:
                return await rpc.handler(message, call)
            try:
                reply = await self._changing.change(RPC_PREFIX + path, message.SerializeToString())
            except PeerGoneError:
                raise unavailable("Server not ready") from None
            if not reply.ok:
                code = reply.headers.get(private.CODE, "")
                raise private.failure_of(code, reply.body.decode("utf-8", "surrogatepass"))
            return rpc.method.response.FromString(reply.body)

        return handler

    def _after_own(
        self, rpc: Rpc, gather: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, RpcCall], Awaitable[Any]]:
        """This worker answers first: it knows what is wrong with a call."""

        async def handler(message: Any, call: RpcCall) -> Any:
            own = await rpc.handler(message, call)
            return own if self._server.phase is Phase.STOPPING else await gather(message, own)

        return handler

    async def _ready(self, message: pb.ServerReadyRequest, own: pb.ServerReadyResponse) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=own.ready and not await self._fleet.unready())

    async def _model_ready(self, message: pb.ModelReadyRequest, own: pb.ModelReadyResponse) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=own.ready and await self._all_have(message.name, message.version))

    async def _all_have(self, name: str, version: str = "") -> bool:
        target = f"/v2/models/{quote(name, safe='')}{f'/versions/{version}' if version else ''}/ready"
        replies = await self._fleet.gather("GET", target)
        return all(reply.ok for reply in replies.values())

    async def _statistics(
        self, message: pb.ModelStatisticsRequest, own: pb.ModelStatisticsResponse
    ) -> pb.ModelStatisticsResponse:
        answers = await rpc_answers(self._fleet, "ModelStatistics", message)
        return sums.statistics(map(pb.ModelStatisticsResponse.FromString, answers.values())) if answers else own

    async def _index(
        self, message: pb.RepositoryIndexRequest, own: pb.RepositoryIndexResponse
    ) -> pb.RepositoryIndexResponse:
        return await shared_index(self._fleet, message.ready) or own

    async def _system_regions(self, message: pb.SystemSharedMemoryStatusRequest, own: Any) -> Any:
        answers = await rpc_answers(self._fleet, "SystemSharedMemoryStatus", message)
        return sums.merged(pb.SystemSharedMemoryStatusResponse(), answers.values())

    async def _cuda_regions(self, message: pb.CudaSharedMemoryStatusRequest, own: Any) -> Any:
        answers = await rpc_answers(self._fleet, "CudaSharedMemoryStatus", message)
        return sums.merged(pb.CudaSharedMemoryStatusResponse(), answers.values())

    async def _check(self, message: Any, own: Any) -> Any:
        response = health_pb.HealthCheckResponse
        if own.status != response.SERVING:
            return own
        whole = message.service in ("", pb.SERVICE)
        serving = not await self._fleet.unready() if whole else await self._all_have(message.service)
        return own if serving else response(status=response.NOT_SERVING)
