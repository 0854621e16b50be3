"""The generate extension: ``generate`` with one response, ``generate_stream`` with any number as server-sent events.

Imported at the first request for one of them.
"""

from collections.abc import Mapping
from dataclasses import replace

from modserve.core.errors import Code, ModserveError, invalid, not_found
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.residency import describe
from modserve.frontends import offload
from modserve.protocol import failures, header_forwarding, limits
from modserve.protocol.http import deadlines, infer_response
from modserve.protocol.http import generate as codec
from modserve.protocol.http.framing import EVENTS
from modserve.protocol.http.infer_body import check_json_size

from .exchange import CompleteRequest, Handler, ResponseStream, WholeResponse, response_stream
from .infer import CallContext
from .streams import HttpStream, Streams


def handlers(context: CallContext, streams: Streams) -> Mapping[str, Handler]:
    """By path template. The head of a request has its model."""

    async def generate(request: CompleteRequest) -> WholeResponse | ResponseStream:
        try:
            call = await _submitted(context, streams, request)
            try:
                response = await _only(call)
                if isinstance(response, ModserveError):  # not raised: its traceback would have what has it
                    return _failure(context, request, response)
                if offload.is_long_response(response, call.response_form, call.limits):
                    body = await offload.on_thread(codec.encode, response)
                else:
                    body = codec.encode(response)
            finally:
                call.close()
            cost = call.cost if context.server_timing else ""
            return WholeResponse(body, headers=(("Server-Timing", cost),) if cost else ())
        except ModserveError as error:
            return _failure(context, request, error)

    async def generate_stream(request: CompleteRequest) -> WholeResponse | ResponseStream:
        try:
            return await response_stream(await _submitted(context, streams, request), EVENTS, _encode)
        except ModserveError as error:
            return _failure(context, request, error)

    return {"/v2/models/{model}/generate": generate, "/v2/models/{model}/generate_stream": generate_stream}


async def _submitted(context: CallContext, streams: Streams, request: CompleteRequest) -> HttpStream:
    """The call of a request, which its model has accepted. Raises what is wrong with it."""
    head, body, max_json = request.head, request.body, context.max_json
    version = head.model_version
    if head.version_label:
        version = context.server.routings.labelled(head.model, head.version_label, not_found("Not Found"))
    call = streams.begin(request.note, head.trace_headers, head.model, version)
    try:
        coding = head.content_encoding
        codec.check_encoding(None if coding is None else coding.decode("latin-1"))
        check_json_size(len(body), max_json)
        await describe(call.servable)
        if len(body) > call.limits.json:
            decoded = await offload.on_thread(_decode_long, call, version, body, max_json)
        else:
            decoded = codec.decode(call.servable.config, version, body, max_json)
        decoded = replace(decoded, deadline_ns=deadlines.deadline_ns(head.timeouts, call.now_ns))
        call.submit_stream(header_forwarding.with_headers(decoded, head.forwarded))
    except BaseException:
        call.close()
        raise
    return call


def _decode_long(call: HttpStream, version: int | None, body: bytes, max_json: int) -> InferenceRequest:
    """On a thread: the request, with memory for what it becomes."""
    call.borrow().take(limits.parsed_size(body))
    return codec.decode(call.servable.config, version, body, max_json)


async def _only(call: HttpStream) -> InferenceResponse | ModserveError:
    """The one response, or the first failure. Raises INVALID_ARG for any other number of responses."""
    held: InferenceResponse | None = None
    final = False
    while not final:
        outcome, final = await call.next()
        if isinstance(outcome, ModserveError):
            return outcome
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


def _failure(context: CallContext, request: CompleteRequest, error: ModserveError) -> WholeResponse:
    head, status = request.head, failures.spelling(error).http
    if error.code is not Code.CANCELLED:  # nobody waits for the response
        log, id = context.server.failure_log, request.note.request_id
        log.record("HTTP", head.model, head.model_version, "", status, error.message, id)
    return WholeResponse(infer_response.encode_error(error), status, tuple(failures.headers(error).items()))
