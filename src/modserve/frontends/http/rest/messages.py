"""Routes of models, bodies and headers of requests, and JSON responses."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope

from modserve.access.permissions import OWNED, SLASH
from modserve.core.errors import not_found
from modserve.core.requests import trace_context
from modserve.core.version import without_owner
from modserve.frontends.http.wire.asgi import HEADERS_AS_SENT
from modserve.protocol import header_forwarding
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http.infer_body import check_json_size
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server
from modserve.settings import HttpSettings

from .deferred import DeferringRouter
from .middleware import with_slashes


class _PartConvertor(Convertor[str]):
    """A part of a path, as it is."""

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _LabelConvertor(_PartConvertor):
    """A part of a path that may be the label of a version."""

    regex = "[a-z][a-z0-9_-]*"


class _V1LabelConvertor(_PartConvertor):
    """A part of a path up to a colon, behind which a call follows."""

    regex = "[^/:]+"


class _OwnedConvertor(_PartConvertor):
    """The name of a model that may have its owner before it, as on the hub. The value is the name alone."""

    regex = f"{OWNED}[^/{SLASH}]+"

    def convert(self, value: str) -> str:
        return without_owner(value.replace(SLASH, "/"))


register_url_convertor("label", _LabelConvertor())
register_url_convertor("v1_label", _V1LabelConvertor())
register_url_convertor("owned", _OwnedConvertor())


def new_router(*tags: str, **options: Any) -> APIRouter:
    """Return a router for routes that the application takes as they are: `include_router` would build each twice."""
    return DeferringRouter(tags=list(tags), dependencies=[Depends(with_slashes)], **options)


class DirectRoute(APIRoute):
    """Route of a handler that reads its request itself, and has no parameters that FastAPI would look for each time."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def add_model_route(
    router: APIRouter, server: Server, suffix: str, handler: Callable[..., Any], **options: Any
) -> None:
    """Add a call about a model: once for its latest version, and once for each, by its number or its label."""
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:version}"):
        router.add_api_route(path + suffix, handler, **options)
    labelled = {**options, "include_in_schema": False, "route_class_override": route_of_labels(server)}
    router.add_api_route(f"/v2/models/{{model}}/versions/{{version:label}}{suffix}", handler, **labelled)


def route_of_labels(server: Server) -> type[APIRoute]:
    """Return the route class for models with labels: for others, a version that is no number is no path."""

    class LabelRoute(APIRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            match, matched = super().matches(scope)
            if match is not Match.NONE:
                parts = matched["path_params"]
                model = parts["model"].replace(SLASH, "/")
                if not server.routings.has_labels(model):
                    return Match.NONE, {}
                parts["version"] = server.routings.resolve_label(model, parts["version"], not_found("Not Found"))
            return match, matched

    return LabelRoute


QUERY: Final = "modserve.query"
"""Key of the path's query in the scope."""


async def read_body(request: Request, max_json: int) -> bytes:
    """Return the whole body. Raises INVALID_ARG for one longer than `max_json` bytes."""
    body = await request.body()
    check_json_size(len(body), max_json)
    return body


def json_response(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type=MIME_JSON)


def list_forwarded_headers(request: Request, options: HttpSettings) -> Forwarded:
    """Return the request's headers that become parameters of an inference request."""
    if options.header_pattern is None:
        return ()
    extensions = request.scope.get("extensions") or {}
    return header_forwarding.matching(options.header_pattern, extensions.get(HEADERS_AS_SENT, request.headers.items()))


def deadline_ns(request: Request, now_ns: int) -> int:
    """Return the deadline of the client of `request`, by its headers; 0 for none. Raises INVALID_ARG."""
    return deadlines.deadline_ns(deadlines.timeouts(request.headers.items()), now_ns)


def infer_head(request: Request, options: HttpSettings, response_encoding: str | None = None) -> RequestHead:
    """Return the head of an inference request: what its headers say of its body and its response."""
    headers = request.headers
    scope = request.scope
    return RequestHead(
        scope["method"].encode(),
        scope["path"].encode(errors="surrogatepass") + b"?" + scope.get(QUERY, b""),
        header_length=_raw(headers.get(infer_request.HEADER_LENGTH)),
        content_encoding=_raw(headers.get("content-encoding")),
        response_encoding=response_encoding,
        forwarded=list_forwarded_headers(request, options),
        timeouts=deadlines.timeouts(headers.items()),
        trace_headers=trace_context.from_pairs(request.headers.raw),
        accept=", ".join(headers.getlist("accept")),
    )


def _raw(value: str | None) -> bytes | None:
    """Return a header as it was sent."""
    return None if value is None else value.encode("latin-1")
