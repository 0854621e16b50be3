"""The gRPC port on grpc.aio: the only file that knows the library's server."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any

import grpc

from modserve.core import request_ids
from modserve.frontends.call import Call
from modserve.frontends.certificates import Certificates, Identity
from modserve.observability.access_log import AccessLog
from modserve.server import Server
from modserve.settings import GrpcSettings, TlsFiles

from .dispatch import Dispatcher, NoMessageError
from .logged_rpc import LoggedRpc
from .rpc import ClientGoneError, Refusal, Response, Rpc
from .service import rpc_table
from .stream import InferStreams
from .writing import joined

_log = logging.getLogger("grpc._cython.cygrpc")
"""The library's own."""

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
_UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}

_QUIET = 0.02
"""Seconds without a new call after which none is left in the library's core."""

_REST = 0.05
"""The same when the port is about to close, with some time for clients to call again after a response."""

_LATE = 0.02
"""Seconds by which such a look may come too late, and still count."""

_TURNS = 10
"""Turns of the event loop, more than it takes to take a call over: the loop itself may have been busy meanwhile."""

_BACKLOG = 2.0
"""Seconds for taking over calls that have arrived, at most."""

_CONNECTIONS = {  # gRPC's channel arguments by option
    "keepalive_time": "grpc.keepalive_time_ms",
    "keepalive_timeout": "grpc.keepalive_timeout_ms",
    "keepalive_permit_without_calls": "grpc.keepalive_permit_without_calls",
    "http2_max_pings_without_data": "grpc.http2.max_pings_without_data",
    "http2_min_recv_ping_interval_without_data": "grpc.http2.min_ping_interval_without_data_ms",
    "http2_max_ping_strikes": "grpc.http2.max_ping_strikes",
}
_AGES = {
    "max_connection_age": "grpc.max_connection_age_ms",
    "max_connection_age_grace": "grpc.max_connection_age_grace_ms",
}
_MAX_PENDING = 1_000_000
"""Calls that wait in the core, with some 3 KB each. No connection has more than `max_concurrent_streams` of them."""

COMPRESSION_LEVELS = {"none": 0, "low": 1, "medium": 2, "high": 3}
"""gRPC picks the algorithm by level from those that the client takes: gzip for low, deflate above."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether the library reports more than a client that has gone before its response.

    It has a traceback for that, where the client's cancellation has not come to its notice before.
    """
    return "ExecuteBatchError" not in str(record.msg)


class AioCall:
    """Implements `rpc.RpcCall` over the library's context of a call."""

    __slots__ = ("_context", "_inference", "_most", "_table", "request_id", "sent_id")

    def __init__(self, context: Any, table: "CallTable | None" = None, most: int = 1 << 20) -> None:
        """`table` for unary calls; `most`: bytes of a stream's message that are joined on the event loop."""
        self._context = context
        self._most = most
        self._table = table
        self._inference: Call | None = None
        self.request_id = ""
        self.sent_id = False
        for name, value in context.invocation_metadata() or ():
            if name == request_ids.HEADER and isinstance(value, str):
                self.request_id = request_ids.chosen(request_ids.received(value))

    @property
    def peer(self) -> object:
        return self._context.peer()

    def identify(self) -> str:
        if not self.request_id:
            call = self._inference
            self.request_id = request_ids.make() if call is None else call.identify()
        return self.request_id

    def serving(self, call: Call) -> None:
        self._inference = call
        call.request_id = self.request_id

    async def send_id(self) -> None:
        """Let the client know the id."""
        if self.request_id and not self.sent_id:
            self.sent_id = True
            try:
                await self._context.send_initial_metadata(((request_ids.HEADER, self.request_id),))
            except grpc.aio.BaseError:
                pass  # the client has gone

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return tuple(map(tuple, self._context.invocation_metadata() or ()))

    @property
    def deadline_ns(self) -> int:
        remaining: float | None = self._context.time_remaining()
        return 0 if remaining is None else time.monotonic_ns() + int(remaining * 1e9)

    async def read(self) -> bytes | None:
        try:
            data = await self._context.read()
        except grpc.aio.BaseError:
            raise ClientGoneError from None
        return None if data is _EOF else data

    async def write(self, message: Response) -> None:
        try:
            await self._context.write(await joined(message, self._most))
        except grpc.aio.BaseError:
            raise ClientGoneError from None

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self._context.set_trailing_metadata(trailers)

    async def refuse(self, refusal: Refusal) -> bytes:
        context, table = self._context, self._table
        if table is not None:
            table.dispatcher.statuses[refusal.status] += 1
        held = None if table is None else table.held
        if held is not None and refusal.status == _UNAVAILABLE:
            await held.wait()
        trailers, request_id = refusal.trailers, refusal.request_id
        if request_id and not self.sent_id:
            trailers = (*trailers, (request_ids.HEADER, request_id))
        if trailers:
            context.set_trailing_metadata(trailers)
        ending, early = context.abort(_STATUS_CODES[refusal.status], refusal.message), refusal.early
        # The library keeps the exception by which it ends the call, and that keeps this frame.
        del self, context, held, refusal
        try:
            await ending
        except grpc.aio.AbortError:
            if early and table is not None:  # nobody but us has ended it
                table.dispatcher.record(NoMessageError(), None, request_id)
            raise
        except grpc.aio.BaseError:
            pass  # the client has gone, and takes no status
        return b""

    def on_end(self, callback: Callable[[], None]) -> None:
        self._context.add_done_callback(lambda _: callback())


