"""What the routers of the REST surface have in common: answers, their documentation, and bodies."""

from typing import Any

import orjson
from fastapi import Request, Response
from pydantic import BaseModel

from modserve.protocol import header_forwarding
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.status import MIME_JSON

from .asgi import HEADERS_AS_SENT
from .infer import check_json_size
from .options import HttpOptions


class ErrorAnswer(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request is wrong"},
    404: {"model": ErrorAnswer, "description": "There is no such model or version"},
    501: {"model": ErrorAnswer, "description": "Not supported"},
    503: {"model": ErrorAnswer, "description": "Not ready, or too busy: try again"},
}


def answers(model: Any, *errors: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of a call's answers: `model` with status 200, and `errors` by status."""
    return {200: {"model": model}, **{status: ERRORS[status] for status in errors}}


def json_body(*names: str) -> dict[str, Any]:
    """The documentation of a body which the call reads by itself: an object, all of whose members may be left out."""
    schema = {"type": "object", "properties": {name: {} for name in names}}
    return {"requestBody": {"required": False, "content": {MIME_JSON: {"schema": schema}}}}


async def read_body(request: Request, max_json: int) -> bytes:
    """The whole body. Raises INVALID_ARG for one longer than `max_json` bytes."""
    body = await request.body()
    check_json_size(len(body), max_json)
    return body


def json_answer(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type=MIME_JSON)


def forwarded_headers(request: Request, options: HttpOptions) -> Forwarded:
    """The request's headers that become parameters of an inference request."""
    if options.header_pattern is None:
        return ()
    extensions = request.scope.get("extensions") or {}
    return header_forwarding.matching(options.header_pattern, extensions.get(HEADERS_AS_SENT, request.headers.items()))


def raw_header(request: Request, name: str) -> bytes | None:
    """A header as it was sent."""
    value = request.headers.get(name)
    return None if value is None else value.encode("latin-1")
