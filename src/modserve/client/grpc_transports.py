"""gRPC for threads and for event loops, both on gRPC's library."""

import re
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio

from modserve.core.errors import Code
from modserve.pb import inference as pb
from modserve.protocol.failures import PERMISSION_DENIED, STATUS, TOO_MANY, UNAUTHENTICATED

from . import grpc_messages as messages
from .address import Access, Address
from .errors import ClientError, make_error, make_timeout_error, unreachable
from .input_values import ClientCall, Result
from .transport import ControlCall

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_NO_CONNECTION = re.compile("connect|socket", re.IGNORECASE)
"""Pattern in the messages of gRPC's library for a server that has not responded."""
_KINDS = {spelling.grpc_name: (code, spelling.http) for code, spelling in STATUS.items()} | {
    UNAUTHENTICATED.grpc_name: (Code.INVALID_ARG, UNAUTHENTICATED.http),
    PERMISSION_DENIED.grpc_name: (Code.INVALID_ARG, PERMISSION_DENIED.http),
    TOO_MANY.grpc_name: (Code.UNAVAILABLE, TOO_MANY.http),
}
"""Error code and HTTP status by the name of a gRPC status."""

_INFER: Any = messages.path("ModelInfer"), messages.serialise, pb.ModelInferResponse.FromString
_STREAM: Any = messages.path("ModelStreamInfer"), messages.serialise, pb.ModelStreamInferResponse.FromString
"""Arguments with which a channel makes the calls: path, serializer, deserializer."""

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class _GrpcTransport:
    """Common part of both transports: metadata, credentials and errors."""

    def __init__(self, address: Address, access: Access) -> None:
        if address.prefix:
            raise ClientError(
                Code.INVALID_ARG, f"{address}: gRPC addresses have no path; use {address.scheme}://host:port"
            )
        self._address = address
        self._metadata: Metadata = tuple(access.metadata())
        self._on_streams: Metadata = (*self._metadata, ("triton_grpc_error", "true"))
        """Failures end the stream, with their status: otherwise they are messages with a text only."""
        self._credentials = grpc.ssl_channel_credentials(*access.pem()) if address.secure else None
        self._closed = False

    def _open(self, library: Any) -> Any:
        """Return a channel of `grpc` or `grpc.aio`."""
        target, options = self._address.authority, list[tuple[str, str | int]](_OPTIONS)
        if self._address.name:
            options.append(("grpc.default_authority", self._address.virtual_host))
            options.append(("grpc.ssl_target_name_override", self._address.name))
        if self._credentials is None:
            return library.insecure_channel(target, options)
        return library.secure_channel(target, self._credentials, options)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError(Code.UNAVAILABLE, f"the client of {self._address} is closed")

    @contextmanager
    def _failures(self, timeout: float | None) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise failure(self._address, error, timeout) from error


def failure(address: Address, error: grpc.RpcError, timeout: float | None) -> ClientError:
    """Return the client error for an exception of a call."""
    status, text = error.code(), str(error.details() or "")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return make_timeout_error(timeout)
    if status is grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION.search(text):
        return unreachable(str(address), Exception(text))
    code, http = _KINDS.get(status.name, _KINDS["UNKNOWN"])
    return make_error(code, text or status.name, http)


class GrpcTransport(_GrpcTransport):
    """Implements `Transport`, with one channel."""

    def __init__(self, address: Address, access: Access) -> None:
        super().__init__(address, access)
        self._channel: grpc.Channel = self._open(grpc)
        self._infer = self._channel.unary_unary(*_INFER)
        self._stream = self._channel.stream_stream(*_STREAM)

    def start(self) -> None: ...

    def call(self, control: ControlCall) -> Any:
        self._check_open()
        request, kind = messages.request(control)
        method = self._channel.unary_unary(messages.path(control.operation.rpc), messages.serialise, kind.FromString)
        with self._failures(control.timeout):
            response = method(request, timeout=control.timeout, metadata=self._metadata)
        return messages.answer(control.operation, response)

    def infer(self, call: ClientCall) -> Result:
        self._check_open()
        with self._failures(call.timeout):
            response = self._infer(messages.infer(call), timeout=call.timeout, metadata=self._metadata)
        return messages.result(response)

    def stream(self, call: ClientCall) -> Generator[Result]:
        self._check_open()
        responses: Any = self._stream(iter((messages.infer(call),)), timeout=call.timeout, metadata=self._on_streams)
        try:
            with self._failures(call.timeout):
                for message in responses:
                    result = messages.parse_streamed(message)
                    if not result.is_bare_end:
                        yield result
        finally:
            responses.cancel()

    def close(self) -> None:
        self._closed = True
        self._channel.close()


class AsyncGrpcTransport(_GrpcTransport):
    """Implements `AsyncTransport`, with one channel on the event loop that first uses it."""

    _made: grpc.aio.Channel | None = None

    @property
    def _channel(self) -> grpc.aio.Channel:
        self._check_open()
        if self._made is None:
            self._made = self._open(grpc.aio)
        return self._made

    async def start(self) -> None: ...

    async def call(self, control: ControlCall) -> Any:
        request, kind = messages.request(control)
        method = self._channel.unary_unary(messages.path(control.operation.rpc), messages.serialise, kind.FromString)
        with self._failures(control.timeout):
            response = await method(request, timeout=control.timeout, metadata=self._metadata)
        return messages.answer(control.operation, response)

    async def infer(self, call: ClientCall) -> Result:
        method = self._channel.unary_unary(*_INFER)
        with self._failures(call.timeout):
            response = await method(messages.infer(call), timeout=call.timeout, metadata=self._metadata)
        return messages.result(response)

    async def stream(self, call: ClientCall) -> AsyncGenerator[Result]:
        method = self._channel.stream_stream(*_STREAM)
        responses: Any = method(iter((messages.infer(call),)), timeout=call.timeout, metadata=self._on_streams)
        try:
            with self._failures(call.timeout):
                async for message in responses:
                    result = messages.parse_streamed(message)
                    if not result.is_bare_end:
                        yield result
        finally:
            responses.cancel()

    async def close(self) -> None:
        self._closed = True
        if self._made is not None:
            await self._made.close(None)
