"""Every route, by every method, in many spellings, with every kind of key: only what a key permits is served.

The routes are those of the application itself. Each call of the walk that changes something has its line in the audit
log, refused or served.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest
from puppet_server import Answer, Client, PuppetLoader, request, server_over, stage
from starlette.routing import Route

from modserve.access.authority import Authority
from modserve.access.identity import KINDS, Identity, Scopes
from modserve.access.key_file import AccessFile, Key, digest
from modserve.access.permissions import PATH_NEEDS, CallScope, need_of
from modserve.core.tenants import Tenant
from modserve.frontends.grpc import heads
from modserve.frontends.grpc.heads import GrpcHead
from modserve.frontends.grpc.load_reports import LoadReports
from modserve.frontends.grpc.message_inflater import MessageInflater
from modserve.frontends.grpc.rpc import Rpc
from modserve.frontends.grpc.service import rpc_table
from modserve.frontends.http.application import Application
from modserve.frontends.http.mounted import MountedApp
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.deferred import expand
from modserve.frontends.http.wire.context import AsgiApp, HttpContext, Message
from modserve.frontends.http2.fields import HeaderField
from modserve.observability.audit_log import AuditLog
from modserve.observability.logging import Logs
from modserve.protocol.restricted import ADMIN_PATHS, CATEGORIES, DRAIN, OPEN_PATHS, http_restrictions
from modserve.settings import GrpcSettings, HttpSettings, PlatformRoutes

KEYS: dict[str, Scopes] = {
    **{kind: {"*": frozenset({kind})} for kind in KINDS},
    "everything of another model": {"other": frozenset(KINDS)},
}
CALLERS = ("", *KEYS)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")
ENDS = (
    *("", "%0A", "%0a", "%0D", "%0D%0A", "%00", "%09", "%0B", "%1F", "%7F", "%20", "%0A%0A", "%2e", "%2E%2E", "%5C"),
    *("/", "//", "%2F", "%2f", "/.", "/..", "/%2e", "/%2e%2e", "/%2e%2e/", ".", "..", ";", ";x=1", ";/", "?", "?a=/b"),
    *("?%0A", "#", "%23", "%3F", "%3f", "*", "%25", "%250A", "%C0%8A", "%E2%80%A8", "%C2%85", "%ff", "~", "%", "%zz"),
)
"""What follows a path."""


def spellings(path: str) -> Iterator[str]:
    """Other ways to write a path, or one that a careless reader could take for it."""
    yield from (path + end for end in ENDS)
    yield from (f"http://localhost{path}", f"HTTP://user@localhost{path}%0A", f"/{path}", f"/.{path}", f"/x/..{path}")
    yield from (f"/%2e{path}", f"/%2e%2e{path}", f"/%0A{path}", path.upper(), path.title(), path[:-1])
    first, _, rest = path[1:].partition("/")
    yield from (
        f"/{first}//{rest}",
        f"/{first}/./{rest}",
        f"/{first}%2F{rest}",
        f"/{first}\\{rest}",
        f"/{first};/{rest}",
    )
    head, last = path[:-1], path[-1:]
    yield from (
        f"{head}%{ord(last or '/'):02x}",
        f"{head}%0A{last}",
        f"{head}%00{last}",
        f"/%{ord(path[1:2] or 'x'):02X}{path[2:]}",
    )


class Place(NamedTuple):
    site: HttpContext
    loader: PuppetLoader
    audit: AuditLog
    file: Path
    routes: frozenset[tuple[str, str]]

    async def ask(self, method: str, target: str, key: str) -> Answer:
        client = Client(self.site)
        client.send(request(method, target, b"{}", "1.1", **({"X_API_Key": key} if key else {})))
        return (await client.receive())[0]

    def lines(self) -> list[dict[str, Any]]:
        assert self.audit._writer is not None
        assert self.audit._writer.flush(60)
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def audited(self) -> list[tuple[str, int]]:
        return [(line["call"], line["status"]) for line in self.lines()]


async def at_once(seconds: float) -> None:
    """Failures wait for nothing here."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    loader = PuppetLoader()
    server = server_over(tmp_path, loader, Logs())
    await server.load()
    routes = frozenset(
        (method, route.path_format)
        for route in expand(create_app(server, HttpSettings()).router.routes)
        if isinstance(route, Route)
        for method in route.methods or ()
    )
    keys = AccessFile({digest(name): Key(Identity(name, Tenant(name), scopes)) for name, scopes in KEYS.items()})
    authority, options = Authority(keys, sleep=at_once), HttpSettings()
    audit = AuditLog(str(tmp_path / "audit"))
    async with asyncio.TaskGroup() as tasks:
        app = Application(server, options, authority, audit)
        site = HttpContext(server, app, tasks, asyncio.get_running_loop(), options, authority=authority)
        site.turns.seconds = math.inf
        yield Place(site, loader, audit, tmp_path / "audit", routes)
        for connection in list(site.connections):
            connection.abort()
    audit.close()


