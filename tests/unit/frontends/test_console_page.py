"""The console over HTTP: the page, its stream of figures, and who may see them."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from puppet_server import PuppetLoader, Stage, infer, request, server_over, stage

from modserve.frontends.http.console import page
from modserve.frontends.http.rest.app import create_app
from modserve.protocol.restricted import http_restrictions
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture
async def server(tmp_path: Path) -> LocalServer:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    return server


def client_of(server: LocalServer, **options: object) -> httpx.AsyncClient:
    settings = HttpSettings(**options)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(server, settings)), base_url="http://localhost")


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as client:
        yield client


async def test_browsers_get_the_page_at_the_root_and_others_what_they_had(client: httpx.AsyncClient) -> None:
    answer = await client.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["vary"] == "Accept"
    assert (await client.get("/console")).text == answer.text
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        assert (await client.get("/", headers=headers)).json() == {"status": "alive"}


async def test_without_the_console_nobody_gets_it(server: LocalServer) -> None:
    async with client_of(server, console=False) as client:
        assert (await client.get("/", headers=BROWSER)).json() == {"status": "alive"}
        for path in ("", "/about", "/events", "/failures"):
            assert (await client.get(f"/console{path}")).status_code == 404


def test_only_the_pages_own_script_and_style_run() -> None:
    body, headers = page.page()
    for tag, directive in ((b"script", "script-src"), (b"style", "style-src")):
        (text,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in headers["Content-Security-Policy"]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup() -> None:
    text = page.page().body.decode()
    outside = [address for address in re.findall(r"https?://[^\s\"'`]+", text) if "www.w3.org/2000/svg" not in address]
    assert outside == []
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc", "on(click"):
        assert word not in text
    assert re.findall(r"\son[a-z]+=", text) == []
    assert len(text) < 100_000


async def test_what_the_page_may_do(server: LocalServer) -> None:
    restrictions = http_restrictions({"logging": ("admin-key", "secret"), "statistics": ("s", "secret")})
    async with client_of(server, restrictions=restrictions) as client:
        answer = await client.get("/console/about")
    restricted = {"logging": "admin-key", "statistics": "s"}
    assert answer.json() == {"restricted": restricted, "model_control": "none", "peers": False}
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("path", "category"), [("/console/events", "statistics"), ("/console/failures", "logging"), ("/console", "")]
)
async def test_figures_and_failures_are_restricted_as_what_they_are(tmp_path: Path, path: str, category: str) -> None:
    restrictions = http_restrictions({"logging": ("logging-key", "a"), "statistics": ("statistics-key", "b")})
    async with stage(tmp_path, None, options=HttpSettings(restrictions=restrictions)) as server:
        client = server.connect()
        client.send(request("GET", path))
        (answer,) = await client.receive()
        assert answer.status == (403 if category else 200)
        if category:
            assert json.loads(answer.body)["error"].endswith(f"expecting header '{category}-key'")


async def test_failures_are_listed(client: httpx.AsyncClient) -> None:
    for name in ("<img src=x onerror=alert(1)>", "\u202e"):
        await client.get(f"/v2/models/{name}")
    latest, other = (await client.get("/console/failures")).json()
    assert (latest["model"], other["model"]) == ("\\u202e", "<img src=x onerror=alert(1)>")
    assert (other["status"], other["count"], other["protocol"]) == ("404", 1, "HTTP")


# The stream


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, None, options=HttpSettings()) as running:
        yield running


def samplers() -> int:
    return sum(task.get_name() == "console" for task in asyncio.all_tasks())


async def until_none_runs() -> None:
    for _ in range(100):
        if not samplers():
            return
        await asyncio.sleep(0)
    raise AssertionError("the sampler runs, and nobody looks")


async def test_a_page_gets_events_until_it_goes_away(running: Stage) -> None:
    client = running.connect()
    client.send(request("GET", "/console/events"))
    transport = client.transport
    await transport.until(lambda: b"\n\n\r\n" in transport.written)
    head, _, body = bytes(transport.written).partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream" in head.lower()
    assert b"cache-control: no-store" in head.lower()
    assert b"event: whole\ndata: {" in body
    assert samplers() == 1
    transport.abort()
    await until_none_runs()


async def test_the_stream_ends_when_the_server_stops(running: Stage) -> None:
    client = running.connect()
    client.send(request("GET", "/console/events"))
    await client.transport.until(lambda: b"event: whole" in client.transport.written)
    running.server.stop_accepting()
    (answer,) = await client.receive()
    assert answer.body.endswith(b'event: end\ndata: {"reason":"the server is stopping"}\n\n')
    await until_none_runs()


async def test_a_browser_that_stands_still_blocks_nobody(running: Stage) -> None:
    slow, other = running.connect(), running.connect()
    slow.send(request("GET", "/console/events"))
    await slow.transport.until(lambda: b"event: whole" in slow.transport.written)
    slow.connection.pause_writing()
    other.send(infer())
    (answer,) = await other.receive()
    assert answer.status == 200
    slow.transport.abort()
    await until_none_runs()
