"""The REST API as a FastAPI application: the whole protocol without the fast path of inference.

The application is complete on its own: its ``infer`` runs the same code, and any ASGI server can serve it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from modserve.core.errors import Code, ModserveError
from modserve.core.residency import describe
from modserve.core.version import parse_requested
from modserve.frontends.http import error_forms, probes
from modserve.frontends.http.direct import EXTENSION, GENERATION, TEXT, DirectCalls
from modserve.frontends.http.infer import CallContext, InferCall
from modserve.protocol import failures
from modserve.protocol.control import memory, metadata, statistics
from modserve.protocol.http.infer_response import Body
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.restricted import ADMIN_PATHS, METRICS_PAGE
from modserve.server import Server
from modserve.settings import HttpSettings

from . import control, deferred, generate, health, middleware, sagemaker
from .deferred import DeferredRoutes
from .document import HEALTH, INFERENCE, METADATA, STATISTICS
from .health import process_router
from .identified import Identified, request_info
from .messages import QUERY, add_model_route, json_response, new_router
from .schemas import FAILURES, INFER_BODY, PLAIN_TEXT, errors_of, responses_of
from .streams import complete_request, unless_disconnected

if TYPE_CHECKING:
    from modserve.access.authority import Authority

_TEXTS = (
    r"(/openai)?/v1/(embeddings|rerank|score)$|/v2/rerank$"
    r"|/(embed|embeddings|rerank|score|predict|similarity|tokenize|decode|info)$"
)
"""Paths of the text calls."""
_GENERATION = r"(/openai)?/v1/((chat/)?completions|responses)$|/openai/v1/models(/|$)"
"""Paths of text generation, and of OpenAI's model list."""


class _VersionConvertor(Convertor[int]):
    """Version number in a path. Too many digits are INVALID_ARG, as over gRPC; 0 is an unknown version."""

    regex = "[0-9]+"

    def convert(self, value: str) -> int:
        return 0 if value.strip("0") == "" else parse_requested(value) or 0

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("version", _VersionConvertor())


class _App(FastAPI):
    """An application that ignores queries, as Triton does; FastAPI would take parameters from them.

    Calls with query parameters find the query elsewhere in the scope.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__({**scope, "query_string": b"", QUERY: scope["query_string"]}, receive, send)

    authority: "Authority | None" = None

    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's document without its default assumptions about servers."""
        if self.openapi_schema is None:
            from . import document

            title, routes = self.title, deferred.expand(self.router.routes)
            schema = get_openapi(title=title, version=self.version, description=self.description, routes=routes)
            document.complete(schema)
            self.openapi_schema = _secure(schema, self.authority)
        return self.openapi_schema


def _secure(document: dict[str, Any], authority: "Authority | None") -> dict[str, Any]:
    """Return the document with the permissions that callers need under an authority."""
    if authority is not None:
        from .document import add_security

        add_security(document, authority)
    return document


def create_app(
    server: Server,
    options: HttpSettings,
    direct: DirectCalls | None = None,
    authority: "Authority | None" = None,
    without_admin: bool = False,
) -> FastAPI:
    """Return the application over `server`. Its ``state.streams`` holds the open `Streams`.

    `direct`: calls that the port serves without the application; created if there is no port. `authority`: its keys
    are documented, not checked. `without_admin`: omits the calls of operators, which another port serves.
    """
    direct = DirectCalls(CallContext(server, options)) if direct is None else direct
    hidden = ADMIN_PATHS if without_admin else frozenset()
    max_json, limits, context = options.max_json, options.limits, direct.context
    app = _App(
        title="modserve",
        version=server.version,
        description="KServe v2 inference protocol, as NVIDIA Triton speaks it.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.authority = authority
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ModserveError, _modserve_error(server))
    app.add_exception_handler(Exception, _unforeseen_error)
    if options.restrictions:
        app.add_middleware(middleware.RestrictedApp, restrictions=options.restrictions, hidden=hidden)
    app.add_middleware(middleware.AnyMethod)
    app.add_middleware(Identified)
    app.state.streams = direct.streams
    routers = [
        health.router(server),
        process_router(server, options, authority),
        _metadata(server),
        _models(server, authority),
        _inference(context),
        generate.router(direct.of(EXTENSION), context),
        control.repository_router(server, max_json, limits),
        control.logging_router(server, max_json),
        control.region_router(server, max_json),
        control.trace_router(server, max_json),
        control.routing_router(server, max_json),
        *sagemaker.routers(server, options),
        health.root_router(server, options, direct),
    ]
    # Few routes, each with its own path pattern: other requests pass them quickly.
    app.router.routes.extend(_later_routes(app, direct, without_admin))
    routes = chain.from_iterable(router.routes for router in routers)
    app.router.routes.extend(route for route in routes if getattr(route, "template", "") not in hidden)
    return app


