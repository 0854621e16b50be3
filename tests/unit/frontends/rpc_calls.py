"""gRPC calls without a port: their client is the test."""

import time
from collections.abc import Callable, Mapping, Sequence

import grpc

from modserve.access.credentials import Credentials, of_headers
from modserve.access.identity import Identity
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin
from modserve.frontends.call import InferenceCall
from modserve.frontends.grpc.dispatch import Dispatcher
from modserve.frontends.grpc.load_reports import LoadReports
from modserve.frontends.grpc.model_stream import InferStreams
from modserve.frontends.grpc.rpc import Refusal, Response, Rpc
from modserve.frontends.grpc.service import rpc_table
from modserve.server import Server
from modserve.settings import GrpcSettings

STATUSES = {code.value[0]: code for code in grpc.StatusCode}


class FakeCall:
    """Implements `RpcCall`: sends its messages and ends, and keeps what comes back."""

    origin = Origin(("192.0.2.1", 1234))

    def __init__(
        self, *messages: bytes, metadata: Sequence[tuple[str, str | bytes]] = (), remaining: float | None = None
    ) -> None:
        """`remaining`: seconds until its deadline."""
        self.messages = list(messages)
        self.caller: Identity | None = None
        self.metadata = tuple(metadata)
        self.deadline_ns = 0 if remaining is None else time.monotonic_ns() + int(remaining * 1e9)
        self.request_id = ""
        self.written: list[bytes] = []
        self.trailers: tuple[tuple[str, str], ...] = ()
        self.callbacks: list[Callable[[], None]] = []
        self.code: grpc.StatusCode | None = None
        """That with which it failed."""
        self.details = ""

    @property
    def credentials(self) -> Credentials:
        return of_headers([(name.encode(), str(value).encode()) for name, value in self.metadata])

    def identify(self) -> str:
        self.request_id = self.request_id or request_ids.make()
        return self.request_id

    def set_identity(self, identity: Identity) -> None:
        self.caller = identity

    def set_inference(self, call: InferenceCall) -> None:
        call.request_id = self.request_id

    async def read(self) -> bytes | None:
        return self.messages.pop(0) if self.messages else None

    def stop_reading(self) -> None:
        """What it has sent came before it."""

    async def write(self, message: Response) -> None:
        self.written.append(message if isinstance(message, bytes) else b"".join(message))

    async def send_response(self, response: Response) -> None:
        await self.write(response)

    def end_stream(self) -> None:
        self.code = grpc.StatusCode.OK

    def end_call(self, status: int, message: str) -> None:
        self.code, self.details = STATUSES[status], message

    def refuse(self, refusal: Refusal) -> None:
        self.code, self.details = STATUSES[refusal.status], refusal.message

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = trailers

    def on_end(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        """The call is over."""
        for callback in self.callbacks:
            callback()


class CallTable:
    """What a port serves."""

    def __init__(self, dispatcher: Dispatcher, rpcs: Mapping[str, Rpc]) -> None:
        self._dispatcher = dispatcher
        self.rpcs = rpcs

    async def serve(self, path: str, call: FakeCall) -> bytes:
        """As a connection does; the response of a unary call, empty if it fails."""
        rpc = self.rpcs[path]
        outcome: Response | Refusal | None
        if rpc.method.server_streaming:
            outcome = await self._dispatcher.stream(rpc, call)
        else:
            outcome = await self._dispatcher.unary(rpc, call)
        if isinstance(outcome, Refusal):
            call.code, call.details = STATUSES[outcome.status], outcome.message
            return b""
        return outcome if isinstance(outcome, bytes) else b"".join(outcome or ())


def call_table(
    server: Server,
    streams: InferStreams | None = None,
    options: GrpcSettings = GrpcSettings(),  # noqa: B008  # frozen
    dispatcher: Dispatcher | None = None,
) -> CallTable:
    dispatcher = dispatcher or Dispatcher(server, options.limits)
    return CallTable(dispatcher, rpc_table(server, options, dispatcher.inflater, streams, LoadReports(server)))
