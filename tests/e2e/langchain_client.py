"""LangChain's classes for OpenAI against a server of ``text_models.py``: prints what they got as JSON.

``python langchain_client.py URL TEXT TEXT…``
"""

import asyncio
import json
import sys
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

URL, *TEXTS = sys.argv[1:]
WHERE: Any = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


class Held(BaseModel):
    """The speaker says the schema that it is held to."""

    schema_: dict[str, Any] = Field(alias="json")


@tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


def chats(**options: Any) -> dict[str, Any]:
    chat = ChatOpenAI(model="speaker", **WHERE, **options)
    whole = chat.invoke([("system", "brief"), ("human", "hello big world")])
    pieces = [piece.text for piece in chat.stream("hello big world")]
    called = chat.bind_tools([weather]).invoke(f"SAY:Well {CALL}")
    (call,) = called.tool_calls
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    after = chat.invoke([("human", "how is it?"), called, result])
    held = chat.with_structured_output(Held, method="json_schema").invoke("hello")
    batch = chat.batch([f"text {number}" for number in range(5)])
    return {
        "whole": [whole.text, whole.usage_metadata["total_tokens"] if whole.usage_metadata else None],
        "stream": [piece for piece in pieces if piece],
        "tool": [call["name"], call["args"]],
        "after": "rain in Köln" in after.text,
        "structured": held.schema_["title"] if isinstance(held, Held) else None,
        "batch": [each.text for each in batch],
    }


async def asynchronous() -> list[str]:
    """Of one event loop: LangChain's models share their connections."""
    models = [ChatOpenAI(model="speaker", use_responses_api=kind, **WHERE) for kind in (False, True)]
    return [message.text for message in await asyncio.gather(*(model.ainvoke("hello") for model in models))]


def embeddings() -> dict[str, Any]:
    """Without `check_embedding_ctx_length` texts are sent; with it tokens of a tokenizer of OpenAI's own models."""
    model = OpenAIEmbeddings(model="minilm", check_embedding_ctx_length=False, **WHERE)
    return {"documents": model.embed_documents(TEXTS), "query": model.embed_query(TEXTS[0])}


print(
    json.dumps(
        {
            "chat": chats(),
            "responses": chats(use_responses_api=True),
            "async": asyncio.run(asynchronous()),
            "completion": OpenAI(model="speaker", **WHERE).invoke("hello big world"),
            "embeddings": embeddings(),
        }
    )
)
