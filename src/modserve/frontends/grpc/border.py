"""Between gRPC's library and the calls: bytes in and out, statuses, bounds, and what is told of calls that fail.

All calls are registered as streams of requests, and those with one request read it themselves: the library never ends
a call that comes without its message.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError, Message

from modserve.core.errors import Code, ModserveError, OverloadedError, internal, invalid, unavailable
from modserve.frontends.threads import RequestMemory, on_thread
from modserve.pb.descriptors import Method
from modserve.protocol import failures
from modserve.protocol.grpc.long_messages import LONG, Tensors
from modserve.protocol.restricted import Restriction
from modserve.server import Server

from .inflating import STARTS, Inflating

_log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Call: TypeAlias = Callable[[Any, Context], "Awaitable[Message | bytes | ModserveError]"]
"""Message in, message out, or its bytes; raises the error that it fails with, or returns it."""
Read: TypeAlias = Callable[[bytes], "Awaitable[tuple[Message, Tensors | None]]"]
"""Reads a long message; raises INVALID_ARG."""
InferCall: TypeAlias = Callable[[Any, Context, Tensors | None], "Awaitable[Message | bytes | ModserveError]"]
"""The same with the tensors of a message that was split."""
StreamCall: TypeAlias = Callable[[Any, Context], "Awaitable[ModserveError | None]"]
"""Reads and writes messages itself; raises the error that it fails with, or returns it."""

MAX_CALLS = 10_000
"""Unary calls that are under way at a time. More are refused at once: each holds about 20 KB beside its message."""

LONG_MESSAGE = 1024 * 1024
"""Bytes. Longer messages are parsed and made on a thread: that takes about half a millisecond for each of them."""

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


class DeadlinePassedError(ModserveError):
    """The client's own deadline passed while its request waited, which gRPC has a status for."""


class NoMessageError(ModserveError):
    """A call has ended before its message came. The client may have gone, or its message was too long for the core."""

    def __init__(self) -> None:
        # The status that gRPC's own servers end it with.
        super().__init__(Code.INTERNAL, "the call ended without a request message; a unary call has exactly one")


class Refusal(NamedTuple):
    """How a call ends that failed. It holds no exception, and so none of the frames that one came through."""

    status: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str], ...]
    early: bool
    """It ended before its message came; the log has not been told."""


