"""KServe v1 and TensorFlow Serving REST, through the application without a socket."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from puppet_server import ECHO, MAX_JSON, SIMPLE, PuppetLoader, PuppetServable, server_over

from modserve.core.errors import internal, invalid, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.version import ModelId
from modserve.frontends.http.rest.app import create_app
from modserve.settings import HttpSettings

MODELS = {
    "simple": SIMPLE,
    "echo": ECHO,
    "a:b": SIMPLE,
    "broken": SIMPLE,
    "odd": SIMPLE,
    "single": replace(SIMPLE, max_batch_size=1),
}
BROKEN = {ModelId("broken", 1): internal("no such file"), ModelId("simple", 2): invalid("a bad one")}


@dataclass(frozen=True)
class Stage:
    app: FastAPI
    loader: PuppetLoader

    @property
    def simple(self) -> PuppetServable:
        """The version that answers."""
        return self.loader.loaded[ModelId("simple", 3)]

    @contextlib.contextmanager
    def by_hand(self) -> Any:
        """Requests to `simple` wait; gives those of the block."""
        self.simple.submitted.clear()
        self.simple.automatic = False
        try:
            yield self.simple.submitted
        finally:
            self.simple.automatic = True


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A loaded server; what tests change they change back."""
    loader = PuppetLoader(MODELS, {"simple": (1, 2, 3)}, dict(BROKEN), {"odd": invalid("max_batch_size is odd")})
    server = server_over(tmp_path_factory.mktemp("repository"), loader)
    asyncio.run(server.load())
    return Stage(create_app(server, HttpSettings(max_json=MAX_JSON)), loader)


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(stage.app), base_url="http://localhost") as client:
        yield client


def available(version: str) -> dict[str, Any]:
    return {"version": version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}


def failed(version: str, code: str, message: str) -> dict[str, Any]:
    return {"version": version, "state": "END", "status": {"error_code": code, "error_message": message}}


