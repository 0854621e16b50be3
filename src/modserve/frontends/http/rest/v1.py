"""The KServe v1 protocol and TensorFlow Serving's REST API, which share their URLs, over the models of the server."""

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.routing import Match
from starlette.types import Scope

from modserve.core.errors import Code, ModserveError
from modserve.core.lifecycle import IndexEntry
from modserve.core.servable import Servable
from modserve.frontends.http.context import CallContext
from modserve.protocol.http import v1_models
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Phase, Server

from . import docs
from .disconnect import unless_disconnected
from .messages import json_response
from .predict import respond
from .schemas import ERRORS, Described, ErrorAnswer, response_of, responses_of


class Alive(Described):
    status: str


class ModelNames(Described):
    models: list[str]


class VersionHealth(Described):
    error_code: str
    error_message: str


class VersionStatus(Described):
    """`state` is START, LOADING, AVAILABLE, UNLOADING or END."""

    version: str
    state: str
    status: VersionHealth


class VersionStatuses(Described):
    model_version_status: list[VersionStatus]


class ModelStatus(VersionStatuses):
    """KServe's `name` and `ready` beside TensorFlow Serving's `model_version_status`, the latest version first."""

    name: str
    ready: bool


class UnreadyModelStatus(ModelStatus):
    error: str


class SignatureMetadata(Described):
    model_spec: dict[str, str]
    metadata: dict[str, Any]


class PredictRequestBody(Described):
    """Either `instances` or `inputs`."""

    signature_name: str | None = None
    instances: list[Any] | None = Field(None, description="row format: values, or objects by input name")
    inputs: Any = Field(None, description="column format: an object by input name, or one tensor")


class PredictResponseBody(Described):
    """`predictions` answers `instances`, `outputs` answers `inputs`."""

    predictions: list[Any] | None = None
    outputs: Any = None


_PREDICT_BODY = {
    "requestBody": {"required": True, "content": {MIME_JSON: {"schema": PredictRequestBody.model_json_schema()}}}
}
_MODEL = "/v1/models/{model}"
_VERSION = _MODEL + "/versions/{version:version}"
_LABEL = _MODEL + "/labels/{label}"
_CALLS = (":predict", ":classify", ":regress", ":explain")


def router(context: CallContext) -> APIRouter:
    """The routes of both dialects."""
    router = APIRouter()
    _add_inference(router, context)
    _add_models(router, context.server)
    _add_labels(router)
    return router


def _add_inference(router: APIRouter, context: CallContext) -> None:
    server = context.server

    async def predict(request: Request, model: str, version: int | None = None) -> Response:
        """Run an inference on `instances` (row format) or `inputs` (column format)."""
        now_ns = time.monotonic_ns()
        _servable(server, model, version)
        handle = server.borrow(model, version)  # its parts may wait for long
        try:
            body = await request.body()
            return await unless_disconnected(request, respond(context, handle.servable, version, request, body, now_ns))
        finally:
            handle.release()

    async def explain(model: str) -> Response:
        """Refused: no model here has an explainer."""
        _servable(server, model, None)
        raise v1_models.no_method("explain")

    async def classify(model: str, version: int | None = None) -> Response:
        """Refused: no model here takes tf.Example records."""
        _servable(server, model, version)
        raise v1_models.no_method("classify")

    async def regress(model: str, version: int | None = None) -> Response:
        """Refused: no model here takes tf.Example records."""
        _servable(server, model, version)
        raise v1_models.no_method("regress")

    for path in (_MODEL, _VERSION):
        router.add_api_route(
            f"{path}:predict",
            predict,
            methods=["POST"],
            responses=responses_of(PredictResponseBody, 400, 404, 501, 503),
            openapi_extra=_PREDICT_BODY,
        )
        for method, refuse in (("classify", classify), ("regress", regress)):
            router.add_api_route(f"{path}:{method}", refuse, methods=["POST"], responses=_errors(404, 501, 503))
    router.add_api_route(f"{_MODEL}:explain", explain, methods=["POST"], responses=_errors(404, 501, 503))


def _add_models(router: APIRouter, server: Server) -> None:
    async def alive(request: Request) -> Response:
        """KServe's liveness; browsers, which ask for HTML, get a link to the documentation."""
        if server.phase is Phase.STOPPING:
            return json_response({"error": "Server exiting"}, 503)
        if "text/html" in request.headers.get("accept", ""):
            return docs.root_page()
        return json_response({"status": "alive"})

    async def models() -> Response:
        """The names of all models, whatever their state."""
        return json_response({"models": server.model_names()})

    async def model_status(model: str) -> Response:
        """Is this model ready, and what are its versions' states? The body is the same when the status is 503."""
        entries = _entries(server, model)
        ready = server.model_ready(model, None)
        return json_response(v1_models.model_json(model, ready, entries), 200 if ready else 503)

    async def version_status(model: str, version: int) -> Response:
        """The state of one version, whatever it is."""
        entries = [entry for entry in _entries(server, model) if entry.version == version]
        if not entries:
            raise v1_models.unknown_version(model, version)
        return json_response(v1_models.status_json(entries))

    async def model_metadata(model: str, version: int | None = None) -> Response:
        """The model's inputs and outputs as a TensorFlow signature."""
        try:
            servable = server.model(model, version)
        except ModserveError as error:
            raise error if error.code is not Code.NOT_FOUND else v1_models.unservable(model, version) from None
        return json_response(v1_models.metadata_json(servable))

    unready = {**responses_of(ModelStatus, 404), 503: response_of(UnreadyModelStatus, "Not ready")}
    router.add_api_route("/", alive, responses=responses_of(Alive, 503))
    router.add_api_route("/v1/models", models, responses=responses_of(ModelNames))
    router.add_api_route(_MODEL, model_status, responses=unready, route_class_override=_route_of_models(server))
    router.add_api_route(_VERSION, version_status, responses=responses_of(VersionStatuses, 404))
    for path in (_MODEL, _VERSION):
        router.add_api_route(f"{path}/metadata", model_metadata, responses=responses_of(SignatureMetadata, 404, 503))


def _route_of_models(server: Server) -> type[APIRoute]:
    """Of a name that ends like a call, such as ``simple:predict``, only if there is a model of that whole name.

    Without one, the path is that call's, with its methods.
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


def _add_labels(router: APIRouter) -> None:
    async def label_status(model: str, label: str) -> Response:
        """Refused: versions have no labels here."""
        raise v1_models.unknown_label(label)

    for suffix, method in (
        (":predict", "POST"),
        (":classify", "POST"),
        (":regress", "POST"),
        ("", "GET"),
        ("/metadata", "GET"),
    ):
        router.add_api_route(f"{_LABEL}{suffix}", label_status, methods=[method], responses=_errors(404))


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS.get(status, response_of(ErrorAnswer)) for status in statuses}


def _entries(server: Server, model: str) -> list[IndexEntry]:
    """What the index says of a model. Raises NOT_FOUND for one that is not listed."""
    if model not in server.model_names():
        raise v1_models.unknown(model)
    return [entry for entry in server.index() if entry.name == model]


def _servable(server: Server, model: str, version: int | None) -> Servable:
    try:
        return server.model(model, version)
    except ModserveError as error:
        raise v1_models.absent(model, version, error, known=model in server.model_names()) from None
