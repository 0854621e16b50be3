"""``POST /v1/rerank`` as Cohere and Jina have it, and Cohere's ``POST /v2/rerank``, which is the same."""

import uuid
from typing import Any

from modserve.core.configuration.text_settings import TextTask
from modserve.text.openai_errors import EMPTY, RequestFieldError
from modserve.text.outputs import scores
from modserve.text.tokenizer import Tokens

from . import fields
from .calls import TextCall, TextOptions, usage
from .models import TextHandle


async def rerank(call: TextCall) -> bytes:
    """The documents in the order of their relevance to the query, the most relevant first."""
    body = call.body
    query, documents = fields.required_text(body, "query"), _documents(body)
    most, with_documents = fields.whole_number(body, "top_n"), fields.flag(body, "return_documents", False)
    model = await call.model([TextTask.RERANK])
    by_place, tokens = await ranked(call, model, query, documents, fields.options(body), "documents")
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
    return await call.written(content, len(results))


async def ranked(
    call: TextCall,
    model: TextHandle,
    query: str,
    documents: list[str],
    options: TextOptions,
    member: str,
    activation: str | None = None,
) -> tuple[list[tuple[int, float]], list[Tokens]]:
    """The place of each document with its score, the best first, and the tokens. `member` is that of the documents."""
    if not query:
        raise RequestFieldError("'query' is an empty string", "query", EMPTY)
    tokens = await call.tokens(model, [(query, document) for document in documents], options, member)
    plan, how = model.plan, model.text.activation if activation is None else activation
    values = await call.run(model, tokens, lambda output, _: float(scores(plan.result(output), how).reshape(-1)[0]))
    return sorted(enumerate(values), key=lambda pair: (-pair[1], pair[0])), tokens


def _documents(body: dict[str, Any]) -> list[str]:
    """Strings, or objects with a member ``text``."""
    documents = body.get("documents")
    if not isinstance(documents, list):
        raise RequestFieldError(
            "'documents' must be a list of strings, or of objects with a member 'text'", "documents"
        )
    whole = [each.get("text") if isinstance(each, dict) else each for each in documents]
    return fields.texts({"documents": whole}, "documents")