def _later_routes(app: FastAPI, direct: DirectCalls, without_admin: bool) -> list[BaseRoute]:
    """Return the routes of modules imported at their first use; most servers never need them."""
    context = direct.context
    server, options = context.server, context.options

    def v1() -> Sequence[BaseRoute]:
        from . import v1

        return v1.router(context).routes

    def docs() -> Sequence[BaseRoute]:
        from . import docs

        return docs.router(server, app.openapi).routes

    def console() -> Sequence[BaseRoute]:
        from modserve.frontends.http.console import routes

        return routes.router(server, options).routes

    def texts() -> Sequence[BaseRoute]:
        from modserve.frontends.http.text import routes

        return routes.router(direct.of(TEXT), options).routes

    def generation() -> Sequence[BaseRoute]:
        from modserve.frontends.http.openai import routes

        return routes.router(direct.of(GENERATION), context).routes

    makers = {_GENERATION: generation, _TEXTS: texts, r"/v1(/|$)": v1}
    if not without_admin:
        makers[r"/docs(/|$)|/openapi\.json$"] = docs
        if options.console:
            makers[r"/console(/|$)"] = console
    return [DeferredRoutes(re.compile(paths), make) for paths, make in makers.items()]


def _metadata(server: Server) -> APIRouter:
    router = new_router()

    @router.get("/v2", tags=[METADATA], responses=responses_of("ServerMetadata"))
    async def server_metadata() -> Response:
        """Return the server's name and version, and the protocol extensions that it supports."""
        return json_response(metadata.server_json(server.name, server.version, server.extensions))

    @router.get("/version", tags=[METADATA], responses=responses_of("ServerVersion"))
    async def server_version() -> Response:
        """Return the server's version in the format of vLLM's `/version`."""
        return json_response({"version": server.version})

    @router.get("/v2/models", tags=[METADATA], responses=responses_of("ModelList"))
    async def models() -> Response:
        """Return the names of all models, in any state."""
        return json_response({"models": server.model_names()})

    @router.get("/v2/models/stats", tags=[STATISTICS], responses=responses_of("object"))
    async def all_statistics() -> Response:
        """Return the statistics of all ready model versions."""
        return json_response(statistics.json(await server.statistics()))

    @router.get("/v2/memory", tags=[STATISTICS], responses=responses_of("ModelMemory", 503))
    async def model_memory() -> Response:
        """Return the models in memory with their sizes, and the memory limit for all of them."""
        return json_response(memory.json(server.model_memory(), server.models()))

    @router.get(METRICS_PAGE, tags=[STATISTICS], responses={200: PLAIN_TEXT, **errors_of(404)})
    async def metrics() -> Response:
        """Return the metrics of the server and its models in Prometheus format."""
        # A port with a metrics page answers before the application does.
        raise HTTPException(404, "Not Found: this server has no metrics here (--allow-metrics)")

    return router


