"""Routes of models, bodies and headers of requests, and JSON responses."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from modserve.frontends.http.wire.asgi import HEADERS_AS_SENT
from modserve.protocol import header_forwarding
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http.infer_body import check_json_size
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.json.json_text import MIME_JSON
from modserve.settings import HttpSettings


def add_model_route(router: APIRouter, suffix: str, handler: Callable[..., Any], **options: Any) -> None:
    """A call about a model: once for its latest version, and once for each."""
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:version}"):
        router.add_api_route(path + suffix, handler, **options)


async def read_body(request: Request, max_json: int) -> bytes:
    """The whole body. Raises INVALID_ARG for one longer than `max_json` bytes."""
    body = await request.body()
    check_json_size(len(body), max_json)
    return body


def json_response(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type=MIME_JSON)


def forwarded_headers(request: Request, options: HttpSettings) -> Forwarded:
    """The request's headers that become parameters of an inference request."""
    if options.header_pattern is None:
        return ()
    extensions = request.scope.get("extensions") or {}
    return header_forwarding.matching(options.header_pattern, extensions.get(HEADERS_AS_SENT, request.headers.items()))


def deadline_ns(request: Request, now_ns: int) -> int:
    """When the client of `request` gives up by what its headers say; 0 for never. Raises INVALID_ARG."""
    return deadlines.deadline_ns(deadlines.timeouts(request.headers.items()), now_ns)


def infer_head(request: Request, options: HttpSettings, response_encoding: str | None = None) -> RequestHead:
    """What the headers of an inference request say of its body and its response."""
    headers = request.headers
    return RequestHead(
        header_length=_raw(headers.get(infer_request.HEADER_LENGTH)),
        content_encoding=_raw(headers.get("content-encoding")),
        response_encoding=response_encoding,
        forwarded=forwarded_headers(request, options),
        timeouts=deadlines.timeouts(headers.items()),
    )


def _raw(value: str | None) -> bytes | None:
    """A header as it was sent."""
    return None if value is None else value.encode("latin-1")
