"""Every route, by every method, in many spellings, with keys that do not permit the call: nothing is served."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from puppet_server import Answer, Client, PuppetLoader, request, server_over
from starlette.routing import Route

from modserve.access.authority import Authority
from modserve.access.calls import Reach, need_of
from modserve.access.identity import KINDS, Identity, Scopes
from modserve.access.key_file import AccessFile, Key
from modserve.access.secret import digest
from modserve.core.tenants import Tenant
from modserve.frontends.http.application import Application
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.deferred import made
from modserve.frontends.http.wire.context import HttpContext
from modserve.observability.audit_log import AuditLog
from modserve.observability.logging import Logs
from modserve.settings import HttpSettings

KEYS: dict[str, Scopes] = {kind: {"*": frozenset({kind})} for kind in KINDS}
CALLERS = ("", "read", "infer", "control")
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

    def audited(self) -> list[tuple[str, int]]:
        assert self.audit._writer is not None
        assert self.audit._writer.flush(60)
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [(line["call"], line["status"]) for line in lines]


async def at_once(seconds: float) -> None:
    """Failures wait for nothing here."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    loader = PuppetLoader()
    server = server_over(tmp_path, loader, Logs())
    await server.load()
    routes = frozenset(
        (method, route.path_format)
        for route in made(create_app(server, HttpSettings()).router.routes)
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


@pytest.mark.parametrize("caller", CALLERS)
async def test_no_spelling_of_a_path_serves_a_call_that_the_key_does_not_permit(place: Place, caller: str) -> None:
    loaded = set(place.loader.loaded)
    refused = 0
    for method, template in sorted(place.routes):
        path = named(template)
        need, _ = need_of(method, path)
        if need.reach in (Reach.OPEN, Reach.HEALTH) or (caller in KEYS and need.kind == caller):
            continue
        if caller in KEYS and need.reach is Reach.ANY:
            continue
        for target in spellings(path):
            answer = await place.ask(method, target, caller)
            open_path = need_of(method, target.partition("?")[0].partition("#")[0])[0].reach
            if open_path in (Reach.OPEN, Reach.HEALTH):
                continue
            assert answer.status in (400, 401, 403, 404, 405), (caller, method, target, answer)
            refused += 1
    assert refused > 3000
    assert set(place.loader.loaded) == loaded
    assert all(status >= 400 for _, status in place.audited())


async def test_refusals_and_successes_have_a_line_in_the_audit_log(place: Place) -> None:
    assert (await place.ask("POST", "/v2/logging%0A", "read")).status == 400  # of no call
    assert (await place.ask("POST", "/v2/logging", "read")).status == 403
    assert (await place.ask("POST", "/v2/logging", "admin")).status == 200
    assert place.audited() == [("POST /v2/logging", 403), ("POST /v2/logging", 200)]
