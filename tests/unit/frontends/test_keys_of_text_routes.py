"""Keys on the calls of texts, over a port as a server opens it: who is served, who is refused, what nobody learns."""

import asyncio
import contextvars
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from test_chat_routes import SPEAKER, Arrivals
from test_text_routes import BARE, MODELS, TextLoader

from modserve.access.authority import Authority
from modserve.access.identity import Identity, Scopes
from modserve.access.key_file import AccessFile, Key, digest
from modserve.access.permissions import CallScope, need_of
from modserve.core.tenants import Tenant
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.frontends.http.application import Application
from modserve.frontends.http.direct import MODULES
from modserve.frontends.http.wire.listener import HttpListener
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.server.interface import Services
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings
from text_folders import IDS, write_folder

OF_MODEL = "{model}"
KEYS: Mapping[str, Scopes] = {
    "user": {"*": frozenset({"infer", "read"})},
    "other": {"classes": frozenset({"infer", "read"})},
    "reader": {"*": frozenset({"read"})},
    "talker": {"speaker": frozenset({"infer", "read"})},
}
"""By secret. `other` is for a model that none of the calls below is about."""
TEXT = {"model": "embed", "inputs": "the cat"}
RANKING = {"model": "ranker", "query": "the cat", "texts": ["a dog"]}
DOCUMENTS = {"model": "ranker", "query": "the cat", "documents": ["a dog"]}
CHAT = {"model": "speaker", "messages": [{"role": "user", "content": "hi"}]}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/embeddings": {"model": "embed", "input": "the cat"},
    "/v1/rerank": DOCUMENTS,
    "/v2/rerank": DOCUMENTS,
    "/score": {"model": "ranker", "text_1": "the cat", "text_2": ["a dog"]},
    "/": TEXT,
    "/embed": TEXT,
    "/rerank": RANKING,
    "/predict": {"model": "tags", "inputs": "the cat"},
    "/similarity": {"model": "embed", "inputs": {"source_sentence": "the cat", "sentences": ["a dog"]}},
    "/tokenize": TEXT,
    "/decode": {"model": "embed", "ids": [IDS["cat"]]},
    "/chat/completions": CHAT,
    "/v1/completions": {"model": "speaker", "prompt": "hi"},
    "/responses": {"model": "speaker", "input": "hi"},
    "/generate": {"text_input": "hi"},
    "/generate_stream": {"text_input": "hi"},
    "/infer_stream": {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]},
}
"""By how the path ends; the longest that fits."""
PATHS = sorted(path.decode() for path in MODULES)
"""All paths of calls that the port runs by itself."""
STREAMED = [path for path in PATHS if re.search("completions|responses", path)]


def body_of(path: str) -> Mapping[str, Any]:
    return BODIES[max((end for end in BODIES if path.endswith(end)), key=len)]


def speech(inputs: Mapping[str, Array]) -> dict[str, Array]:
    count = np.array([1], np.uint32)
    return {
        "text_output": np.array([b"hello"], object),
        "num_input_tokens": count,
        "num_output_tokens": count,
    }


@dataclass
class Place:
    server: LocalServer
    loader: TextLoader
    client: httpx.AsyncClient
    authority: Authority

    async def post(self, path: str, key: str = "", model: str = "", **more: Any) -> httpx.Response:
        """`model`: another one than that of `body_of`."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {**body_of(path), **more}
        if OF_MODEL in path:
            path = path.replace(OF_MODEL, model or "speaker")
        elif model:
            body["model"] = model
        return await self.client.post(path, json=body, headers=headers)

    @property
    def tenants(self) -> list[str | None]:
        """Of the requests that have reached models."""
        submitted = [each for servable in self.loader.loaded.values() for each in servable.submitted]
        return [each.request.tenant.name if each.request.tenant else None for each in submitted]


async def at_once(seconds: float) -> None:
    """Failures wait for nothing here."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    models = {**MODELS, "speaker": (SPEAKER, speech, BARE)}
    loader = TextLoader(models)
    for name, (_, _, files) in models.items():
        write_folder(tmp_path / name / "1", files, with_tokenizer=files is not BARE)
    table = ModelTable()
    table.suggests_names = False
    server = LocalServer(ModelManager(table, loader, 8), repositories_at([tmp_path]), Services(), name="modserve")
    await server.load()
    keys = {digest(name): Key(Identity(name, Tenant(f"{name}s"), scopes)) for name, scopes in KEYS.items()}
    authority = Authority(AccessFile(keys), sleep=at_once)
    async with asyncio.TaskGroup() as tasks:
        listener = HttpListener(server, "127.0.0.1", 0, HttpSettings(), tasks, authority=authority)
        port = await listener.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield Place(server, loader, client, authority)
        await listener.retire(0)
        await listener.close()


