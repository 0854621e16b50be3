"""Path of an RPC from bytes to handler and back: memory, compression, restrictions, limits, failure log."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from modserve.core.errors import Code, ModserveError, OverloadedError, unavailable
from modserve.core.requests.origin import Origin
from modserve.core.wire.grpc_status import NAMES
from modserve.frontends import offload
from modserve.frontends.errors import to_client_error
from modserve.frontends.offload import RequestMemory
from modserve.protocol import failures
from modserve.protocol.grpc.infer_message import InferMessage
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.restricted import Restriction
from modserve.server import Server
from modserve.settings import LoopLimits

from . import infer_requests
from .heads import CANCELLED, INTERNAL
from .message_inflater import STARTS, MessageInflater
from .rpc import ClientDisconnectedError, Refusal, Response, Rpc, RpcCall

if TYPE_CHECKING:
    from modserve.frontends.audit import AuditEntry

    from .audit import RpcAudit
    from .guard import RpcGuard

_log = logging.getLogger(__name__)

MAX_CALLS = 10_000
"""Maximum number of unary calls under way. More are refused at once: each holds about 20 KB besides its message."""


class NoMessageError(ModserveError):
    """A call that its client ended before sending its message."""

    def __init__(self) -> None:
        # The status of gRPC's own servers for such a call.
        super().__init__(Code.INTERNAL, "the call ended without a request message; a unary call has exactly one")


class Dispatcher:
    """Dispatches calls by their row of the RPC table. Raises nothing but CancelledError."""

    def __init__(
        self,
        server: Server,
        limits: LoopLimits | None = None,
        max_calls: int = MAX_CALLS,
        max_message: int = 0,
        guard: "RpcGuard | None" = None,
        audit: "RpcAudit | None" = None,
    ) -> None:
        """`max_message`: maximum message size in bytes, 0 for no limit. `guard`: checks callers' keys."""
        self.guard = guard
        self.audit = audit
        self.limits = limits or LoopLimits()
        self.inflater = MessageInflater(server.memory, max_message, self.limits)
        self.reader = RequestReader(self.limits.split)
        self.server = server
        self.max_calls = max_calls
        self.statuses = [0] * len(NAMES)
        """Ended calls by status, without health checks."""
        self.calls = 0
        """Unary calls under way."""
        self.refused = 0
        """Calls refused because of `max_calls`."""

    async def serve(self, rpc: Rpc, call: RpcCall) -> None:
        """Serve the call to its end, in its own task."""
        try:
            outcome = await (self.stream(rpc, call) if rpc.method.server_streaming else self.unary(rpc, call))
            if isinstance(outcome, Refusal):
                call.refuse(outcome)
            elif outcome is None:
                call.end_stream()
            else:
                await call.send_response(outcome)
        except asyncio.CancelledError:
            call.end_call(CANCELLED, "the call was cancelled")
        except Exception:
            _log.exception("a gRPC call failed unexpectedly")
            call.end_call(INTERNAL, "internal error")

    async def unary(self, rpc: Rpc, call: RpcCall) -> Response | Refusal:
        """Serve a call with one request and one response; return the response or the failure."""
        audit = self.audit
        entry = None if audit is None else audit.entry_of(rpc.method.name)
        if audit is None or entry is None:
            return await self._unary(rpc, call)
        return await audit.serve(entry, call, lambda entry: self._unary(rpc, call, entry))

    async def _unary(self, rpc: Rpc, call: RpcCall, entry: "AuditEntry | None" = None) -> Response | Refusal:
        memory = self.server.memory
        message: Message | InferMessage | None = None
        inflated: RequestMemory | None = None
        data: bytes | None = None
        held = 0
        self.calls += 1
        try:
            if rpc.restriction is not None:
                _check_restriction(rpc.restriction, call)
            if self.calls > self.max_calls:
                raise self._too_many()
            if self.guard is not None:
                await self.guard.admit(rpc.method.name, call, entry)
            data = await call.read()
            if data is None:
                raise NoMessageError
            size = len(data)
            memory.take(size)
            held = size
            if size and data[0] in STARTS:
                data, inflated = await self.inflater.inflate(data)
                size = len(data)
            request = rpc.method.request
            if rpc.infers:
                message = self.reader.read(data) or await infer_requests.parse_infer(data, self.limits)
            elif size > self.limits.message:
                message = await offload.on_thread(infer_requests.parse, request, data)
            else:
                message = infer_requests.parse(request, data)
            data = None
            if entry is not None and self.audit is not None:
                self.audit.describe(entry, message)
            response: Response | Message | ModserveError = await rpc.handler(message, call)
            if isinstance(response, ModserveError):
                return self.refusal(response, message, call)
            if isinstance(response, Message):
                return response.SerializeToString()
            return response
        except Exception as error:
            return self.refusal(to_client_error(error, rpc.method.name), message, call)
        finally:
            self.calls -= 1
            memory.give_back(held)
            if inflated is not None:
                inflated.release()

    async def stream(self, rpc: Rpc, call: RpcCall) -> Refusal | None:
        """Serve a call with a handler that writes its own responses; return the failure, or None on success."""
        try:
            if rpc.restriction is not None:
                _check_restriction(rpc.restriction, call)
            if self.guard is not None:
                await self.guard.admit(rpc.method.name, call)
            if rpc.method.client_streaming:
                failure = await rpc.handler(call)
            else:
                data = await call.read()
                if data is None:
                    raise NoMessageError
                data = await self.inflater.short(data)
                failure = await rpc.handler(infer_requests.parse(rpc.method.request, data), call)
            return None if failure is None else self.refusal(failure, None, call)
        except ClientDisconnectedError:
            return None
        except Exception as error:
            return self.refusal(to_client_error(error, rpc.method.name), None, call)

    @property
    def responses(self) -> dict[str, int]:
        """`statuses` by name."""
        return dict(zip(NAMES, self.statuses, strict=True))

    def _record(self, error: ModserveError, request: Any, request_id: str, origin: Origin) -> None:
        """Log a failure with the model, version and id of the request."""
        model = getattr(request, "model_name", "") or getattr(request, "name", "")
        version = getattr(request, "model_version", "") or getattr(request, "version", "")
        status, message = failures.grpc_name(error), failures.public_message(error)
        id = getattr(request, "id", "")
        self.server.failure_log.record("gRPC", model, version, id, status, message, request_id, origin)

    def refusal(self, error: ModserveError, request: Message | InferMessage | None, call: RpcCall) -> Refusal:
        """Log `error` and return the refusal for the call."""
        request_id = call.identify()
        self._record(error, request, request_id, call.origin)
        status = failures.spelling(error).grpc
        return Refusal(status, failures.public_message(error), failures.trailers(error), request_id)

    def _too_many(self) -> ModserveError:
        self.refused += 1
        return OverloadedError(
            f"too many calls: {self.max_calls} are under way on the gRPC port, and it takes no more at a time. Try "
            "again later."
        )


def _check_restriction(restriction: Restriction, call: RpcCall) -> None:
    """Check the header that the restriction requires. Raises UNAVAILABLE without it, as Triton does."""
    if not restriction.granted(call.metadata):
        raise unavailable(restriction.refusal)