def _models(server: Server, authority: "Authority | None") -> APIRouter:
    router = new_router()

    async def model_metadata(model: str, version: int | None = None) -> Response:
        """Return a model's versions, platform, inputs and outputs."""
        servables = server.models(model, version)
        await describe(servables[-1])
        return json_response(metadata.model_json(servables[-1], [servable.id.version for servable in servables]))

    async def model_ready(model: str, version: int | None = None) -> Response:
        """Report whether the model, or this version of it, is ready for inference."""
        trouble = await server.model_trouble(model, version)
        if trouble is None:
            return json_response({"name": model, "ready": True})
        why = f": {trouble}" if trouble else ""
        return _exiting(server) or json_response({"error": f"Model version not ready{why}"}, 400)

    async def model_config(model: str, version: int | None = None) -> Response:
        """Return the model's configuration, completed with defaults and normalised."""
        servable = server.model(model, version)
        await describe(servable)
        return json_response(metadata.config_json(servable))

    async def model_engine(model: str, version: int | None = None) -> Response:
        """Return the model's engine with its version and settings, and for backend `auto` why it was chosen."""
        servable = server.model(model, version)
        await describe(servable)
        return json_response(metadata.engine_json(servable))

    async def model_statistics(model: str, version: int | None = None) -> Response:
        """Return cumulative request counts and durations since the model was loaded."""
        return json_response(statistics.json(await server.statistics(model, version)))

    async def model_batches(model: str, version: int | None = None) -> Response:
        """Return the most recently executed batches, and the reason why each did not grow further."""
        return json_response(statistics.batches_json(server.model(model, version)))

    async def model_openapi(model: str, version: int | None = None) -> Response:
        """Return an OpenAPI document of the model's inference calls, for client generators, with tensors as schemas."""
        from . import docs

        return json_response(_secure(await docs.model_openapi(server, model, version), authority))

    for suffix, handler, tag, body in (
        ("", model_metadata, METADATA, "ModelMetadata"),
        ("/ready", model_ready, HEALTH, "ModelReady"),
        ("/config", model_config, METADATA, "object"),
        ("/engine", model_engine, METADATA, "ModelEngine"),
        ("/openapi.json", model_openapi, METADATA, "object"),
        ("/stats", model_statistics, STATISTICS, "object"),
        ("/batches", model_batches, STATISTICS, "object"),
    ):
        add_model_route(router, server, suffix, handler, tags=[tag], responses=responses_of(body, 400, 404, 503))
    return router


def _inference(context: CallContext) -> APIRouter:
    router, options = new_router(INFERENCE), context.options

    async def infer(request: Request, model: str, version: int | None = None) -> Response:
        """Run inference on the model's input tensors, and return its output tensors."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Body | ModserveError] = loop.create_future()
        call = InferCall(context, lambda body, request_id: outcome.set_result(body))
        request_info(request).add_call(call)
        complete = await complete_request(request, options)
        call.start(model, version, complete.head, complete.body)
        try:
            body = await unless_disconnected(request, _await_outcome(outcome))
        except (asyncio.CancelledError, ModserveError):
            call.cancel()
            raise
        if isinstance(body, ModserveError):
            return _error_response(request, body)
        content = b"".join(body.parts)
        headers = {} if body.encoding is None else {"Content-Encoding": body.encoding}
        if body.server_timing:
            headers["Server-Timing"] = body.server_timing
        if body.header_length is None:
            return Response(content, headers=headers, media_type=MIME_JSON)
        headers["Inference-Header-Content-Length"] = str(body.header_length)
        return Response(content, headers=headers, media_type="application/octet-stream")

    responses = responses_of("InferenceResponseBody", *FAILURES)
    add_model_route(
        router, context.server, "/infer", infer, methods=["POST"], responses=responses, openapi_extra=INFER_BODY
    )
    return router


async def _await_outcome(outcome: "asyncio.Future[Body | ModserveError]") -> Body | ModserveError:
    return await outcome


def _exiting(server: Server) -> Response | None:
    report = probes.exiting(server)
    return report and health.make_response(report)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this type: this is a bug"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(middleware.list_methods(request.scope))
    text = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and error.detail == HTTPStatus.NOT_FOUND.phrase:
        from .middleware import near_path

        meant = near_path(request.scope["path"], request.app.router.routes)
        text += f"; did you mean '{meant}'?" if meant else ""
    status = error.status_code
    return Response(error_forms.encode_message(request.scope["path"], text, status), status, headers, MIME_JSON)


def _modserve_error(server: Server) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, ModserveError), "registered for this type: this is a bug"
        if error.code is not Code.CANCELLED:  # the client has disconnected
            path = request.path_params
            status = failures.spelling(error).http
            values = path.get("model", ""), path.get("version"), "", status, error.message
            note = request_info(request)
            server.failure_log.record("HTTP", *values, note.request_id, note.origin)
        return _error_response(request, error)

    return handle


def _error_response(request: Request, error: ModserveError) -> Response:
    status, body = error_forms.encode(request.scope["path"], error, failures.spelling(error).http)
    return Response(body, status, dict(failures.headers(error)), MIME_JSON)


async def _unforeseen_error(request: Request, error: Exception) -> Response:
    """Answer an unforeseen error. The error propagates, and the ASGI server logs it."""
    body = error_forms.encode_message(request.scope["path"], "Internal Server Error", 500)
    return Response(body, 500, media_type=MIME_JSON)
