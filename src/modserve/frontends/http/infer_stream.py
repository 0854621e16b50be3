"""``infer_stream``, which Triton lacks: the request of ``infer``, answered by any number of v2 responses."""

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from modserve.core.errors import ModserveError
from modserve.core.request import InferenceRequest
from modserve.core.response import Outcome, bare_end
from modserve.frontends.threads import on_thread
from modserve.protocol import classification, shared_memory
from modserve.protocol.compression import Inflater
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http import framing as framings
from modserve.protocol.http import infer_stream as codec
from modserve.protocol.http.framing import EVENTS, LINES
from modserve.protocol.http.infer_request import Reply

from .answers import ERRORS, forwarded_headers, raw_header
from .gone import unless_gone
from .infer import inflated, is_long, read_request
from .options import HttpOptions
from .streams import Encode, StreamCall, StreamedAnswer, Streams, borrowed, next_message
from .wire.head import RequestHead

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One message for each response, by Accept; the last one has the parameter triton_final_response",
        "content": {framing.media_type: {"schema": {"type": "string"}} for framing in (EVENTS, LINES)},
    },
    **{status: ERRORS[status] for status in (400, 404, 503)},
}


def router(options: HttpOptions, streams: Streams, body: dict[str, Any]) -> APIRouter:
    """The routes; `body` documents the request, which is that of ``infer``."""
    found = APIRouter()

    async def infer_stream(request: Request, model: str, version: int | None = None) -> Response:
        """Run one inference; the responses follow as they come, as server-sent events or lines of JSON."""
        now_ns = time.monotonic_ns()
        with borrowed(streams.server, model, version) as servable:
            call = StreamCall(streams, servable, now_ns)
            try:
                decoded, reply = await _read(call, version, request, options, now_ns)
                call.submit(decoded)
            except BaseException:
                call.close()
                raise
        try:
            encode = _encoder(call, reply, options.server_timing)
            first = await unless_gone(request, next_message(call, encode))
            if first.error is not None and first.final:
                raise first.error
        except BaseException:
            call.close()
            raise
        framing = framings.choose(", ".join(request.headers.getlist("accept")))
        return StreamedAnswer(call, first, framing, encode)

    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:version}"):
        found.add_api_route(
            f"{path}/infer_stream",
            infer_stream,
            methods=["POST"],
            response_class=StreamingResponse,
            responses=_RESPONSES,
            openapi_extra=body,
        )
    return found


async def _read(
    call: StreamCall, version: int | None, request: Request, options: HttpOptions, now_ns: int
) -> tuple[InferenceRequest, Reply]:
    head = RequestHead(
        header_length=raw_header(request, infer_request.HEADER_LENGTH),
        content_encoding=raw_header(request, "content-encoding"),
        forwarded=forwarded_headers(request, options),
        timeouts=deadlines.timeouts(request.headers.items()),
    )
    sent = await request.body()
    coding = head.content_encoding
    body: bytes | Inflater = sent if coding is None else inflated(coding, sent, options.max_json)
    asked = (call.servable, version, head, body, options, now_ns, call.lend)
    if is_long(call.servable, head, body):
        return await on_thread(read_request, *asked, call.memory.take)
    return read_request(*asked)


def _encoder(call: StreamCall, reply: Reply, timed: bool) -> Encode:
    def encode(outcome: Outcome, final: bool) -> bytes:
        if isinstance(outcome, ModserveError):
            return codec.encode_error(outcome, call.id, final)
        if outcome is None:
            response = bare_end(call.servable.id, call.id)
        else:
            if reply.places:
                assert call.lease is not None, "there are places of outputs only with a lease: this is a bug"
                outcome = shared_memory.moved(outcome, reply.places, call.lease)
            response = classification.classified(outcome, reply.classes, call.servable)
        if final and timed:
            response = call.with_cost(response)
        return codec.encode_response(response, reply, final)

    return encode
