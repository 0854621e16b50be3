"""The KServe v1 protocol and TensorFlow Serving's REST API, which share their URLs, over the models of the server."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.routing import Match
from starlette.types import Scope

from modserve.core.errors import Code, ModserveError
from modserve.core.inflight import Inflight
from modserve.core.lifecycle import IndexEntry
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.core.tensor import Tensor
from modserve.frontends.threads import RequestMemory, on_thread
from modserve.protocol import compression, header_forwarding, models_v1, predict_v1, server_timing
from modserve.protocol.compression import Inflater
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.predict_v1 import Prediction
from modserve.protocol.status import MIME_JSON
from modserve.server import Phase, Server
from modserve.settings import HttpSettings

from . import docs
from .answers import ERRORS, Described, ErrorAnswer, answer, answers, deadline_ns, forwarded_headers, json_answer
from .gone import unless_gone
from .infer import check_json_size, inflated
from .streams import borrowed
from .tracing import traced

_LARGE = 256 * 1024
_LARGE_COMPRESSED = 16 * 1024
"""Bodies of more bytes are read and written on a thread, so that the other connections do not wait for it."""

_AT_ONCE = 32
"""How many parts of one prediction wait or run at a time; more would crowd out those of other clients."""


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


def router(server: Server, options: HttpSettings) -> APIRouter:
    """The routes of both dialects."""
    found = APIRouter()
    _add_inference(found, server, options)
    _add_models(found, server)
    _add_labels(found)
    return found


def _add_inference(found: APIRouter, server: Server, options: HttpSettings) -> None:
    async def predict(request: Request, model: str, version: int | None = None) -> Response:
        """Run an inference on `instances` (row format) or `inputs` (column format)."""
        now_ns = time.monotonic_ns()
        _servable(server, model, version)
        with borrowed(server, model, version) as servable:  # its parts may wait for long
            body = await request.body()
            return await unless_gone(request, _predict(server, servable, version, request, body, options, now_ns))

    async def explain(model: str) -> Response:
        """Refused: no model here has an explainer."""
        _servable(server, model, None)
        raise models_v1.no_method("explain")

    async def classify(model: str, version: int | None = None) -> Response:
        """Refused: no model here takes tf.Example records."""
        _servable(server, model, version)
        raise models_v1.no_method("classify")

    async def regress(model: str, version: int | None = None) -> Response:
        """Refused: no model here takes tf.Example records."""
        _servable(server, model, version)
        raise models_v1.no_method("regress")

    for path in (_MODEL, _VERSION):
        found.add_api_route(
            f"{path}:predict",
            predict,
            methods=["POST"],
            responses=answers(PredictResponseBody, 400, 404, 501, 503),
            openapi_extra=_PREDICT_BODY,
        )
        for method, refuse in (("classify", classify), ("regress", regress)):
            found.add_api_route(f"{path}:{method}", refuse, methods=["POST"], responses=_errors(404, 501, 503))
    found.add_api_route(f"{_MODEL}:explain", explain, methods=["POST"], responses=_errors(404, 501, 503))


def _add_models(found: APIRouter, server: Server) -> None:
    async def alive(request: Request) -> Response:
        """KServe's liveness; browsers, which ask for HTML, get a link to the documentation."""
        if server.phase is Phase.STOPPING:
            return json_answer({"error": "Server exiting"}, 503)
        if "text/html" in request.headers.get("accept", ""):
            return docs.root_page()
        return json_answer({"status": "alive"})

    async def models() -> Response:
        """The names of all models, whatever their state."""
        return json_answer({"models": server.model_names()})

    async def model_status(model: str) -> Response:
        """Is this model ready, and what are its versions' states? The body is the same when the status is 503."""
        entries = _entries(server, model)
        ready = server.model_ready(model, None)
        return json_answer(models_v1.model_json(model, ready, entries), 200 if ready else 503)

    async def version_status(model: str, version: int) -> Response:
        """The state of one version, whatever it is."""
        entries = [entry for entry in _entries(server, model) if entry.version == version]
        if not entries:
            raise models_v1.unknown_version(model, version)
        return json_answer(models_v1.status_json(entries))

    async def model_metadata(model: str, version: int | None = None) -> Response:
        """The model's inputs and outputs as a TensorFlow signature."""
        try:
            servable = server.model(model, version)
        except ModserveError as error:
            raise error if error.code is not Code.NOT_FOUND else models_v1.unservable(model, version) from None
        return json_answer(models_v1.metadata_json(servable))

    unready = {**answers(ModelStatus, 404), 503: answer(UnreadyModelStatus, "Not ready")}
    found.add_api_route("/", alive, responses=answers(Alive, 503))
    found.add_api_route("/v1/models", models, responses=answers(ModelNames))
    found.add_api_route(_MODEL, model_status, responses=unready, route_class_override=_route_of_models(server))
    found.add_api_route(_VERSION, version_status, responses=answers(VersionStatuses, 404))
    for path in (_MODEL, _VERSION):
        found.add_api_route(f"{path}/metadata", model_metadata, responses=answers(SignatureMetadata, 404, 503))


