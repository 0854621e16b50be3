"""Decoding of messages into the requests that models take."""

import time

from google.protobuf.message import DecodeError, Message

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.request import InferenceRequest
from modserve.core.version import parse_requested
from modserve.frontends import offload
from modserve.frontends.call import InferenceCall
from modserve.pb import inference as pb
from modserve.protocol import header_forwarding
from modserve.protocol.failures import DeadlinePassedError
from modserve.protocol.grpc import grpc_messages, infer_message, long_messages
from modserve.protocol.grpc.infer_message import InferMessage
from modserve.protocol.grpc.long_messages import ManyFieldsError
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.response_form import BINARY
from modserve.server import Server
from modserve.settings import LoopLimits


def find_version(server: Server, model: str, text: str) -> int | None:
    """Return the version that a message names by its number or its label; None for the latest.

    Raises INVALID_ARG, or NOT_FOUND for an unknown label of a model that has some.
    """
    try:
        return parse_requested(text)
    except ModserveError as error:
        return server.routings.resolve_label(model, text, error)


def resolve_version(server: Server, message: InferMessage) -> int | None:
    """Return the version as `find_version` does; the message then names it by its number."""
    version = find_version(server, message.model_name, message.model_version)
    if version is not None:
        message.model_version = str(version)
    return version


async def parse_infer(data: bytes, limits: LoopLimits) -> InferMessage:
    """Parse a request that is built in an unusual way, or typed and long, as protobuf reads it.

    Raises INVALID_ARG.
    """
    try:
        if len(data) <= limits.split:
            return infer_message.from_protobuf(pb.ModelInferRequest.FromString(data))
        parts = long_messages.split(data, limits.split)
        if parts is None:
            return await offload.on_thread(_split, data)
        return infer_message.from_protobuf(*parts)
    except ManyFieldsError as error:
        raise invalid(f"Unable to parse request: {error}") from None
    except DecodeError:
        raise unreadable(pb.ModelInferRequest, len(data)) from None


def parse(request: type[Message], data: bytes) -> Message:
    """Parse a message. Raises INVALID_ARG for bytes that are no such message."""
    try:
        return request.FromString(data)
    except DecodeError:
        raise unreadable(request, len(data)) from None


def unreadable(request: type[Message], size: int) -> ModserveError:
    return invalid(f"Unable to parse request: {size} bytes are no {request.DESCRIPTOR.full_name}")


async def read_request(
    call: InferenceCall,
    message: InferMessage,
    deadline_ns: int,
    forwarded: Forwarded,
    limits: LoopLimits,
) -> InferenceRequest:
    """Read the request for the model of `call`, on a thread if that takes long; sets the call's `response_form`.

    Raises the `ModserveError` that says what is wrong with the message.
    """
    on_gpu = call.server.shared_memory.with_cuda and any(each.parameters for each in message.head.inputs)
    cached = call.servable.config.cached
    if on_gpu or grpc_messages.is_long(message, cached, limits.elements, limits.texts):
        call.borrow()
        request = await offload.on_thread(_read_long, call, message, deadline_ns, limits)
    else:
        request = grpc_messages.decode_request(message, deadline_ns, call.lend)
    if forwarded:
        request = header_forwarding.with_headers(request, forwarded)
    call.response_form = grpc_messages.read_response_form(message, call.lend) if request.outputs else BINARY
    return request


def _read_long(call: InferenceCall, message: InferMessage, deadline_ns: int, limits: LoopLimits) -> InferenceRequest:
    """Read a request on a thread, and do in advance all that would take long later."""
    reserve = call.borrow().take
    request = grpc_messages.decode_request(message, deadline_ns, call.lend, reserve)
    offload.look_ahead(request.inputs.values(), call.servable.config, limits, reserve)
    return request


def _split(data: bytes) -> InferMessage:
    parts = long_messages.split(data)
    assert parts is not None, "there is time on a thread: this is a bug"
    return infer_message.from_protobuf(*parts)


def in_time(error: ModserveError, deadline_ns: int) -> ModserveError:
    """Return a request's failure for its client: its queue may have dropped it because its time was over."""
    late = deadline_ns and error.code is Code.UNAVAILABLE and time.monotonic_ns() >= deadline_ns
    return DeadlinePassedError() if late else error
