"""Wrong paths: what the client is likely to have meant."""

import httpx
import pytest
from fastapi import FastAPI
from puppet_server import PuppetLoader, server_over

from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.middleware import near_path
from modserve.settings import HttpSettings


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(server_over(tmp_path_factory.mktemp("repository"), PuppetLoader()), HttpSettings())


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v2/models/rec/inference", "/v2/models/rec/infer"),
        ("/v2/models/rec/versions/3/inference", "/v2/models/rec/versions/3/infer"),
        ("/v2/models/rec/infer/", "/v2/models/rec/infer"),
        ("//v2/models/rec/infer", "/v2/models/rec/infer"),
        ("/v2/model/rec/infer", "/v2/models/rec/infer"),
        ("/models/rec/infer", "/v2/models/rec/infer"),
        ("/v2/health/raedy", "/v2/health/ready"),
        ("/V2", "/v2"),
        ("/v2/repository/idnex", "/v2/repository/index"),
        ("/v2/models/rec/generate_steam", "/v2/models/rec/generate_stream"),
        ("/v2/models//infer", ""),
        ("/v2/models/rec/versions/1.0/infer", ""),
        ("/nosuch", ""),
        ("/v2/models/rec/" + "inference" * 40, ""),
        ("/" + "a/" * 20, ""),
    ],
)
def test_the_path_that_is_meant(path: str, meant: str, app: FastAPI) -> None:
    assert near_path(path, app.router.routes) == meant


async def test_the_response_names_it(app: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        near = await client.post("/v2/models/a%22b/inference", content=b"{}")
        far = await client.get("/nosuch")
    assert near.status_code == far.status_code == 404
    assert near.json() == {"error": "Not Found; did you mean '/v2/models/a\"b/infer'?"}
    assert far.json() == {"error": "Not Found"}


def test_names_are_the_clients(app: FastAPI) -> None:
    """A model that is called almost as a word of a path."""
    assert near_path("/v2/models/plain/versions/stable/stats", app.router.routes) == ""
    assert near_path("/v2/models/drian/infr", app.router.routes) == "/v2/models/drian/infer"