class _Asynchronous(functools.partial[Awaitable[Response]]):
    """A handler of which the library sees at once that it need not run it on a thread.

    It asks whether a handler is awaitable, and only then whether that is a coroutine function, twice for each call.
    """

    __slots__ = ()

    def __await__(self) -> Generator[None]:
        raise RuntimeError("nobody awaits the handler itself: this is a bug")


class CallTable(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Every call that is served, by its path. The library asks it for each call that it takes over from its core.

    All calls are registered as streams of requests, and those with one request read it themselves: the library never
    ends a call that comes without its message.
    """

    def __init__(self, dispatcher: Dispatcher, rpcs: Mapping[str, Rpc], access: AccessLog | None = None) -> None:
        self.dispatcher = dispatcher
        self.access = access
        self.held: asyncio.Event | None = None
        self.calls = 0
        """How many calls have been taken over."""
        self.methods = {
            path: self._stream(rpc) if rpc.method.server_streaming else self._unary(rpc) for path, rpc in rpcs.items()
        }

    def service(self, handler_call_details: Any) -> "grpc.RpcMethodHandler[Any, Any] | None":
        self.calls += 1
        return self.methods.get(handler_call_details.method)

    def hold_refusals(self) -> None:
        """Keep back the statuses of calls that are UNAVAILABLE, until `release_refusals`.

        Clients that call again after each response then come to rest, and the port can close without a call that is
        still in the library's core.
        """
        self.held = asyncio.Event()

    def release_refusals(self) -> None:
        if self.held is not None:
            self.held.set()
            self.held = None

    def _unary(self, rpc: Rpc) -> "grpc.RpcMethodHandler[Any, Any]":
        dispatcher = self.dispatcher

        def handle(messages: object, context: Any) -> Awaitable[Response]:
            call = AioCall(context, self)
            if call.request_id or self.access is not None:
                return self._identified(rpc, call)
            return dispatcher.unary(rpc, call)

        return grpc.stream_unary_rpc_method_handler(_Asynchronous(handle))

    async def _identified(self, rpc: Rpc, call: AioCall) -> Response:
        if self.access is None:
            await call.send_id()
            return await self.dispatcher.unary(rpc, call)
        call.identify()
        await call.send_id()
        return await LoggedRpc(call, self.access, rpc.method.name).unary(self.dispatcher, rpc)

    def _stream(self, rpc: Rpc) -> "grpc.RpcMethodHandler[Any, Any]":
        dispatcher = self.dispatcher

        async def handle(messages: object, context: Any) -> None:
            call = AioCall(context, None, dispatcher.limits.message)
            call.identify()
            await call.send_id()
            if self.access is None:
                refusal = await dispatcher.stream(rpc, call)
            else:
                refusal = await LoggedRpc(call, self.access, rpc.method.name).stream(dispatcher, rpc)
            dispatcher.statuses[0 if refusal is None else refusal.status] += 1
            if refusal is not None:
                if refusal.trailers:
                    context.set_trailing_metadata(refusal.trailers)
                context.set_code(_STATUS_CODES[refusal.status])
                context.set_details(refusal.message)

        return grpc.stream_stream_rpc_method_handler(handle)


class AioListener:
    """Serves `server` on one port."""

    def __init__(self, server: Server, address: str, port: int, options: GrpcSettings) -> None:
        self._address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._tls = options.tls
        _log.addFilter(_is_news)
        self._grpc = grpc.aio.server(options=channel_arguments(options))
        self._dispatcher = Dispatcher(server, options.limits, max_message=options.max_message or 0)
        self._streams = InferStreams(server, options, self._dispatcher.inflating)
        self._table = CallTable(
            self._dispatcher, rpc_table(server, options, self._dispatcher.inflating, self._streams), server.access_log
        )
        self._grpc.add_generic_rpc_handlers((self._table,))

    @property
    def connections(self) -> int | None:
        return None

    @property
    def responses(self) -> dict[str, int]:
        return self._dispatcher.responses

    @property
    def endings(self) -> dict[str, int]:
        return {}

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError, or CertificateError."""
        try:
            if self._tls is None:
                port = self._grpc.add_insecure_port(self._address)
            else:
                port = self._grpc.add_secure_port(self._address, _credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address}: {error}") from error
        await self._grpc.start()
        return port

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, and let those under way finish for `grace` seconds.

        Streams read no more requests, and end when those they have read are settled.
        """
        self._streams.stop()
        if grace is None:
            await self._grpc.stop(None)
            return
        began = asyncio.get_running_loop().time()
        self._table.hold_refusals()
        await self._quiet(min(_BACKLOG, grace), _REST, at_rest=True)
        grace -= asyncio.get_running_loop().time() - began
        stopping = asyncio.ensure_future(self._grpc.stop(max(0.0, grace)))
        await asyncio.sleep(0)  # the clients know by then that they must go elsewhere
        self._table.release_refusals()
        await stopping

    async def take_backlog(self, limit: float = _BACKLOG) -> None:
        """Return when every call that has arrived is under way, or after `limit` seconds.

        The library's core keeps calls until they are taken over, one by one, and ends those that it still has with
        CANCELLED when the port closes (grpc/grpc issue 41785).
        """
        await self._quiet(limit, _QUIET, at_rest=False)

    async def _quiet(self, limit: float, seconds: float, at_rest: bool) -> None:
        """Return when no call has come for so many seconds and, for `at_rest`, none is under way, or at the limit.

        A client whose call ends will often make another. Time in which the machine did not let this
        process run does not count: clients beside it may not have run either.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while (began := loop.time()) < end:
            calls = self._table.calls
            await asyncio.sleep(seconds)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            in_time = loop.time() - began <= seconds + _LATE
            if in_time and calls == self._table.calls and not (at_rest and self._dispatcher.calls):
                return


def channel_arguments(options: GrpcSettings) -> list[tuple[str, int]]:
    """What a server is made with."""
    arguments = [
        ("grpc.max_send_message_length", -1),
        # Beyond it the library's core ends the call with RESOURCE_EXHAUSTED, before it has made room for the message.
        ("grpc.max_receive_message_length", options.max_message or -1),
        # The front end inflates messages itself: see `inflating`.
        ("grpc.per_message_decompression", 0),
        # Beyond those the core ends calls with CANCELLED, at random, and those of other clients, too.
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        # Two servers on one port would share it silently.
        ("grpc.so_reuseport", int(options.reuse_port)),
    ]
    if options.max_concurrent_streams:
        # Clients keep further calls back until others have ended; those that do not are refused. The core's overload
        # protection also counts calls that have ended for the client: of 6,000 at a time it refused up to 1,059.
        arguments.append(("grpc.max_concurrent_streams", options.max_concurrent_streams))
        arguments.append(("grpc.http.overload_protection", 0))
    arguments += [(argument, int(getattr(options, field))) for field, argument in _CONNECTIONS.items()]
    arguments += [(argument, age) for field, argument in _AGES.items() if (age := getattr(options, field))]
    if level := COMPRESSION_LEVELS[options.compression]:
        arguments.append(("grpc.default_compression_level", level))
    return arguments


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """gRPC asks for the certificates at each handshake, on a thread of its own. Raises CertificateError."""
    certificates = Certificates(files)
    used = certificates.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        current = certificates.current()
        if current is used:
            return None
        used = current
        return _configuration(current)

    # What is in use stays in use for None, which the stubs do not know.
    return grpc.dynamic_ssl_server_credentials(_configuration(used), newer, files.mutual)  # type: ignore[arg-type]


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.root)
