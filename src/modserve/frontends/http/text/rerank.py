"""Cohere's and Jina's ``POST /v1/rerank``, Cohere's identical ``POST /v2/rerank``, and vLLM's ``POST /v1/score``."""

import time
import uuid
from typing import Any

from modserve.core.configuration.text_settings import TextTask
from modserve.text.openai_errors import EMPTY, RequestFieldError
from modserve.text.outputs import scores
from modserve.text.tokenizer import Text, Tokens

from . import fields
from .models import TextHandle
from .text_calls import TextCall, TextOptions, usage


async def rerank(call: TextCall) -> bytes:
    """Return the documents by relevance to the query, the most relevant first."""
    body = call.body
    query, documents = fields.require_text(body, "query"), _documents(body)
    most, with_documents = fields.whole_number(body, "top_n"), fields.flag(body, "return_documents", False)
    model = await call.model([TextTask.RERANK])
    by_place, tokens = await rank_texts(call, model, query, documents, fields.options(body), "documents")
    results: list[dict[str, Any]] = []
    for place, score in by_place[:most]:
        document = {"document": {"text": documents[place]}} if with_documents else {}
        results.append({"index": place, "relevance_score": score, **document})
    content = {
        "id": str(uuid.uuid4()),
        "object": "list",
        "model": body.get("model") or model.name,
        "results": results,
        "usage": usage(tokens),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    return await call.encode(content, len(results))


async def score(call: TextCall) -> bytes:
    """Score the relevance of texts in ``text_2`` to texts in ``text_1``, pair by pair."""
    body = call.body
    firsts, seconds = fields.one_or_more(body, "text_1")[0], fields.one_or_more(body, "text_2")[0]
    if len(firsts) == 1:
        firsts *= len(seconds)
    if len(firsts) != len(seconds):
        message = f"'text_1' has {len(firsts)} texts and 'text_2' {len(seconds)}: one for all, or as many"
        raise RequestFieldError(message, "text_1")
    model = await call.model([TextTask.RERANK])
    pairs: list[Text] = list(zip(firsts, seconds, strict=True))
    values, tokens = await _score(call, model, pairs, fields.options(body), "text_2")
    content = {
        "id": f"score-{uuid.uuid4()}",
        "object": "list",
        "created": int(time.time()),
        "model": body.get("model") or model.name,
        "data": [{"index": index, "object": "score", "score": value} for index, value in enumerate(values)],
        "usage": usage(tokens),
    }
    return await call.encode(content, len(values))


async def rank_texts(
    call: TextCall,
    model: TextHandle,
    query: str,
    documents: list[str],
    options: TextOptions,
    member: str,
    activation: str | None = None,
) -> tuple[list[tuple[int, float]], list[Tokens]]:
    """Return the index and score of each document, best first, and the tokens. `member`: field with the documents."""
    if not query:
        raise RequestFieldError("'query' is an empty string", "query", EMPTY)
    pairs: list[Text] = [(query, document) for document in documents]
    values, tokens = await _score(call, model, pairs, options, member, activation)
    return sorted(enumerate(values), key=lambda pair: (-pair[1], pair[0])), tokens


async def _score(
    call: TextCall,
    model: TextHandle,
    pairs: list[Text],
    options: TextOptions,
    member: str,
    activation: str | None = None,
) -> tuple[list[float], list[Tokens]]:
    """Return the score of each pair, and the tokens."""
    tokens = await call.tokens(model, pairs, options, member)
    plan, how = model.plan, model.text.activation if activation is None else activation
    values = await call.run(model, tokens, lambda output, _: float(scores(plan.result(output), how).reshape(-1)[0]))
    return values, tokens


def _documents(body: dict[str, Any]) -> list[str]:
    """Read documents: strings, or objects with a member ``text``."""
    documents = body.get("documents")
    if not isinstance(documents, list):
        raise RequestFieldError(
            "'documents' must be a list of strings, or of objects with a member 'text'", "documents"
        )
    whole = [each.get("text") if isinstance(each, dict) else each for each in documents]
    return fields.texts({"documents": whole}, "documents")
