"""Calls of texts, through the application without a socket: real tokenizers, and models that the test answers."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from puppet_server import SIMPLE, PortTransport, PuppetServable

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.text_settings import TextSettings
from modserve.core.errors import unavailable
from modserve.core.loading import Blueprint, Listing
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.frontends.http.direct import DirectCalls
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.app import create_app
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable
from modserve.server.interface import Services
from modserve.server.local import LocalServer
from modserve.settings import HttpSettings, LoopLimits
from text_folders import IDS, MODULES, WORDS, write_folder

WIDTH = 4
_TABLE = np.random.default_rng(5).normal(size=(len(IDS), WIDTH)).astype(np.float32)
"""The vector of each token."""
_INPUTS = tuple(TensorSpec(name, dtypes.INT64, (-1,)) for name in ("input_ids", "attention_mask", "token_type_ids"))


def _model(name: str, output: str, dims: tuple[int, ...]) -> ModelConfig:
    outputs = (TensorSpec(output, dtypes.FP32, dims),)
    return ModelConfig(name, "onnxruntime", max_batch_size=8, inputs=_INPUTS, outputs=outputs)


def _hidden(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"last_hidden_state": _TABLE[inputs["input_ids"]]}


def _score(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """How many tokens of the second text are in the first."""
    ids, types = inputs["input_ids"][0], inputs["token_type_ids"][0]
    common = set(ids[types == 0]) & set(ids[types == 1]) - {IDS["[CLS]"], IDS["[SEP]"]}
    return {"logits": np.array([[float(len(common)) - 1.0]], np.float32)}


def _classes(inputs: Mapping[str, Array]) -> dict[str, Array]:
    count = inputs["input_ids"].shape[1]
    return {"logits": np.array([[0.0, float(count), 1.0]], np.float32)}


def _entities(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Dogs and cats are animals."""
    animals = np.isin(inputs["input_ids"], [IDS["dog"], IDS["cat"]])
    return {"logits": np.stack([~animals, animals], axis=-1).astype(np.float32) * 4}