def message_of(path: str, response: httpx.Response) -> str:
    """The text of an error, which has the form that clients of the path read."""
    document = response.json()
    if OF_MODEL in path:
        return str(document["error"])
    if path.startswith(("/v1/", "/openai/", "/v2/", "/embeddings", "/score")):
        assert set(document["error"]) == {"message", "type", "param", "code"}
        return str(document["error"]["message"])
    assert set(document) == {"error", "error_type"}
    return str(document["error"])


@pytest.mark.parametrize("path", PATHS)
async def test_who_is_refused_and_who_is_served(place: Place, path: str) -> None:
    for key, status, text in (
        ("", 401, "this call needs a key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"),
        ("nobody", 401, "the key is not known"),
        ("reader", 403, "this call needs the scope 'infer' for any model, which the key 'reader' does not have"),
    ):
        response = await place.post(path, key)
        assert (response.status_code, message_of(path, response)) == (status, text), key
        assert response.headers["www-authenticate"].startswith("Bearer")
    response = await place.post(path, "other")
    there, message = body_of(path).get("model", "speaker"), message_of(path, response)
    assert response.status_code == 404
    absent = await place.post(path, "other", model="nosuch")
    assert (absent.status_code, message_of(path, absent).replace("nosuch", there)) == (404, message)
    assert not any(f"'{name}'" in message for name in {*place.loader.models} - {there, "classes"}), message
    assert place.tenants == []
    for _ in range(2):
        response = await place.post(path, "user")
        assert response.status_code == 200, response.text
    assert set(place.tenants) <= {"users"}
    assert bool(place.tenants) is (path not in ("/tokenize", "/decode"))