NOT_READY = {"ready": False, "model_version_status": []}


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/", 200, {"status": "alive"}),
        ("/v1/models", 200, {"models": ["a:b", "broken", "echo", "odd", "simple", "single"]}),
        ("/v1/models/echo", 200, {"name": "echo", "ready": True, "model_version_status": [available("1")]}),
        ("/v1/models/e%63ho", 200, {"name": "echo", "ready": True, "model_version_status": [available("1")]}),
        ("/v1/models/a:b", 200, {"name": "a:b", "ready": True, "model_version_status": [available("1")]}),
        (
            "/v1/models/simple",
            200,
            {
                "name": "simple",
                "ready": True,
                "model_version_status": [
                    available("3"),
                    failed("2", "INVALID_ARGUMENT", "a bad one"),
                    available("1"),
                ],
            },
        ),
        (
            "/v1/models/broken",
            503,
            {
                "error": "Model with name broken is not ready.",
                "name": "broken",
                "ready": False,
                "model_version_status": [failed("1", "INTERNAL", "no such file")],
            },
        ),
        (
            "/v1/models/odd",
            503,
            {
                "error": "Model with name odd is not ready. Invalid argument: max_batch_size is odd",
                "name": "odd",
                **NOT_READY,
            },
        ),
        ("/v1/models/simple/versions/1", 200, {"model_version_status": [available("1")]}),
        (
            "/v1/models/simple/versions/2",
            200,
            {"model_version_status": [failed("2", "INVALID_ARGUMENT", "a bad one")]},
        ),
        ("/v1/models/simple/versions/9", 404, {"error": "Could not find version 9 of model simple"}),
        ("/v1/models/nosuch/versions/1", 404, {"error": "Model with name nosuch does not exist."}),
        ("/v1/models/nosuch/metadata", 404, {"error": "Servable not found for request: Latest(nosuch)"}),
        (
            "/v1/models/simple/versions/9/metadata",
            404,
            {"error": "Servable not found for request: Specific(simple, 9)"},
        ),
        (
            "/v1/models/simple/versions/2/metadata",
            503,
            {
                "error": "Request for unknown model: 'simple' version 2 is not at ready state: "
                "Invalid argument: a bad one"
            },
        ),
        (
            "/v1/models/simple/labels/canary",
            404,
            {
                "error": "Unrecognized servable version label: canary: this server has no version labels, "
                "use /versions/<number>"
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_what_there_is(client: httpx.AsyncClient, path: str, status: int, expected: dict[str, Any]) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    document = answer.json()
    if path == "/v1/models":
        models = [model["id"] for model in document.pop("data")]  # for OpenAI's clients: those that take text
        assert (document.pop("object"), models) == ("list", ["echo"])
    elif "name" in document:
        assert isinstance(document.pop("created"), int)
        openai = [document.pop(member) for member in ("id", "object", "owned_by")]
        assert openai == [document["name"], "model", "modserve"]
    assert document == expected


@pytest.mark.parametrize(("path", "version"), [("", "3"), ("/versions/1", "1")])
async def test_metadata(client: httpx.AsyncClient, path: str, version: str) -> None:
    found = (await client.get(f"/v1/models/simple{path}/metadata")).json()
    assert found["model_spec"] == {"name": "simple", "signature_name": "", "version": version}
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert (set(signature["inputs"]), set(signature["outputs"])) == ({"INPUT0", "INPUT1"}, {"OUTPUT0", "OUTPUT1"})


ROWS = b'{"instances": [{"INPUT0": [1, 2], "INPUT1": [10, 10]}, {"INPUT0": [3, 4], "INPUT1": [1, 1]}]}'
ROWS_ANSWER = (
    b'{"predictions":[{"OUTPUT0":[11,12],"OUTPUT1":[-9,-8]},{"OUTPUT0":[4,5],"OUTPUT1":[2,3]}]}'
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("simple:predict", ROWS, ROWS_ANSWER),
        ("simple%3Apredict", ROWS, ROWS_ANSWER),
        ("s%69mple/versions/1:predict", ROWS, ROWS_ANSWER),
        (
            "simple:predict",
            b'{"inputs": {"INPUT0": [[1, 2]], "INPUT1": [[10, 10]]}, "signature_name": "serving_default"}',
            b'{"outputs":{"OUTPUT0":[[11,12]],"OUTPUT1":[[-9,-8]]}}',
        ),
        ("echo:predict", b'{"instances": ["a", {"b64": "Yg=="}]}', b'{"predictions":["a","b"]}'),
        ("a:b:predict", ROWS, ROWS_ANSWER),
        ("a%3Ab/versions/1:predict", ROWS, ROWS_ANSWER),
    ],
)
async def test_predictions(client: httpx.AsyncClient, path: str, body: bytes, expected: bytes) -> None:
    answer = await client.post(f"/v1/models/{path}", content=body)
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "application/json", expected)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("nosuch:predict", ROWS, 404, "Model with name nosuch does not exist."),
        ("simple/versions/9:predict", ROWS, 404, "Servable not found for request: Specific(simple, 9)"),
        ("broken:predict", ROWS, 503, "Model with name broken is not ready."),
        ("simple:predict", b"{}", 400, "Missing 'inputs' or 'instances' key: the request has no keys"),
        (
            "simple:predict",
            b'{"instances": [{"INPUT0": [1, 2, 3], "INPUT1": [1, 2]}]}',
            400,
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,2], got [1,3]. ",
        ),
        (
            "simple:predict",
            b'{"inputs": {"INPUT0": [[1, 2], [3, 4]], "INPUT1": [[1, 2]]}}',
            400,
            "input 'INPUT1' batch size does not match other inputs for 'simple'",
        ),
        (
            "simple:predict",
            ROWS + b" " * MAX_JSON,
            400,
            f"request JSON size of {len(ROWS) + MAX_JSON} bytes exceeds the maximum allowed input size of",
        ),
        ("simple:explain", b"{}", 501, "'explain' is not supported: no model here has an explainer"),
        ("nosuch:explain", b"{}", 404, "Model with name nosuch does not exist."),
        ("simple:classify", b"{}", 501, "'classify' is not supported: it takes tf.Example records"),
        ("simple/versions/1:regress", b"{}", 501, "'regress' is not supported: it takes tf.Example records"),
        ("simple/versions/9:regress", b"{}", 404, "Servable not found for request: Specific(simple, 9)"),
        ("simple/labels/canary:predict", ROWS, 404, "Unrecognized servable version label: canary: this server has no"),
    ],
)
async def test_refusals(client: httpx.AsyncClient, path: str, body: bytes, status: int, message: str) -> None:
    answer = await client.post(f"/v1/models/{path}", content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]


async def test_compressed_bodies(client: httpx.AsyncClient) -> None:
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    answer = await client.post("/v1/models/simple:predict", content=gzip.compress(ROWS), headers=headers)
    assert (answer.headers["content-encoding"], answer.content) == ("gzip", ROWS_ANSWER)
    plain = await client.post("/v1/models/simple:predict", content=ROWS, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == ROWS_ANSWER


# Predictions in parts; the model takes 8 instances at a time


def instances(count: int) -> bytes:
    return json.dumps({"instances": [{"INPUT0": [each, 1], "INPUT1": [1, 1]} for each in range(count)]}).encode()


async def until(found: list[Inflight], count: int) -> None:
    """Requests are submitted within some turns of the event loop."""
    for _ in range(1000):
        if len(found) >= count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(found)} requests instead of {count}")


