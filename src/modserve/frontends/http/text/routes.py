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
    "/v1/embeddings": "The embeddings of the texts in ``input``, in their order.",
    "/v1/rerank": "The documents in the order of their relevance to the query, the most relevant first.",
    "/v1/score": "How relevant the texts of ``text_2`` are to those of ``text_1``, pair by pair.",
    "/embed": "The embedding of each text in ``inputs``.",
    "/rerank": "The ``texts`` by their relevance to the query; or ``documents``, as ``/v1/rerank`` ranks them.",
    "/predict": "The labels of each text with their scores, the likeliest first; or those of its tokens.",
    "/similarity": "The cosine of the angle between the embedding of a text and that of each of the others.",
    "/tokenize": "The tokens of each text, with their places in it.",
    "/decode": "The text of each list of tokens in ``ids``.",
    "/info": "What the model is, and what it takes.",
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