@pytest.mark.parametrize("path", STREAMED)
async def test_streams(place: Place, path: str) -> None:
    for key, status in (("", 401), ("nobody", 401), ("reader", 403), ("other", 404)):
        response = await place.post(path, key, stream=True)
        assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert place.tenants == []
    response = await place.post(path, "user", stream=True)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert "hello" in response.text
    assert place.tenants == ["users"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_key_that_was_revoked_on_an_open_connection(place: Place, path: str) -> None:
    assert (await place.post(path, "user")).status_code == 200
    revoked = Key(Identity("user", Tenant("users"), KEYS["user"]), revoked=True)
    place.authority.replace(AccessFile({digest("user"): revoked}))
    response = await place.post(path, "user")
    assert (response.status_code, message_of(path, response)) == (401, "the key 'user' was revoked")


async def test_the_only_model_is_the_only_one_that_the_caller_sees(place: Place) -> None:
    """Without a name, a call is for the only model of its kind: there is one for `other`, and there are two."""
    body = {"inputs": "the cat"}
    response = await place.client.post("/predict", json=body, headers={"x-api-key": "other"})
    assert response.status_code == 200
    assert place.tenants == ["others"]
    response = await place.client.post("/predict", json=body, headers={"x-api-key": "user"})
    assert response.status_code == 404
    assert "'tags'" in response.text
    info = await place.client.get("/info", headers={"x-api-key": "other"})
    assert (info.status_code, info.json()["model_id"]) == (200, "classes")
    assert (await place.client.get("/info")).status_code == 401


async def test_lists_of_models(place: Place) -> None:
    for path in ("/openai/v1/models", "/v1/models"):
        response = await place.client.get(path, headers={"x-api-key": "other"})
        assert "classes" in response.text
        assert not any(name in response.text for name in ("embed", "ranker", "tags", "speaker")), path


# Limits of tenants


def limited(place: Place, **limits: Any) -> None:
    tenant = Tenant("users", **limits)
    place.authority.replace(AccessFile({digest("user"): Key(Identity("user", tenant, KEYS["user"]))}))


async def test_a_call_of_many_texts_counts_as_one_request_with_so_many_rows(place: Place) -> None:
    limited(place, requests_per_second=0.001, concurrency=1, tokens_per_second=10.0)
    embed = place.loader.loaded[ModelId("embed", 1)]
    arrival = asyncio.Event()
    embed.automatic, embed.submitted = False, Arrivals(arrival)
    call = asyncio.create_task(place.post("/v1/embeddings", "user", model="embed", input=["the cat"] * 100))
    call.add_done_callback(lambda _: arrival.set())
    for number in range(100):
        async with asyncio.timeout(30):
            while len(embed.submitted) <= number and not call.done():
                arrival.clear()
                await arrival.wait()
        assert not call.done(), call.result().text
        contextvars.Context().run(embed.answer, embed.submitted[number])  # an engine knows of no caller
    embed.automatic = True
    response = await call
    assert response.status_code == 200, response.text
    quotas = place.server.quotas
    figures = quotas.figures["users"]
    assert (figures.results["accepted"], figures.rows) == (1, 100)
    assert figures.tokens == response.json()["usage"]["total_tokens"]
    assert (quotas.in_flight, place.tenants) == (0, ["users"] * 100)
    response = await place.post("/v1/embeddings", "user", model="embed", input=["the cat"])
    assert response.status_code == 429
    assert "'requests_per_second' of 0.001" in response.text
    limited(place, tokens_per_second=10.0)
    response = await place.post("/v1/embeddings", "user", model="embed", input=["the cat"])
    assert response.status_code == 429
    assert "'tokens_per_second' of 10" in response.text
    assert figures.results == {"accepted": 1, "refused_rate": 2, "refused_concurrency": 0, "refused_model": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_count_as_one_request(place: Place, stream: bool) -> None:
    limited(place, requests_per_second=0.001, concurrency=1)
    response = await place.post("/v1/chat/completions", "user", n=3, stream=stream)
    assert response.status_code == 200, response.text
    figures = place.server.quotas.figures["users"]
    assert (figures.results["accepted"], figures.rows, figures.tokens) == (1, 3, 6)
    assert place.server.quotas.in_flight == 0
    assert (await place.post("/v1/chat/completions", "user", n=3, stream=stream)).status_code == 429


async def test_more_texts_than_run_at_a_time(place: Place) -> None:
    """The last ones are submitted when others have ended, by whatever code ends these."""
    count = 2 * HttpSettings().limits.parts
    response = await place.post("/v1/embeddings", "user", input=["the cat"] * count)
    assert (response.status_code, len(response.json()["data"])) == (200, count)
    assert place.tenants == ["users"] * count


@pytest.mark.parametrize("path", PATHS)
def test_the_need_of_calls_that_the_port_runs(path: str) -> None:
    """The port asks whether the caller may infer, and the call itself whether it may do so with its model."""
    need, model = need_of("POST", path)
    assert (need.kind, need.reach) == ("infer", CallScope.MODEL)
    assert model == (OF_MODEL if OF_MODEL in path else "")


@pytest.mark.parametrize("path", PATHS)
async def test_known_callers_need_no_application(place: Place, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await place.post(path, "user")).status_code == 200  # the first look at a key takes the application
    monkeypatch.setattr(Application, "__call__", None)
    assert (await place.post(path, "user")).status_code == 200
