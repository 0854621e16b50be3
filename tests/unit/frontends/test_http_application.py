"""The application that is made at its first use, and the probes that are answered before that."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from puppet_server import PuppetLoader, server_over

from modserve.core.configuration.log_settings import AccessMode, AccessSettings
from modserve.core.errors import invalid
from modserve.core.version import ModelId
from modserve.frontends.http.application import Application
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.streams import Streams
from modserve.observability.access_log import AccessLog
from modserve.protocol.restricted import Restriction
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings

LIVE, READY = "/v2/health/live", "/v2/health/ready"
GONE = {"x-request-id", "date"}


@pytest.fixture
def loader() -> PuppetLoader:
    return PuppetLoader()


@pytest.fixture
def server(tmp_path: Path, loader: PuppetLoader) -> LocalServer:
    return server_over(tmp_path, loader)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is imported for the application."""
    names: list[str] = []
    import_module = importlib.import_module

    def counted(name: str) -> Any:
        names.append(name)
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", counted)
    return names


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def get(app: Any, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> httpx.Response:
    async with client(app) as http:
        return await http.request(method, path, headers=headers)


@pytest.mark.parametrize("phase", ["starting", "failed", "running", "leaving"])
@pytest.mark.parametrize("path", [LIVE, READY])
async def test_a_probe_is_answered_as_by_the_application(
    server: LocalServer, loader: PuppetLoader, imports: list[str], phase: str, path: str
) -> None:
    if phase == "failed":
        loader.failures[ModelId("simple", 3)] = invalid("no such file")
    if phase != "starting":
        await server.load()
    if phase == "leaving":
        server.stop_accepting()
    early = await get(Application(server, HttpSettings()), path)
    assert not any(name.startswith("modserve") for name in imports)
    late = await get(create_app(server, HttpSettings()), path)
    assert (early.status_code, early.content) == (late.status_code, late.content)
    assert early.status_code == {"starting": 400, "failed": 400, "running": 200, "leaving": 503}[phase] or path == LIVE
    assert {name: value for name, value in early.headers.items() if name not in GONE} == {
        name: value for name, value in late.headers.items() if name not in GONE
    }
    assert ("x-request-id" in early.headers) == ("x-request-id" in late.headers) == (early.status_code >= 400)


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [("/v2", "GET", {}), (READY, "HEAD", {}), (READY, "OPTIONS", {}), (LIVE, "GET", {"X-Request-ID": "mine"})],
)
async def test_everything_else_makes_the_application(
    server: LocalServer, imports: list[str], path: str, method: str, headers: dict[str, str]
) -> None:
    await server.load()
    app = Application(server, HttpSettings())
    response = await get(app, path, method, headers)
    assert response.status_code == 200
    assert response.headers.get("x-request-id", "") == headers.get("X-Request-ID", "")
    assert "modserve.frontends.http.rest.app" in imports
    imports.clear()
    assert (await get(app, path, method, headers)).content == response.content
    assert imports == []


async def test_a_probe_of_restricted_calls_is_refused(server: LocalServer) -> None:
    options = HttpSettings(restrictions={"health": Restriction("key", "secret", "protocol")})
    assert (await get(Application(server, options), LIVE)).status_code == 403


async def test_a_probe_is_logged_where_all_calls_are(server: LocalServer) -> None:
    server.access_log = log = AccessLog(AccessSettings(AccessMode.ALL), start=False)
    await get(Application(server, HttpSettings()), LIVE)
    assert repr(log) == "AccessLog(1 lines wait, 0 were left out)"


async def test_requests_that_come_together_share_one_application(
    server: LocalServer, imports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application(server, HttpSettings())
    responses = await asyncio.gather(*(get(app, "/v2") for _ in range(5)))
    assert [response.status_code for response in responses] == [200] * 5
    assert imports.count("modserve.frontends.http.rest.app") == 1


async def test_an_import_that_fails_is_tried_again(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Application(server, HttpSettings())

    def fail(name: str) -> Any:
        raise ImportError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", fail)
        with pytest.raises(ImportError):
            await get(app, "/v2")
    assert (await get(app, "/v2")).status_code == 200


async def test_open_streams_end_with_the_port(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Application(server, HttpSettings())
    stops: list[Streams] = []
    monkeypatch.setattr(Streams, "stop", lambda streams: stops.append(streams))
    await get(app, "/v2")
    app.stop_streams()
    assert stops == [app.direct.streams]
