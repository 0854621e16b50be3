"""Restricted APIs over HTTP, on the application and on the short cut past it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from puppet_server import JSON_ANSWER, JSON_BODY, PuppetLoader, Stage, infer, request, server_over, stage
from starlette.routing import Route

from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.deferred import expand
from modserve.frontends.http.rest.middleware import path_category
from modserve.protocol.restricted import CATEGORIES, OPEN_PATHS, PATH_CATEGORY, http_restrictions
from modserve.settings import HttpSettings

REFUSED = b'{"error":"This API is restricted, expecting header \'%b\'"}'
OPTIONS = HttpSettings(
    restrictions=http_restrictions({category: (f"{category}-key", "open") for category in CATEGORIES})
)


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(server_over(tmp_path, PuppetLoader()), HttpSettings())


def test_every_path_that_is_served_has_a_category_or_is_open(app: FastAPI) -> None:
    served = {
        *app.openapi()["paths"],
        *(route.path_format for route in expand(app.router.routes) if isinstance(route, Route)),
    }
    assert served - set(PATH_CATEGORY) - OPEN_PATHS == set()
    assert {"/v2/models/{model}/infer", "/console/events"} <= served  # in the OpenAPI document, and not


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/v2", "metadata"),
        ("/v2/health/live", "health"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/versions/1/ready", "health"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/infer", "inference"),
        ("/v2/models/m/versions/1/infer", "inference"),
        ("/v2/models/m/generate", "inference"),
        ("/v2/models/m/generate_stream", "inference"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/stats", "statistics"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/stats/infer", "inference"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/r/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/repository/r/models/m/unload", "model-repository"),
        ("/v2/systemsharedmemory/status", "shared-memory"),
        ("/v2/cudasharedmemory/region/r/register", "shared-memory"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v1/models", "metadata"),
        ("/", "inference"),
        ("/health", "health"),
        ("/metrics", "statistics"),
        ("/v1/models/m", "health"),
        ("/v1/models/m/versions/1", "health"),
        ("/v1/models/m/labels/canary:predict", "inference"),
        ("/v1/models/m:predict", "inference"),
        ("/v1/models/m/versions/1:predict", "inference"),
        ("/v1/models/m/metadata", "metadata"),
        ("/v2/models/m/infer\n", None),
        ("/v2/models/m/openapi.json", "metadata"),
        ("/v2/models/m/versions/1/openapi.json", "metadata"),
        ("/docs/examples/m", "metadata"),
        ("/docs/snippets/m", "metadata"),
        ("/docs", None),
        ("/openapi.json", None),
        ("/v2/models/m/nosuch", None),
        ("/v2/models/m/infer/", None),
    ],
)
def test_the_category_of_a_path(path: str, category: str | None) -> None:
    assert path_category("POST", path) == category


def test_the_category_of_a_model_that_is_named_like_a_call() -> None:
    assert path_category("GET", "/") == path_category("HEAD", "/") == "health"
    assert path_category("GET", "/v1/models/m:predict") == path_category("HEAD", "/v1/models/m:predict") == "health"


@pytest.fixture
async def restricted(tmp_path: Path) -> AsyncIterator[Stage]:
    """Every category needs a header of its own."""
    async with stage(tmp_path, None, options=OPTIONS) as found:
        yield found


async def ask(stage: Stage, data: bytes) -> tuple[int, bytes]:
    client = stage.connect()
    client.send(data)
    (answer,) = await client.receive()
    return answer.status, answer.body


ONE_OF_EACH: list[tuple[str, str, bytes]] = [
    ("GET", "/v2/health/ready", b""),
    ("GET", "/v2/models/simple/config", b""),
    ("GET", "/v2", b""),
    ("GET", "/v2/models/stats", b""),
    ("POST", "/v2/repository/index", b""),
    ("POST", "/v2/models/simple/infer", JSON_BODY),
    ("POST", "/v2/models/s%69mple/infer", JSON_BODY),
    ("POST", "/v2/models/simple/%69nfer", JSON_BODY),
    ("POST", "/v2/models/simple/infer?x=1", JSON_BODY),
    ("DELETE", "/v2/models/simple/infer", b""),
]


async def test_a_call_needs_its_header(restricted: Stage) -> None:
    for method, target, body in ONE_OF_EACH:
        category = path_category(method, target.partition("?")[0].replace("%69", "i"))
        assert category is not None
        refusal = REFUSED % f"{category}-key".encode()
        shut: list[dict[str, str]] = [{}, {f"{category}-key": "shut"}, {"other-key": "open"}]
        for headers in shut:
            assert await ask(restricted, request(method, target, body, "1.1", **headers)) == (403, refusal), target
        status, _ = await ask(restricted, request(method, target, body, "1.1", **{f"{category}-key": "open"}))
        assert status == (405 if method == "DELETE" else 200), target


async def test_what_says_nothing_of_the_server_stays_open(restricted: Stage) -> None:
    assert (await ask(restricted, request("GET", "/docs")))[0] == 200
    assert (await ask(restricted, request("GET", "/nosuch")))[0] == 404
    assert (await ask(restricted, request("OPTIONS", "/v2/logging")))[0] != 403


async def test_each_head_is_checked(restricted: Stage) -> None:
    client = restricted.connect()
    client.send(infer())
    client.send(infer(inference_key="shut"))
    assert [answer.status for answer in await client.receive(2)] == [403, 403]
    client.send(infer(Inference_Key="open"))
    assert (await client.receive(3))[2].body == JSON_ANSWER
    client.send(infer(Inference_Key="open"))
    assert (await client.receive(4))[3].body == JSON_ANSWER
    client.send(infer())
    assert (await client.receive(5))[4].status == 403


async def test_a_head_that_was_refused_is_not_remembered_for_the_next(restricted: Stage) -> None:
    """The next request comes in pieces, so that its own head can not be remembered."""
    client = restricted.connect()
    allowed = infer(Inference_Key="open")
    client.send(infer())
    await client.receive(1)
    client.send(allowed[:40], allowed[40:])
    await client.receive(2)
    client.send(infer())
    assert [answer.status for answer in await client.receive(3)] == [403, 200, 403]


async def test_a_category_that_is_not_restricted_is_open(tmp_path: Path) -> None:
    options = HttpSettings(restrictions=http_restrictions({"logging": ("key", "open")}))
    async with stage(tmp_path, None, options=options) as found:
        assert (await ask(found, infer()))[0] == 200
        assert (await ask(found, request("GET", "/v2/health/ready")))[0] == 200
        assert (await ask(found, request("GET", "/v2/logging")))[0] == 403
