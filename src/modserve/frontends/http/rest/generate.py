"""FastAPI routes of the generate extension and of ``infer_stream``."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, StreamingResponse

from modserve.frontends.http.exchange import Handler
from modserve.frontends.http.infer import CallContext
from modserve.protocol.http.framing import EVENTS, LINES

from .document import INFERENCE
from .messages import add_model_route, new_router
from .schemas import FAILURES, INFER_BODY, body_of, errors_of, responses_of
from .streams import model_endpoint

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Each response is one event. A failure after the first one is an event with the field `error`",
        "content": {EVENTS.media_type: {"schema": {"type": "string"}}},
    },
    **errors_of(*FAILURES),
}
_TENSORS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Each response is one message. The last one has the parameter `triton_final_response`",
        "content": {framing.media_type: {"schema": {"type": "string"}} for framing in (EVENTS, LINES)},
    },
    **errors_of(*FAILURES),
}
_FLAT = body_of("GenerateRequestBody")
_ROUTES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "generate": (
        "Run inference on a flat JSON object. The model must return exactly one response.",
        {
            "response_class": JSONResponse,
            "responses": responses_of("GenerateResponseBody", *FAILURES),
            "openapi_extra": _FLAT,
        },
    ),
    "generate_stream": (
        "Run inference on a flat JSON object. The server streams the responses as server-sent events.",
        {"response_class": StreamingResponse, "responses": _STREAM, "openapi_extra": _FLAT},
    ),
    "infer_stream": (
        "Run inference and stream the responses. `Accept` selects server-sent events or lines of JSON.",
        {"response_class": StreamingResponse, "responses": _TENSORS, "openapi_extra": INFER_BODY},
    ),
}
"""Description and FastAPI options of each call."""


def router(handlers: Mapping[str, Handler], context: CallContext) -> APIRouter:
    """Return the routes of all these calls."""
    router = new_router(INFERENCE)
    for template, call in handlers.items():
        name = template.rpartition("/")[2]
        description, options = _ROUTES[name]
        handler = model_endpoint(call, context.options)
        options = {**options, "description": description, "name": name}
        add_model_route(router, context.server, f"/{name}", handler, methods=["POST"], **options)
    return router
