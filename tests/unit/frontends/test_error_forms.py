"""Every failure has the form that the clients of its path read."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from puppet_server import MAX_JSON, PuppetLoader, request, server_over, stage

from modserve.frontends.http import error_forms
from modserve.frontends.http.direct import MODULES
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.text.handlers import ROUTES
from modserve.protocol.restricted import http_restrictions
from modserve.settings import HttpSettings

KSERVE, OPENAI, TEI = "kserve", "openai", "tei"


def form_of(document: dict[str, Any]) -> str:
    if set(document) == {"error", "error_type"}:
        return TEI
    assert set(document) == {"error"}
    if isinstance(document["error"], str):
        return KSERVE
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return OPENAI


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    transport = httpx.ASGITransport(create_app(server, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "status", "form"),
    [
        ("GET", "/nosuch", 404, KSERVE),
        ("GET", "/v2/models/nosuch", 404, KSERVE),
        ("GET", "/v1", 404, OPENAI),
        ("GET", "/v1/", 404, OPENAI),
        ("GET", "/v1/models/", 404, OPENAI),
        ("POST", "/v1/images/generations", 404, OPENAI),
        ("POST", "/openai/v1/moderations", 404, OPENAI),
        ("GET", "/v1/chat/completions", 405, OPENAI),
        ("DELETE", "/v1/models", 405, OPENAI),
        ("GET", "/v1/models/nosuch", 404, OPENAI),
        ("GET", "/openai/v1/models/nosuch", 404, OPENAI),
        ("DELETE", "/v1/models/simple", 405, OPENAI),
        ("GET", "/v1/embeddings", 405, OPENAI),
        ("GET", "/v2/rerank", 405, OPENAI),
        ("GET", "/embed", 405, TEI),
        ("POST", "/v1/models/nosuch:predict", 404, KSERVE),
        ("GET", "/v1/models/nosuch:predict", 405, KSERVE),
        ("POST", "/v1/models/simple:explain", 501, KSERVE),
        ("GET", "/v1/models/nosuch/versions/1", 404, KSERVE),
        ("POST", "/v1/models/nosuch/versions/1:predict", 404, KSERVE),
        ("GET", "/v1/models/nosuch/labels/stable", 404, KSERVE),
        ("GET", "/v1/models/nosuch/metadata", 404, KSERVE),
    ],
)
async def test_by_path(client: httpx.AsyncClient, method: str, path: str, status: int, form: str) -> None:
    response = await client.request(method, path)
    assert (response.status_code, form_of(response.json())) == (status, form)


async def test_an_unknown_path_is_no_unknown_model(client: httpx.AsyncClient) -> None:
    path = (await client.post("/v1/images/generations")).json()["error"]
    assert path == {"message": "Not Found", "type": "invalid_request_error", "param": None, "code": None}
    model = (await client.get("/v1/models/nosuch")).json()["error"]
    assert model["message"] == "Model with name nosuch does not exist."
    assert (model["param"], model["code"]) == ("model", "model_not_found")


PATHS = sorted(path.decode() for path in MODULES)
DOCUMENTED = {path: route.dialect.body for route in ROUTES for path in route.paths}


@pytest.mark.parametrize("path", PATHS)
async def test_calls_that_the_port_runs(tmp_path: Path, path: str) -> None:
    """The form of what stops one on its way is that of its own failures."""
    form = KSERVE if "{model}" in path else TEI if DOCUMENTED.get(path) == "TextErrorAnswer" else OPENAI
    path = path.replace("{model}", "simple")
    assert form_of(json.loads(error_forms.encode_message(path, "Internal Server Error", 500))) == form
    options = HttpSettings(max_json=MAX_JSON, restrictions=http_restrictions({"inference": ("key", "open")}))
    async with stage(tmp_path, None, options=options) as on:
        client = on.connect()
        client.send(request(target=path, body=b"{}"))
        answer = (await client.receive())[0]
        assert (answer.status, form_of(json.loads(answer.body))) == (403, form)
        for _ in range(2):
            client = on.connect()
            client.send(request(target=path, body=b"x" * (2 * MAX_JSON)))
            answer = (await client.receive())[0]
            assert (answer.status, form_of(json.loads(answer.body))) == (400, form)
