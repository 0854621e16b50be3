"""The paths of the calls of texts, and the two ways in which their failures are written."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from fastapi import APIRouter, Request, Response

from modserve.core.errors import Code, ModserveError
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.disconnect import unless_disconnected
from modserve.frontends.http.rest.identified import note_of
from modserve.frontends.http.rest.messages import DirectRoute, json_response, new_router
from modserve.frontends.http.rest.schemas import body_of, errors_of, response_of
from modserve.frontends.http.rest.tags import TEXT
from modserve.protocol import failures
from modserve.protocol.json.json_text import MIME_JSON
from modserve.text import openai_errors, unknown_fields

from . import calls, openai, rerank, tei
from .calls import TextCall
from .models import TextVersions

Work: TypeAlias = Callable[[TextCall], Awaitable[bytes]]
ErrorForm: TypeAlias = Callable[[ModserveError, int], tuple[int, dict[str, Any]]]


def _openai_error(error: ModserveError, status: int) -> tuple[int, dict[str, Any]]:
    return status, openai_errors.error_body(error, status)


class _Dialect(NamedTuple):
    """How failures are written: the body by the failure and its usual status, and what documents it."""

    form: ErrorForm
    body: str
    statuses: tuple[int, ...]


_OPENAI = _Dialect(_openai_error, "OpenAIErrorAnswer", (400, 404, 500, 501, 503))
_TEI = _Dialect(tei.error_body, "TextErrorAnswer", (400, 404, 413, 422, 500, 501, 503))


class _Call(NamedTuple):
    paths: tuple[str, ...]
    work: Work
    body: str
    """The documentation of what is sent; empty for a GET."""
    answer: str = "object"
    dialect: _Dialect = _TEI


_CALLS: Final = (
    _Call(("/v1/embeddings", "/openai/v1/embeddings"), openai.embeddings, "EmbeddingsRequestBody", dialect=_OPENAI),
    _Call(("/v1/rerank", "/openai/v1/rerank", "/v2/rerank"), rerank.rerank, "DocumentsRequestBody", dialect=_OPENAI),
    _Call(("/embed",), tei.embed, "TextsRequestBody", "[any]"),
    _Call(("/rerank",), tei.rank, "RankingRequestBody", "[any]"),
    _Call(("/predict",), tei.predict, "TextsRequestBody", "[any]"),
    _Call(("/similarity",), tei.similarity, "TextsRequestBody", "[any]"),
    _Call(("/tokenize",), tei.tokenize, "TextsRequestBody", "[any]"),
    _Call(("/decode",), tei.decode, "TokensRequestBody", "[any]"),
    _Call(("/info",), tei.info, ""),
)


def router(context: CallContext) -> APIRouter:
    """The routes of all calls of texts."""
    router, models = new_router(TEXT), TextVersions(context.server)
    for call in _CALLS:
        errors = errors_of(*call.dialect.statuses, body=call.dialect.body)
        options: dict[str, Any] = {"responses": {200: response_of(call.answer), **errors}}
        if call.body:
            options |= {"methods": ["POST"], "openapi_extra": body_of(call.body)}
        for path in call.paths:
            # Documents name calls without /v2, and there is a /rerank of another kind.
            shown = path != "/v2/rerank"
            handler = _handler(context, models, call)
            router.add_api_route(path, handler, include_in_schema=shown, route_class_override=DirectRoute, **options)
    return router


def _handler(context: CallContext, models: TextVersions, row: _Call) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> bytes:
        call = await calls.begin(context, request, models)
        try:
            unknown_fields.tell(row.paths[0], call.body, unknown_fields.TEXT_CALLS[row.paths[0]])
            return await row.work(call)
        finally:
            call.close()

    async def handle(request: Request) -> Response:
        try:
            content = await unless_disconnected(request, serve(request))
        except ModserveError as error:
            return _failure(context, request, error, row.dialect.form)
        return Response(content, media_type=MIME_JSON)

    handle.__doc__ = row.work.__doc__
    return handle


def _failure(context: CallContext, request: Request, error: ModserveError, form: ErrorForm) -> Response:
    spelling, note = failures.spelling(error), note_of(request)
    status, body = form(error, spelling.http)
    if error.code is not Code.CANCELLED:  # nobody waits for the response
        model = "" if note.call is None else note.call.model
        context.server.failure_log.record("HTTP", model, None, "", status, error.message, note.request_id)
    response = json_response(body, status)
    response.headers.update(failures.headers(error))
    return response
