"""Calls of texts by the clients of other projects, in their own virtual environment: prints what they got as JSON.

``python text_client.py URL TEXT TEXT…``: OpenAI's client, sync and async, huggingface_hub's and Cohere's.
"""

import asyncio
import json
import sys
from typing import Any

import cohere
import huggingface_hub
import openai

URL, *TEXTS = sys.argv[1:]
EMBED, RANK = "minilm", "ranker"


def refused(call: Any) -> list[Any]:
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param, error.type]
    return []


async def many(client: openai.AsyncOpenAI) -> list[list[float]]:
    calls = [client.embeddings.create(model=EMBED, input=text) for text in TEXTS]
    return [each.data[0].embedding for each in await asyncio.gather(*calls)]


def openai_calls(path: str) -> dict[str, Any]:
    client = openai.OpenAI(base_url=f"{URL}{path}", api_key="none", max_retries=0)
    default = client.embeddings.create(model=EMBED, input=TEXTS)  # which asks for base64
    floats = client.embeddings.create(model=EMBED, input=TEXTS, encoding_format="float")
    tokens = client.embeddings.create(model=EMBED, input=[[101, 7592, 102], [101, 102]])
    async_client = openai.AsyncOpenAI(base_url=f"{URL}{path}", api_key="none", max_retries=0)
    return {
        "base64": [each.embedding for each in default.data],
        "float": [each.embedding for each in floats.data],
        "async": asyncio.run(many(async_client)),
        "short": len(client.embeddings.create(model=EMBED, input="a", dimensions=64).data[0].embedding),
        "tokens": [len(tokens.data), tokens.usage.prompt_tokens],
        "usage": [default.usage.prompt_tokens, default.usage.total_tokens, default.model],
        "unknown": refused(lambda: client.embeddings.create(model="nothing", input="a")),
        "empty": refused(lambda: client.embeddings.create(model=EMBED, input="")),
    }


def hub_calls() -> dict[str, Any]:
    def at(path: str) -> huggingface_hub.InferenceClient:
        return huggingface_hub.InferenceClient(base_url=None, model=f"{URL}{path}")

    long: Any = {"truncate": True, "truncation_direction": "left"}
    best: Any = at("/predict?model=classifier").text_classification(TEXTS[0])  # of the labels: it takes the first one
    entities = at("/predict?model=tagger").token_classification("Anna is in Paris")
    return {
        "feature_extraction": at("/embed").feature_extraction(TEXTS[0]).tolist(),
        "longer": at("/embed").feature_extraction(" ".join([*TEXTS] * 100), **long).tolist(),
        "sentence_similarity": at("/similarity").sentence_similarity(TEXTS[0], TEXTS[1:]),
        "text_classification": [best.label, best.score],
        "token_classification": [[each.entity, each.word, each.start, each.end] for each in entities],
    }


def cohere_calls() -> dict[str, Any]:
    found = {}
    for name, client in (("v1", cohere.Client("none", base_url=URL)), ("v2", cohere.ClientV2("none", base_url=URL))):
        response = client.rerank(model=RANK, query=TEXTS[0], documents=TEXTS[1:], top_n=2)
        found[name] = [[each.index, each.relevance_score] for each in response.results]
    return found


print(
    json.dumps(
        {
            "openai": openai_calls("/v1"),
            "openai of its own": openai_calls("/openai/v1"),
            "hub": hub_calls(),
            "cohere": cohere_calls(),
        }
    )
)
