"""Beside an admin port, the other ports do not know the calls of operators; it knows all."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from puppet_server import Answer, Client, PuppetLoader, infer, request, server_over
from starlette.routing import Route

from modserve.access.authority import Authority
from modserve.access.identity import KINDS, Identity, Scopes
from modserve.access.key_file import AccessFile, Key, digest
from modserve.access.permissions import need_of
from modserve.core.tenants import Tenant
from modserve.frontends.grpc.listener import GrpcListener
from modserve.frontends.http.application import Application
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.deferred import expand
from modserve.frontends.http.wire.context import HttpContext
from modserve.process.listeners import admin_settings
from modserve.protocol.restricted import ADMIN_PATHS, ADMIN_RPCS, CATEGORIES, PATH_CATEGORY, http_restrictions
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings, HttpSettings, PlatformRoutes
from modserve.settings.listen_addresses import ListenAddress

BROWSER = {"Accept": "text/html"}
UNKNOWN = {"error": "Not Found"}
SAGEMAKER = PlatformRoutes("/ping", "/invocations", "", registry="models")


def served(server: LocalServer, without_admin: bool, routes: PlatformRoutes | None = SAGEMAKER) -> set[tuple[str, str]]:
    options = HttpSettings(console=not without_admin, routes=routes)
    app = create_app(server, options, without_admin=without_admin)
    return {
        (method, route.path_format)
        for route in expand(app.router.routes)
        if isinstance(route, Route)
        for method in route.methods or ()
    }


@pytest.fixture
async def server(tmp_path: Path) -> LocalServer:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    return server


async def test_every_route_is_at_both_ports_or_at_the_admin_port(server: LocalServer) -> None:
    every, of_clients = served(server, False), served(server, True)
    assert of_clients < every
    assert {path for _, path in every} - set(PATH_CATEGORY) - ADMIN_PATHS == set()
    assert {path for _, path in every - of_clients} == ADMIN_PATHS & {path for _, path in every}
    absent = ADMIN_PATHS - {path for _, path in every}
    assert {path for path in absent if "{version}" not in path} == set()


async def test_whatever_needs_admin_or_loads_a_model_is_at_the_admin_port(server: LocalServer) -> None:
    """And what clients do is at both: shared memory is registered by those who infer with it."""
    for method, path in served(server, False):
        kind = need_of(method, path)[0].kind
        shared = "sharedmemory" in path
        assert (kind == "infer") <= (path not in ADMIN_PATHS), path
        assert (kind == "admin" or (kind == "control" and not shared)) <= (path in ADMIN_PATHS), path
        assert not (shared and path in ADMIN_PATHS), path


# What a client gets there


class Port:
    """A port without sockets, with the application that the listener gives it."""

    def __init__(self, server: LocalServer, tasks: asyncio.TaskGroup, options: HttpSettings, **more: Any) -> None:
        app = Application(server, options, **more)
        authority = more.get("authority")
        loop = asyncio.get_running_loop()
        self.site = HttpContext(server, app, tasks, loop, options, authority=authority)
        self.site.turns.seconds = math.inf

    async def ask(self, method: str, path: str, **headers: str) -> Answer:
        client = Client(self.site)
        client.send(request(method, path, b"{}" if method == "POST" else b"", **headers))
        (answer,) = await client.receive()
        return answer


@pytest.fixture
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        yield group


def comparable(answer: Answer) -> tuple[int, bytes, dict[str, str]]:
    return answer.status, answer.body, {name: text for name, text in answer.headers.items() if name != "x-request-id"}


async def alike(port: Port, method: str, path: str, **headers: str) -> None:
    there, absent = await port.ask(method, path, **headers), await port.ask(method, "/qqqqqqqq", **headers)
    assert comparable(there) == comparable(absent), (method, path)


async def test_a_client_cannot_tell_that_there_is_more(server: LocalServer, tasks: asyncio.TaskGroup) -> None:
    port = Port(server, tasks, HttpSettings(console=False), without_admin=True)
    for method, path in sorted(served(server, False, None)):
        if path in ADMIN_PATHS:
            for each in (method, "OPTIONS"):
                await alike(port, each, path.replace("{model}", "simple").replace("{version}", "1"))
    answer = await port.ask("GET", "/console")
    assert (answer.status, json.loads(answer.body)) == (404, UNKNOWN)
    assert json.loads((await port.ask("GET", "/", **BROWSER)).body) == {"status": "alive"}
    assert (await port.ask("GET", "/v2/models/simple")).status == 200


async def test_nor_by_what_restricted_calls_need(server: LocalServer, tasks: asyncio.TaskGroup) -> None:
    restrictions = http_restrictions(dict.fromkeys(CATEGORIES, ("admin-key", "open")))
    port = Port(server, tasks, HttpSettings(restrictions=restrictions, console=False), without_admin=True)
    for path in ("/v2/logging", "/v2/repository/index", "/console/events", "/docs/examples/simple"):
        await alike(port, "GET", path)
    assert (await port.ask("GET", "/v2/models/simple")).status == 403


async def test_nor_by_what_keys_need(server: LocalServer, tasks: asyncio.TaskGroup) -> None:
    scopes: dict[str, Scopes] = {"user": {"*": frozenset({"infer", "read"})}, "owner": {"*": frozenset(KINDS)}}
    keys = {digest(name): Key(Identity(name, Tenant(name), scope)) for name, scope in scopes.items()}
    authority = Authority(AccessFile(keys))
    port = Port(server, tasks, HttpSettings(console=False), without_admin=True, authority=authority)
    for key in ("user", "owner"):
        headers = {"X_API_Key": key}
        for method, path in (("POST", "/v2/logging"), ("POST", "/v2/repository/models/simple/unload")):
            assert (await port.ask(method, path, **headers)).status == 404
            await alike(port, method, path, **headers)
    for path in ("/v2/logging", "/docs", "/console"):  # some of which would be open
        await alike(port, "GET", path)
        assert (await port.ask("GET", path)).status == 401


async def test_the_admin_port_has_everything_and_metrics(server: LocalServer, tasks: asyncio.TaskGroup) -> None:
    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"1"})

    port = Port(server, tasks, HttpSettings(), metrics=metrics)
    assert (await port.ask("GET", "/metrics")).body == b"1"
    assert (await port.ask("GET", "/metrics/")).status == 404
    assert (await port.ask("POST", "/metrics")).status == 405
    assert b"<title>modserve</title>" in (await port.ask("GET", "/", **BROWSER)).body
    assert (await port.ask("GET", "/v2/trace/setting")).status == 200
    client = Client(port.site)
    client.send(infer())
    assert (await client.receive())[0].status == 200


async def test_the_page_of_metrics_is_restricted_as_statistics_are(
    server: LocalServer, tasks: asyncio.TaskGroup
) -> None:
    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1"})

    options = HttpSettings(restrictions=http_restrictions({"statistics": ("key", "open")}))
    port = Port(server, tasks, options, metrics=metrics)
    assert (await port.ask("GET", "/metrics")).status == 403
    assert (await port.ask("GET", "/metrics", key="shut")).status == 403
    assert (await port.ask("GET", "/metrics", key="open")).body == b"1"


async def test_no_other_origin_calls_the_admin_port(server: LocalServer, tasks: asyncio.TaskGroup) -> None:
    """Also one that may call the HTTP port: its page would unload models in an operator's browser."""
    friend = "https://friend.example"
    http = HttpSettings(cors_allow_origin=frozenset({friend, "*"}), allow_host=frozenset({"localhost"}))
    options = admin_settings(http, ListenAddress("admin", "unix:/run/a", 0), reuse_port=False)
    port = Port(server, tasks, options)
    unload = "/v2/repository/models/simple/unload"
    for headers in ({"Origin": friend}, {"Origin": friend, "Sec_Fetch_Site": "cross-site"}, {"Origin": "null"}):
        answer = await port.ask("POST", unload, Content_Type="text/plain", **headers)
        text = f"a page of '{headers['Origin']}' may not call the admin port"
        assert (answer.status, json.loads(answer.body)) == (403, {"error": text})
    answer = await port.ask("POST", unload, Sec_Fetch_Site="cross-site")
    assert json.loads(answer.body) == {"error": "a page of another site may not call the admin port"}
    preflight = await port.ask("OPTIONS", unload, Origin=friend, Access_Control_Request_Method="POST")
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    own = await port.ask("POST", unload, Origin="http://localhost", Sec_Fetch_Site="same-origin")
    assert (own.status, b"explicit model load / unload is not allowed" in own.body) == (503, True)


async def test_the_grpc_port_does_not_know_their_rpcs(server: LocalServer) -> None:
    names = {
        without: {
            path.rpartition("/")[2] for path in GrpcListener(server, "", 0, GrpcSettings(), without_admin=without)._rpcs
        }
        for without in (False, True)
    }
    assert names[False] - names[True] == ADMIN_RPCS
    assert {"RepositoryModelLoad", "LogSettings", "TraceSetting", "RepositoryIndex"} <= ADMIN_RPCS
