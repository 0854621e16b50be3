"""Calls that know of no framework, as FastAPI's handlers."""

from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from modserve.frontends.http.exchange import CompleteRequest, Handler, ResponseStream, WholeResponse
from modserve.protocol import compression
from modserve.settings import HttpSettings

from .disconnect import unless_disconnected
from .identified import note_of
from .messages import infer_head
from .streams import StreamedResponse


def endpoint(call: Handler, options: HttpSettings) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a route: it reads its request itself, and cancels `call` if the client goes away."""

    async def handle(request: Request) -> Response:
        complete = await complete_request(request, options)
        return response_to(request, await unless_disconnected(request, call(complete)))

    return handle


def model_endpoint(call: Handler, options: HttpSettings) -> Callable[[Request, str, int | None], Awaitable[Response]]:
    """The same of a path that names a model."""

    async def handle(request: Request, model: str, version: int | None = None) -> Response:
        complete = await complete_request(request, options)
        complete.head.model, complete.head.model_version = model, version
        return response_to(request, await unless_disconnected(request, call(complete)))

    return handle


async def complete_request(request: Request, options: HttpSettings) -> CompleteRequest:
    """The request, when all of it has come."""
    encoding = compression.choose(", ".join(request.headers.getlist("accept-encoding")))
    return CompleteRequest(infer_head(request, options, encoding), await request.body(), note_of(request))


def response_to(request: Request, response: WholeResponse | ResponseStream) -> Response:
    """What the client of `request` gets."""
    if isinstance(response, ResponseStream):
        return StreamedResponse(response, note_of(request))
    return Response(response.body, response.status, dict(response.headers), response.content_type)
