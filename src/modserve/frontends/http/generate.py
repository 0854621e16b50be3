"""The generate extension: ``generate`` with one answer, ``generate_stream`` with any number as server-sent events."""

import time
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict

from modserve.core.errors import ModserveError, invalid
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse
from modserve.frontends.threads import has_many_elements, on_thread
from modserve.protocol import generate as codec
from modserve.protocol import header_forwarding, http_infer, limits
from modserve.protocol.status import MIME_JSON
from modserve.protocol.streams import EVENTS
from modserve.settings import HttpSettings

from .answers import ERRORS, Described, answers, deadline_ns, forwarded_headers, read_body
from .gone import unless_gone
from .infer import LARGE_JSON
from .streams import Outcome, StreamCall, StreamedAnswer, Streams, borrowed, next_message


class GenerateRequestBody(Described):
    """Names of inputs with their elements, and parameters for the model, here or in `parameters`."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    text_input: Any = None
    parameters: dict[str, Any] | None = None


class GenerateResponseBody(Described):
    """Names of outputs with their elements, and the response's parameters."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    model_name: str
    model_version: str
    text_output: Any = None


_BODY = {"requestBody": {"required": True, "content": {MIME_JSON: {"schema": GenerateRequestBody.model_json_schema()}}}}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One event for each response; a failure after the first is one with the key error",
        "content": {EVENTS.media_type: {"schema": {"type": "string"}}},
    },
    **{status: ERRORS[status] for status in (400, 404, 503)},
}


def router(options: HttpSettings, streams: Streams) -> APIRouter:
    """The routes of both calls."""
    found = APIRouter()

    async def generate(request: Request, model: str, version: int | None = None) -> Response:
        """Run one inference on a flat JSON object, for models with exactly one response."""
        call = await _begun(request, model, version, options, streams)
        try:
            answer = await unless_gone(request, _only(call))
            many = has_many_elements(answer)
            body = await on_thread(codec.encode, answer) if many else codec.encode(answer)
        finally:
            call.close()
        headers = {"Server-Timing": cost} if options.server_timing and (cost := call.cost) else {}
        return Response(body, headers=headers, media_type=MIME_JSON)

    async def generate_stream(request: Request, model: str, version: int | None = None) -> Response:
        """Run one inference on a flat JSON object; the responses follow as server-sent events."""
        call = await _begun(request, model, version, options, streams)
        try:
            first = await unless_gone(request, next_message(call, _encode))
        except BaseException:
            call.close()
            raise
        return StreamedAnswer(call, first, EVENTS, _encode)

    for suffix, handler, kind, responses in (
        ("generate", generate, JSONResponse, answers(GenerateResponseBody, 400, 404, 503)),
        ("generate_stream", generate_stream, StreamingResponse, _STREAM),
    ):
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:version}"):
            found.add_api_route(
                f"{model}/{suffix}",
                handler,
                methods=["POST"],
                response_class=kind,
                responses=responses,
                openapi_extra=_BODY,
            )
    return found


async def _begun(
    request: Request, model: str, version: int | None, options: HttpSettings, streams: Streams
) -> StreamCall:
    """The request in the hands of its model. Raises what is wrong with it."""
    now_ns = time.monotonic_ns()
    with borrowed(streams.server, model, version) as servable:
        codec.check_encoding(request.headers.get("content-encoding"))
        body = await read_body(request, options.max_json)
        call = StreamCall(streams, servable, now_ns)
        try:
            decoded = await _decoded(call, version, body, options.max_json)
            decoded = replace(decoded, deadline_ns=deadline_ns(request, now_ns))
            call.submit(header_forwarding.with_headers(decoded, forwarded_headers(request, options)))
        except BaseException:
            call.close()
            raise
        return call


async def _decoded(call: StreamCall, version: int | None, body: bytes, max_json: int) -> InferenceRequest:
    config = call.servable.config

    def decode() -> InferenceRequest:
        call.memory.take(limits.parsed_size(body))
        return codec.decode(config, version, body, max_json)

    return await on_thread(decode) if len(body) > LARGE_JSON else codec.decode(config, version, body, max_json)


async def _only(call: StreamCall) -> InferenceResponse:
    """The one response. Raises INVALID_ARG if the model gives another number of them, and its failure whenever told."""
    held: InferenceResponse | None = None
    final = False
    while not final:
        outcome, final = await call.answer()
        if isinstance(outcome, ModserveError):
            raise outcome
        if outcome is not None and held is not None:
            raise invalid(codec.NOT_ONE)
        held = outcome or held
    if held is None:
        raise invalid(codec.NOT_ONE)
    return held


def _encode(outcome: Outcome, final: bool) -> bytes:
    if isinstance(outcome, ModserveError):
        return http_infer.encode_error(outcome)
    return b"" if outcome is None else codec.encode(outcome)