def grpc_status(error: ModserveError) -> grpc.StatusCode:
    """The status that a call ends with which failed so."""
    if isinstance(error, DeadlinePassedError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return _STATUS_CODES[failures.spelling(error).grpc]


def foreseen(error: Exception, name: str) -> ModserveError:
    """The error that a client is told for one that a call named `name` raised. What is not ours is logged."""
    if isinstance(error, ModserveError):
        return error
    _log.error("%s failed unforeseen", name, exc_info=error)
    return internal(f"unforeseen {type(error).__name__}: {error}")


class CallTable(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Every call that is served, by its path. The library asks it for each call that it takes over from its core."""

    def __init__(self, methods: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]) -> None:
        self.methods = methods
        self.taken = 0
        """How many calls have been taken over."""

    def service(self, handler_call_details: Any) -> "grpc.RpcMethodHandler[Any, Any] | None":
        self.taken += 1
        return self.methods.get(handler_call_details.method)


class _Asynchronous(functools.partial[Awaitable[bytes]]):
    """A handler of which the library sees at once that it need not run it on a thread.

    It asks whether a handler is awaitable, and only then whether that is a coroutine function, twice for each call.
    """

    __slots__ = ()

    def __await__(self) -> Generator[None]:
        raise RuntimeError("nobody awaits the handler itself: this is a bug")


class Border:
    """Makes handlers for the library from calls."""

    def __init__(self, server: Server, max_calls: int = MAX_CALLS, max_message: int = 0) -> None:
        """`max_message`: bytes that a message may have; 0: any number."""
        self._server = server
        self.inflating = Inflating(server.memory, max_message)
        self._max_calls = max_calls
        self._calls = 0
        self._held: asyncio.Event | None = None
        self.refused = 0
        """Calls that were refused because too many were under way."""

    @property
    def calls(self) -> int:
        """Unary calls under way, without those whose refusal is held back."""
        return self._calls

    def hold_refusals(self) -> None:
        """Keep back the answers to calls that are UNAVAILABLE, until `release_refusals`.

        Clients that call again as soon as they are answered then come to rest, and the port can close without a call
        that waits to be taken.
        """
        self._held = asyncio.Event()

    def release_refusals(self) -> None:
        if self._held is not None:
            self._held.set()
            self._held = None

    def unary(
        self, method: Method, call: Call, restriction: Restriction | None = None
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler of a call with one request and one response."""

        async def read(data: bytes) -> tuple[Message, None]:
            if len(data) > LONG_MESSAGE:
                return await on_thread(parsed, method.request, data), None
            return parsed(method.request, data), None

        return self.infer(method, lambda message, context, _: call(message, context), read, restriction)

    def infer(
        self, method: Method, call: InferCall, read: Read, restriction: Restriction | None = None
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """As `unary`, for a call whose messages have tensors; `read` is for those longer than `long_messages.LONG`."""
        from_bytes = method.request.FromString
        memory, inflating = self._server.memory, self.inflating

        async def handle(messages: object, context: Context) -> bytes:
            message: Message | None = None
            tensors: Tensors | None = None
            data: Any = None
            inflated: RequestMemory | None = None
            taken = 0
            self._calls += 1
            try:
                if restriction is not None:
                    _check_restriction(restriction, context)
                if self._calls > self._max_calls:
                    raise self._too_many()
                data = await context.read()
                if data is _EOF:
                    raise NoMessageError
                size = len(data)
                memory.take(size)
                taken = size
                if size and data[0] in STARTS:
                    data, inflated = await inflating.inflated(data)
                    size = len(data)
                if size > LONG:
                    message, tensors = await read(data)
                else:
                    try:
                        message = from_bytes(data)
                    except DecodeError:
                        raise unreadable(method.request, size) from None
                data = None
                answer = await call(message, context, tensors)
                if isinstance(answer, bytes):
                    if len(answer) > LONG_MESSAGE:
                        self._count_until_sent(len(answer), context)
                    return answer
                if isinstance(answer, Message):
                    return answer.SerializeToString()
                refusal = self._refusal(answer, message)
                del answer
            except Exception as error:
                refusal = self._refusal(foreseen(error, method.name), message)
            finally:
                self._calls -= 1
                memory.give_back(taken)
                if inflated is not None:
                    inflated.release()
            if self._held is not None and refusal.status is grpc.StatusCode.UNAVAILABLE:
                await self._held.wait()
            ending = _ending(context, refusal)
            early = refusal.early
            # The library keeps the exception by which it ends the call, and that keeps this frame.
            del messages, context, message, refusal, data, tensors, inflated
            try:
                await ending
            except grpc.aio.AbortError:
                if early:  # nobody but us has ended it
                    self._record(NoMessageError(), None)
                raise
            except grpc.aio.BaseError:
                pass  # the client has gone, and takes no status
            return b""

        return grpc.stream_unary_rpc_method_handler(_Asynchronous(handle))

    def stream(
        self, method: Method, call: StreamCall, restriction: Restriction | None = None
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler of a call that writes its responses itself, as bytes.

        It gets the iterator over the bytes of its requests, as they came, or its one request as a message.
        """

        async def handle(messages: Any, context: Context) -> None:
            try:
                if restriction is not None:
                    _check_restriction(restriction, context)
                if not method.client_streaming:
                    data = await context.read()
                    if data is _EOF:
                        raise NoMessageError
                    data, inflated = await self.inflating.inflated(data)
                    if inflated is not None:
                        inflated.release()  # the requests of such calls are short, or refused
                    messages = parsed(method.request, data)
                failure = await call(messages, context)
                if failure is None:
                    return
                refusal = self._refusal(failure, None)
                del failure
            except grpc.aio.BaseError:
                return  # the client has gone, and takes no status
            except Exception as error:
                refusal = self._refusal(foreseen(error, method.name), None)
            if refusal.trailers:
                context.set_trailing_metadata(refusal.trailers)
            context.set_code(refusal.status)
            context.set_details(refusal.message)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _count_until_sent(self, size: int, context: Context) -> None:
        memory = self._server.memory
        context.add_done_callback(cast(Any, lambda _: memory.give_back(size)))  # the stubs ask for a class
        memory.force(size)

    def _too_many(self) -> ModserveError:
        self.refused += 1
        return OverloadedError(
            f"too many calls: {self._max_calls} are under way on the gRPC port, and it takes no more at a time. Try "
            "again later."
        )

    def _refusal(self, error: ModserveError, request: Message | None) -> Refusal:
        """How the call ends; the log is told."""
        early = isinstance(error, NoMessageError)
        if not early:
            self._record(error, request)
        return Refusal(grpc_status(error), failures.public_message(error), failures.trailers(error), early)

    def _record(self, error: ModserveError, request: Message | None) -> None:
        model, version, request_id = _named(request)
        status, message = grpc_status(error).name, failures.public_message(error)
        self._server.failure_log.record("gRPC", model, version, request_id, status, message)


def parsed(request: type[Message], data: bytes) -> Message:
    """Raises INVALID_ARG for bytes that are no such message."""
    try:
        return request.FromString(data)
    except DecodeError:
        raise unreadable(request, len(data)) from None


def unreadable(request: type[Message], size: int) -> ModserveError:
    return invalid(f"Unable to parse request: {size} bytes are no {request.DESCRIPTOR.full_name}")


def _named(request: Any) -> tuple[str, str, str]:
    """The model, version and id that a request names, as far as it has any."""
    model = getattr(request, "model_name", "") or getattr(request, "name", "")
    version = getattr(request, "model_version", "") or getattr(request, "version", "")
    return model, version, getattr(request, "id", "")


def _ending(context: Context, refusal: Refusal) -> Awaitable[object]:
    if refusal.trailers:
        context.set_trailing_metadata(refusal.trailers)
    return context.abort(refusal.status, refusal.message)


def _check_restriction(restriction: Restriction, context: Context) -> None:
    """Raises UNAVAILABLE, as Triton does, for a call without the header that it needs."""
    if not restriction.granted(context.invocation_metadata() or ()):
        raise unavailable(restriction.refusal)
