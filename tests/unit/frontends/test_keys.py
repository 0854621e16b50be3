"""Callers with keys, over HTTP on both ways, and over gRPC: who is served, who is refused, and what each sees."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from puppet_server import JSON_ANSWER, JSON_BODY, Answer, Client, PuppetLoader, infer, request, server_over
from rpc_calls import CallTable, FakeCall

from modserve.access.authority import Authority
from modserve.access.certificates import CertificateRule
from modserve.access.identity import KINDS, Identity, Scopes
from modserve.access.key_file import AccessFile, Key, digest
from modserve.access.permissions import PATH_NEEDS, RPC_NEEDS, CallScope, need_of
from modserve.core.configuration.log_settings import AccessMode, AccessSettings
from modserve.core.tenants import Tenant
from modserve.core.version import ModelId
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.guard import RpcGuard
from modserve.frontends.grpc.load_reports import LoadReports
from modserve.frontends.grpc.service import rpc_table
from modserve.frontends.http.application import Application
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.context import HttpContext
from modserve.observability.access_log import AccessLog, AccessLogEntry
from modserve.pb import health as health_pb
from modserve.pb import inference as pb
from modserve.pb import orca
from modserve.protocol.restricted import DRAIN, STACKS
from modserve.repository.table import ModelTable
from modserve.server.local import LocalServer
from modserve.server.scoped import ScopedServer
from modserve.settings import GrpcSettings, HttpSettings, PlatformRoutes

ALL = frozenset(KINDS)
KEYS: dict[str, Scopes] = {
    "user": {"simple": frozenset({"infer", "read"})},
    "reader": {"*": frozenset({"read"})},
    "runner": {"simple": frozenset({"infer"})},
    "owner": {"echo": ALL},
    "admin": {"*": ALL},
}


def key_of(name: str, scopes: Scopes) -> Key:
    return Key(Identity(name, Tenant(f"{name}s"), scopes))


class Place(NamedTuple):
    server: LocalServer
    authority: Authority
    site: HttpContext
    loader: PuppetLoader
    table: CallTable

    async def ask(self, data: bytes) -> Answer:
        client = Client(self.site)
        client.send(data)
        (answer,) = await client.receive()
        return answer

    async def get(self, target: str, key: str = "", method: str = "GET", **headers: str) -> tuple[int, Any]:
        shown = {"Authorization": f"Bearer {key}"} if key else {}
        answer = await self.ask(request(method, target, b"", "1.1", **shown, **headers))
        return answer.status, json.loads(answer.body) if answer.body.startswith(b"{") else answer.body

    async def call(self, rpc: str, key: str = "", message: bytes = b"") -> FakeCall:
        services = {**dict.fromkeys(health_pb.METHODS, health_pb.SERVICE), **dict.fromkeys(orca.METHODS, orca.SERVICE)}
        service = services.get(rpc, pb.SERVICE)
        call = FakeCall(message, metadata=[("authorization", f"Bearer {key}")] if key else [])
        response = await asyncio.create_task(self.table.serve(f"/{service}/{rpc}", call))
        call.written.append(response)
        return call


PLATFORM = PlatformRoutes("/ping", "/invocations", "application/x;length=", model="simple")


async def at_once(seconds: float) -> None:
    """Failures wait for nothing here."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    loader = PuppetLoader()
    server = server_over(tmp_path, loader)
    table: ModelTable = server._table
    table.suggests_names = False
    await server.load()
    file = AccessFile({digest(name): key_of(name, scopes) for name, scopes in KEYS.items()})
    authority, options = Authority(file, sleep=at_once), HttpSettings(routes=PLATFORM)
    async with asyncio.TaskGroup() as tasks:
        app = Application(server, options, authority)
        site = HttpContext(server, app, tasks, asyncio.get_running_loop(), options, authority=authority)
        site.turns.seconds = math.inf
        dispatcher = Dispatcher(server, guard=RpcGuard(authority))
        scoped = ScopedServer(server)
        served = rpc_table(scoped, GrpcSettings(), dispatcher.inflater, reports=LoadReports(scoped))
        rpcs = CallTable(dispatcher, served)
        yield Place(server, authority, site, loader, rpcs)
        for connection in list(site.connections):
            connection.abort()


