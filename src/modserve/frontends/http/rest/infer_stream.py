"""``infer_stream``, which Triton lacks: the request of ``infer``, and any number of v2 responses."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from modserve.core.errors import ModserveError
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import Outcome, bare_end
from modserve.frontends import offload
from modserve.frontends.http.exchange import Encode
from modserve.frontends.http.infer import CallContext, read_long_request
from modserve.frontends.http.streams import HttpStream, Streams
from modserve.protocol.compression import Inflater
from modserve.protocol.http import framing as framings
from modserve.protocol.http import infer_response
from modserve.protocol.http.framing import EVENTS, LINES
from modserve.protocol.http.infer_body import is_long, read_request
from modserve.protocol.http.infer_request import header_length

from .identified import note_of
from .messages import add_model_route, infer_head, new_router, trace_headers
from .schemas import FAILURES, INFER_BODY, errors_of
from .streams import respond
from .tags import INFERENCE

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One message for each response, by Accept; the last one has the parameter triton_final_response",
        "content": {framing.media_type: {"schema": {"type": "string"}} for framing in (EVENTS, LINES)},
    },
    **errors_of(*FAILURES),
}


def router(context: CallContext, streams: Streams) -> APIRouter:
    """The routes of ``infer_stream``."""
    router = new_router(INFERENCE)

    async def infer_stream(request: Request, model: str, version: int | None = None) -> Response:
        """Run one inference; the responses follow as they come, as server-sent events or lines of JSON."""
        call = streams.begin(note_of(request), trace_headers(request), model, version)
        try:
            call.submit_stream(await _read(call, version, request, context))
        except BaseException:
            call.close()
            raise
        framing = framings.choose(", ".join(request.headers.getlist("accept")))
        return await respond(request, call, framing, _encoder(call, context.server_timing), raise_failure=True)

    options = {"response_class": StreamingResponse, "responses": _RESPONSES, "openapi_extra": INFER_BODY}
    add_model_route(router, context.server, "/infer_stream", infer_stream, methods=["POST"], **options)
    return router


async def _read(call: HttpStream, version: int | None, request: Request, context: CallContext) -> InferenceRequest:
    """The request in the body of an HTTP request."""
    head, limits, config = infer_head(request, context.options), context.limits, call.servable.config
    body: bytes | Inflater = await request.body()
    if head.content_encoding is not None:
        body = offload.inflated(head.content_encoding, await request.body(), context.max_json, limits)
    length = None if isinstance(body, Inflater) else header_length(head.header_length, len(body))
    if isinstance(body, Inflater) or is_long(config, body, length, limits.json, limits.texts):
        read = call, context, version, head, body, call.borrow().take
        decoded, response_form = await offload.on_thread(read_long_request, *read)
    else:
        decoded, response_form = read_request(
            config, version, head, body, length, context.max_json, call.now_ns, context.heads, call.lend
        )
    call.response_form = replace(response_form, all_binary=False, binary=frozenset())  # there is only JSON
    return decoded


def _encoder(call: HttpStream, timed: bool) -> Encode:
    def encode(outcome: Outcome, final: bool) -> bytes:
        if isinstance(outcome, ModserveError):
            return infer_response.encode_stream_error(outcome, call.id, final)
        response = bare_end(call.servable.id, call.id) if outcome is None else call.render(outcome)
        if final and timed:
            response = call.with_cost(response)
        return infer_response.encode_stream_response(response, call.response_form, final)

    return encode
