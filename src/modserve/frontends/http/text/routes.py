"""FastAPI routes of the text calls."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from modserve.frontends.http.exchange import Handler
from modserve.frontends.http.rest.document import TEXT
from modserve.frontends.http.rest.messages import DirectRoute, new_router
from modserve.frontends.http.rest.schemas import body_of, errors_of, response_of
from modserve.frontends.http.rest.streams import endpoint
from modserve.settings import HttpSettings

from .handlers import ROUTES

_DESCRIPTIONS: Mapping[str, str] = {
    "/v1/embeddings": "Return the embeddings of the texts in ``input``, in the same order.",
    "/v1/rerank": "Rank documents by their relevance to the query, the most relevant first.",
    "/v1/score": "Score the relevance of each text in ``text_2`` to its counterpart in ``text_1``.",
    "/embed": "Return the embeddings of the texts in ``inputs``, in the same order.",
    "/rerank": "Rank ``texts`` by their relevance to the query. With ``documents``, the call is ``/v1/rerank``.",
    "/predict": "Return the labels of each text with scores, the likeliest first. Some models label tokens instead.",
    "/similarity": "Return the cosine similarity of ``source_sentence`` to each text in ``sentences``.",
    "/tokenize": "Tokenize each text. Each token has its position in the text.",
    "/decode": "Decode each list of tokens in ``ids`` to text.",
    "/info": "Return the model's type and input limits, and the server's version.",
}
"""Descriptions by the first path of each call; compiled functions have no docstrings."""


def router(handlers: Mapping[str, Handler], options: HttpSettings) -> APIRouter:
    """Return the routes of all text calls."""
    router = new_router(TEXT)
    for route in ROUTES:
        if route.paths == ("/",):
            continue  # served by `rest.app`: otherwise health checks would import this module
        errors = errors_of(*route.dialect.statuses, body=route.dialect.body)
        documented: dict[str, Any] = {
            "description": _DESCRIPTIONS[route.paths[0]],
            "responses": {200: response_of(route.answer), **errors},
        }
        if route.body:
            documented |= {"methods": ["POST"], "openapi_extra": body_of(route.body)}
        for path in route.paths:
            # Operation names omit /v2, and /rerank is a different call.
            documented["include_in_schema"] = path != "/v2/rerank"
            handler = endpoint(handlers[path], options)
            handler.__name__ = route.work.__name__
            router.add_api_route(path, handler, route_class_override=DirectRoute, **documented)
    return router
