"""The generate extension: ``generate`` with one response, ``generate_stream`` with server-sent events.

Also ``infer_stream``, which Triton lacks: a request as for ``infer``, with any number of v2 responses.

Imported at the first request for one of them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from modserve.core.errors import Code, ModserveError, invalid, not_found
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, bare_end
from modserve.core.residency import describe
from modserve.frontends import offload
from modserve.protocol import failures, header_forwarding, limits
from modserve.protocol.compression import Inflater
from modserve.protocol.http import deadlines, framing, infer_response
from modserve.protocol.http import generate as codec
from modserve.protocol.http.framing import EVENTS
from modserve.protocol.http.infer_body import check_json_size, is_long, read_request
from modserve.protocol.http.infer_request import header_length

from .exchange import CompleteRequest, Encode, Handler, ResponseStream, WholeResponse, response_stream
from .infer import CallContext, read_long_request
from .streams import HttpStream, Streams

_Read: TypeAlias = Callable[[HttpStream, CallContext, CompleteRequest], Awaitable[InferenceRequest]]


def handlers(context: CallContext, streams: Streams) -> Mapping[str, Handler]:
    """Return the handlers by path template. The request head has the model."""

    async def generate(request: CompleteRequest) -> WholeResponse | ResponseStream:
        try:
            call = await _submit(context, streams, request, _read_flat)
            try:
                response = await _only(call)
                if isinstance(response, ModserveError):  # not raised: its traceback would refer to its owner
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
            return await response_stream(await _submit(context, streams, request, _read_flat), EVENTS, _encode)
        except ModserveError as error:
            return _failure(context, request, error)

    async def infer_stream(request: CompleteRequest) -> WholeResponse | ResponseStream:
        try:
            call = await _submit(context, streams, request, _read_tensors)
            encode = _tensors_encoder(call, context.server_timing)
            stream = await response_stream(call, framing.choose(request.head.accept), encode)
        except ModserveError as error:
            return _failure(context, request, error)
        if stream.first.error is None or not stream.first.final:
            return stream
        call.close()
        return _failure(context, request, stream.first.error)

    calls = {"generate": generate, "generate_stream": generate_stream, "infer_stream": infer_stream}
    return {f"/v2/models/{{model}}/{name}": call for name, call in calls.items()}


async def _submit(context: CallContext, streams: Streams, request: CompleteRequest, read: _Read) -> HttpStream:
    """Return the call of a request that its model has accepted. Raises the reason if the request is refused."""
    head = request.head
    version = head.model_version
    if head.version_label:
        version = context.server.routings.resolve_label(head.model, head.version_label, not_found("Not Found"))
    call = streams.begin(request.note, head.trace_headers, head.model, version)
    try:
        call.submit_stream(await read(call, context, request))
    except BaseException:
        call.close()
        raise
    return call


async def _read_flat(call: HttpStream, context: CallContext, request: CompleteRequest) -> InferenceRequest:
    """Read a request from a flat JSON object."""
    head, body, max_json = request.head, request.body, context.max_json
    coding = head.content_encoding
    codec.check_encoding(None if coding is None else coding.decode("latin-1"))
    check_json_size(len(body), max_json)
    await describe(call.servable)
    if len(body) > call.limits.json:
        decoded = await offload.on_thread(_decode_long, call, call.version, body, max_json)
    else:
        decoded = codec.decode(call.servable.config, call.version, body, max_json)
    decoded = replace(decoded, deadline_ns=deadlines.deadline_ns(head.timeouts, call.now_ns))
    return header_forwarding.with_headers(decoded, head.forwarded)


async def _read_tensors(call: HttpStream, context: CallContext, request: CompleteRequest) -> InferenceRequest:
    """Read a request in the format of ``infer``."""
    head, limits, config, version = request.head, context.limits, call.servable.config, call.version
    body: bytes | Inflater = request.body
    if head.content_encoding is not None:
        body = offload.inflate(head.content_encoding, request.body, context.max_json, limits)
    length = None if isinstance(body, Inflater) else header_length(head.header_length, len(body))
    if isinstance(body, Inflater) or is_long(config, body, length, limits.json, limits.texts):
        read = call, context, version, head, body, call.borrow().take
        decoded, response_form = await offload.on_thread(read_long_request, *read)
    else:
        decoded, response_form = read_request(
            config, version, head, body, length, context.max_json, call.now_ns, context.heads, call.lend
        )
    call.response_form = replace(response_form, all_binary=False, binary=frozenset())  # responses are JSON only
    return decoded


def _decode_long(call: HttpStream, version: int | None, body: bytes, max_json: int) -> InferenceRequest:
    """Decode the request on a thread, and reserve memory for the result."""
    call.borrow().take(limits.estimate_size(body))
    return codec.decode(call.servable.config, version, body, max_json)


async def _only(call: HttpStream) -> InferenceResponse | ModserveError:
    """Return the only response, or the first failure. Raises INVALID_ARG for any other number of responses."""
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


def _tensors_encoder(call: HttpStream, timed: bool) -> Encode:
    def encode(outcome: Outcome, final: bool) -> bytes:
        if isinstance(outcome, ModserveError):
            return infer_response.encode_stream_error(outcome, call.id, final)
        response = bare_end(call.servable.id, call.id) if outcome is None else call.render(outcome)
        if final and timed:
            response = call.with_cost(response)
        return infer_response.encode_stream_response(response, call.response_form, final)

    return encode


def _failure(context: CallContext, request: CompleteRequest, error: ModserveError) -> WholeResponse:
    head, status = request.head, failures.spelling(error).http
    if error.code is not Code.CANCELLED:  # the client has disconnected
        log, note = context.server.failure_log, request.note
        log.record("HTTP", head.model, head.model_version, "", status, error.message, note.request_id, note.origin)
    return WholeResponse(infer_response.encode_error(error), status, tuple(failures.headers(error).items()))