# Inference over HTTP: the short cut, and the application that refuses


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer user"}, {"X_API_Key": "user"}])
async def test_a_key_runs_its_model(place: Place, headers: dict[str, str]) -> None:
    client = Client(place.site)
    for count in (1, 2, 3):
        client.send(infer(JSON_BODY, **headers))
        assert (await client.receive(count))[-1].body == JSON_ANSWER
    submitted = place.loader.loaded[ModelId("simple", 3)].submitted
    assert [inflight.request.tenant for inflight in submitted] == [Tenant("users")] * 3


async def test_a_platforms_path_needs_what_its_call_needs(place: Place) -> None:
    assert (await place.get("/ping"))[0] == 200
    assert (await place.ask(request(target="/invocations", body=JSON_BODY))).status == 401
    stranger = request(target="/invocations", body=JSON_BODY, Authorization="Bearer reader")
    assert (await place.ask(stranger)).status == 403
    for _ in range(2):
        answer = await place.ask(request(target="/invocations", body=JSON_BODY, Authorization="Bearer user"))
        assert answer.body == JSON_ANSWER
    submitted = place.loader.loaded[ModelId("simple", 3)].submitted
    assert [inflight.request.tenant for inflight in submitted] == [Tenant("users")] * 2


async def test_an_inference_without_a_key(place: Place) -> None:
    answer = await place.ask(infer())
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert json.loads(answer.body)["error"].startswith("this call needs a key: send it as 'Authorization: Bearer KEY'")
    assert answer.headers["x-request-id"]
    assert (await place.ask(infer(JSON_BODY, X_Request_ID="mine-1"))).headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"Authorization": "Bearer nobody"}, 401, "the key is not known"),
        ({"Authorization": "Basic abc"}, 401, "the Authorization header holds no 'Bearer KEY'"),
        ({"Authorization": "Bearer user", "X_API_Key": "admin"}, 401, "the call has 2 keys that differ"),
        (
            {"X_API_Key": "reader"},
            403,
            "this call needs the scope 'infer' for any model, which the key 'reader' does not have",
        ),
        ({"X_API_Key": "owner"}, 404, "Request for unknown model: 'simple' is not found"),
    ],
)
async def test_an_inference_that_is_refused(place: Place, headers: dict[str, str], status: int, text: str) -> None:
    answer = await place.ask(infer(JSON_BODY, **headers))
    assert (answer.status, json.loads(answer.body)["error"].startswith(text)) == (status, True), answer.body
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    if status == 403:
        assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="infer"'


async def test_a_head_that_is_remembered_asks_for_its_key_each_time(place: Place) -> None:
    client = Client(place.site)
    client.send(infer(X_API_Key="user"))
    client.send(infer(X_API_Key="user"))
    assert [answer.status for answer in await client.receive(2)] == [200, 200]
    place.authority.replace(AccessFile({digest("user"): Key(key_of("user", {"*": ALL}).identity, revoked=True)}))
    client.send(infer(X_API_Key="user"))
    answer = (await client.receive(3))[2]
    assert (answer.status, json.loads(answer.body)) == (401, {"error": "the key 'user' was revoked"})
    place.authority.replace(AccessFile({digest("user"): key_of("user", {"simple": ALL})}))
    client.send(infer(X_API_Key="user"))
    assert (await client.receive(4))[3].body == JSON_ANSWER


async def test_keys_in_other_places_do_not_count(place: Place) -> None:
    answer = await place.ask(request("POST", "/v2/models/simple/infer?api_key=user", JSON_BODY))
    assert answer.status == 401
    assert b"a key in the address is not read" in answer.body


# What each sees


async def test_a_model_that_a_caller_must_not_see_is_like_one_that_is_not_there(place: Place) -> None:
    for path in ("", "/config", "/stats", "/ready", "/versions/1", "/versions/canary"):
        there = await place.get(f"/v2/models/echo{path}", "user")
        absent = await place.get(f"/v2/models/echx{path}", "user")
        assert there[0] == absent[0] == 404
        assert str(there[1]).replace("echo", "echx") == str(absent[1]), path
    assert (await place.get("/v2/models/echo", "owner"))[0] == 200
    for model in ("echo", "echx"):
        assert (await place.get(f"/v2/models/{model}/trace/setting", "user"))[0] == 403


async def test_lists_have_only_the_models_that_a_caller_sees(place: Place) -> None:
    async def names(key: str) -> list[list[str]]:
        models = (await place.get("/v2/models", key))[1]["models"]
        index = (await place.get("/v2/repository/index", key, "POST"))[1]
        rows = json.loads(index) if isinstance(index, bytes) else index
        stats = (await place.get("/v2/models/stats", key))[1].get("model_stats", [])
        v1 = (await place.get("/v1/models", key))[1]["models"]
        return [models, sorted({row["name"] for row in rows}), sorted({row["name"] for row in stats}), v1]

    assert await names("user") == [["simple"]] * 4
    assert await names("owner") == [["echo"]] * 4
    assert await names("reader") == [["echo", "simple"]] * 4


