"""The pages for browsers: nothing of them comes from elsewhere, and nothing that others say is run."""

import asyncio
import base64
import hashlib
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.openapi.utils import get_openapi
from puppet_server import MAX_JSON, PuppetLoader, server_over

from modserve.frontends.http.rest import app as app_module
from modserve.frontends.http.rest.app import create_app
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture
async def server(tmp_path: Path) -> LocalServer:
    found = server_over(tmp_path, PuppetLoader())
    await found.load()
    return found


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(server, HttpSettings(max_json=MAX_JSON)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def test_the_page_needs_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", answer.text) == []
    assert set(re.findall(r'(?:src|href)="([^"]*)"', answer.text)) == {
        "data:,",
        "openapi.json",
        "console",
        "#calls",
    }


async def test_only_its_own_script_runs(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    # What models are called, and what they answer, becomes text.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=", answer.text)


async def test_it_is_no_part_of_the_protocol(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert not [path for path in paths if path.startswith("/docs")]


async def test_the_document_is_made_once_and_not_on_the_event_loops_thread(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers: list[int] = []
    made = get_openapi

    def counted(**options: Any) -> dict[str, Any]:
        makers.append(threading.get_ident())
        return made(**options)

    monkeypatch.setattr(app_module, "get_openapi", counted)
    answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(5)))
    assert len({answer.content for answer in answers}) == 1
    assert len(set(makers)) == 1
    assert threading.get_ident() not in makers
    makers.clear()
    assert (await client.get("/openapi.json")).content == answers[0].content
    assert not makers


async def test_examples_of_a_model(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs/examples/simple")
    assert answer.status_code == 200
    assert answer.json()["infer"]["inputs"][0]["name"]
    assert (await client.get("/docs/examples/nosuch")).status_code == 404


async def test_programs_of_a_model(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs/snippets/simple")
    assert answer.status_code == 200
    assert set(answer.json()) == {"curl", "python", "tritonclient"}
    assert all("INPUT0" in program for program in answer.json().values())
    assert (await client.get("/docs/snippets/nosuch")).status_code == 404


async def test_bodies_that_need_no_model_are_in_the_document(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert paths["/v2/repository/index"]["post"]["requestBody"]["content"]["application/json"]["example"] == {
        "ready": True
    }
    for path, methods in paths.items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if content is None or "example" not in content or "{" in path.replace("{model}", ""):
            continue
        answer = await client.post(path.replace("{model}", "simple"), json=content["example"])
        assert answer.status_code in (200, 501, 503), f"{path}: {answer.text}"


async def test_each_call_has_a_title_and_whole_sentences(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    calls = [call for methods in document["paths"].values() for call in methods.values()]
    assert [call["operationId"] for call in calls if call["summary"] in ("Handle", "Change", "Delete")] == []
    assert [call["operationId"] for call in calls if not call["description"].endswith(".")] == []


async def test_the_root_is_for_browsers_a_link_and_for_others_what_it_was(client: httpx.AsyncClient) -> None:
    page = await client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert '<a href="docs">' in page.text
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        assert (await client.get("/", headers=headers)).json() == {"status": "alive"}
