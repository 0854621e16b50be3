"""LlamaIndex's classes for OpenAI-like servers and TEI: prints what they got as JSON.

``python llama_index_client.py URL TEXT TEXT…``
"""

import asyncio
import json
import sys
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.llms.openai_like import OpenAILike

URL, *TEXTS = sys.argv[1:]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
WHERE: Any = {"api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0}


def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


chat = OpenAILike(model="speaker", is_chat_model=True, is_function_calling_model=True, **WHERE)
completion = OpenAILike(model="speaker", is_chat_model=False, **WHERE)
openai = OpenAIEmbedding(model_name="minilm", **WHERE)
tei = TextEmbeddingsInference(model_name="minilm", base_url=URL, endpoint="/embed?model=minilm")
hello = [ChatMessage(role="system", content="brief"), ChatMessage(role="user", content="hello big world")]
called = chat.chat_with_tools([FunctionTool.from_defaults(weather)], f"SAY:Well {CALL}")

print(
    json.dumps(
        {
            "whole": chat.chat(hello).message.content,
            "stream": [piece.delta for piece in chat.stream_chat(hello) if piece.delta],
            "tool": [[call.tool_name, call.tool_kwargs] for call in chat.get_tool_calls_from_response(called)],
            "completion": completion.complete("hello big world").text,
            "completion stream": [
                piece.delta for piece in completion.stream_complete("hello big world") if piece.delta
            ],
            "async": asyncio.run(chat.acomplete("hello")).text,
            "openai": openai.get_text_embedding_batch(TEXTS),
            "tei": tei.get_text_embedding_batch(TEXTS),
        }
    )
)
