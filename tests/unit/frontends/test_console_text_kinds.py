"""What the console is told of a model's texts: which box its page gets, with which fields."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from puppet_server import SIMPLE, PuppetLoader, server_over

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.tensors import dtypes
from modserve.frontends.http.rest.app import create_app
from modserve.protocol.restricted import http_restrictions
from modserve.settings import HttpSettings


def generator(prompt: str = "text_input", *more: TensorSpec, **parameters: str) -> ModelConfig:
    inputs = (TensorSpec(prompt, dtypes.BYTES, (1,)), *more)
    outputs = (TensorSpec("text_output", dtypes.BYTES, (-1,)),)
    return ModelConfig("generator", "python", inputs=inputs, outputs=outputs, parameters=parameters)


SAMPLING = TensorSpec("sampling_parameters", dtypes.BYTES, (1,), optional=True)
LENGTH = TensorSpec("max_tokens", dtypes.INT32, (1,), optional=True)
TEMPLATE = "{{ messages[0].content }}"
BERT = "BertForSequenceClassification"
CHAT: dict[str, Any] = {"version": "1", "trouble": "", "kind": "chat", "sampling": [], "suggested": {}}
USUAL = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 1024}
NO_TEXTS = {"version": "1", "trouble": "", "kind": ""}

ROWS: dict[str, tuple[ModelConfig, dict[str, Any], dict[str, Any]]] = {
    "template": (
        generator("text_input", SAMPLING, chat_template=TEMPLATE),
        {},
        {**CHAT, "sampling": ["temperature", "max_tokens"], "suggested": USUAL},
    ),
    "template in a file": (generator(), {"tokenizer_config.json": {"chat_template": TEMPLATE}}, CHAT),
    "no template": (
        generator("text_input", default_max_tokens="7"),
        {},
        {**CHAT, "kind": "completion"},
    ),
    "a function": (generator("question", LENGTH), {}, {**CHAT, "sampling": ["max_tokens"]}),
    "messages": (generator("messages"), {}, CHAT),
    "tensors": (SIMPLE, {}, NO_TEXTS),
    "embedding": (SIMPLE, {"tokenizer.json": {}, "modules.json": []}, {**NO_TEXTS, "kind": "embedding"}),
    "rerank": (
        SIMPLE,
        {"tokenizer.json": {}, "config.json": {"architectures": [BERT], "num_labels": 1}},
        {**NO_TEXTS, "kind": "rerank"},
    ),
    "classification": (
        SIMPLE,
        {"tokenizer.json": {}, "config.json": {"architectures": [BERT], "num_labels": 3}},
        {**NO_TEXTS, "kind": "classification"},
    ),
    "a writer's tensors": (
        SIMPLE,
        {"tokenizer.json": {}, "config.json": {"architectures": ["LlamaForCausalLM"]}},
        NO_TEXTS,
    ),
}


async def about_texts(folder: Path, config: ModelConfig, files: dict[str, Any], **options: Any) -> httpx.Response:
    server = server_over(folder, PuppetLoader({"model": replace(config, name="model")}))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "model" / "1" / name).write_text(text)
    await server.load()
    transport = httpx.ASGITransport(create_app(server, HttpSettings(**options)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get("/console/texts/model")


@pytest.mark.parametrize("row", ROWS)
async def test_which_calls_a_model_has(tmp_path: Path, row: str) -> None:
    config, files, expected = ROWS[row]
    response = await about_texts(tmp_path, config, files)
    assert (response.status_code, response.json()) == (200, expected)


@pytest.mark.parametrize(
    ("config", "files", "message"),
    [
        (generator("text_input", chat_template="{{ broken"), {}, "chat template"),
        (SIMPLE, {"tokenizer.json": {}, "config.json": "{"}, "'config.json' of the model cannot be used"),
    ],
)
async def test_files_that_cannot_be_used_are_said(
    tmp_path: Path, config: ModelConfig, files: dict[str, Any], message: str
) -> None:
    response = await about_texts(tmp_path, config, files)
    assert response.status_code == 200
    assert message in response.json()["trouble"]


async def test_it_is_restricted_as_metadata_is(tmp_path: Path) -> None:
    restrictions = http_restrictions({"metadata": ("key", "secret")})
    response = await about_texts(tmp_path, SIMPLE, {}, restrictions=restrictions)
    assert response.status_code == 403
