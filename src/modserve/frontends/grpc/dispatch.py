"""From a call's bytes to its handler and back: memory, compression, restrictions, bounds, and the log of failures."""

from typing import Any

from google.protobuf.message import DecodeError, Message

from modserve.core.errors import Code, ModserveError, OverloadedError, unavailable
from modserve.core.grpc_status import NAMES
from modserve.frontends import offload
from modserve.frontends.errors import to_client_error
from modserve.frontends.offload import RequestMemory
from modserve.protocol import failures
from modserve.protocol.grpc.infer_message import InferMessage
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.restricted import Restriction
from modserve.server import Server
from modserve.settings import Limits

from . import reading
from .heads import OK
from .inflating import STARTS, Inflating
from .rpc import ClientGoneError, Refusal, Response, Rpc, RpcCall
from .writing import joined, size_of

MAX_CALLS = 10_000
"""Unary calls that are under way at a time. More are refused at once: each holds about 20 KB beside its message."""


class NoMessageError(ModserveError):
    """A call has ended before its message came. The client may have gone, or its message was too long for the core."""

    def __init__(self) -> None:
        # The status that gRPC's own servers end it with.
        super().__init__(Code.INTERNAL, "the call ended without a request message; a unary call has exactly one")


class Dispatcher:
    """Serves calls by their row of the table. Never raises, but for cancellation."""

    def __init__(
        self,
        server: Server,
        limits: Limits | None = None,
        max_calls: int = MAX_CALLS,
        max_message: int = 0,
        in_parts: bool = False,
    ) -> None:
        """`max_message`: bytes that a message may have; 0: any number. `in_parts`: who calls `unary` takes parts, and
        counts what waits to be sent.
        """
        self.limits = limits or Limits()
        self.inflating = Inflating(server.memory, max_message, self.limits)
        self.reader = RequestReader(self.limits.split)
        self._server = server
        self.max_calls = max_calls
        self._in_parts = in_parts
        self.statuses = [0] * len(NAMES)
        """Calls that ended, by their status."""
        self.calls = 0
        """Unary calls under way, without those whose refusal is held back."""
        self.refused = 0
        """Calls that were refused because too many were under way."""

    async def unary(self, rpc: Rpc, call: RpcCall) -> Response:
        """The response to a call with one request and one response. Raises what `call.refuse` raises."""
        memory = self._server.memory
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
            data = await call.read()
            if data is None:
                raise NoMessageError
            size = len(data)
            memory.take(size)
            held = size
            if size and data[0] in STARTS:
                data, inflated = await self.inflating.inflated(data)
                size = len(data)
            request = rpc.method.request
            if rpc.infers:
                message = self.reader.read(data) or await reading.parse_infer(data, self.limits)
            elif size > self.limits.message:
                message = await offload.on_thread(reading.parse, request, data)
            else:
                try:
                    message = request.FromString(data)
                except DecodeError:
                    raise reading.unreadable(request, size) from None
            data = None
            response: Response | Message | ModserveError = await rpc.handler(message, call)
            if isinstance(response, bytes | list):
                size = size_of(response)
                if self._in_parts:
                    return response
                self.statuses[OK] += 1
                response = await joined(response, self.limits.message)
                if size > self.limits.message:
                    self.count_until_sent(size, call)
                return response
            if isinstance(response, Message):
                if not self._in_parts:  # who takes parts counts what it writes
                    self.statuses[OK] += 1
                return response.SerializeToString()
            refusal = self.refusal(response, message, call.identify())
            del response
        except ClientGoneError:
            refusal = self.refusal(NoMessageError(), message, call.identify())
        except Exception as error:
            refusal = self.refusal(to_client_error(error, rpc.method.name), message, call.identify())
        finally:
            self.calls -= 1
            memory.give_back(held)
            if inflated is not None:
                inflated.release()
        refusing = call.refuse(refusal)
        # What ends the call may keep this frame.
        del rpc, call, message, inflated, refusal, data
        return await refusing

    async def stream(self, rpc: Rpc, call: RpcCall) -> Refusal | None:
        """Serve a call whose handler writes its responses itself; how it failed, None for a good end."""
        try:
            if rpc.restriction is not None:
                _check_restriction(rpc.restriction, call)
            if rpc.method.client_streaming:
                failure = await rpc.handler(call)
            else:
                data = await call.read()
                if data is None:
                    raise NoMessageError
                data = await self.inflating.short(data)
                failure = await rpc.handler(reading.parse(rpc.method.request, data), call)
            return None if failure is None else self.refusal(failure, None, call.identify())
        except ClientGoneError:
            return None
        except Exception as error:
            return self.refusal(to_client_error(error, rpc.method.name), None, call.identify())

    @property
    def responses(self) -> dict[str, int]:
        """`statuses` by name, without those that never occurred."""
        return {name: count for name, count in zip(NAMES, self.statuses, strict=True) if count}

    def record(self, error: ModserveError, request: Any = None, request_id: str = "") -> None:
        """Log a call that fails with `error`; the model, version and id are those that its request names."""
        model = getattr(request, "model_name", "") or getattr(request, "name", "")
        version = getattr(request, "model_version", "") or getattr(request, "version", "")
        status, message = failures.grpc_name(error), failures.public_message(error)
        id = getattr(request, "id", "")
        self._server.failure_log.record("gRPC", model, version, id, status, message, request_id)

    def refusal(self, error: ModserveError, request: Message | InferMessage | None, request_id: str) -> Refusal:
        early = isinstance(error, NoMessageError)
        if not early:
            self.record(error, request, request_id)
        status = failures.spelling(error).grpc
        return Refusal(status, failures.public_message(error), failures.trailers(error), early, request_id)

    def count_until_sent(self, size: int, call: RpcCall) -> None:
        """A response of `size` bytes exists until its call is over."""
        memory = self._server.memory
        memory.force(size)
        call.on_end(lambda: memory.give_back(size))

    def _too_many(self) -> ModserveError:
        self.refused += 1
        return OverloadedError(
            f"too many calls: {self.max_calls} are under way on the gRPC port, and it takes no more at a time. Try "
            "again later."
        )


def _check_restriction(restriction: Restriction, call: RpcCall) -> None:
    """Raises UNAVAILABLE, as Triton does, for a call without the header that it needs."""
    if not restriction.granted(call.metadata):
        raise unavailable(restriction.refusal)
