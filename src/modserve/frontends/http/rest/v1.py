"""The KServe v1 protocol and TensorFlow Serving's REST API, which share their URLs, over the models of the server."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from modserve.core.errors import Code, ModserveError
from modserve.core.lifecycle import IndexEntry
from modserve.core.residency import describe
from modserve.core.servable import Servable
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.openai import models as openai_models
from modserve.protocol.http import v1_models
from modserve.server import Server

from .document import V1
from .messages import json_response, new_router
from .predict import respond
from .schemas import FAILURES, body_of, errors_of, response_of, responses_of
from .streams import complete_request, response_to, unless_disconnected

_MODEL = "/v1/models/{model}"
_VERSION = _MODEL + "/versions/{version:version}"
_LABEL = _MODEL + "/labels/{label:v1_label}"
_CALLS = (":predict", ":classify", ":regress", ":explain")


def router(context: CallContext) -> APIRouter:
    """Return the routes of both dialects."""
    router = new_router(V1)
    _add_inference(router, context)
    _add_models(router, context.server)
    return router


def _add_inference(router: APIRouter, context: CallContext) -> None:
    server = context.server

    async def predict(request: Request, model: str, version: int | None = None) -> Response:
        """Run an inference on `instances` (row format) or `inputs` (column format)."""
        now_ns = time.monotonic_ns()
        _servable(server, model, version)
        handle = server.borrow(model, version)  # its parts may wait for long
        try:
            complete = await complete_request(request, context.options)
            await describe(handle.servable)
            work = respond(context, handle.servable, version, complete, now_ns)
            return response_to(request, await unless_disconnected(request, work))
        finally:
            handle.release()

    async def predict_labelled(request: Request, model: str, label: str) -> Response:
        """Run inference on the version with this label in the model's routing."""
        return await predict(request, model, _find_version(server, model, label))

    def refusal(method: str) -> Callable[..., Awaitable[Response]]:
        async def refuse(model: str, version: int | None = None, label: str = "") -> Response:
            _servable(server, model, _find_version(server, model, label) if label else version)
            raise v1_models.no_method(method)

        return refuse

    for path, handler in ((_MODEL, predict), (_VERSION, predict), (_LABEL, predict_labelled)):
        router.add_api_route(
            f"{path}:predict",
            handler,
            methods=["POST"],
            responses=responses_of("PredictResponseBody", *FAILURES, 501),
            openapi_extra=body_of("PredictRequestBody"),
        )
    # No model takes tf.Example records or has an explainer: these calls are refused, and not documented.
    for path, method in (
        *((path, method) for path in (_MODEL, _VERSION, _LABEL) for method in ("classify", "regress")),
        (_MODEL, "explain"),
    ):
        router.add_api_route(f"{path}:{method}", refusal(method), methods=["POST"], include_in_schema=False)


def _add_models(router: APIRouter, server: Server) -> None:
    async def models() -> Response:
        """Return the names of all models, in any state. For OpenAI clients, `data` lists the text models."""
        return json_response({"models": server.model_names(), **(await openai_models.list_json(server))})

    async def model_status(model: str) -> Response:
        """Report whether the model is ready, and its versions' states. The body is the same with status 503."""
        entries = _entries(server, model)
        ready = await server.check_model_ready(model, None)
        status = v1_models.model_json(model, ready, entries)
        return json_response(status | await openai_models.model_json(server, model), 200 if ready else 503)

    async def version_status(model: str, version: int) -> Response:
        """Return the state of one version, ready or not."""
        entries = [entry for entry in _entries(server, model) if entry.version == version]
        if not entries:
            raise v1_models.unknown_version(model, version)
        return json_response(v1_models.status_json(entries))

    async def label_status(model: str, label: str) -> Response:
        """Return the state of the version with this label in the model's routing."""
        return await version_status(model, _find_version(server, model, label))

    async def model_metadata(model: str, version: int | None = None, label: str = "") -> Response:
        """Return the model's inputs and outputs as a TensorFlow signature."""
        version = _find_version(server, model, label) if label else version
        try:
            servable = server.model(model, version)
        except ModserveError as error:
            raise error if error.code is not Code.NOT_FOUND else v1_models.unservable(model, version) from None
        await describe(servable)
        return json_response(v1_models.metadata_json(servable))

    unready = {
        200: response_of("ModelStatus"),
        **errors_of(404, body="OpenAIErrorAnswer"),
        503: response_of("ModelStatus", "Not ready"),
    }
    router.add_api_route("/v1/models", models, responses=responses_of("ModelLists"))
    router.add_api_route(_VERSION, version_status, responses=responses_of("VersionStatuses", 400, 404))
    router.add_api_route(_LABEL, label_status, responses=responses_of("VersionStatuses", 404))
    for path in (_MODEL, _VERSION, _LABEL):
        router.add_api_route(
            f"{path}/metadata", model_metadata, responses=responses_of("SignatureMetadata", 400, 404, 503)
        )
    # Last, since a prefix that looks like an owner may be a model.
    options: dict[str, Any] = {"responses": unready, "route_class_override": _route_of_models(server)}
    router.add_api_route("/v1/models/{model:owned}", model_status, **options)


def _route_of_models(server: Server) -> type[APIRoute]:
    """Return a route class that matches a name such as ``simple:predict`` only if a model has exactly that name.

    Otherwise the path belongs to that call.
    """

    class ModelRoute(APIRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            match, matched = super().matches(scope)
            if match is not Match.NONE:
                name = matched["path_params"]["model"]
                if name.endswith(_CALLS) and name not in server.model_names():
                    return Match.NONE, {}
            return match, matched

    return ModelRoute


def _find_version(server: Server, model: str, label: str) -> int:
    """Return the version with a label of the model's routing. Raises NOT_FOUND."""
    return server.routings.resolve_label(model, label, v1_models.unknown_label(label))


def _entries(server: Server, model: str) -> list[IndexEntry]:
    """Return the index entries of a model. Raises NOT_FOUND for one that is not listed."""
    if model not in server.model_names():
        raise v1_models.unknown(model)
    return [entry for entry in server.index() if entry.name == model]


def _servable(server: Server, model: str, version: int | None) -> Servable:
    try:
        return server.model(model, version)
    except ModserveError as error:
        raise v1_models.absent(model, version, error, known=model in server.model_names()) from None