def _route_of_models(server: Server) -> type[APIRoute]:
    """Of a name that ends like a call, such as ``simple:predict``, only if there is a model of that whole name.

    Without one, the path is that call's, with its methods.
    """

    class ModelRoute(APIRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            match, found = super().matches(scope)
            if match is not Match.NONE:
                name = found["path_params"]["model"]
                if name.endswith(_CALLS) and name not in server.model_names():
                    return Match.NONE, {}
            return match, found

    return ModelRoute


def _add_labels(found: APIRouter) -> None:
    async def label_status(model: str, label: str) -> Response:
        """Refused: versions have no labels here."""
        raise models_v1.unknown_label(label)

    for suffix, method in (
        (":predict", "POST"),
        (":classify", "POST"),
        (":regress", "POST"),
        ("", "GET"),
        ("/metadata", "GET"),
    ):
        found.add_api_route(f"{_LABEL}{suffix}", label_status, methods=[method], responses=_errors(404))


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS.get(status, answer(ErrorAnswer)) for status in statuses}


def _entries(server: Server, model: str) -> list[IndexEntry]:
    """What the index says of a model. Raises NOT_FOUND for one that is not listed."""
    if model not in server.model_names():
        raise models_v1.unknown(model)
    return [entry for entry in server.index() if entry.name == model]


def _servable(server: Server, model: str, version: int | None) -> Servable:
    try:
        return server.model(model, version)
    except ModserveError as error:
        raise models_v1.absent(model, version, error, known=model in server.model_names()) from None


async def _predict(
    server: Server,
    servable: Servable,
    version: int | None,
    request: Request,
    body: bytes,
    options: HttpSettings,
    now_ns: int,
) -> Response:
    coding = request.headers.get("content-encoding")
    opened = body if coding is None else inflated(coding.encode("latin-1"), body, options.max_json)
    memory = RequestMemory(server.memory, asyncio.get_running_loop())
    try:
        if isinstance(opened, Inflater) or len(opened) > _LARGE:
            asked = await on_thread(_read, servable, opened, options, memory.take)
        else:
            asked = _read(servable, opened, options)
        return await _answered(server, servable, version, request, asked, options, now_ns)
    finally:
        memory.release()


async def _answered(
    server: Server,
    servable: Servable,
    version: int | None,
    request: Request,
    asked: Prediction,
    options: HttpSettings,
    now_ns: int,
) -> Response:
    parts = predict_v1.batches(servable.config, asked.inputs)
    forwarded = forwarded_headers(request, options)
    limit_ns = deadline_ns(request, now_ns)
    given, last = await _run_all(server, servable, version, parts, now_ns, limit_ns, forwarded)
    chosen = compression.choose(", ".join(request.headers.getlist("accept-encoding")))
    size = sum(tensor.array.nbytes for response in given for tensor in response.outputs.values())
    large = size > (_LARGE if chosen is None else _LARGE_COMPRESSED)
    content = await on_thread(_write, given, asked.rows, chosen) if large else _write(given, asked.rows, chosen)
    headers = {} if chosen is None else {"Content-Encoding": chosen}
    if options.server_timing and (cost := server_timing.value(last)):
        headers["Server-Timing"] = cost
    return Response(content, headers=headers, media_type=MIME_JSON)


def _read(
    servable: Servable, body: bytes | Inflater, options: HttpSettings, take: Callable[[int], None] | None = None
) -> Prediction:
    if isinstance(body, Inflater):
        body = body.read_all() if take is None else body.read_all(take)
    check_json_size(len(body), options.max_json)
    if take is not None:
        take(predict_v1.memory(body))
    return predict_v1.decode(servable.config, body)


def _write(given: list[InferenceResponse], rows: bool, coding: str | None) -> bytes:
    content = predict_v1.encode([response.outputs for response in given], rows)
    return content if coding is None else compression.encode([content], coding)


async def _run_all(
    server: Server,
    servable: Servable,
    version: int | None,
    parts: Iterator[Mapping[str, Tensor]],
    now_ns: int,
    limit_ns: int,
    forwarded: Forwarded,
) -> tuple[list[InferenceResponse], Inflight]:
    """The answers to all parts of a prediction, some at a time, and the part that was answered last.

    Raises the first failure; the others are cancelled.
    """
    last: list[Inflight] = []

    async def run(inputs: Mapping[str, Tensor]) -> InferenceResponse:
        part: list[Inflight] = []
        with traced(server, servable, now_ns) as taker:
            asked = InferenceRequest(servable.config.name, inputs, (), version, deadline_ns=limit_ns)
            found = await server.run(taker, header_forwarding.with_headers(asked, forwarded), now_ns, part.append)
            last[:] = part
            return found

    first = list(islice(parts, 2))
    if len(first) == 1:
        return [await run(first[0])], last[0]
    waiting = enumerate(chain(first, parts))
    given: dict[int, InferenceResponse] = {}

    failures: list[Exception] = []
    running: list[asyncio.Task[None]] = []

    async def run_some() -> None:
        try:
            for index, inputs in waiting:
                given[index] = await run(inputs)
        except Exception as error:  # a value, since the group would wrap it, and make a cycle
            failures.append(error)
            for task in running:
                task.cancel()

    async with asyncio.TaskGroup() as tasks:
        running += [tasks.create_task(run_some()) for _ in range(_AT_ONCE)]
    running.clear()
    if failures:
        failure = failures[0]
        failures.clear()
        try:
            raise failure
        finally:  # its traceback has this frame
            del failure
    return [given[index] for index in range(len(given))], last[0]
