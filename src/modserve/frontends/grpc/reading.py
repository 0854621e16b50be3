"""From a message to the request that a model takes."""

import asyncio
import math
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from modserve.core.errors import invalid
from modserve.core.request import InferenceRequest
from modserve.core.servable import Handle, Servable
from modserve.core.shared_memory import RegionLease
from modserve.core.tensor import LONG_BYTES, Tensor, count_ahead, digest_ahead, long_texts
from modserve.frontends.threads import RequestMemory, on_thread
from modserve.pb import inference as pb
from modserve.protocol.grpc import grpc_messages, long_messages
from modserve.protocol.grpc.long_messages import LONG, ManyFieldsError, Tensors
from modserve.protocol.grpc.typed_contents import ELEMENT_MEMORY
from modserve.server import Server

from .border import parsed, unreadable


class Held:
    """What a request holds that was read slowly, until it is given back on the event loop's thread."""

    __slots__ = ("_handle", "_memory")

    def __init__(self, handle: Handle, memory: RequestMemory) -> None:
        self._handle: Handle | None = handle
        self._memory = memory

    def give_back_model(self) -> None:
        """The request has been submitted, or never will be."""
        if self._handle is not None:
            self._handle.release()
            self._handle = None

    def release(self) -> None:
        """The request is over."""
        self.give_back_model()
        self._memory.release()


async def parse(data: bytes) -> tuple[pb.ModelInferRequest, Tensors | None]:
    """A request for inference; of a long message without its tensors, which come beside it. Raises INVALID_ARG."""
    if len(data) <= LONG:
        message = parsed(pb.ModelInferRequest, data)
        assert isinstance(message, pb.ModelInferRequest)
        return message, None
    try:
        found = long_messages.split(data, quickly=True)
        return await on_thread(_split, data) if found is None else found
    except ManyFieldsError as error:
        raise invalid(f"Unable to parse request: {error}") from None
    except DecodeError:
        raise unreadable(pb.ModelInferRequest, len(data)) from None


async def read_request(
    server: Server,
    servable: Servable,
    message: pb.ModelInferRequest,
    tensors: Tensors | None,
    deadline_ns: int,
    lease: RegionLease,
) -> tuple[InferenceRequest, Held | None]:
    """The request that `servable` shall get; read on a thread where that takes long.

    `servable` is then borrowed meanwhile, and goes on taking the request until the caller releases what is held.
    Raises the `ModserveError` which says what is wrong with the message.
    """
    held: Held | None = None
    memory = RequestMemory(server.memory, asyncio.get_running_loop())
    try:
        request: InferenceRequest
        on_gpu = server.shared_memory.with_cuda and any(len(tensor.parameters) for tensor in message.inputs)
        if on_gpu or grpc_messages.has_many_typed(message, tensors):
            held = Held(server.borrow(message.model_name, servable.id.version), memory)
            request = await on_thread(grpc_messages.decode_request, message, deadline_ns, lease, tensors, memory.take)
        else:
            request = grpc_messages.decode_request(message, deadline_ns, lease, tensors)
        inputs = request.inputs.values()
        texts = long_texts(inputs)
        digests = inputs if servable.config.cached and any(map(_is_long, inputs)) else ()
        if texts or digests:
            held = held or Held(server.borrow(message.model_name, servable.id.version), memory)
            await on_thread(_look_ahead, texts, digests, memory.take)
    except BaseException:
        if held is not None:
            held.release()
        raise
    return request, held


def _split(data: bytes) -> tuple[pb.ModelInferRequest, Tensors]:
    found = long_messages.split(data)
    assert found is not None, "there is time on a thread: this is a bug"
    return found


def _is_long(tensor: Tensor) -> bool:
    raw = tensor.received
    return raw is not None and len(raw) > LONG_BYTES


def _look_ahead(texts: list[Tensor], digests: Iterable[Tensor], take: Callable[[int], None]) -> None:
    """What would take long later, on the event loop; and the memory for what an engine makes of texts."""
    count_ahead(texts)
    if texts:
        take(ELEMENT_MEMORY * sum(min(abs(math.prod(tensor.shape)), tensor.size // 4) for tensor in texts))
    digest_ahead(digests)
