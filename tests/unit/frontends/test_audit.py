"""The audit log of calls over both protocols: with keys and without, served, refused, and failed."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from puppet_server import Answer, Client, PuppetLoader, infer, request, server_over
from rpc_calls import CallTable, FakeCall

from modserve.access.authority import Authority
from modserve.access.identity import KINDS, Identity
from modserve.access.key_file import AccessFile, Key, digest
from modserve.access.permissions import PATH_NEEDS, RPC_NEEDS
from modserve.core.tenants import Tenant
from modserve.frontends.audit import RPCS, entry_of
from modserve.frontends.grpc.audit import RpcAudit
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.guard import RpcGuard
from modserve.frontends.grpc.service import rpc_table
from modserve.frontends.http.application import Application
from modserve.frontends.http.wire.context import HttpContext
from modserve.observability.audit_log import AuditLog
from modserve.observability.logging import Logs
from modserve.pb import inference as pb
from modserve.server.scoped import ScopedServer
from modserve.settings import GrpcSettings, HttpSettings

KEYS = {
    "ops": Key(Identity("ops", Tenant("platform"), {"*": frozenset(KINDS)})),
    "user": Key(Identity("user", Tenant("team-a"), {"*": frozenset({"infer", "read"})})),
}


async def at_once(seconds: float) -> None:
    """Failures wait for nothing here."""


class Place(NamedTuple):
    site: HttpContext
    table: CallTable
    audit: AuditLog
    file: Path

    async def ask(self, method: str, target: str, key: str = "", body: bytes = b"") -> Answer:
        client = Client(self.site)
        client.send(request(method, target, body, "1.1", **({"X_API_Key": key} if key else {})))
        (answer,) = await client.receive()
        return answer

    async def call(self, rpc: str, key: str = "", message: Any = None) -> FakeCall:
        call = FakeCall(
            b"" if message is None else message.SerializeToString(), metadata=[("x-api-key", key)] * bool(key)
        )
        await asyncio.create_task(self.table.serve(f"/{pb.SERVICE}/{rpc}", call))
        return call

    def lines(self) -> list[dict[str, Any]]:
        """Those so far, without what differs from run to run."""
        assert self.audit._writer is not None
        assert self.audit._writer.flush(60)
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        for line in lines:
            assert line.pop("time")
            line.pop("client", None)
            line.pop("request_id", None)
            line.pop("error", None)
        return lines


async def place_of(tmp_path: Path, authority: Authority | None) -> AsyncIterator[Place]:
    server = server_over(tmp_path, PuppetLoader(), Logs())
    await server.load()
    audit, options = AuditLog(str(tmp_path / "audit")), HttpSettings()
    async with asyncio.TaskGroup() as tasks:
        app = Application(server, options, authority, audit)
        site = HttpContext(server, app, tasks, asyncio.get_running_loop(), options, authority=authority)
        site.turns.seconds = math.inf
        guard = None if authority is None else RpcGuard(authority)
        dispatcher = Dispatcher(server, guard=guard, audit=RpcAudit(audit))
        scoped = server if authority is None else ScopedServer(server)
        table = CallTable(dispatcher, rpc_table(scoped, GrpcSettings(), dispatcher.inflater))
        yield Place(site, table, audit, tmp_path / "audit")
        for connection in list(site.connections):
            connection.abort()
    audit.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    keys = AccessFile({digest(name): key for name, key in KEYS.items()})
    async for each in place_of(tmp_path, Authority(keys, sleep=at_once)):
        yield each


@pytest.fixture
async def open_place(tmp_path: Path) -> AsyncIterator[Place]:
    async for each in place_of(tmp_path, None):
        yield each


OPS = {"caller": "ops", "origin": "key", "tenant": "platform"}
USER = {"caller": "user", "origin": "key", "tenant": "team-a"}


async def test_changes_over_http(place: Place) -> None:
    verbose = b'{"log_verbose_level": 1}'
    await place.ask("POST", "/v2/logging", "ops", verbose)
    await place.ask("POST", "/v2/logging", "user", verbose)
    await place.ask("POST", "/v2/logging", "", verbose)
    await place.ask("POST", "/v2/logging", "wrong-key", verbose)
    await place.ask("POST", "/v2/logging", "ops", b"{")
    await place.ask("POST", "/v2/repository/models/none/load", "ops", b'{"parameters": {"config": "{}"}}')
    region = await place.ask("POST", "/v2/systemsharedmemory/region/r1/unregister", "ops")
    logging = {"protocol": "HTTP", "call": "POST /v2/logging"}
    change = {"change": {"log_verbose_level": 1}}
    load = {"protocol": "HTTP", "call": "POST /v2/repository/models/none/load", "model": "none"}
    unregister = {"protocol": "HTTP", "call": "POST /v2/systemsharedmemory/region/r1/unregister", "region": "r1"}
    *first, loading, unregistering = place.lines()
    assert first == [
        {**logging, **OPS, **change, "status": 200},
        {**logging, **USER, "status": 403},  # its request was not read
        {**logging, "status": 401},
        {**logging, "status": 401},
        {**logging, **OPS, "status": 400},
    ]
    assert loading.pop("status") >= 400
    assert loading == {**load, **OPS}
    assert unregistering == {**unregister, **OPS, "status": region.status}


async def test_changes_over_grpc(place: Place) -> None:
    settings = pb.LogSettingsRequest()
    settings.settings["log_verbose_level"].uint32_param = 1
    await place.call("LogSettings", "ops", settings)
    await place.call("LogSettings", "ops")  # reads
    await place.call("LogSettings", "user", settings)
    await place.call("LogSettings", "", settings)
    await place.call("RepositoryModelLoad", "wrong-key", pb.RepositoryModelLoadRequest(model_name="simple"))
    unload = await place.call("RepositoryModelUnload", "ops", pb.RepositoryModelUnloadRequest(model_name="none"))
    region = await place.call("SystemSharedMemoryUnregister", "ops", pb.SystemSharedMemoryUnregisterRequest(name="r1"))
    await place.call("SystemSharedMemoryStatus", "ops")
    assert unload.code is not None
    assert region.code is not None
    logging = {"protocol": "gRPC", "call": "LogSettings"}
    assert place.lines() == [
        {**logging, **OPS, "change": {"log_verbose_level": {"uint32_param": 1}}, "status": "OK"},
        {**logging, **USER, "status": "PERMISSION_DENIED"},
        {**logging, "status": "UNAUTHENTICATED"},
        {"protocol": "gRPC", "call": "RepositoryModelLoad", "status": "UNAUTHENTICATED"},
        {"protocol": "gRPC", "call": "RepositoryModelUnload", **OPS, "model": "none", "status": unload.code.name},
        {"protocol": "gRPC", "call": "SystemSharedMemoryUnregister", **OPS, "region": "r1", "status": region.code.name},
    ]


async def test_who_it_was_and_why_it_failed(place: Place) -> None:
    await place.ask("POST", "/v2/logging", "user", b"{}")
    await place.call("LogSettings", "user")
    place.lines()
    over_http, over_grpc = (json.loads(line) for line in place.file.read_text().splitlines())
    for line in (over_http, over_grpc):
        assert line["error"] == "this call needs the scope 'admin' for all models, which the key 'user' does not have"
        assert line["request_id"]
    assert over_grpc["client"] == "192.0.2.1:1234"


async def test_calls_that_change_nothing(place: Place) -> None:
    for target in ("/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/models/stats"):
        assert (await place.ask("GET", target, "ops")).status == 200
    await place.ask("POST", "/v2/repository/index", "ops")
    await place.ask("OPTIONS", "/v2/logging")
    client = Client(place.site)
    client.send(infer(X_API_Key="user"))
    await client.receive()
    await place.call("TraceSetting", "ops", pb.TraceSettingRequest())
    assert place.lines() == []


async def test_a_server_without_keys(open_place: Place) -> None:
    await open_place.ask("POST", "/v2/trace/setting", "", b'{"trace_rate": "7"}')
    call = await open_place.call("TraceSetting", "", _trace("8"))
    assert call.code in (None, grpc.StatusCode.OK)
    over_http, over_grpc = open_place.lines()
    assert over_http == {
        "protocol": "HTTP",
        "call": "POST /v2/trace/setting",
        "change": {"trace_rate": "7"},
        "status": 200,
    }
    change = {"trace_rate": {"value": ["8"]}}
    assert over_grpc == {"protocol": "gRPC", "call": "TraceSetting", "change": change, "status": "OK"}


def _trace(rate: str) -> Any:
    message = pb.TraceSettingRequest()
    message.settings["trace_rate"].value.append(rate)
    return message


def test_every_path_and_rpc_that_changes_something_is_audited() -> None:
    """The log has all calls of the kinds `control` and `admin`, but for those that only read."""
    changing = {path for path, need in PATH_NEEDS.items() if need.of("POST").kind in ("control", "admin")}
    audited = {path for path in PATH_NEEDS if entry_of("POST", path) is not None}
    assert {path for path in changing - audited if not path.endswith("/status")} == set()
    assert audited <= changing
    assert {path for path in PATH_NEEDS if entry_of("GET", path)} == {
        path for path in audited if path.endswith(("load", "register"))
    }
    assert {rpc for rpc, need in RPC_NEEDS.items() if need.kind in ("control", "admin")} - RPCS == {
        "SystemSharedMemoryStatus",
        "CudaSharedMemoryStatus",
    }
    assert entry_of("POST", "/v2/models/m/routing") is not None