async def test_more_instances_than_a_batch_takes(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.simple.submitted.clear()
    answer = await client.post("/v1/models/simple:predict", content=instances(20))
    assert [each.batch_size for each in stage.simple.submitted] == [8, 8, 4]
    assert [each["OUTPUT0"] for each in answer.json()["predictions"]] == [[each + 1, 2] for each in range(20)]


async def test_parts_may_be_answered_in_any_order(client: httpx.AsyncClient, stage: Stage) -> None:
    with stage.by_hand() as submitted:
        asking = asyncio.ensure_future(client.post("/v1/models/simple:predict", content=instances(17)))
        await until(submitted, 3)
        for inflight in reversed(submitted):
            stage.simple.answer(inflight)
        answer = await asking
    assert [each["OUTPUT0"][0] for each in answer.json()["predictions"]] == list(range(1, 18))


async def test_one_part_s_failure_is_that_of_all(client: httpx.AsyncClient, stage: Stage) -> None:
    with stage.by_hand() as submitted:
        asking = asyncio.ensure_future(client.post("/v1/models/simple:predict", content=instances(17)))
        await until(submitted, 3)
        submitted[1].settle(unavailable("Exceeds maximum queue size"))
        answer = await asking
        assert (answer.status_code, answer.json()) == (503, {"error": "Exceeds maximum queue size"})
        assert [each.cancelled for each in submitted] == [True, False, True]


async def test_only_so_many_parts_run_at_a_time(client: httpx.AsyncClient, stage: Stage) -> None:
    single = stage.loader.loaded[ModelId("single", 1)]
    single.automatic = False
    asking = asyncio.ensure_future(client.post("/v1/models/single:predict", content=instances(40)))
    await until(single.submitted, 32)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(single.submitted) == 32
    single.answer_all()
    await until(single.submitted, 40)
    single.answer_all()
    assert len((await asking).json()["predictions"]) == 40


@pytest.mark.parametrize("count", [1, 17], ids=["one request", "parts"])
async def test_a_client_that_goes_away(stage: Stage, count: int) -> None:
    gone = asyncio.Event()
    messages = [{"type": "http.request", "body": instances(count), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    path = "/v1/models/simple:predict"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "root_path": "",
    }
    with stage.by_hand() as submitted:
        asking = asyncio.ensure_future(stage.app(scope, receive, send))
        await until(submitted, (count + 7) // 8)
        gone.set()
        await asking
        assert all(each.cancelled for each in submitted)


async def test_a_stopping_server(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    server.stop_accepting()
    app = create_app(server, HttpSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/")).json() == {"error": "Server exiting"}
        status = await client.get("/v1/models/simple")
        assert (status.status_code, status.json()["ready"]) == (503, False)
        answer = await client.post("/v1/models/simple:predict", content=ROWS)
        assert (answer.status_code, answer.json()) == (503, {"error": "Server not ready"})


@pytest.mark.parametrize(
    "call",
    [
        "simple:predict",
        "simple:classify",
        "simple:regress",
        "simple:explain",
        "nosuch:predict",
        "a:b:predict",
        "a%3Apredict",
        "simple/versions/1:predict",
        "simple/versions/1:classify",
        "simple/versions/1:regress",
    ],
)
async def test_a_call_is_no_model(client: httpx.AsyncClient, call: str) -> None:
    path = f"/v1/models/{call}"
    for method in ("GET", "HEAD", "PUT"):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")
    assert (await client.options(path)).headers["allow"] == "POST, OPTIONS"


async def test_a_model_that_is_named_like_a_call(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader({"a:predict": SIMPLE}))
    await server.load()
    app = create_app(server, HttpSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.get("/v1/models/a:predict")
        assert (answer.status_code, answer.json()["name"]) == (200, "a:predict")
        assert (await client.get("/v1/models/a:explain")).status_code == 405


async def test_the_methods_of_a_labelled_version(client: httpx.AsyncClient) -> None:
    path = "/v1/models/simple/labels/stable"
    assert (await client.options(path)).headers["allow"] == "GET, HEAD, OPTIONS"
    assert (await client.options(f"{path}:predict")).headers["allow"] == "POST, OPTIONS"


async def test_the_documentation(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    paths = document["paths"]
    model = "/v1/models/{model}"
    expected = {
        **dict.fromkeys(("/health", "/metrics", "/version", "/v1/models"), "get"),
        **{
            prefix + suffix: method
            for prefix in (model, f"{model}/versions/{{version}}", f"{model}/labels/{{label}}")
            for suffix, method in (
                ("", "get"),
                ("/metadata", "get"),
                (":predict", "post"),
            )
        },
    }
    texts = {path for path, methods in paths.items() if any(call["tags"] == ["text"] for call in methods.values())}
    assert {"/", "/v1/embeddings", "/openai/v1/embeddings", "/embed", "/info"} < texts
    assert set(paths["/"]) == {"get", "post"}
    found = {path: methods for path, methods in paths.items() if not path.startswith("/v2") and path not in texts}
    assert {path: list(methods) for path, methods in found.items()} == {
        path: [method] for path, method in expected.items()
    }
    schema = paths[f"{model}:predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/PredictRequestBody"}
    members = document["components"]["schemas"]["PredictRequestBody"]["properties"]
    assert set(members) == {"signature_name", "instances", "inputs"}
    assert all(call["description"] for methods in found.values() for call in methods.values())