async def test_statistics_of_tenants_are_their_own(place: Place) -> None:
    """The tenants are the server's: a statistics call about one model says nothing of them."""
    for key in ("user", "runner"):
        assert (await place.ask(infer(JSON_BODY, Authorization=f"Bearer {key}"))).status == 200
    for key, names in (("user", ["users"]), ("reader", ["runners", "users"]), ("owner", [])):
        _, document = await place.get("/v2/models/stats", key)
        assert [row["name"] for row in document.get("tenant_stats", [])] == names
        call = await place.call("ModelStatistics", key)
        message = pb.ModelStatisticsResponse.FromString(call.written[-1])
        assert [row.name for row in message.tenant_stats] == names
    assert "tenant_stats" not in (await place.get("/v2/models/simple/stats", "user"))[1]


async def test_health_is_open_and_names_no_model(place: Place) -> None:
    assert await place.get("/v2/health/live") == (200, {"live": True})
    assert await place.get("/v2/health/ready") == (200, {"ready": True})
    assert (await place.get("/v2/models/simple/ready"))[0] == 401
    assert (await place.call("Check")).written == [b"\x08\x01"]
    unknown = await place.call("Check", "", health_pb.HealthCheckRequest(service="simple").SerializeToString())
    assert unknown.code is grpc.StatusCode.NOT_FOUND
    known = await place.call("Check", "user", health_pb.HealthCheckRequest(service="simple").SerializeToString())
    assert known.written == [b"\x08\x01"]


async def test_pages_are_open(place: Place) -> None:
    assert (await place.get("/docs"))[0] == 200
    assert (await place.get("/console"))[0] == 200
    assert (await place.get("/console/about"))[0] == 200
    assert (await place.ask(request("OPTIONS", "/v2/models/simple"))).status == 200


