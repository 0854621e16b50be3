"""Text calls by path, and the two formats of their failures."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from modserve.core.errors import Code, ModserveError
from modserve.frontends.http import error_forms
from modserve.frontends.http.exchange import CompleteRequest, Handler, WholeResponse
from modserve.frontends.http.infer import CallContext
from modserve.protocol import failures
from modserve.text import unknown_fields

from . import openai, rerank, tei, text_calls
from .models import TextVersions
from .text_calls import TextCall

Work: TypeAlias = Callable[[TextCall], Awaitable[bytes]]


class _Dialect(NamedTuple):
    """Documentation of failures: name of the error body, and statuses."""

    body: str
    statuses: tuple[int, ...]


_OPENAI = _Dialect("OpenAIErrorAnswer", (400, 404, 500, 501, 503))
_TEI = _Dialect("TextErrorAnswer", (400, 404, 413, 422, 500, 501, 503))


class TextRoute(NamedTuple):
    paths: tuple[str, ...]
    work: Work
    body: str
    """Documented request body; empty for a GET."""
    answer: str = "object"
    dialect: _Dialect = _TEI


ROUTES: Final = (
    TextRoute(
        ("/v1/embeddings", "/openai/v1/embeddings", "/embeddings"),
        openai.embeddings,
        "EmbeddingsRequestBody",
        dialect=_OPENAI,
    ),
    TextRoute(
        ("/v1/rerank", "/openai/v1/rerank", "/v2/rerank"), rerank.rerank, "DocumentsRequestBody", dialect=_OPENAI
    ),
    TextRoute(("/v1/score", "/openai/v1/score", "/score"), rerank.score, "ScoreRequestBody", dialect=_OPENAI),
    TextRoute(("/",), tei.run, "object", "[any]"),
    TextRoute(("/embed",), tei.embed, "TextsRequestBody", "[any]"),
    TextRoute(("/rerank",), tei.rank, "RankingRequestBody", "[any]"),
    TextRoute(("/predict",), tei.predict, "TextsRequestBody", "[any]"),
    TextRoute(("/similarity",), tei.similarity, "TextsRequestBody", "[any]"),
    TextRoute(("/tokenize",), tei.tokenize, "TextsRequestBody", "[any]"),
    TextRoute(("/decode",), tei.decode, "TokensRequestBody", "[any]"),
    TextRoute(("/info",), tei.info, ""),
)


def handlers(context: CallContext) -> Mapping[str, Handler]:
    """Return the handlers by path."""
    models = TextVersions(context.server)
    return {path: _handler(context, models, route) for route in ROUTES for path in route.paths}


def _handler(context: CallContext, models: TextVersions, route: TextRoute) -> Handler:
    work, name = route.work, route.paths[0]
    known = unknown_fields.TEXT_CALLS[name]

    async def handle(request: CompleteRequest) -> WholeResponse:
        try:
            call = await text_calls.begin(context, request, models)
            try:
                unknown_fields.tell(name, call.body, known)
                body = await work(call)
                return WholeResponse(body, headers=(("Server-Timing", call.cost),) if call.cost else ())
            finally:
                call.close()
        except ModserveError as error:
            return _failure(context, request, error, name)

    return handle


def _failure(context: CallContext, request: CompleteRequest, error: ModserveError, path: str) -> WholeResponse:
    spelling, note = failures.spelling(error), request.note
    status, body = error_forms.encode(path, error, spelling.http)
    if error.code is not Code.CANCELLED:  # the client has disconnected
        model = "" if note.call is None else note.call.model
        context.server.failure_log.record("HTTP", model, None, "", status, error.message, note.request_id, note.origin)
    return WholeResponse(body, status, tuple(failures.headers(error).items()))
