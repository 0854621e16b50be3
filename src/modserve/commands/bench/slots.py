"""A slot sends one request at a time and reports its response. There are slots for HTTP and for gRPC."""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from modserve.client.address import Address

clock = time.perf_counter_ns
"""Nanoseconds of the clock that all latencies are differences of."""

RETRY_SECONDS = 0.1
"""Delay after a failed connection."""


class RequestSlot(Protocol):
    start: int
    """When its request was sent, or was to be sent, by `clock`; 0 while it has none."""

    def send(self, index: int, tag: bytes = b"") -> None:
        """Send the prepared request with this number; `ResponseListener.on_done` follows, once.

        `tag` is what the request says of its sequence, made by `requests.http_tag` or `grpc_tag`.
        """

    def abort(self, why: str) -> None:
        """End a request that gets no response: its error is `why`."""

    def close(self) -> None:
        """Abort the connection."""


class ResponseListener(Protocol):
    """Receives the outcome of each request."""

    def on_done(self, slot: RequestSlot, error: str) -> None:
        """The response of the slot's request is complete; `error` is empty for success."""

    def on_response(self, slot: RequestSlot) -> None:
        """One of the responses of a decoupled model is there; `on_done` comes behind the last one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    secure: ssl.SSLContext | None = None
    socket: str = ""
    """The path of a Unix socket, in place of host and port."""

    @classmethod
    def of(cls, address: Address, secure: ssl.SSLContext | None) -> Self:
        return cls(address.host, address.port, secure, address.socket)

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.socket:
            await loop.create_unix_connection(protocol, self.socket)
        else:
            await loop.create_connection(protocol, self.host, self.port, ssl=self.secure)

    @property
    def authority(self) -> str:
        if self.socket:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class SlotFactory(Protocol):
    """Makes slots with the requests that they send."""

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        """So many more slots with open connections. Raises OSError."""
