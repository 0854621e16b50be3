"""The generate extension: ``generate`` with one response, ``generate_stream`` with any number as server-sent events."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.residency import describe
from modserve.frontends import offload
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.streams import HttpStream, Streams
from modserve.protocol import header_forwarding, limits
from modserve.protocol.http import generate as codec
from modserve.protocol.http import infer_response
from modserve.protocol.http.framing import EVENTS
from modserve.protocol.json.json_text import MIME_JSON

from .disconnect import unless_disconnected
from .identified import note_of
from .messages import add_model_route, deadline_ns, forwarded_headers, new_router, read_body, trace_headers
from .schemas import FAILURES, body_of, errors_of, responses_of
from .streams import respond
from .tags import INFERENCE

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One event for each response; a failure after the first is one with the key error",
        "content": {EVENTS.media_type: {"schema": {"type": "string"}}},
    },
    **errors_of(*FAILURES),
}


def router(context: CallContext, streams: Streams) -> APIRouter:
    """The routes of both calls."""
    router = new_router(INFERENCE)

    async def generate(request: Request, model: str, version: int | None = None) -> Response:
        """Run one inference on a flat JSON object, for models with exactly one response."""
        with streams.begin(note_of(request), trace_headers(request), model, version) as call:
            await _submit(call, version, request, context)
        try:
            response = await unless_disconnected(request, _only(call))
            if offload.is_long_response(response, call.response_form, call.limits):
                body = await offload.on_thread(codec.encode, response)
            else:
                body = codec.encode(response)
        finally:
            call.close()
        headers = {"Server-Timing": cost} if context.server_timing and (cost := call.cost) else {}
        return Response(body, headers=headers, media_type=MIME_JSON)

    async def generate_stream(request: Request, model: str, version: int | None = None) -> Response:
        """Run one inference on a flat JSON object; the responses follow as server-sent events."""
        with streams.begin(note_of(request), trace_headers(request), model, version) as call:
            await _submit(call, version, request, context)
        return await respond(request, call, EVENTS, _encode)

    for suffix, handler, kind, responses in (
        ("/generate", generate, JSONResponse, responses_of("GenerateResponseBody", *FAILURES)),
        ("/generate_stream", generate_stream, StreamingResponse, _STREAM),
    ):
        options = {
            "response_class": kind,
            "responses": responses,
            "openapi_extra": body_of("GenerateRequestBody"),
        }
        add_model_route(router, context.server, suffix, handler, methods=["POST"], **options)
    return router


async def _submit(call: HttpStream, version: int | None, request: Request, context: CallContext) -> None:
    """Raises what is wrong with the request."""
    codec.check_encoding(request.headers.get("content-encoding"))
    body, max_json = await read_body(request, context.max_json), context.max_json
    reserve = call.borrow().take
    await describe(call.servable)
    config = call.servable.config

    def decode() -> InferenceRequest:
        reserve(limits.parsed_size(body))
        return codec.decode(config, version, body, max_json)

    if len(body) > call.limits.json:
        decoded = await offload.on_thread(decode)
    else:
        decoded = codec.decode(config, version, body, max_json)
    decoded = replace(decoded, deadline_ns=deadline_ns(request, call.now_ns))
    call.submit_stream(header_forwarding.with_headers(decoded, forwarded_headers(request, context.options)))


async def _only(call: HttpStream) -> InferenceResponse:
    """The one response. Raises INVALID_ARG for any other number of them, and the first failure."""
    held: InferenceResponse | None = None
    final = False
    while not final:
        outcome, final = await call.next()
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
        return infer_response.encode_error(outcome)
    return b"" if outcome is None else codec.encode(outcome)
