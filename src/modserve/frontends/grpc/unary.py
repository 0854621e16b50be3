"""Fast path of inferences over gRPC with a short message, served without coroutine, task or future.

All other calls are left to `Dispatcher.unary`, which reads them from the beginning. Outcomes, limits and the log of
failures are the same on both ways. With a task each takes 1.4 times the CPU time (`benchmarks/wire_shortcuts.py`).
"""

import asyncio
import time
from functools import partial
from typing import Final, cast, final

from modserve.core.errors import ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tenants import Tenant
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.call import GRPC, InferenceCall
from modserve.frontends.errors import to_client_error
from modserve.frontends.http2.stream import Stream
from modserve.frontends.offload import in_background, is_long_response, outcome_of
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.infer_message import InferMessage
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.protocol.response_form import BINARY

from .call_services import UnaryPath
from .dispatch import Dispatcher
from .infer_requests import in_time, resolve_version
from .server_call import ServerCall

_WHAT: Final = "ModelInfer"
_UNCOUNTED: Final = 16 * 1024
"""Bytes of a message that needs memory to be left in the budget, and takes none of it: `max_calls` bounds them."""
_BEGINNING: Final = 0x0A
"""The key of a model's name. Messages that were compressed begin with something else."""


@final
class UnaryInferences(UnaryPath):
    """Shared state of all such calls."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.server = dispatcher.server
        self.limits = dispatcher.limits
        self.writer = ResponseWriter()

    def start(self, client: Stream, message: bytes) -> bool:
        size = len(message)
        server, dispatcher = self.server, self.dispatcher
        if not size or message[0] != _BEGINNING or size > self.limits.split or server.tracer.on:
            return False
        if dispatcher.calls >= dispatcher.max_calls or not server.memory.fits(size):
            return False
        request = dispatcher.reader.read(message)
        if request is None:
            return False
        head = request.head
        if not head.bare_inputs or not head.bare_outputs or not 0 < len(request.raws) == head.input_count:
            return False
        server_call = cast(ServerCall, client)
        tenant: Tenant | None = None
        if dispatcher.guard is not None:
            identity = dispatcher.guard.authority.recognise(server_call.credentials)
            if identity is None or not identity.allows("infer", request.model_name):
                return False  # and the guard says why
            tenant = identity.tenant
            server_call.set_identity(identity)
        call = UnaryInference(self, server_call, request, size if size > _UNCOUNTED else 0)
        call.tenant = tenant
        server_call.set_inference(call)
        call.start()
        return True


@final
class UnaryInference(InferenceCall):
    """A request, and the sink of its response, which it hands to `client`."""

    def __init__(self, shared: UnaryInferences, client: ServerCall, message: InferMessage, size: int) -> None:
        """`size`: bytes of the server's memory that the message holds."""
        super().__init__(shared.server, GRPC, shared.server.tenant, message.model_name)
        self._shared = shared
        self._client: ServerCall | None = client
        """Client of the call; None when it gets nothing more."""
        self._message = message
        self._size = size
        self._deadline_ns = client.deadline_ns

    def start(self) -> None:
        """Hand the request to its model. Never raises."""
        self.now_ns = time.monotonic_ns()
        if self._size:
            self.server.memory.force(self._size)
        self._shared.dispatcher.calls += 1
        self.response_form = BINARY
        message = self._message
        try:
            version = resolve_version(self.server, message) if message.model_version else None
            self.version = version
            self.servable = self.server.model(message.model_name, version)
            self.submit(grpc_messages.decode_request(message, self._deadline_ns))
        except Exception as error:
            self._fail(to_client_error(error, _WHAT))

    def cancel(self) -> None:
        if self._client is not None:
            self._end()
        super().cancel()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if self._client is None:
            return
        if isinstance(outcome, ModserveError):
            self._fail(in_time(outcome, self._deadline_ns))
            return
        shared = self._shared
        try:
            if is_long_response(outcome, BINARY, shared.limits):
                in_background(partial(shared.writer.parts, outcome)).add_done_callback(self._have_written)
            else:
                self._respond(shared.writer.parts(outcome))
        except Exception as error:
            self._fail(to_client_error(error, _WHAT))

    def _have_written(self, writing: "asyncio.Future[list[Buffer]]") -> None:
        outcome = outcome_of(writing, _WHAT)
        if isinstance(outcome, ModserveError):
            self._fail(outcome)
        elif self._client is not None:
            self._respond(outcome)

    def _respond(self, parts: list[Buffer]) -> None:
        size = 0
        for part in parts:
            size += len(part)
        self._end().respond(parts, size)

    def _fail(self, error: ModserveError) -> None:
        if self._client is not None:
            self.id = self._message.id
            client = self._end()
            client.refuse(self._shared.dispatcher.refusal(error, self._message, client))

    def _end(self) -> ServerCall:
        """Return the client, which gets its outcome now, or none."""
        client, self._client = self._client, None
        assert client is not None, "ended twice: this is a bug"
        self._shared.dispatcher.calls -= 1
        if self._size:
            self.server.memory.give_back(self._size)
        return client
