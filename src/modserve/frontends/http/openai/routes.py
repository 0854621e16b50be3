"""FastAPI routes of OpenAI's text generation calls and model list."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from modserve.core.errors import ModserveError
from modserve.frontends.http.exchange import Handler
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.document import TEXT
from modserve.frontends.http.rest.messages import DirectRoute, json_response, new_router
from modserve.frontends.http.rest.schemas import FAILURES, body_of, errors_of, response_of
from modserve.frontends.http.rest.streams import complete_request, endpoint, response_to

from .handlers import failure_response
from .models import list_json, model_json

_BODIES = {
    "chat/completions": (
        "ChatRequestBody",
        "ChatResponseBody",
        "Generate the next message of a conversation, as OpenAI's API does. `stream` requests server-sent events.",
    ),
    "completions": (
        "CompletionRequestBody",
        "ChatResponseBody",
        "Generate the continuation of a text, as OpenAI's API does. `stream` requests server-sent events.",
    ),
    "responses": (
        "ItemsRequestBody",
        "ItemsResponseBody",
        "Generate the next items of a conversation, as OpenAI's API does. The server stores nothing.",
    ),
}
"""Request body, response body and description of each call: compiled functions have no docstrings."""


def router(handlers: Mapping[str, Handler], context: CallContext) -> APIRouter:
    """Return the routes."""
    server, router = context.server, new_router(TEXT)

    async def models() -> Response:
        """Return the text models that are ready."""
        return json_response(await list_json(server))

    async def model(request: Request, model: str) -> Response:
        """Return one model if it is ready."""
        try:
            server.model(model)
        except ModserveError as error:
            complete = await complete_request(request, context.options)
            return response_to(request, failure_response(context, complete, error, model))
        return json_response(await model_json(server, model))

    failures_of = errors_of(*FAILURES, body="OpenAIErrorAnswer")
    for path, call in handlers.items():
        name = path.partition("/v1/")[2]
        body, answer, description = _BODIES[name]
        options: dict[str, Any] = {
            "methods": ["POST"],
            "name": name.replace("/", "_"),
            "description": description,
            "responses": {200: response_of(answer), **failures_of},
            "openapi_extra": body_of(body),
            "route_class_override": DirectRoute,
        }
        router.add_api_route(path, endpoint(call, context.options), **options)
    router.add_api_route("/openai/v1/models", models, responses={200: response_of("OpenAIModels")})
    one = {200: response_of("OpenAIModel"), **errors_of(404, 503, body="OpenAIErrorAnswer")}
    router.add_api_route("/openai/v1/models/{model:owned}", model, responses=one)
    return router
