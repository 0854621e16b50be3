"""The bodies of requests and responses as the documentation describes them, and the documentation of calls."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from modserve.protocol.json.json_text import MIME_JSON

SCHEMA_REFERENCE = "#/components/schemas/{model}"


class Described(BaseModel):
    """A JSON body that the documentation describes. Answers are written without its help."""


class ErrorAnswer(Described):
    error: str


def response_of(model: type[Described] | None, description: str = "Successful Response", *, many: bool = False) -> Any:
    """The documentation of a response: a `model`, an array of it if `many`, or any object for None.

    FastAPI takes the model itself, too, but then builds a validator for each place at every start.
    """
    schema: dict[str, Any] = {"type": "object"}
    if model is not None:
        schema = {"$ref": SCHEMA_REFERENCE.format(model=model.__name__)}
    if many:
        schema = {"type": "array", "items": schema}
    return {"description": description, "content": {MIME_JSON: {"schema": schema}}}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: response_of(ErrorAnswer, "The request is wrong"),
    404: response_of(ErrorAnswer, "There is no such model or version"),
    501: response_of(ErrorAnswer, "Not supported"),
    503: response_of(ErrorAnswer, "Not ready, or too busy: try again"),
}


def responses_of(model: type[Described] | None, *errors: int, many: bool = False) -> dict[int | str, dict[str, Any]]:
    """The documentation of a call's responses: `model` with status 200 as for `response_of`, and `errors` by status."""
    return {200: response_of(model, many=many), **{status: ERRORS[status] for status in errors}}


def described_schemas() -> dict[str, Any]:
    """The schemas of everything that is described, by name."""
    models = [(model, "serialization") for model in _subclasses(Described)]
    _, document = models_json_schema(models, ref_template=SCHEMA_REFERENCE)  # type: ignore[arg-type]
    schemas: dict[str, Any] = document["$defs"]
    return schemas


def _subclasses(model: type[Described]) -> Iterator[type[Described]]:
    for each in model.__subclasses__():
        yield each
        yield from _subclasses(each)


def json_body(*names: str) -> dict[str, Any]:
    """The documentation of a body which the call reads by itself: an object, all of whose members may be left out."""
    schema = {"type": "object", "properties": {name: {} for name in names}}
    return {"requestBody": {"required": False, "content": {MIME_JSON: {"schema": schema}}}}


class Live(Described):
    live: bool


class ReadinessReason(Described):
    """A model version that is not READY. `version` is empty where the model has none to speak of."""

    name: str
    version: str
    state: str
    reason: str


class Ready(Described):
    """`reasons` lists what is in the way when `ready` is false."""

    ready: bool
    reasons: list[ReadinessReason] = Field(default_factory=list)


class ModelReady(Described):
    name: str
    ready: bool


class ServerMetadata(Described):
    name: str
    version: str
    extensions: list[str]


class ModelList(Described):
    models: list[str]


class IndexedVersion(Described):
    """A model version; what there is nothing to say about is left out."""

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None


class LogSettings(Described):
    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str


class TensorMetadata(Described):
    """`shape` has -1 for variable dimensions, the batch dimension among them."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Described):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TensorData(Described):
    """A tensor with its elements, nested in any way or flat, or ``binary_data_size`` among its parameters."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class RequestedOutput(Described):
    name: str
    parameters: dict[str, Any] | None = None


class InferenceRequestBody(Described):
    id: str | None = None
    parameters: dict[str, Any] | None = None
    inputs: list[TensorData]
    outputs: list[RequestedOutput] | None = None


class InferenceResponseBody(Described):
    id: str | None = None
    model_name: str
    model_version: str
    parameters: dict[str, Any] | None = None
    outputs: list[TensorData]


INFER_BODY = {
    "requestBody": {
        "required": True,
        "description": "JSON; or JSON of Inference-Header-Content-Length bytes and then binary tensor data",
        "content": {
            MIME_JSON: {"schema": {"$ref": SCHEMA_REFERENCE.format(model="InferenceRequestBody")}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
