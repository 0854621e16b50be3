"""Bodies and headers of requests, and JSON responses."""

import orjson
from fastapi import Request, Response

from modserve.frontends.http.asgi import HEADERS_AS_SENT
from modserve.frontends.http.infer import check_json_size
from modserve.frontends.http.options import HttpOptions
from modserve.protocol import header_forwarding
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http import deadlines
from modserve.protocol.json.json_text import MIME_JSON


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


def deadline_ns(request: Request, now_ns: int) -> int:
    """When the client of `request` gives up by what its headers say; 0 for never. Raises INVALID_ARG."""
    return deadlines.deadline_ns(deadlines.timeouts(request.headers.items()), now_ns)


def raw_header(request: Request, name: str) -> bytes | None:
    """A header as it was sent."""
    value = request.headers.get(name)
    return None if value is None else value.encode("latin-1")
