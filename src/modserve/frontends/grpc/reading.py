"""From a message to the request that a model takes."""

from modserve.core.request import InferenceRequest
from modserve.core.servable import Handle, Servable
from modserve.core.shared_memory import Lease
from modserve.core.tensor import count_ahead, long_texts
from modserve.frontends.threads import on_thread
from modserve.pb import inference as pb
from modserve.protocol import grpc_messages
from modserve.server import Server

from .border import LONG_MESSAGE, parsed


async def parse(data: bytes) -> pb.ModelInferRequest:
    """Raises INVALID_ARG for bytes that are no request for inference."""
    message = (
        await on_thread(parsed, pb.ModelInferRequest, data)
        if len(data) > LONG_MESSAGE
        else parsed(pb.ModelInferRequest, data)
    )
    assert isinstance(message, pb.ModelInferRequest)
    return message


async def read_request(
    server: Server, servable: Servable, message: pb.ModelInferRequest, deadline_ns: int, lease: Lease, size: int
) -> tuple[InferenceRequest, Handle | None]:
    """The request in `message` of `size` bytes, which `servable` shall get; read on a thread where that takes long.

    `servable` is then borrowed meanwhile, and goes on taking the request until the caller releases the handle.
    Raises the `ModserveError` which says what is wrong with the message.
    """
    handle: Handle | None = None
    try:
        request: InferenceRequest
        if size > LONG_MESSAGE or grpc_messages.has_many_typed(message):
            handle = server.borrow(message.model_name, servable.id.version)
            request = await on_thread(grpc_messages.decode_request, message, deadline_ns, lease)
        else:
            request = grpc_messages.decode_request(message, deadline_ns, lease)
        if texts := long_texts(request.inputs.values()):
            handle = handle or server.borrow(message.model_name, servable.id.version)
            await on_thread(count_ahead, texts)
    except BaseException:
        if handle is not None:
            handle.release()
        raise
    return request, handle
