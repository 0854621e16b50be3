"""The REST surface, through the application without a socket."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from puppet_server import JSON_ANSWER, JSON_BODY, MAX_JSON, PuppetLoader, server_over

from modserve.__about__ import __version__
from modserve.core.errors import internal, invalid
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.server import Phase
from modserve.settings import HttpSettings


@contextlib.asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """Over a loaded server. No test changes it: making one takes a while."""
    server = server_over(tmp_path_factory.mktemp("repository"), PuppetLoader())
    asyncio.run(server.load())
    return create_app(server, HttpSettings(max_json=MAX_JSON))


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as found:
        yield found


INT32_2 = {"datatype": "INT32", "shape": [-1, 2]}
METADATA = {
    "name": "simple",
    "versions": ["1", "3"],
    "platform": "identity",
    "inputs": [{"name": "INPUT0", **INT32_2}, {"name": "INPUT1", **INT32_2}],
    "outputs": [{"name": "OUTPUT0", **INT32_2}, {"name": "OUTPUT1", **INT32_2}],
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models", {"models": ["echo", "simple"]}),
        ("/v2/models/simple", METADATA),
        ("/v2/models/simple/versions/1", {**METADATA, "versions": ["1"]}),
        ("/v2/models/%73imple", METADATA),
        ("/v2/models/simple/ready", {"name": "simple", "ready": True}),
        ("/v2/models/simple/versions/3/ready", {"name": "simple", "ready": True}),
    ],
)
async def test_what_there_is(client: httpx.AsyncClient, path: str, expected: object) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == expected


async def test_server_metadata(client: httpx.AsyncClient) -> None:
    found = (await client.get("/v2")).json()
    assert (found["name"], found["version"]) == ("modserve", __version__)
    assert {"binary_tensor_data", "statistics", "model_configuration", "schedule_policy"} <= set(found["extensions"])


@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_the_configuration(client: httpx.AsyncClient, version: str) -> None:
    found = (await client.get(f"/v2/models/simple{version}/config")).json()
    assert (found["name"], found["max_batch_size"], found["runtime"]) == ("simple", 0, "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/models/stats", [("echo", "1"), ("simple", "1"), ("simple", "3")]),
        ("/v2/models/simple/stats", [("simple", "1"), ("simple", "3")]),
        ("/v2/models/simple/versions/3/stats", [("simple", "3")]),
    ],
)
async def test_statistics(client: httpx.AsyncClient, path: str, expected: list[tuple[str, str]]) -> None:
    found = (await client.get(path)).json()["model_stats"]
    assert [(model["name"], model["version"]) for model in found] == expected


@pytest.mark.parametrize(("path", "version"), [("/v2/models/simple", "3"), ("/v2/models/simple/versions/1", "1")])
async def test_batches_of_a_model_that_has_not_run(client: httpx.AsyncClient, path: str, version: str) -> None:
    answer = await client.get(path + "/batches")
    assert answer.status_code == 200
    assert answer.json() == {"name": "simple", "version": version, "close_reasons": {}, "recent": []}


@pytest.mark.parametrize("path", ["/v2/models/simple/infer", "/v2/models/simple/versions/3/infer"])
async def test_inference(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, content=JSON_BODY)
    assert (answer.status_code, answer.content) == (200, JSON_ANSWER)


NOT_FOUND = "Request for unknown model: 'nosuch' is not found"
NO_VERSION = "Request for unknown model: 'simple' version 2 is not found"


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v2/models/nosuch", 404, NOT_FOUND),
        ("/v2/models/nosuch/ready", 404, NOT_FOUND),
        ("/v2/models/nosuch/config", 404, NOT_FOUND),
        ("/v2/models/nosuch/stats", 400, "requested model 'nosuch' is not available"),
        ("/v2/models/simple/versions/2", 404, NO_VERSION),
        ("/v2/models/simple/versions/2/ready", 404, NO_VERSION),
        ("/v2/models/simple/versions/2/config", 404, NO_VERSION),
        ("/v2/models/simple/versions/2/stats", 400, "requested model version is not available for model 'simple'"),
    ],
)
async def test_what_there_is_not(client: httpx.AsyncClient, path: str, status: int, message: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.content) == (
        status,
        json.dumps({"error": message}, separators=(",", ":")).encode(),
    )


@pytest.mark.parametrize(
    "path",
    [
        "/v2/",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/simple/",
        "/v2/models/simple/nosuch",
        "/v2/models/simple/versions/x",
        "/v2/models/simple/versions/-1",
        "/v2/models/simple/versions",
    ],
)
async def test_paths_that_are_none(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    hint = f"; did you mean '{path[:-1]}'?" if path.startswith("/v2") and path.endswith("/") else ""
    assert (answer.status_code, answer.json()) == (404, {"error": f"Not Found{hint}"})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/simple/infer", "POST, OPTIONS"),
        ("HEAD", "/v2/models/simple/infer", "POST, OPTIONS"),
        ("POST", "/v2", "GET, HEAD, OPTIONS"),
        ("POST", "/v2/health/live", "GET, HEAD, OPTIONS"),
        ("POST", "/v2/models/simple", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v2/logging", "GET, POST, HEAD, OPTIONS"),
        ("DELETE", "/v2/models/simple/ready", "GET, HEAD, OPTIONS"),
        ("PUT", "/v2/models/simple/versions/1/config", "GET, HEAD, OPTIONS"),
    ],
)
async def test_the_wrong_method(client: httpx.AsyncClient, method: str, path: str, allowed: str) -> None:
    answer = await client.request(method, path)
    body = b"" if method == "HEAD" else b'{"error":"Method Not Allowed"}'
    assert (answer.status_code, answer.content) == (405, body)
    assert answer.headers["content-length"] == "30"
    assert answer.headers["allow"] == allowed


# Readiness


async def test_readiness_tells_what_is_in_the_way(tmp_path: Path) -> None:
    loader = PuppetLoader(
        failures={ModelId("simple", 3): invalid("no good"), ModelId("echo", 1): ValueError("oops")},
    )
    loader.go.clear()
    server = server_over(tmp_path, loader)
    async with client_of(create_app(server, HttpSettings(max_json=MAX_JSON))) as client, asyncio.TaskGroup() as tasks:
        answer = await client.get("/v2/health/ready")
        assert (answer.status_code, answer.json()) == (400, {"ready": False, "phase": "starting", "reasons": []})

        loading = tasks.create_task(server.load())
        await loader.begun.wait()
        found = (await client.get("/v2/health/ready")).json()
        assert [(reason["name"], reason["version"], reason["state"]) for reason in found["reasons"]] == [
            ("echo", "1", "LOADING"),
            ("simple", "1", "LOADING"),
            ("simple", "3", "LOADING"),
        ]
        assert (await client.get("/v2/health/live")).status_code == 200
        answer = await client.get("/v2/models/simple/ready")
        assert (answer.status_code, answer.json()["error"]) == (
            400,
            "Model version not ready: model 'simple' has no available versions: it is still loading",
        )
        answer = await client.post("/v2/models/simple/versions/3/infer", content=JSON_BODY)
        assert (answer.status_code, answer.json()["error"]) == (
            503,
            "model 'simple' version 3 is not at ready state: it is still loading",
        )
        answer = await client.get("/v2/models/simple")
        assert (answer.status_code, answer.json()["error"]) == (
            503,
            "model 'simple' has no available versions: it is still loading",
        )

        loader.go.set()
        await loading
        answer = await client.get("/v2/health/ready")
        assert answer.status_code == 400
        assert answer.json() == {
            "ready": False,
            "phase": "running",
            "reasons": [
                {
                    "name": "echo",
                    "version": "1",
                    "state": "UNAVAILABLE",
                    "reason": "Internal: failed to load model 'echo' version 1: oops",
                },
                {"name": "simple", "version": "3", "state": "UNAVAILABLE", "reason": "Invalid argument: no good"},
            ],
        }
        assert (await client.get("/v2/models/simple/ready")).status_code == 200
        assert (await client.get("/v2/models/simple")).json()["versions"] == ["1"]
        assert (await client.get("/v2/models/simple/versions/3/ready")).status_code == 400


async def test_a_model_without_a_version_has_its_reason(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader(problems={"echo": internal("unreadable")}))
    await server.load()
    async with client_of(create_app(server, HttpSettings(max_json=MAX_JSON))) as client:
        assert (await client.get("/v2/health/ready")).json()["reasons"] == [
            {"name": "echo", "version": "", "state": "UNAVAILABLE", "reason": "Internal: unreadable"}
        ]
        answer = await client.post("/v2/models/echo/infer", content=b"{}")
        assert (answer.status_code, answer.json()["error"]) == (
            404,
            "Request for unknown model: 'echo' has no available versions: Internal: unreadable",
        )


STOPPING = {
    "GET /v2/health/live": "Server exiting",
    "GET /v2/health/ready": "Server exiting",
    "GET /v2/models/simple/ready": "Server exiting",
    "GET /v2/models/simple": "Server not ready",
    "GET /v2/models/simple/config": "Server not ready",
    "GET /v2/models/simple/stats": "Server not ready",
    "GET /v2/models/stats": "Server not ready",
    "POST /v2/models/simple/infer": "Server not ready",
}


async def test_a_stopping_server(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    server.stop_accepting()
    assert server.phase is Phase.STOPPING
    async with client_of(create_app(server, HttpSettings(max_json=MAX_JSON))) as client:
        answers = {asked: await client.request(*asked.split(" ")) for asked in STOPPING}
        unchanged = await client.get("/v2")
    assert {asked: answer.json()["error"] for asked, answer in answers.items()} == STOPPING
    assert {answer.status_code for answer in answers.values()} == {503}
    assert unchanged.status_code == 200


# Documentation


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_the_document_has_every_path_of_use(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.")
    model = "/v2/models/{model}"
    per_model = {
        prefix + suffix: {method}
        for prefix in (model, model + "/versions/{version}")
        for suffix, method in (
            ("", "get"),
            ("/ready", "get"),
            ("/config", "get"),
            ("/engine", "get"),
            ("/openapi.json", "get"),
            ("/stats", "get"),
            ("/batches", "get"),
            ("/infer", "post"),
            ("/infer_stream", "post"),
            ("/generate", "post"),
            ("/generate_stream", "post"),
        )
    }
    shared_memory = {
        f"/v2/{kind}sharedmemory{region}/{action}": {method}
        for kind in ("system", "cuda")
        for region in ("", "/region/{region}")
        for action, method in (("status", "get"), ("register", "post"), ("unregister", "post"))
        if (region, action) != ("", "register")  # which needs a name
    }
    repository = {
        "/v2/health/drain": {"post"},
        "/v2/repository/index": {"post"},
        "/v2/repository/{repository}/index": {"post"},
        "/v2/repository/models/{model}/load": {"post"},
        "/v2/repository/models/{model}/unload": {"post"},
    }
    paths = {path: set(methods) for path, methods in document["paths"].items() if path.startswith("/v2")}
    assert paths == {
        "/v2": {"get"},
        "/v2/memory": {"get"},
        "/v2/stacks": {"get"},
        "/v2/health/live": {"get"},
        "/v2/health/ready": {"get"},
        "/v2/models": {"get"},
        "/v2/models/stats": {"get"},
        "/v2/logging": {"get", "post"},
        "/v2/trace/setting": {"get", "post"},
        "/v2/models/{model}/trace/setting": {"get", "post"},
        "/v2/models/{model}/routing": {"get", "post", "delete"},
        **shared_memory,
        **per_model,
        **repository,
    }


def test_every_reference_in_the_document_resolves(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))
    assert references
    for reference in references:
        target: Any = document
        for key in reference.removeprefix("#/").split("/"):
            assert key in target, reference
            target = target[key]


def test_nothing_is_asked_for_in_the_query(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert {parameter["in"] for operation in operations for parameter in operation["parameters"]} == {"path"}


async def test_a_query_changes_nothing(client: httpx.AsyncClient) -> None:
    for path in ("/v2/models", "/v2/systemsharedmemory/status"):
        assert (await client.get(f"{path}?version=x&region=y&model=z")).json() == (await client.get(path)).json()


def test_the_document_describes_the_body_of_an_inference(document: dict[str, Any]) -> None:
    body = document["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/octet-stream"}
    name = body["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][name]
    assert set(schema["properties"]) == {"id", "parameters", "inputs", "outputs"}
    assert schema["required"] == ["inputs"]
    assert not any("$defs" in each for each in document["components"]["schemas"].values())


def test_every_call_says_what_it_does_and_what_may_go_wrong(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for call in methods.values():
            assert call["description"], path
            assert "200" in call["responses"], path
            if path.startswith("/v2/models/{model}"):
                unknown = "400" if path.endswith("/trace/setting") else "404"  # as Triton says it of a model
                assert unknown in call["responses"], path


async def test_the_document_is_the_same_each_time(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    assert (await client.get("/openapi.json")).json() == document


async def test_documentation_for_people(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert answer.status_code == 200
    assert "openapi.json" in answer.text