CLASSIFIER = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
TAGGER = {"architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "ANIMAL"}}
PROMPTS = {"prompts": {"query": "query : "}, "default_prompt_name": None}
MODELS: Mapping[str, tuple[ModelConfig, Any, dict[str, Any]]] = {
    "embed": (
        _model("embed", "last_hidden_state", (-1, WIDTH)),
        _hidden,
        {
            "modules.json": MODULES,
            "sentence_bert_config.json": {"max_seq_length": 8},
            "config_sentence_transformers.json": PROMPTS,
        },
    ),
    "ranker": (
        _model("ranker", "logits", (1,)),
        _score,
        {"config.json": {"architectures": ["BertForSequenceClassification"], "num_labels": 1}},
    ),
    "classes": (_model("classes", "logits", (3,)), _classes, {"config.json": CLASSIFIER}),
    "tags": (_model("tags", "logits", (-1, 2)), _entities, {"config.json": TAGGER}),
}


@dataclass
class TextLoader:
    """Loads puppets whose files are those of `MODELS`."""

    models: Mapping[str, tuple[ModelConfig, Any, dict[str, Any]]] = field(default_factory=lambda: MODELS)
    loaded: dict[ModelId, PuppetServable] = field(default_factory=dict)

    async def inspect(self, listing: Listing) -> Blueprint:
        return Blueprint(listing, listing.versions, load=partial(self.load, listing.name))

    async def load(self, name: str, path: Path, version: int) -> PuppetServable:
        config, compute, _ = self.models[name]
        self.loaded[ModelId(name, version)] = PuppetServable(ModelId(name, version), config, compute)
        return self.loaded[ModelId(name, version)]

    def forget(self, name: str) -> None:
        pass


@dataclass
class Stage:
    server: LocalServer
    loader: TextLoader
    client: httpx.AsyncClient
    repository: Path

    def servable(self, name: str, version: int = 1) -> PuppetServable:
        return self.loader.loaded[ModelId(name, version)]

    async def post(self, path: str, **body: Any) -> Any:
        """The JSON of a response that must be 200."""
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, path: str, **body: Any) -> tuple[int, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code >= 400
        return response.status_code, response.json()


async def staged(
    repository: Path,
    models: Mapping[str, tuple[ModelConfig, Any, dict[str, Any]]],
    memory: MemoryBudget | None = None,
    options: HttpSettings | None = None,
    way: str = "port",
) -> Stage:
    loader = TextLoader(models)
    for name, (_, _, files) in models.items():
        write_folder(repository / name / "1", files, with_tokenizer=files is not BARE)
    manager = ModelManager(ModelTable(), loader, 8)
    services = Services(memory=MemoryBudget() if memory is None else memory)
    server = LocalServer(manager, repositories_at([repository]), services, name="modserve")
    await server.load()
    direct = DirectCalls(CallContext(server, options or HttpSettings()))
    app = create_app(server, direct.context.options, direct)
    transport = PortTransport(direct) if way == "port" else httpx.ASGITransport(app)
    return Stage(server, loader, httpx.AsyncClient(transport=transport, base_url="http://localhost"), repository)


BARE: dict[str, Any] = {}
"""The files of a model without a tokenizer."""


@pytest.fixture(params=["port", "application"])
async def stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """With the calls run by the port itself, or by the application, which is all that there is in another one."""
    stage = await staged(tmp_path, MODELS, way=request.param)
    async with stage.client:
        yield stage


def ids(*words: str) -> list[int]:
    return [IDS["[CLS]"], *(IDS[word] for word in words), IDS["[SEP]"]]


def embedding(tokens: list[int], *, normalize: bool = True, skip: int = 0) -> Any:
    vector = _TABLE[tokens][skip:].mean(axis=0)
    return vector / np.linalg.norm(vector) if normalize else vector


def close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110 - nothing says when it becomes true
            await asyncio.sleep(0)


# OpenAI's embeddings


@pytest.mark.parametrize("path", ["/v1/embeddings", "/openai/v1/embeddings"])
async def test_embeddings_of_texts(stage: Stage, path: str) -> None:
    body = await stage.post(path, model="embed", input=["the cat", "a dog ran"], user="me", unknown=1)
    assert {key: body[key] for key in ("object", "model", "usage")} == {
        "object": "list",
        "model": "embed",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    assert [(each["object"], each["index"]) for each in body["data"]] == [("embedding", 0), ("embedding", 1)]
    close(body["data"][0]["embedding"], embedding(ids("the", "cat")))
    close(body["data"][1]["embedding"], embedding(ids("a", "dog", "ran")))


async def test_embeddings_of_one_text_and_of_tokens(stage: Stage) -> None:
    one = await stage.post("/v1/embeddings", model="embed", input="the cat")
    tokens = await stage.post("/v1/embeddings", model="embed", input=ids("the", "cat"))
    lists = await stage.post("/v1/embeddings", model="embed", input=[ids("the", "cat"), [IDS["dog"]]])
    close(one["data"][0]["embedding"], embedding(ids("the", "cat")))
    assert one["data"] == tokens["data"] == lists["data"][:1]
    close(lists["data"][1]["embedding"], embedding([IDS["dog"]]))


async def test_base64(stage: Stage) -> None:
    body = await stage.post("/v1/embeddings", model="embed", input="the cat", encoding_format="base64")
    close(np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4"), embedding(ids("the", "cat")))


async def test_fewer_dimensions(stage: Stage) -> None:
    body = await stage.post("/v1/embeddings", model="embed", input="the cat", dimensions=2)
    whole = embedding(ids("the", "cat"), normalize=False)[:2]
    close(body["data"][0]["embedding"], whole / np.linalg.norm(whole))
    assert await stage.refused("/v1/embeddings", model="embed", input="the cat", dimensions=5) == (
        400,
        {
            "error": {
                "message": "'dimensions' is 5, and the embeddings of model 'embed' have 4",
                "type": "invalid_request_error",
                "param": "dimensions",
                "code": None,
            }
        },
    )


async def test_a_long_text_is_cut_and_the_usage_says_so(stage: Stage) -> None:
    body = await stage.post("/v1/embeddings", model="embed", input=" ".join(WORDS))
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8, "truncated_tokens": len(WORDS) + 2 - 8}
    close(body["data"][0]["embedding"], embedding(ids(*WORDS[:6])))
    tokens = await stage.post("/v1/embeddings", model="embed", input=[5] * 10)
    assert tokens["usage"]["truncated_tokens"] == 2


async def test_a_prompt(stage: Stage) -> None:
    body = await stage.post("/v1/embeddings", model="embed", input="cat", prompt_name="query")
    close(body["data"][0]["embedding"], embedding(ids("query", ":", "cat")))
    status, error = await stage.refused("/v1/embeddings", model="embed", input="cat", prompt_name="other")
    assert (status, error["error"]["param"]) == (400, "prompt_name")


async def test_a_list_in_many_pieces_keeps_its_order(stage: Stage) -> None:
    texts = [" ".join(WORDS[: 1 + place % 5]) for place in range(700)]
    body = await stage.post("/v1/embeddings", model="embed", input=texts)
    for each in body["data"]:
        close(each["embedding"], embedding(ids(*WORDS[: 1 + each["index"] % 5])))


WRONG: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "no input": ({}, "'input' is missing: a string, a list of strings, a list of tokens", "input"),
    "a number": ({"input": 3}, "'input' has another type", "input"),
    "an empty text": ({"input": ""}, "'input' is an empty string", "input"),
    "an empty list": ({"input": []}, "'input' has no texts", "input"),
    "an empty text in a list": ({"input": ["a", ""]}, "input[1] is empty", "input[1]"),
    "an empty list of tokens": ({"input": [[1], []]}, "'input[1]' has no tokens", "input[1]"),
    "mixed": ({"input": ["a", 1]}, "'input' must be a string", "input"),
    "tokens and texts": ({"input": [[1], "a"]}, "'input[1]' must be a string", "input[1]"),
    "true as a token": ({"input": [True]}, "'input' must be", "input"),
    "a token outside": ({"input": [1, 99]}, "'input': token 1 is 99, and the model's tokens are 0 to 17", "input"),
    "a negative token": ({"input": [[-1]]}, "'input[0]': token 0 is -1", "input[0]"),
    "a huge token": ({"input": [2**63]}, "token 0 is 9223372036854775808", "input"),
    "a format": ({"input": "a", "encoding_format": "hex"}, "'encoding_format' must be one of float, base64", None),
    "dimensions": ({"input": "a", "dimensions": 0}, "'dimensions' must be a whole number of 1 or more", "dimensions"),
    "a fraction": ({"input": "a", "dimensions": 1.5}, "'dimensions' must be a whole number", "dimensions"),
    "a model of another type": ({"input": "a", "model": 1}, "'model' must be a string", "model"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_with_a_body(stage: Stage, name: str) -> None:
    body, message, param = WRONG[name]
    status, error = await stage.refused("/v1/embeddings", **{"model": "embed", **body})
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    assert message in error["error"]["message"]
    assert param in (None, error["error"]["param"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b'{"input": "\xff"}', "the body is not JSON in UTF-8"),
        (b'{"input": "\\ud800"}', "the body is not JSON in UTF-8"),
        (b"[" * 5000, "the body is not JSON"),
    ],
)
async def test_a_body_that_is_no_json(stage: Stage, body: bytes, message: str) -> None:
    response = await stage.client.post("/v1/embeddings", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


async def test_too_many_texts(stage: Stage) -> None:
    status, error = await stage.refused("/v1/embeddings", model="embed", input=["a"] * 100_000)
    assert (status, error["error"]["code"]) == (400, "too_many_inputs")
    assert "'input' has 100000 texts, and a request for model 'embed' may have 2048" in error["error"]["message"]
    status, error = await stage.refused("/embed", model="embed", inputs=["a"] * 100_000)
    assert (status, error["error_type"]) == (413, "Validation")
    assert (await stage.refused("/v1/embeddings", model="embed", input=[[1]] * 2049))[0] == 400


async def test_memory_is_refused_before_it_is_used(tmp_path: Path) -> None:
    budget = MemoryBudget(20_000_000)  # enough for the body
    stage = await staged(tmp_path, MODELS, budget)
    response = await stage.client.post("/v1/embeddings", json={"model": "embed", "input": ["the " * 500] * 2000})
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "server_error"
    assert budget.held == 0


# Which model


async def test_the_only_model_of_a_task_need_not_be_named(stage: Stage) -> None:
    assert (await stage.post("/v1/embeddings", input="cat"))["model"] == "embed"
    assert len(await stage.post("/embed", inputs="cat")) == 1
    assert (await stage.client.get("/info?model=ranker")).json()["model_id"] == "ranker"


async def test_one_of_several_must_be_named(stage: Stage) -> None:
    status, error = await stage.refused("/predict", inputs="cat")
    assert status == 404
    assert error["error"] == (
        "the request names no model, and models for classification or rerank or token_classification are: "
        "'classes', 'ranker', 'tags'"
    )


async def test_an_unknown_model(stage: Stage) -> None:
    status, error = await stage.refused("/v1/embeddings", model="nothing", input="cat")
    assert (status, error["error"]["code"], error["error"]["param"]) == (404, "model_not_found", "model")
    assert error["error"]["message"] == "there is no model 'nothing'; models for embedding are: 'embed'"


async def test_a_model_for_another_task(stage: Stage) -> None:
    status, error = await stage.refused("/v1/embeddings", model="ranker", input="cat")
    assert status == 400
    assert error["error"]["message"] == (
        "model 'ranker' is for the task rerank, and this call is for embedding; models for embedding are: 'embed'"
    )


async def test_models_that_cannot_take_texts(tmp_path: Path) -> None:
    writer = {"config.json": {"architectures": ["LlamaForCausalLM"]}}
    models = {
        "bare": (SIMPLE, None, BARE),
        "writer": (MODELS["embed"][0], _hidden, writer),
        "image": (replace(SIMPLE, name="image"), None, {"config.json": {}}),
        "broken": (MODELS["embed"][0], _hidden, {"tokenizer.json": "{"}),
        "odd": (MODELS["embed"][0], _hidden, {"config.json": "{"}),
    }
    stage = await staged(tmp_path, models)
    for name, status, message in (
        ("bare", 400, "model 'bare' takes no texts: there is no tokenizer.json beside its file"),
        ("writer", 400, "model 'writer' takes no texts: its config.json is that of a model that writes texts"),
        ("image", 400, "takes no texts: its inputs are 'INPUT0', 'INPUT1', and a text has input_ids"),
        ("broken", 500, "'tokenizer.json' of the model cannot be used: it is no tokenizer"),
        ("odd", 500, "'config.json' of the model cannot be used: it is not JSON"),
    ):
        for _ in range(2):  # failures are kept
            found, error = await stage.refused("/v1/embeddings", model=name, input="cat")
            assert (found, message in error["error"]["message"]) == (status, True), error
    tensors = {"inputs": [{"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [5]}]}
    for name in ("attention_mask", "token_type_ids"):
        tensors["inputs"].append({"name": name, "shape": [1, 1], "datatype": "INT64", "data": [0]})
    assert (await stage.client.post("/v2/models/broken/infer", json=tensors)).status_code == 200


# The life of a version


async def test_a_tokenizer_goes_with_its_version(stage: Stage) -> None:
    """And what takes the version's place has its own."""
    before = await stage.post("/v1/embeddings", model="embed", input="the cat")
    write_folder(stage.repository / "embed" / "2", {"modules.json": MODULES[:2]})
    listings = await stage.server._control._repositories[0].look()
    manager = stage.server._control._manager
    await manager.reconcile(await manager.inspect(listings.values()))
    after = await stage.post("/v1/embeddings", model="embed", input="the cat")
    close(after["data"][0]["embedding"], embedding(ids("the", "cat"), normalize=False))
    assert before["data"] != after["data"]


async def test_the_first_calls_share_the_reading_of_a_tokenizer(stage: Stage) -> None:
    bodies = await asyncio.gather(*(stage.post("/v1/embeddings", model="embed", input="cat") for _ in range(20)))
    assert all(body == bodies[0] for body in bodies)


async def test_an_abandoned_call_cancels_its_inferences(stage: Stage) -> None:
    await stage.post("/v1/embeddings", model="embed", input="cat")
    servable = stage.servable("embed")
    servable.automatic = False
    servable.submitted.clear()
    call = asyncio.create_task(stage.post("/v1/embeddings", model="embed", input=["cat"] * 5))
    await until(lambda: len(servable.submitted) == 5)
    call.cancel()
    await asyncio.wait([call])
    await until(lambda: all(each.settled for each in servable.submitted))


async def test_a_failure_of_the_model(stage: Stage) -> None:
    servable = stage.servable("embed")
    servable.automatic = False
    call = asyncio.create_task(stage.refused("/v1/embeddings", model="embed", input=["cat", "dog"]))
    await until(lambda: len(servable.submitted) == 2)
    for each in servable.submitted:
        each.settle(unavailable("Exceeds maximum queue size"))
    status, error = await call
    assert (status, error["error"]) == (
        503,
        {"message": "Exceeds maximum queue size", "type": "server_error", "param": None, "code": None},
    )


async def test_nothing_of_a_text_is_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "xylophone"
    await stage.post("/v1/embeddings", model="embed", input=secret)
    for path, body in (
        ("/v1/embeddings", {"model": "ranker", "input": secret}),
        ("/v1/embeddings", {"model": "embed", "input": [secret, ""]}),
        ("/v1/embeddings", {"model": "embed", "input": secret, "dimensions": 99}),
        ("/embed", {"model": "embed", "inputs": [secret, " ".join(WORDS)], "truncate": False}),
        ("/rerank", {"model": "ranker", "query": secret, "texts": [1]}),
    ):
        _, error = await stage.refused(path, **body)
        assert secret not in json.dumps(error)
    response = await stage.client.post("/embed", content=f'{{"inputs": "{secret}'.encode())
    assert response.status_code == 400
    assert secret not in caplog.text


# Text-embeddings-inference


async def test_embed(stage: Stage) -> None:
    one, two = await stage.post("/embed", inputs=["the cat", "a dog ran"])
    close(one, embedding(ids("the", "cat")))
    close(two, embedding(ids("a", "dog", "ran")))
    (raw,) = await stage.post("/embed", inputs="the cat", normalize=False)
    close(raw, embedding(ids("the", "cat"), normalize=False))


async def test_embed_cuts_unless_it_must_not(stage: Stage) -> None:
    long = " ".join(WORDS)
    (start,) = await stage.post("/embed", inputs=long)
    (end,) = await stage.post("/embed", inputs=long, truncate=True, truncation_direction="Left")
    close(start, embedding(ids(*WORDS[:6])))
    close(end, embedding(ids(*WORDS[-6:])))
    assert await stage.refused("/embed", inputs=["cat", long], truncate=False) == (
        413,
        {
            "error": "inputs[1] has 16 tokens, and model 'embed' takes 8; shorten it, or let it be cut",
            "error_type": "Validation",
        },
    )


async def test_rerank(stage: Stage) -> None:
    texts = ["hello world", "the dog ran", "the cat sat"]
    ranks = await stage.post("/rerank", query="the cat sat", texts=texts)
    assert [each["index"] for each in ranks] == [2, 1, 0]
    close([each["score"] for each in ranks], 1 / (1 + np.exp([-2.0, 0.0, 1.0])))
    raw = await stage.post("/rerank", query="the cat sat", texts=texts, raw_scores=True, return_text=True)
    assert raw[0] == {"index": 2, "text": "the cat sat", "score": 2.0}


async def test_predict(stage: Stage) -> None:
    single = await stage.post("/predict", model="classes", inputs="the cat")
    assert [each["label"] for each in single] == ["b", "c", "a"]
    close([each["score"] for each in single], np.exp([4.0, 1.0, 0.0]) / np.exp([4.0, 1.0, 0.0]).sum())
    pair = await stage.post("/predict", model="classes", inputs=["cat", "dog"], raw_scores=True)
    assert pair[0] == {"score": 5.0, "label": "b"}
    several = await stage.post("/predict", model="classes", inputs=[["cat"], ["cat", "dog"]], raw_scores=True)
    assert [each[0]["score"] for each in several] == [3.0, 5.0]


async def test_predict_of_tokens(stage: Stage) -> None:
    entities = await stage.post("/predict", model="tags", inputs="the Cat sat")
    assert [{key: each[key] for key in ("entity", "index", "word", "start", "end")} for each in entities] == [
        {"entity": "ANIMAL", "index": 2, "word": "cat", "start": 4, "end": 7}
    ]


TAGGED_TEXT = "the cat sat on a mat the dog"
"""Its animals are at 4 to 7 and 25 to 28."""


@pytest.mark.parametrize(
    ("settings", "body", "expected"),
    [
        (TextSettings(max_length=5), {}, [(2, "cat", 4, 7)]),
        (TextSettings(max_length=4), {"truncation_direction": "Left"}, [(2, "dog", 25, 28)]),
        (TextSettings(max_length=3), {"inputs": "sat dog"}, []),
        (TextSettings(), {"prompt_name": "query"}, [(4, "cat", 4, 7), (10, "dog", 25, 28)]),
        (TextSettings(default_prompt="query"), {}, [(4, "cat", 4, 7), (10, "dog", 25, 28)]),
        (TextSettings(), {"prompt_name": "pets"}, [(4, "cat", 4, 7), (10, "dog", 25, 28)]),
        (TextSettings(max_length=5), {"prompt_name": "query", "truncation_direction": "Left"}, [(3, "dog", 25, 28)]),
        (TextSettings(), {"inputs": [["the cat", "a dog sat"]]}, [(2, "cat", 4, 7), (5, "dog", 2, 5)]),
        (TextSettings(max_length=7), {"inputs": [["cat the cat mat", "a dog"]]}, [(1, "cat", 0, 3), (5, "dog", 2, 5)]),
        (TextSettings(), {"inputs": "\u0130 \u0130 Cat"}, [(3, "cat", 4, 7)]),
    ],
)
async def test_entities_are_those_of_the_tokens_that_the_model_had(
    tmp_path: Path, settings: TextSettings, body: dict[str, Any], expected: list[tuple[int, str, int, int]]
) -> None:
    config, compute, files = MODELS["tags"]
    files = {
        **files,
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": "query : ", "pets": "cat dog "}},
    }
    stage = await staged(tmp_path, {"tags": (replace(config, text=settings), compute, files)})
    entities = await stage.post("/predict", **{"inputs": TAGGED_TEXT, "truncate": True, **body})
    entities = entities[0] if entities and isinstance(entities[0], list) else entities
    assert [(each["index"], each["word"], each["start"], each["end"]) for each in entities] == expected
    assert all(each["entity"] == "ANIMAL" for each in entities)


async def test_tokens_are_those_of_the_lowered_text_with_places_in_its_own(tmp_path: Path) -> None:
    config, compute, files = MODELS["embed"]
    files = {**files, "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True}}
    stage = await staged(tmp_path, {"embed": (config, compute, files)})
    (tokens,) = await stage.post("/tokenize", inputs="\u0130 Cat", add_special_tokens=False)
    assert tokens[-1] == {"id": IDS["cat"], "text": "Cat", "special": False, "start": 2, "stop": 5}


async def test_similarity(stage: Stage) -> None:
    inputs = {"source_sentence": "the cat", "sentences": ["the cat", "a dog"]}
    same, other = await stage.post("/similarity", inputs=inputs)
    assert same == pytest.approx(1.0, abs=1e-6)
    assert other == pytest.approx(float(embedding(ids("the", "cat")) @ embedding(ids("a", "dog"))), abs=1e-6)


async def test_tokenize_and_decode(stage: Stage) -> None:
    (tokens,) = await stage.post("/tokenize", model="embed", inputs="The cat")
    assert tokens[0] == {"id": IDS["[CLS]"], "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert tokens[1] == {"id": IDS["the"], "text": "The", "special": False, "start": 0, "stop": 3}
    bare = await stage.post("/tokenize", model="embed", inputs=["cat"], add_special_tokens=False)
    assert [[each["id"] for each in row] for row in bare] == [[IDS["cat"]]]
    assert await stage.post("/decode", model="embed", ids=ids("the", "cat")) == ["the cat"]
    assert await stage.post("/decode", model="embed", ids=[[5], [6]], skip_special_tokens=False) == ["cat", "sat"]
    assert (await stage.refused("/decode", model="embed", ids=[999]))[0] == 422


async def test_info(stage: Stage) -> None:
    info = (await stage.client.get("/info?model=embed")).json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["max_input_length"], info["auto_truncate"], info["prompts"]) == (8, True, {"query": "query : "})
    classes = (await stage.client.get("/info?model=classes")).json()["model_type"]["classifier"]
    assert classes["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert (await stage.client.get("/info")).status_code == 404


TEI_WRONG: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no inputs": ("/embed", {}, 422, "Validation"),
    "inputs of another type": ("/embed", {"inputs": [1]}, 422, "Validation"),
    "no texts": ("/embed", {"inputs": []}, 400, "Empty"),
    "an empty text": ("/embed", {"inputs": [""]}, 400, "Empty"),
    "a direction": ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, "Validation"),
    "a flag": ("/embed", {"inputs": "a", "normalize": "no"}, 422, "Validation"),
    "no query": ("/rerank", {"texts": ["a"]}, 422, "Validation"),
    "no list": ("/rerank", {"query": "a", "texts": "a"}, 422, "Validation"),
    "three strings": ("/predict", {"model": "classes", "inputs": ["a", "b", "c"]}, 422, "Validation"),
    "three in a list": ("/predict", {"model": "classes", "inputs": [["a", "b", "c"]]}, 422, "Validation"),
    "sentences of another type": ("/similarity", {"inputs": "a"}, 422, "Validation"),
    "ids of another type": ("/decode", {"model": "embed", "ids": "a"}, 422, "Validation"),
}


@pytest.mark.parametrize("name", TEI_WRONG)
async def test_failures_as_tei_writes_them(stage: Stage, name: str) -> None:
    path, body, status, kind = TEI_WRONG[name]
    found, error = await stage.refused(path, **body)
    assert (found, error["error_type"]) == (status, kind), error


# Cohere and Jina


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/openai/v1/rerank"])
async def test_rerank_of_documents(stage: Stage, path: str) -> None:
    documents = ["hello world", {"text": "the cat sat"}, "the dog ran"]
    body = await stage.post(path, model="ranker", query="the cat sat", documents=documents, top_n=2)
    assert [each["index"] for each in body["results"]] == [1, 2]
    close([each["relevance_score"] for each in body["results"]], 1 / (1 + np.exp([-2.0, 0.0])))
    assert (body["model"], body["usage"]["total_tokens"]) == ("ranker", 26)
    with_texts = await stage.post(path, query="cat", documents=["cat"], return_documents=True)
    assert with_texts["results"][0]["document"] == {"text": "cat"}
    status, error = await stage.refused(path, query="cat", documents=[{"no": "text"}])
    assert (status, error["error"]["param"]) == (400, "documents[0]")


# Settings


async def test_settings_go_before_the_files(tmp_path: Path) -> None:
    config, compute, files = MODELS["embed"]
    settings = TextSettings(pooling=("cls",), normalize=False, max_length=4, truncate=False, max_texts=2)
    stage = await staged(tmp_path, {"embed": (replace(config, text=settings), compute, files)})
    body = await stage.post("/v1/embeddings", input="the cat")
    close(body["data"][0]["embedding"], _TABLE[IDS["[CLS]"]])
    status, error = await stage.refused("/v1/embeddings", input="the cat sat")
    assert (status, error["error"]["code"], error["error"]["param"]) == (400, "context_length_exceeded", "input[0]")
    assert (await stage.refused("/v1/embeddings", input=["a"] * 3))[1]["error"]["code"] == "too_many_inputs"


async def test_a_prompt_that_is_not_pooled(tmp_path: Path) -> None:
    config, compute, files = MODELS["embed"]
    files = {**files, "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": False}}
    stage = await staged(tmp_path, {"embed": (config, compute, files)})
    body = await stage.post("/v1/embeddings", input="cat", prompt_name="query")
    close(body["data"][0]["embedding"], embedding(ids("query", ":", "cat"), skip=3))


@pytest.mark.parametrize(("words", "kept", "skip"), [(5, [":", 5], 2), (6, [6], 1), (9, [6], 1)])
async def test_a_prompt_that_is_not_pooled_and_was_cut(tmp_path: Path, words: int, kept: list[Any], skip: int) -> None:
    """At most 8 tokens are left, two of them the tokenizer's own."""
    config, compute, files = MODELS["embed"]
    files = {**files, "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": False}}
    stage = await staged(tmp_path, {"embed": (config, compute, files)})
    text = " ".join(WORDS[:words])
    call = {"inputs": text, "prompt_name": "query", "truncation_direction": "Left"}
    (vector,) = await stage.post("/embed", **call)
    left = [word for each in kept for word in ([each] if isinstance(each, str) else WORDS[words - each : words])]
    close(vector, embedding(ids(*left), skip=skip))


async def test_long_texts_are_read_on_a_thread(tmp_path: Path) -> None:
    options = HttpSettings(limits=LoopLimits(json=64, elements=8))
    stage = await staged(tmp_path, MODELS, options=options)
    body = await stage.post("/v1/embeddings", model="embed", input=["the cat " * 400, "cat"])
    close(body["data"][1]["embedding"], embedding(ids("cat")))
    assert body["usage"]["truncated_tokens"] == 802 - 8


@pytest.mark.parametrize("timed", [True, False])
async def test_what_a_request_has_cost(tmp_path: Path, timed: bool) -> None:
    stage = await staged(tmp_path, MODELS, options=HttpSettings(server_timing=timed))
    servable = stage.servable("embed")
    servable.automatic = False
    async with stage.client, asyncio.TaskGroup() as tasks:
        post = tasks.create_task(stage.client.post("/v1/embeddings", json={"model": "embed", "input": "cat"}))
        await until(lambda: bool(servable.submitted))
        inflight = servable.submitted[0]
        inflight.timing = ExecutionTiming(batch_size=3, compute_start_ns=1, compute_end_ns=2)
        servable.answer(inflight)
        response = await post
    assert response.status_code == 200
    cost = response.headers.get("server-timing")
    assert cost is not None and cost.endswith('batch;desc="3"') if timed else cost is None
