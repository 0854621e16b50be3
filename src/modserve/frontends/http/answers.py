"""What the routers of the REST surface have in common: answers, their documentation, and bodies."""

from collections.abc import Iterator
from typing import Any

import orjson
from fastapi import Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from modserve.protocol import header_forwarding
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http import deadlines
from modserve.protocol.json.json_text import MIME_JSON

from .infer import check_json_size
from .options import HttpOptions
from .wire.asgi import HEADERS_AS_SENT

SCHEMA_REFERENCE = "#/components/schemas/{model}"


class Described(BaseModel):
    """A JSON body that the documentation describes. Answers are written without its help."""


class ErrorAnswer(Described):
    error: str


def answer(model: type[Described] | None, description: str = "Successful Response", *, many: bool = False) -> Any:
    """The documentation of an answer: a `model`, an array of it if `many`, or any object for None.

    FastAPI could be told the model itself; it would then build a validator for each place, at every start.
    """
    schema: dict[str, Any] = {"type": "object"}
    if model is not None:
        schema = {"$ref": SCHEMA_REFERENCE.format(model=model.__name__)}
    if many:
        schema = {"type": "array", "items": schema}
    return {"description": description, "content": {MIME_JSON: {"schema": schema}}}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: answer(ErrorAnswer, "The request is wrong"),
    404: answer(ErrorAnswer, "There is no such model or version"),
    501: answer(ErrorAnswer, "Not supported"),
    503: answer(ErrorAnswer, "Not ready, or too busy: try again"),
}


def answers(model: type[Described] | None, *errors: int, many: bool = False) -> dict[int | str, dict[str, Any]]:
    """The documentation of a call's answers: `model` with status 200 as `answer` takes it, and `errors` by status."""
    return {200: answer(model, many=many), **{status: ERRORS[status] for status in errors}}


def described_schemas() -> dict[str, Any]:
    """The schemas of everything that is described, by name."""
    models = [(model, "serialization") for model in _subclasses(Described)]
    _, found = models_json_schema(models, ref_template=SCHEMA_REFERENCE)  # type: ignore[arg-type]
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def _subclasses(model: type[Described]) -> Iterator[type[Described]]:
    for each in model.__subclasses__():
        yield each
        yield from _subclasses(each)


def json_body(*names: str) -> dict[str, Any]:
    """The documentation of a body which the call reads by itself: an object, all of whose members may be left out."""
    schema = {"type": "object", "properties": {name: {} for name in names}}
    return {"requestBody": {"required": False, "content": {MIME_JSON: {"schema": schema}}}}


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
