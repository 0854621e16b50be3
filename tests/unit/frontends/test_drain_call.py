"""The call that drains a server: who may make it, and what it responds."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from puppet_server import PuppetLoader, server_over
from test_rest import client_of

from modserve.core.runtime import unix_socket
from modserve.frontends.http.application import Application
from modserve.frontends.http.local_clients import is_local
from modserve.frontends.http.rest.app import create_app
from modserve.protocol.restricted import http_restrictions
from modserve.server import DrainPhase, Phase
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings

DRAIN = "/v2/health/drain"


async def loaded(tmp_path: Path) -> LocalServer:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    return server


async def post(app: FastAPI | Application, address: str, headers: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(app, client=(address, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(DRAIN, headers=headers or {})


async def test_it_responds_when_the_server_is_drained(tmp_path: Path) -> None:
    server = await loaded(tmp_path)
    app = create_app(server, HttpSettings())
    response = await post(app, "127.0.0.1")
    assert response.status_code == 200
    body = response.json()
    assert (body["drained"], body["in_flight"]) == (True, {})
    assert server.drain_phase is DrainPhase.DRAINED
    assert server.phase is Phase.STOPPING
    async with client_of(app) as client:
        ready = await client.get("/v2/health/ready")
        infer = await client.post("/v2/models/simple/infer", content=b"{}")
    assert (ready.status_code, ready.json()) == (503, {"error": "Server exiting", "phase": "drained"})
    assert (infer.status_code, infer.json()) == (503, {"error": "Server not ready"})
    again = await post(app, "::1")
    assert again.json() == body


async def test_a_client_here_needs_no_framework(tmp_path: Path) -> None:
    server = await loaded(tmp_path)
    app = Application(server, HttpSettings())
    assert (await post(app, "10.0.0.7")).status_code == 403
    assert server.ready
    server = await loaded(tmp_path / "second")
    app = Application(server, HttpSettings())
    response = await post(app, "127.0.0.1")
    assert (response.status_code, response.json()["drained"]) == (200, True)
    assert app._app is None


async def test_beside_an_admin_port_there_is_no_such_call(tmp_path: Path) -> None:
    """Not even as the first one, before the framework is there."""
    server = await loaded(tmp_path)
    app = Application(server, HttpSettings(), without_admin=True)
    assert ((await post(app, "127.0.0.1")).status_code, server.ready) == (404, True)


@pytest.mark.parametrize(
    ("address", "headers"),
    [("10.0.0.7", {}), ("127.0.0.1", {"X-Forwarded-For": "10.0.0.7"}), ("127.0.0.1", {"Via": "1.1 proxy"})],
)
async def test_strangers_may_not(tmp_path: Path, address: str, headers: dict[str, str]) -> None:
    server = await loaded(tmp_path)
    response = await post(create_app(server, HttpSettings()), address, headers)
    assert response.status_code == 403
    assert response.json()["error"].startswith("without keys, only a client on the server's own machine may drain it")
    assert server.drain_phase is DrainPhase.SERVING
    assert server.ready


async def test_whoever_has_the_secret_of_the_group_may(tmp_path: Path) -> None:
    server = await loaded(tmp_path)
    restrictions = http_restrictions({"model-repository": ("secret", "s")})
    app = create_app(server, HttpSettings(restrictions=restrictions))
    assert (await post(app, "127.0.0.1")).status_code == 403
    assert server.ready
    assert (await post(app, "10.0.0.7", {"secret": "s"})).json()["drained"]


async def test_whoever_the_authority_lets_pass_may(tmp_path: Path) -> None:
    """The keys' table is `access.calls`, before the application."""
    from modserve.access.authority import AccessControl

    server = await loaded(tmp_path)
    authority = AccessControl("", "k" * 32, False).authority
    assert (await post(create_app(server, HttpSettings(), None, authority), "10.0.0.7")).json()["drained"]


@pytest.mark.parametrize(
    ("address", "local"),
    [
        (None, True),
        (unix_socket.PEER, True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.7", False),
        ("fe80::1%eth0", False),
        ("10.0.0.7", False),
        ("testclient", False),
    ],
)
def test_addresses_of_this_machine(address: str | None, local: bool) -> None:
    assert is_local(address, ()) is local


@pytest.mark.parametrize("name", ["Forwarded", "via", "x-forwarded-proto", "X-Real-IP", "x-envoy-internal"])
def test_what_a_proxy_adds(name: str) -> None:
    assert not is_local("127.0.0.1", ["host", name])
