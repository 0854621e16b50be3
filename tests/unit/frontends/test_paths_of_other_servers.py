"""What probes and tools of vLLM, TEI, Infinity and llama.cpp call."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from puppet_server import PuppetLoader, server_over
from test_text_routes import MODELS, Stage, close, embedding, ids, stage, staged  # noqa: F401  # fixtures

from modserve.frontends.http.application import Application
from modserve.settings import HttpSettings

DOCUMENTS = ["hello world", "the cat sat", "the dog ran"]


async def test_health(stage: Stage) -> None:  # noqa: F811
    response = await stage.client.get("/health")
    assert (response.status_code, response.json()) == (200, {"ready": True})
    assert (await stage.client.get("/version")).json() == {"version": stage.server.version}


async def test_a_server_that_is_not_ready(tmp_path: Path) -> None:
    """Other servers have 503 for what is 400 in the protocol."""
    server = server_over(tmp_path, PuppetLoader())
    statuses: dict[str, int] = {}
    for path in ("/v2/health/ready", "/health"):

        async def send(message: Any) -> None:
            statuses.setdefault(path, message.get("status"))  # noqa: B023

        scope: Any = {"type": "http", "method": "GET", "path": path, "headers": []}
        await Application(server, HttpSettings())(scope, None, send)
    assert statuses == {"/v2/health/ready": 400, "/health": 503}


async def test_embeddings_without_v1(stage: Stage) -> None:  # noqa: F811
    body = await stage.post("/embeddings", model="embed", input="the cat")
    close(body["data"][0]["embedding"], embedding(ids("the", "cat")))
    status, error = await stage.refused("/embeddings", model="embed", input=1)
    assert (status, error["error"]["param"]) == (400, "input")


async def test_rerank_of_documents_without_v1(stage: Stage) -> None:  # noqa: F811
    body = await stage.post("/rerank", query="the cat sat", documents=DOCUMENTS, top_n=2, return_documents=True)
    assert [each["index"] for each in body["results"]] == [1, 2]
    assert body["results"][0]["document"] == {"text": "the cat sat"}
    ranks = await stage.post("/rerank", query="the cat sat", texts=DOCUMENTS)
    close([each["score"] for each in ranks[:2]], [each["relevance_score"] for each in body["results"]])
    status, error = await stage.refused("/rerank", query="cat", documents="cat")
    assert (status, error["error_type"]) == (422, "Validation")


@pytest.mark.parametrize("path", ["/v1/score", "/openai/v1/score", "/score"])
async def test_scores(stage: Stage, path: str) -> None:  # noqa: F811
    body = await stage.post(path, model="ranker", text_1="the cat sat", text_2=DOCUMENTS)
    assert (body["object"], body["model"], body["usage"]["total_tokens"]) == ("list", "ranker", 26)
    assert [(each["index"], each["object"]) for each in body["data"]] == [(n, "score") for n in range(3)]
    close([each["score"] for each in body["data"]], 1 / (1 + np.exp([1.0, -2.0, 0.0])))
    pairs = await stage.post(path, text_1=["the cat sat", "a"], text_2=["the cat sat", "b"])
    close([each["score"] for each in pairs["data"]], 1 / (1 + np.exp([-2.0, 1.0])))
    one = await stage.post(path, text_1="cat", text_2="cat")
    assert len(one["data"]) == 1
    status, error = await stage.refused(path, text_1=["a", "b"], text_2=["a", "b", "c"])
    assert (status, error["error"]["message"]) == (400, "'text_1' has 2 texts and 'text_2' 3: one for all, or as many")
    status, error = await stage.refused(path, text_1="a")
    assert (status, error["error"]["param"]) == (400, "text_2")
    status, error = await stage.refused(path, text_1="a", text_2=[])
    assert (status, error["error"]["code"]) == (400, "empty_input")
    status, error = await stage.refused(path, text_1=[], text_2=["a"])
    assert (status, error["error"]["param"]) == (400, "text_1")


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("embed", "/embed", {"inputs": "the cat"}),
        ("ranker", "/rerank", {"query": "the cat", "texts": DOCUMENTS}),
        ("classes", "/predict", {"inputs": "the cat"}),
        ("tags", "/predict", {"inputs": "the cat"}),
    ],
)
async def test_the_root_is_the_call_of_the_only_model(tmp_path: Path, name: str, path: str, body: Any) -> None:
    """As in TEI, which serves one model."""
    for way in ("port", "application"):
        one = await staged(tmp_path / way, {name: MODELS[name]}, way=way)
        async with one.client:
            assert await one.post("/", **body) == await one.post(path, **body)
            assert (await one.client.get("/")).json() == {"status": "alive"}
            assert (await one.client.options("/")).headers["allow"] == "GET, POST, HEAD, OPTIONS"


async def test_the_root_with_several_models(stage: Stage) -> None:  # noqa: F811
    assert len(await stage.post("/", model="embed", inputs="the cat")) == 1
    status, error = await stage.refused("/", inputs="the cat")
    assert (status, error["error_type"]) == (404, "Validation")
    assert error["error"].startswith("the request names no model, and models for text are: ")
