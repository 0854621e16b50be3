"""The HTTP surface inside others' applications, called as an ASGI server calls them."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import pytest_asyncio
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import modserve
from modserve import ClientError, InferenceServer, Mounted, Settings
from modserve.access.key_file import digest
from modserve.server import Phase

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPOSITORY = Path(__file__).parents[3] / "model_repository"
SECRET = {"inference": ("x-secret", "open")}


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110 - nothing says when it becomes true
            await asyncio.sleep(0.001)


async def call(
    app: Any,
    method: str,
    target: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    parts: int = 1,
    goes_away: Callable[[], bool] = lambda: False,
) -> Reply:
    """One request, whose body comes in `parts`; the client goes away when `goes_away` says so."""
    sent = {"host": "test", "content-length": str(len(body)), **(headers or {})}
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    size = -(-len(body) // parts) or 1
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": body[at : at + size], "more_body": at + size < len(body)}
        for at in range(0, len(body) or 1, size)
    ]
    reply = Reply()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await until(goes_away)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, send)
    return reply


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models() -> AsyncIterator[Mounted]:
    async with modserve.asgi(REPOSITORY) as models:
        yield models


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["fastapi", "starlette", "alone"])
async def app(models: Mounted, request: pytest.FixtureRequest) -> Any:
    """With the models at ``/some/models``, or alone, where the prefix is that of a server behind a proxy."""
    if request.param == "fastapi":
        app = FastAPI()
        app.mount("/some/models", models)
        return app
    if request.param == "starlette":
        return Starlette(routes=[Mount("/some/models", models)])
    return lambda scope, receive, send: models({**scope, "root_path": "/some/models"}, receive, send)


def simple(binary: bool) -> tuple[bytes, dict[str, str]]:
    raw = struct.pack("<16i", *[1] * 16)
    inputs: list[dict[str, Any]] = [
        {"name": name, "shape": [1, 16], "datatype": "INT32"} for name in ("INPUT0", "INPUT1")
    ]
    for each in inputs:
        each.update({"parameters": {"binary_data_size": len(raw)}} if binary else {"data": [1] * 16})
    document: dict[str, Any] = {"inputs": inputs}
    if binary:
        document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document).encode()
    return head + raw * 2 * binary, {"Inference-Header-Content-Length": str(len(head))} if binary else {}


async def test_every_kind_of_call(app: Any) -> None:
    calls = {
        ("GET", "/v2"): 200,
        ("GET", "/v2/health/live"): 200,
        ("GET", "/v2/health/ready"): 200,
        ("GET", "/v2/models"): 200,
        ("GET", "/v2/models/simple"): 200,
        ("GET", "/v2/models/simple/versions/1/config"): 200,
        ("GET", "/v2/models/simple/ready"): 200,
        ("GET", "/v2/models/simple/stats"): 200,
        ("GET", "/v2/models/stats?model=a"): 200,
        ("GET", "/v2/models/simple/batches"): 200,
        ("GET", "/v2/models/no%2Fsuch"): 404,
        ("POST", "/v2/repository/index"): 200,
        ("POST", "/v2/repository/models/simple/load"): 503,
        ("GET", "/v2/trace/setting"): 200,
        ("GET", "/v2/systemsharedmemory/status"): 200,
        ("GET", "/v1/models/simple"): 200,
        ("GET", "/docs"): 200,
        ("GET", "/openapi.json"): 200,
        ("GET", "/docs/examples/simple"): 200,
        ("GET", "/"): 200,
        ("GET", "/nosuch"): 404,
        ("DELETE", "/v2"): 405,
        ("OPTIONS", "/v2"): 200,
        ("HEAD", "/v2"): 200,
    }
    replies = {key: await call(app, key[0], "/some/models" + key[1]) for key in calls}
    assert {key: reply.status for key, reply in replies.items()} == calls
    assert replies["GET", "/v2/models/no%2Fsuch"].json["error"] == "Request for unknown model: 'no/such' is not found"
    assert replies["OPTIONS", "/v2"].headers["allow"] == "GET, HEAD, OPTIONS"
    assert replies["HEAD", "/v2"].body == b""


@pytest.mark.parametrize("parts", [1, 3])
async def test_inference_with_json_and_with_binary_tensors(app: Any, parts: int) -> None:
    for binary in (False, True):
        body, headers = simple(binary)
        reply = await call(app, "POST", "/some/models/v2/models/simple/infer", body, headers, parts)
        assert reply.status == 200
        if binary:
            length = int(reply.headers["inference-header-content-length"])
            assert struct.unpack("<32i", reply.body[length:]) == (2,) * 16 + (0,) * 16
        else:
            assert reply.json["outputs"][0]["data"] == [2] * 16


async def test_streams_and_generate(app: Any) -> None:
    fields = json.dumps({"IN": [4, 5], "DELAY": [0, 0], "WAIT": 0}).encode()
    reply = await call(app, "POST", "/some/models/v2/models/repeat/generate_stream", fields)
    assert [json.loads(line[6:])["OUT"] for line in reply.body.split(b"\n\n") if line] == [4, 5]
    inputs = [
        {"name": name, "shape": [1], "datatype": kind, "data": [0]}
        for name, kind in (("IN", "INT32"), ("DELAY", "UINT32"), ("WAIT", "UINT32"))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    headers = {"accept": "application/x-ndjson"}
    reply = await call(app, "POST", "/some/models/v2/models/repeat/infer_stream", body, headers)
    assert reply.status == 200
    assert json.loads(reply.body.splitlines()[0])["outputs"][0]["data"] == [0]


@pytest.mark.parametrize("suffix", ["infer", "generate_stream"])
async def test_a_client_that_goes_away_cancels_its_request(app: Any, models: Mounted, suffix: str) -> None:
    values = {"IN": [1, 2], "DELAY": [60_000, 0], "WAIT": [0]}
    inputs = [
        {"name": name, "shape": [len(data)], "datatype": "INT32" if name == "IN" else "UINT32", "data": data}
        for name, data in values.items()
    ]
    document: dict[str, Any] = {"inputs": inputs} if suffix == "infer" else values
    accepted = lambda: models.server.in_flight().get("repeat", 0) > 0  # noqa: E731
    body = json.dumps(document).encode()
    await call(app, "POST", f"/some/models/v2/models/repeat/{suffix}", body, goes_away=accepted)
    await until(lambda: models.server.in_flight() == {})  # much sooner than in a minute


async def test_restrictions_hold_below_a_prefix() -> None:
    settings = Settings(model_repository=REPOSITORY, http_restricted_api=SECRET, request_memory_limit=1000)
    app = FastAPI()
    async with modserve.asgi(settings) as models:
        app.mount("/some/models", models)
        body, headers = simple(True)
        for target in ("/some/models/v2/models/simple/infer", "/some/models/v2/models/sim%70le/infer"):
            assert (await call(app, "POST", target, body, headers)).status == 403
            assert (await call(app, "POST", target, body, {**headers, "x-secret": "open"})).status == 200
        # The limit on memory holds too, however the body comes, and nothing stays held.
        for more in ({}, {"transfer-encoding": "chunked", "content-length": ""}):
            reply = await call(app, "POST", "/some/models/v2/models/simple/infer", bytes(2000), more, 4)
            assert reply.status == 413
            assert "the server allows 1000 bytes for all requests together" in reply.json["error"]
        assert models.server.memory.held == 0


async def test_a_client_that_goes_away_in_its_body(models: Mounted) -> None:
    sent: list[Any] = []
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"x", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v2", "headers": [], "root_path": "", "query_string": b""}
    await models(scope, receive, send)
    assert sent == []
    assert models.server.memory.held == 0


# Start and end


async def through_lifespan(app: Any) -> tuple[Reply, list[str]]:
    """One request between the start and the end that an ASGI server asks an application for."""
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    started: asyncio.Future[None] = loop.create_future()
    types: list[str] = []

    async def send(message: dict[str, Any]) -> None:
        types.append(message["type"])
        if not started.done():
            started.set_result(None)

    running = loop.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, messages.get, send))
    messages.put_nowait({"type": "lifespan.startup"})
    await started
    reply = await call(app, "GET", "/some/models/v2/health/ready")
    messages.put_nowait({"type": "lifespan.shutdown"})
    await running
    return reply, types


COMPLETE = ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_the_lifespan_of_fastapi() -> None:
    models = modserve.asgi(REPOSITORY)
    app = FastAPI(lifespan=models.lifespan)
    app.mount("/some/models", models)
    reply, types = await through_lifespan(app)
    assert (reply.status, types) == (200, COMPLETE)
    assert models.server.phase is Phase.STOPPING


async def test_a_lifespan_of_ones_own() -> None:
    models = modserve.asgi(REPOSITORY)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with models:
            yield

    reply, types = await through_lifespan(Starlette(routes=[Mount("/some/models", models)], lifespan=lifespan))
    assert (reply.status, types) == (200, COMPLETE)


async def test_the_whole_application() -> None:
    models = modserve.asgi(Settings(model_repository=REPOSITORY))
    reply, types = await through_lifespan(models)
    assert (reply.status, types) == (404, COMPLETE)  # there is no prefix
    assert models.server.phase is Phase.STOPPING


async def test_a_start_that_fails(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    models = modserve.asgi(tmp_path / "models")
    (tmp_path / "models").rmdir()
    _, types = await through_lifespan(models)
    assert types == ["lifespan.startup.failed"]


async def test_nobody_has_started_it() -> None:
    reply = await call(modserve.asgi(REPOSITORY), "GET", "/v2")
    assert reply.status == 503
    assert "set lifespan=models.lifespan" in reply.json["error"]


async def test_a_server_of_ones_own_is_left_running() -> None:
    async with InferenceServer(Settings(model_repository=REPOSITORY)) as server:
        async with modserve.asgi(server) as models:
            assert (await call(models, "GET", "/v2/health/ready")).status == 200
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, call(models, "GET", "/v2"))
        assert server.phase is Phase.RUNNING


async def test_where_there_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="there is no model repository"):
        modserve.asgi(tmp_path / "nosuch")


async def test_no_web_sockets(models: Mounted) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await models({"type": "websocket"}, None, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1000}]


async def test_keys_count_in_another_application_too(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    row = {"name": "user", "sha256": digest("msk_user"), "scopes": {"simple": ["infer", "read"]}}
    file.write_text(json.dumps({"keys": [row]}))
    models = modserve.asgi(Settings(model_repository=REPOSITORY, auth_file=str(file)))
    app = FastAPI(lifespan=models.lifespan)
    app.mount("/models", models)
    async with models:
        assert (await call(app, "GET", "/models/v2/models")).status == 401
        reply = await call(app, "GET", "/models/v2/models", headers={"x-api-key": "msk_user"})
        assert (reply.status, reply.json) == (200, {"models": ["simple"]})
        assert (await call(app, "GET", "/models/v2/models/digits", headers={"x-api-key": "msk_user"})).status == 404
    file.write_text("no keys")
    with pytest.raises(ClientError, match="expected a mapping with 'keys'"):
        modserve.asgi(Settings(model_repository=REPOSITORY, auth_file=str(file)))


async def test_the_audit_log_of_models_in_another_application(tmp_path: Path) -> None:
    file, audit = tmp_path / "keys.json", tmp_path / "audit"
    row = {"name": "user", "sha256": digest("msk_user"), "scopes": {"*": ["read"]}, "tenant": "team"}
    file.write_text(json.dumps({"keys": [row]}))
    settings = Settings(model_repository=REPOSITORY, auth_file=str(file), audit_log=str(audit))
    models = modserve.asgi(settings)
    app = FastAPI(lifespan=models.lifespan)
    app.mount("/models", models)
    for _ in range(2):
        async with models:
            headers = {"x-api-key": "msk_user"}
            assert (await call(app, "GET", "/models/v2/models", headers=headers)).status == 200
            assert (await call(app, "POST", "/models/v2/logging", b"{}", headers=headers)).status == 403
    first, second = map(json.loads, audit.read_text().splitlines())
    assert {first["call"], second["call"]} == {"POST /v2/logging"}
    assert (second["caller"], second["tenant"], second["status"]) == ("user", "team", 403)


async def test_an_audit_log_that_cannot_be_opened_keeps_models_from_starting(tmp_path: Path) -> None:
    models = modserve.asgi(Settings(model_repository=REPOSITORY, audit_log=str(tmp_path / "no" / "audit")))
    with pytest.raises(ClientError, match=r"cannot open the audit log '.*audit': No such file or directory"):
        async with models:
            pass