NAMES = {"{model}": "simple", "{version}": "3", "{label}": "stable", "{region}": "r", "{repository}": "main"}


def named(template: str) -> str:
    for name, value in NAMES.items():
        template = template.replace(name, value)
    return template


def permitted(method: str, path: str, caller: str) -> bool:
    """Whether the table gives the caller a call, or anybody."""
    need, model = need_of("GET" if method == "HEAD" else method, path)
    if need.reach in (CallScope.OPEN, CallScope.HEALTH):
        return True
    if need.reach is CallScope.ANY:
        return bool(caller)
    if caller in KINDS:
        return need.kind == caller
    return bool(caller) and not model and need.reach in (CallScope.MODEL, CallScope.LIST)


@pytest.mark.parametrize("caller", CALLERS)
async def test_no_spelling_of_a_path_serves_a_call_that_the_key_does_not_permit(place: Place, caller: str) -> None:
    loaded = set(place.loader.loaded)
    refused = 0
    for method, template in sorted(place.routes):
        path = named(template)
        if permitted(method, path, caller):
            continue
        for target in spellings(path):
            answer = await place.ask(method, target, caller)
            reach = need_of(method, target.partition("?")[0].partition("#")[0])[0].reach
            if reach in (CallScope.OPEN, CallScope.HEALTH):
                continue
            assert answer.status in (400, 401, 403, 404, 405), (caller, method, target, answer)
            refused += 1
    assert refused > 3000
    assert set(place.loader.loaded) == loaded
    assert all(status >= 400 for _, status in place.audited())


NOT_CALLED = (DRAIN, "/console/events", "/console/peers")
"""What ends the server, and streams without an end."""


