"""gRPC calls that come from Ray's proxies: served by the dispatcher of the gRPC port."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from modserve.access.credentials import Credentials, of_headers
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin, lines_of
from modserve.core.wire.grpc_status import NAMES
from modserve.frontends.call import InferenceCall
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.guard import RpcGuard
from modserve.frontends.grpc.model_stream import InferStreams
from modserve.frontends.grpc.rpc import ClientDisconnectedError, ReadingStoppedError, Refusal, Response, Rpc
from modserve.frontends.grpc.service import rpc_table
from modserve.server import Server
from modserve.settings import GrpcSettings

if TYPE_CHECKING:
    from modserve.access.authority import Authority
    from modserve.access.identity import Identity

_OK = 0
_UNSENT = 16
"""Messages of a stream that may wait for Ray."""


class ProxyContext(Protocol):
    """Part of Ray's gRPC context that is used here."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]: ...
    def peer(self) -> str: ...
    def set_code(self, code: Any, /) -> None: ...
    def set_details(self, details: str, /) -> None: ...
    def trailing_metadata(self) -> Sequence[tuple[str, str]]: ...
    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]], /) -> None: ...


class WireMessage:
    """A message for Ray, which sends what `SerializeToString` returns."""

    __slots__ = ("_data",)

    def __init__(self, response: Response) -> None:
        self._data = response if isinstance(response, bytes) else b"".join(response)

    def SerializeToString(self) -> bytes:
        return self._data


class StreamFailure(Exception):
    """Ends a stream with the status that its context has got."""


class ProxyCall:
    """Implements `frontends.grpc.rpc.RpcCall` for a call that a proxy has sent here."""

    def __init__(self, context: ProxyContext, messages: AsyncIterator[bytes]) -> None:
        self._context = context
        self._messages = messages
        self._reader: asyncio.Task[Any] | None = None
        """Task that waits for the next message."""
        self._stopped = False
        self._inference: InferenceCall | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._trailers: tuple[tuple[str, str], ...] = ()
        self.metadata = context.invocation_metadata()
        lines = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in self.metadata]
        self.credentials: Credentials = of_headers(lines)
        self.deadline_ns = 0
        """Ray's proxy has it, and cancels the call."""
        self.origin = Origin(address(context.peer()), lines_of(lines))
        self.request_id = ""
        self.unsent: asyncio.Queue[Response | None] = asyncio.Queue(_UNSENT)
        """The messages of a stream that are not sent yet; None after the last one."""
        self.status = _OK
        self.left = False
        """True if the client takes no more messages of the stream."""

    def identify(self) -> str:
        if not self.request_id:
            call = self._inference
            self.request_id = request_ids.make() if call is None else call.identify()
        return self.request_id

    def set_identity(self, identity: "Identity") -> None: ...

    def set_inference(self, call: InferenceCall) -> None:
        self._inference = call
        call.request_id, call.origin = self.request_id, self.origin

    async def read(self) -> bytes | None:
        if self._stopped:
            raise ReadingStoppedError
        self._reader = asyncio.current_task()
        try:
            return await anext(self._messages)
        except asyncio.CancelledError:
            if self._stopped:
                raise ReadingStoppedError from None
            raise
        except StopAsyncIteration:
            if getattr(self._messages, "is_cancelled", bool)():
                raise ClientDisconnectedError from None
            return None
        finally:
            self._reader = None

    def stop_reading(self) -> None:
        self._stopped = True
        if self._reader is not None:
            self._reader.cancel()

    async def write(self, message: Response) -> None:
        await self.unsent.put(message)

    async def send_response(self, response: Response) -> None:
        await self.unsent.put(response)

    def end_stream(self) -> None:
        """Do nothing: `serve_stream` sees the end of the task."""

    def refuse(self, refusal: Refusal) -> None:
        self.set_trailers((*self._trailers, *refusal.trailers, (request_ids.HEADER.lower(), refusal.request_id)))
        self.end_call(refusal.status, refusal.message)

    def end_call(self, status: int, message: str) -> None:
        if self.status == _OK:
            self.status = status
            self._context.set_code(_code(status))
            self._context.set_details(message)

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self._trailers = trailers

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def over(self) -> None:
        """Complete the call: all that is to be sent is on its way."""
        if self._trailers:
            self._context.set_trailing_metadata([*self._context.trailing_metadata(), *self._trailers])
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()


def address(peer: str) -> tuple[str, int] | None:
    """The client's address as a socket has it, from gRPC's text: ipv4:192.0.2.1:1234, or ipv6:[2001:db8::1]:1234."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


def _code(status: int) -> Any:
    import grpc

    return grpc.StatusCode[NAMES[status]]


class ProxyCalls:
    """The calls of the gRPC port, without the port."""

    def __init__(self, server: Server, options: GrpcSettings, authority: "Authority | None" = None) -> None:
        """`server` is that of the callers: scoped, where an `authority` knows them."""
        guard = None if authority is None else RpcGuard(authority)
        self._dispatcher = Dispatcher(server, options.limits, max_message=options.max_message or 0, guard=guard)
        self._streams = InferStreams(server, options, self._dispatcher.inflater)
        self._open: set[asyncio.Task[None]] = set()
        self.rpcs = rpc_table(server, options, self._dispatcher.inflater, self._streams)

    async def wait_for_streams(self) -> None:
        """Return when no stream is under way."""
        while self._open:
            await asyncio.wait(list(self._open))

    def stop(self) -> None:
        """Streams read no more requests."""
        self._streams.stop()

    async def unary(self, path: str, data: bytes, context: ProxyContext) -> WireMessage:
        """Serve one message for one. A failure is in the context."""
        call = ProxyCall(context, _one(data))
        try:
            outcome = await self._dispatcher.unary(self.rpcs[path], call)
            if isinstance(outcome, Refusal):
                call.refuse(outcome)
        finally:
            call.over()
        return WireMessage(b"" if isinstance(outcome, Refusal) else outcome)

    async def stream(
        self, path: str, messages: AsyncIterator[bytes] | bytes, context: ProxyContext
    ) -> AsyncGenerator[WireMessage]:
        """Any number of messages, for one or for any number. Raises `StreamFailure`, with the status in the context."""
        call = ProxyCall(context, _one(messages) if isinstance(messages, bytes) else messages)
        task = asyncio.ensure_future(self._serve(self.rpcs[path], call))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            while (message := await call.unsent.get()) is not None:
                yield WireMessage(message)
        finally:
            call.left = True
            task.cancel()
            call.over()
        if call.status != _OK:
            raise StreamFailure(path)

    async def _serve(self, rpc: Rpc, call: ProxyCall) -> None:
        await self._dispatcher.serve(rpc, call)
        if not call.left:
            await call.unsent.put(None)


async def _one(data: bytes) -> AsyncGenerator[bytes]:
    yield data
