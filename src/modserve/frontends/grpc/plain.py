"""One inference over gRPC as most are: short, plain, and served without coroutine, task or future.

What is anything else is left to `Dispatcher.unary`, which reads it from the beginning. Outcomes, limits and the log of
failures are the same on both ways.
"""

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final, final

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.call import GRPC, Call
from modserve.frontends.errors import to_client_error
from modserve.frontends.offload import in_background, is_long_response, outcome_of
from modserve.protocol.failures import DeadlinePassedError
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.infer_message import InferMessage
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.protocol.reply import BINARY
from modserve.server import Server
from modserve.settings import Limits

from .reading import requested_version

if TYPE_CHECKING:
    from .dispatch import Dispatcher
    from .native_call import NativeCall

_WHAT: Final = "ModelInfer"
_UNCOUNTED: Final = 16 * 1024
"""Bytes of a message that needs memory to be left in the budget, and takes none of it: `max_calls` bounds them."""
_BEGINNING: Final = 0x0A
"""The key of a model's name. Messages that were compressed begin with something else."""


@final
class PlainInferences:
    """What all such calls share."""

    def __init__(self, server: Server, limits: Limits, writer: ResponseWriter) -> None:
        self.server = server
        self.limits = limits
        self.writer = writer

    def start(self, dispatcher: "Dispatcher", client: "NativeCall", data: bytes) -> bool:
        """Serve the call if its message is plain; False if it is not, and nothing has been done."""
        size = len(data)
        server = self.server
        if not size or data[0] != _BEGINNING or size > self.limits.split or server.tracer.on:
            return False
        if dispatcher.calls >= dispatcher.max_calls or not server.memory.fits(size):
            return False
        message = dispatcher.reader.read(data)
        if message is None:
            return False
        head = message.head
        if not head.plain_inputs or not head.plain_outputs or not 0 < len(message.raws) == head.input_count:
            return False
        call = PlainCall(self, dispatcher, client, message, size if size > _UNCOUNTED else 0)
        client.serving_plainly(call)
        call.start()
        return True


@final
class PlainCall(Call):
    """One request, and the sink of its response, which it hands to `client`."""

    __slots__ = ("_client", "_deadline_ns", "_dispatcher", "_inferences", "_message", "_size")

    def __init__(
        self,
        inferences: PlainInferences,
        dispatcher: "Dispatcher",
        client: "NativeCall",
        message: InferMessage,
        size: int,
    ) -> None:
        """`size`: bytes of the server's memory that the message holds."""
        super().__init__(inferences.server, GRPC, message.model_name)
        self._inferences = inferences
        self._dispatcher = dispatcher
        self._client: NativeCall | None = client
        """None when it gets nothing more."""
        self._message = message
        self._size = size
        self._deadline_ns = client.deadline_ns
        self.request_id = client.request_id

    def start(self) -> None:
        """Hand the request to its model. Never raises."""
        self.now_ns = time.monotonic_ns()
        if self._size:
            self.server.memory.force(self._size)
        self._dispatcher.calls += 1
        self.reply = BINARY
        message = self._message
        try:
            version = requested_version(self.server, message) if message.model_version else None
            self.version = version
            self.servable = self.server.model(message.model_name, version)
            self.submit(grpc_messages.decode_request(message, self._deadline_ns))
        except Exception as error:
            self._fail(to_client_error(error, _WHAT))

    def cancel(self) -> None:
        """The client has gone, or its time is over; nothing is said any more."""
        if self._client is not None:
            self._end()
        if self.inflight is not None:
            self.inflight.cancel()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if self._client is None:
            return
        if isinstance(outcome, ModserveError):
            deadline_ns = self._deadline_ns
            late = deadline_ns and outcome.code is Code.UNAVAILABLE and time.monotonic_ns() >= deadline_ns
            self._fail(DeadlinePassedError() if late else outcome)
        else:
            try:
                self._respond(outcome)
            except Exception as error:
                self._fail(to_client_error(error, _WHAT))
        inflight = self.inflight
        if inflight is not None and not inflight.settled:
            inflight.cancel()  # a decoupled model may want to say more

    def _respond(self, response: InferenceResponse) -> None:
        inferences = self._inferences
        if not is_long_response(response, BINARY, inferences.limits):
            self._finish(inferences.writer.parts(response))
            return
        in_background(partial(inferences.writer.parts, response)).add_done_callback(self._have_written)

    def _have_written(self, writing: "asyncio.Future[list[Buffer]]") -> None:
        outcome = outcome_of(writing, _WHAT)
        if isinstance(outcome, ModserveError):
            self._fail(outcome)
        elif self._client is not None:
            self._finish(outcome)

    def _finish(self, parts: list[Buffer]) -> None:
        client = self._end()
        size = 0
        for part in parts:
            size += len(part)
        client.respond(parts, size)

    def _fail(self, error: ModserveError) -> None:
        if self._client is not None:
            self.id = self._message.id
            self._end().refuse(self._dispatcher.refusal(error, self._message, self.identify()))

    def _end(self) -> "NativeCall":
        """The client, which gets its outcome now, or none."""
        client, self._client = self._client, None
        assert client is not None, "ended twice: this is a bug"
        self._dispatcher.calls -= 1
        if self._size:
            self.server.memory.give_back(self._size)
        return client