@pytest.mark.parametrize("caller", CALLERS)
async def test_every_method_of_every_path_is_served_or_refused_as_the_table_says(place: Place, caller: str) -> None:
    expected = []
    for template in sorted({template for _, template in place.routes} - set(NOT_CALLED)):
        path = named(template)
        for method in METHODS:
            status = await status_of(place.site.app, method, path, caller)
            exists = ("GET" if method == "HEAD" else method, template) in place.routes
            if not permitted(method, path, caller):
                hidden = caller in KEYS and caller not in KINDS  # what it may not see is not there
                assert status in ((403, 404) if hidden else (403 if caller else 401,)), (method, path, status)
            elif exists:
                assert status not in (401, 403, 405, 500), (method, path, status)
            else:
                assert status == 405, (method, path, status)
            changes = need_of(method, path)[0].kind in ("control", "admin") and (
                method not in ("GET", "HEAD") or path.rpartition("/")[2] in ("load", "unload", "register", "unregister")
            )
            if changes and not path.endswith("/status"):
                expected.append((f"{method} {path}", status))
    expected.append(("POST /v2/logging", await status_of(place.site.app, "POST", "/v2/logging", "admin")))
    left_out = sum(line.get("left_out", 0) for line in place.lines())
    if caller:
        assert (place.audited(), left_out) == (expected, 0)
    else:  # of those whom nobody knows, only some a second get lines
        assert len(place.audited()) + left_out == len(expected)
        assert set(place.audited()) <= set(expected)
    assert {status // 100 for _, status in expected} >= ({2, 4} if caller in ("control", "admin") else {4})


async def test_every_need_is_that_of_a_route(place: Place) -> None:
    """A route whose template is not in the table runs for nobody."""
    assert {template for _, template in place.routes} <= set(PATH_NEEDS)


SUFFIXES = ("\n", "\r", "\x00", "\t", " ", "/", "//", ";x", "/.", "/..", "\\", "\u2028", "\x85", "?", "#", "%0A")


async def status_of(app: AsgiApp, method: str, path: str, key: str = "") -> int:
    """Of a request that comes by no port of ours."""
    statuses: list[int] = []
    over = asyncio.Event()

    async def receive() -> Message:
        if over.is_set():
            await asyncio.Event().wait()  # the client stays
        over.set()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"x-api-key", key.encode())] if key else []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "scheme": "http",
    }
    extra = {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": ""}
    await app({**scope, **extra}, receive, send)
    (status,) = statuses
    return status


@pytest.mark.parametrize("caller", ["", "read", "control", "admin"])
async def test_without_the_ports_check_a_route_runs_only_for_its_own_path(place: Place, caller: str) -> None:
    """Whatever a path that only the framework takes for a route's: nobody was checked for it, so it does not run."""
    restrictions = http_restrictions(dict.fromkeys(CATEGORIES, ("opener", "open")))
    restricted = create_app(place.site.server, HttpSettings(restrictions=restrictions))
    loaded = set(place.loader.loaded)
    for method, template in sorted(place.routes):
        if template in OPEN_PATHS:
            continue
        for suffix in SUFFIXES:
            path = named(template) + suffix
            if need_of(method, path)[0].reach is not CallScope.ANY:
                continue  # a name may have this character
            assert await status_of(place.site.app, method, path, caller) in (401, 403, 404, 405, 500), (method, path)
            assert await status_of(restricted, method, path) in (404, 405, 500), (method, path)
    assert set(place.loader.loaded) == loaded


@pytest.mark.parametrize("raw", [True, False])
async def test_the_same_inside_another_application(place: Place, raw: bool) -> None:
    """Some servers of other applications give the path as it was sent, some only decoded."""
    app = MountedApp(place.site.app, place.site.server)

    async def with_path(scope: Message, receive: Any, send: Any) -> None:
        sent = scope["path"]
        more = {"raw_path": b"/mount" + sent.encode()} if raw else {}
        await app({**scope, "path": "/mount" + unquote(sent), "root_path": "/mount", **more}, receive, send)

    loaded = set(place.loader.loaded)
    assert await status_of(with_path, "GET", "/v2/logging", "admin") == 200
    for method, template in sorted(place.routes):
        path = named(template)
        for end in ("%0A", "%0D", "%00", "/..", "/%2e%2e", "%5C", "x%3F%0A", "%7F"):
            assert await status_of(with_path, method, path + end, "read") == 400, (method, path, end)
    assert set(place.loader.loaded) == loaded


async def test_a_name_may_have_all_that_separates_nothing(place: Place) -> None:
    for name in ("m.v1", "a b", "%20", "modèle", "...", "..x", ".x", "a:b", "a;b", "a/b", "{model}", "%0A"):
        answer = await place.ask("GET", f"/v2/models/{quote(name, safe='')}", "read")
        assert (answer.status, json.loads(answer.body)) == (
            404,
            {"error": f"Request for unknown model: '{name}' is not found"},
        ), name


async def test_the_admin_ports_calls_are_nobodys_elsewhere(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader(), Logs())
    await server.load()
    routes = [route for route in expand(create_app(server, HttpSettings()).router.routes) if isinstance(route, Route)]
    keys = AccessFile({digest("all"): Key(Identity("all", Tenant("all"), {"*": frozenset(KINDS)}))})
    app = Application(server, HttpSettings(console=False), Authority(keys, sleep=at_once), without_admin=True)
    for route in routes:
        if route.path_format in ADMIN_PATHS:
            for suffix in ("", *SUFFIXES):
                path = named(route.path_format) + suffix
                for method in route.methods or ():
                    known = need_of(method, path, ADMIN_PATHS)[0].reach is not CallScope.ANY
                    assert await status_of(app, method, path, "all") in ((404, 405) if known else (404,)), path


async def test_a_platforms_redirection_leads_nowhere_else(tmp_path: Path) -> None:
    """It names the call in a header, which is read as a path is."""
    routes = PlatformRoutes("/health", "/predict/it", "application/x-", instances=True, redirect_header="x-to")
    async with stage(tmp_path, None, options=HttpSettings(routes=routes)) as opened:
        for end in ("%0A", "/..", "/%2e", "%5C", "%00"):
            client = opened.connect()
            client.send(request(target="/predict/it", body=b"{}", X_To=f"v2/repository/models/simple/unload{end}"))
            assert [answer.status for answer in await client.receive()] == [400]
        assert "simple" in opened.server.model_names()


RPC_SPELLINGS = ("/", "%0A", "%00", "?", "#", ".", " ", "//", "%2F", ";")


def test_rpcs_are_those_of_their_exact_paths(tmp_path: Path) -> None:
    server, options = server_over(tmp_path, PuppetLoader()), GrpcSettings()
    rpcs = rpc_table(server, options, MessageInflater(server.memory, 0, options.limits), reports=LoadReports(server))
    for path in rpcs:
        _, service, name = path.split("/")
        others = [f"/{service}//{name}", f"//{service}/{name}", f"/{service}/./{name}", f"{service}/{name}", name]
        others += [path.lower(), path.upper(), path[:-1], f"/x{path}", f"/x/..{path}", f"http://localhost{path}"]
        others += [path.replace("a", "%61"), path.replace("/", "%2F"), path.replace("/", "\\")]
        for other in {*others, *(path + end for end in RPC_SPELLINGS)} - {path}:
            assert head_of(other, rpcs).rpc is None, other
        assert head_of(path, rpcs).rpc is rpcs[path]


def head_of(path: str, rpcs: Mapping[str, Rpc]) -> GrpcHead:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"localhost")]
    fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    return GrpcHead([HeaderField(heads.NAMES.name(name), value) for name, value in fields], 0, rpcs, (), 1 << 20)


async def test_refusals_and_successes_have_a_line_in_the_audit_log(place: Place) -> None:
    assert (await place.ask("POST", "/v2/logging%0A", "read")).status == 400  # of no call
    assert (await place.ask("POST", "/v2/logging", "read")).status == 403
    assert (await place.ask("POST", "/v2/logging", "admin")).status == 200
    assert place.audited() == [("POST /v2/logging", 403), ("POST /v2/logging", 200)]
