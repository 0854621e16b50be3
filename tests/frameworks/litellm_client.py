"""LiteLLM against a server of ``text_models.py``: prints what it got as JSON.

``python litellm_client.py URL TEXT TEXT…``
"""

import asyncio
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its prices would come from GitHub
import litellm

litellm.suppress_debug_info = True
URL, *TEXTS = sys.argv[1:]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
WHERE: Any = {"api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0, "num_retries": 0}
HELLO = [{"role": "system", "content": "brief"}, {"role": "user", "content": "hello big world"}]
SPEAKER: Any = {"model": "openai/speaker", **WHERE}


def refused() -> list[Any]:
    try:
        litellm.completion(model="openai/nosuch", messages=HELLO, **WHERE)
    except litellm.exceptions.NotFoundError as error:
        return [type(error).__name__, error.status_code]
    return []


whole = litellm.completion(messages=HELLO, **SPEAKER)
called = litellm.completion(messages=[{"role": "user", "content": f"SAY:Well {CALL}"}], tools=TOOLS, **SPEAKER)
pieces = litellm.completion(messages=HELLO, stream=True, stream_options={"include_usage": True}, **SPEAKER)
RERANKS = (
    ("jina_ai", "/v1/rerank"),
    ("cohere", "/v2/rerank"),
    ("huggingface", ""),
    ("hosted_vllm", ""),
    ("infinity", ""),
)
"""Providers whose form of the call is known here, each with the path that LiteLLM does not add itself."""


def ranks(provider: str, path: str) -> list[Any]:
    # Infinity's documents are plain strings in the response, where vLLM has objects at the same path.
    more: Any = {"return_documents": False} if provider == "infinity" else {}
    where: Any = {"api_base": f"{URL}{path}", "api_key": "none", **more}
    ranked = litellm.rerank(model=f"{provider}/ranker", query=TEXTS[0], documents=TEXTS[1:], top_n=2, **where)
    return [[each["index"], each["relevance_score"]] for each in ranked.results]


response = litellm.responses(input="hello", instructions="brief", **SPEAKER)

print(
    json.dumps(
        {
            "whole": [whole.choices[0].message.content, whole.usage.total_tokens],
            "stream": [text for piece in pieces for choice in piece.choices if (text := choice.delta.content)],
            "tool": [[call.function.name, call.function.arguments] for call in called.choices[0].message.tool_calls],
            "completion": litellm.text_completion(
                model="text-completion-openai/speaker", prompt="hello big world", **WHERE
            )
            .choices[0]
            .text,
            "async": asyncio.run(litellm.acompletion(messages=HELLO, **SPEAKER)).choices[0].message.content,
            "response": response.output[0].content[0].text,
            "embeddings": [
                each["embedding"]
                for each in litellm.embedding(model="openai/minilm", input=TEXTS, encoding_format="float", **WHERE).data
            ],
            "vllm": litellm.completion(model="hosted_vllm/org/speaker", messages=HELLO, **WHERE)
            .choices[0]
            .message.content,
            "infinity": [
                each["embedding"]
                for each in litellm.embedding(model="infinity/minilm", input=TEXTS, api_base=URL, api_key="none").data
            ],
            "reranks": {provider: ranks(provider, path) for provider, path in RERANKS},
            "unknown": refused(),
        }
    )
)