async def test_documents_say_which_calls_need_a_key(place: Place) -> None:
    _, document = await place.get("/openapi.json")
    schemes = document["components"]["securitySchemes"]
    assert {name: (each["type"], each.get("scheme"), each.get("name")) for name, each in schemes.items()} == {
        "bearer": ("http", "bearer", None),
        "key": ("apiKey", None, "x-api-key"),
    }
    calls = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            need, responses = need_of(method.upper(), path)[0], operation["responses"]
            closed = need.reach not in (CallScope.OPEN, CallScope.HEALTH)
            assert operation.get("security", []) == ([{"bearer": []}, {"key": []}] if closed else []), path
            assert ("401" in responses, "403" in responses) == (closed, closed and need.reach is not CallScope.ANY), (
                path
            )
            calls += closed
    assert calls > 50
    infer = document["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
    assert infer["403"]["description"] == "The key lacks the scope 'infer' for this call"
    assert infer["401"]["content"] == infer["400"]["content"]
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert chat["401"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/OpenAIErrorAnswer"}
    _, one = await place.get("/v2/models/simple/openapi.json", "user")
    assert one["components"]["securitySchemes"] == schemes
    assert {"401", "403"} <= set(one["paths"]["/v2/models/simple/infer"]["post"]["responses"])


def test_documents_tell_of_certificates_where_there_are_rules_for_them(tmp_path: Path) -> None:
    rule = CertificateRule("CN=client", Tenant("a"), {"*": frozenset({"infer"})})
    authority = Authority(AccessFile({}, certificates=(rule,)))
    document = create_app(server_over(tmp_path, PuppetLoader()), HttpSettings(), authority=authority).openapi()
    assert document["components"]["securitySchemes"]["certificate"]["type"] == "mutualTLS"
    security = document["paths"]["/v2/models"]["get"]["security"]
    assert security == [{"bearer": []}, {"key": []}, {"certificate": []}]


def test_documents_say_nothing_of_keys_where_nobody_needs_one(tmp_path: Path) -> None:
    document = create_app(server_over(tmp_path, PuppetLoader()), HttpSettings()).openapi()
    assert "securitySchemes" not in document["components"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if path not in (DRAIN, STACKS):  # which not everybody may call
                assert not {"401", "403"} & set(operation["responses"])
            assert "security" not in operation


async def test_paths_that_there_are_not_need_a_key(place: Place) -> None:
    assert (await place.get("/nosuch"))[0] == 401
    assert (await place.get("/nosuch", "runner"))[0] == 404


async def test_errors_are_in_the_form_of_the_path(place: Place) -> None:
    status, body = await place.get("/v1/chat/completions", method="POST")
    assert (status, body["error"]["type"], body["error"]["param"]) == (401, "authentication_error", None)
    status, body = await place.get("/openai/v1/models", "runner")
    assert (status, body["error"]["type"]) == (403, "permission_error")
    status, body = await place.get("/embed", method="POST")
    assert (status, sorted(body)) == (401, ["error", "error_type"])
    for path in ("/v1/models", "/v1/models/simple", "/v1/moderations"):
        status, body = await place.get(path, "nobody")
        assert (status, body["error"]["message"]) == (401, "the key is not known"), path
    assert (await place.get("/v1/models/simple/metadata"))[1] == (await place.get("/v2"))[1]


# Every path and every RPC


def path_of(template: str) -> str:
    values = {"model": "simple", "version": "1", "label": "x", "region": "r", "repository": "r"}
    return template.format(**values)


async def test_every_path_by_every_key(place: Place) -> None:
    """Who lacks a scope gets 401, 403 or 404, and who has it, anything else than 401 and 403."""
    for template in sorted(PATH_NEEDS):
        for method in ("GET", "POST"):
            path = path_of(template)
            need, model = need_of(method, path)
            if template == "/console/events":
                continue  # it would go on
            anybody = need.reach in (CallScope.OPEN, CallScope.HEALTH)
            assert ((await place.get(path, method=method))[0] == 401) is not anybody, (method, path)
            for key, scopes in KEYS.items():
                status, _ = await place.get(path, key, method)
                everywhere = need.kind in scopes.get("*", ())
                there = need.kind in scopes.get("simple", ())
                somewhere = any(need.kind in kinds for kinds in scopes.values())
                allowed = {
                    CallScope.SERVER: everywhere,
                    CallScope.LIST: somewhere,
                    CallScope.MODEL: everywhere or there if model else somewhere,
                }.get(need.reach, True)
                seen = "*" in scopes or "simple" in scopes
                denied = 404 if model and somewhere and not seen else 403
                assert (status == denied) is not allowed or (allowed and status == 404), (method, path, key, status)


async def test_every_rpc_by_every_key(place: Place) -> None:
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    place.server.retire()  # so that no report of the load follows the first
    for rpc, need in RPC_NEEDS.items():
        if rpc in ("Watch", "ServerReflectionInfo"):
            continue  # one goes on, the other is none of these services
        code = (await place.call(rpc)).code
        assert (code is grpc.StatusCode.UNAUTHENTICATED) is (need.reach not in (CallScope.OPEN, CallScope.HEALTH)), rpc
        for key, scopes in KEYS.items():
            code = (await place.call(rpc, key)).code
            somewhere = any(need.kind in kinds for kinds in scopes.values())
            allowed = need.kind in scopes.get("*", ()) if need.reach is CallScope.SERVER else somewhere
            if need.reach in (CallScope.OPEN, CallScope.HEALTH, CallScope.ANY):
                allowed = True
            if rpc == "TraceSetting" and key == "owner":
                allowed = False  # it names no model, so it is about all
            assert (code in refusals) is not allowed, (rpc, key, code)


# gRPC


INFER = pb.ModelInferRequest(
    model_name="simple",
    inputs=[
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="INT32", shape=[1, 2])
        for name in ("INPUT0", "INPUT1")
    ],
    raw_input_contents=[bytes(8), bytes(8)],
).SerializeToString()


async def test_inference_over_grpc(place: Place) -> None:
    call = await place.call("ModelInfer", "user", INFER)
    assert call.code is None
    assert pb.ModelInferResponse.FromString(call.written[-1]).model_name == "simple"
    (inflight,) = place.loader.loaded[ModelId("simple", 3)].submitted
    assert inflight.request.tenant == Tenant("users")


@pytest.mark.parametrize(
    ("key", "code", "details"),
    [
        ("", grpc.StatusCode.UNAUTHENTICATED, "this call needs a key"),
        ("nobody", grpc.StatusCode.UNAUTHENTICATED, "the key is not known"),
        ("reader", grpc.StatusCode.PERMISSION_DENIED, "this call needs the scope 'infer' for any model"),
        ("owner", grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'simple' is not found"),
    ],
)
async def test_an_inference_over_grpc_that_is_refused(
    place: Place, key: str, code: grpc.StatusCode, details: str
) -> None:
    call = await place.call("ModelInfer", key, INFER)
    assert (call.code, call.details.startswith(details)) == (code, True), call.details


async def stream_of(place: Place, key: str, messages: Sequence[bytes]) -> FakeCall:
    call = FakeCall(*messages, metadata=[("x-api-key", key)])
    await asyncio.create_task(place.table.serve(f"/{pb.SERVICE}/ModelStreamInfer", call))
    return call


async def test_a_stream_asks_for_each_request(place: Place) -> None:
    other = pb.ModelInferRequest.FromString(INFER)
    other.model_name = "echo"
    call = await stream_of(place, "user", [INFER, other.SerializeToString(), INFER])
    responses = [pb.ModelStreamInferResponse.FromString(each) for each in call.written]
    assert [each.error_message for each in responses] == ["", "Request for unknown model: 'echo' is not found", ""]


async def test_a_stream_outlives_no_key(place: Place) -> None:
    class Revoking(FakeCall):
        async def read(self) -> bytes | None:
            if len(self.messages) == 1:
                place.authority.replace(AccessFile({}))
            return await super().read()

    call = Revoking(INFER, INFER, metadata=[("x-api-key", "user")])
    await asyncio.create_task(place.table.serve(f"/{pb.SERVICE}/ModelStreamInfer", call))
    responses = [pb.ModelStreamInferResponse.FromString(each) for each in call.written]
    assert [each.error_message for each in responses] == ["", "the key is not known"]


async def test_trace_settings_of_all_models_need_a_key_for_all(place: Place) -> None:
    named = pb.TraceSettingRequest(model_name="echo").SerializeToString()
    assert (await place.call("TraceSetting", "owner", named)).code is None
    call = await place.call("TraceSetting", "owner")
    assert call.code is grpc.StatusCode.PERMISSION_DENIED
    assert call.details == "this call needs the scope 'admin' for all models, which the key 'owner' does not have"


async def test_health_may_be_closed(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    authority = Authority(AccessFile({digest("user"): key_of("user", KEYS["user"])}), health_open=False)
    dispatcher = Dispatcher(server, guard=RpcGuard(authority))
    table = CallTable(dispatcher, rpc_table(ScopedServer(server), GrpcSettings(), dispatcher.inflater))
    call = FakeCall(b"")
    await asyncio.create_task(table.serve(f"/{pb.SERVICE}/ServerLive", call))
    assert call.code is grpc.StatusCode.UNAUTHENTICATED
    call = FakeCall(b"", metadata=[("x-api-key", "user")])
    await asyncio.create_task(table.serve(f"/{pb.SERVICE}/ServerLive", call))
    assert call.code is None


# Whose requests they were: in the access log


class Entries(AccessLog):
    """Keeps what each call was, its model, its status, its tenant and its caller."""

    def __init__(self) -> None:
        super().__init__(AccessSettings(AccessMode.ALL), start=False)
        self.lines: list[tuple[str, str, int, str, str]] = []

    def add(self, entry: AccessLogEntry) -> None:
        self.lines.append((entry.call, entry.model, entry.status, entry.tenant, entry.origin.caller))


async def test_the_access_log_has_the_tenant(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    server.access_log = log = Entries()
    await server.load()
    async with asyncio.TaskGroup() as tasks:
        file = AccessFile({digest(name): key_of(name, scopes) for name, scopes in KEYS.items()})
        authority, options = Authority(file, sleep=at_once), HttpSettings()
        app = Application(server, options, authority)
        site = HttpContext(server, app, tasks, asyncio.get_running_loop(), options, authority=authority)
        site.turns.seconds = math.inf
        for data in (
            infer(JSON_BODY, X_API_Key="user"),
            infer(JSON_BODY, X_API_Key="reader"),
            infer(JSON_BODY, X_API_Key="nobody"),
            request("GET", "/v2/models/stats", b"", "1.1", X_API_Key="reader"),
            request("GET", "/v2/health/live", b"", "1.1"),
        ):
            client = Client(site)
            client.send(data)
            await client.receive()
        for connection in list(site.connections):
            connection.abort()
    assert log.lines == [
        ("infer", "simple", 200, "users", "user"),
        ("POST /v2/models/simple/infer", "", 403, "readers", "reader"),
        ("POST /v2/models/simple/infer", "", 401, "", ""),
        ("GET /v2/models/stats", "", 200, "readers", "reader"),
        ("GET /v2/health/live", "", 200, "", ""),
    ]
