"""A slot sends one request at a time and reports its response. There are slots for HTTP and for gRPC."""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """The port that slots connect to."""

    address: Address
    secure: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """What requests call the server."""
        return self.address.virtual_host

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Raises OSError."""
        loop, place = asyncio.get_running_loop(), self.address
        if place.socket:
            await loop.create_unix_connection(protocol, place.socket)
            return
        name = place.host_name if self.secure else None
        await loop.create_connection(protocol, place.host, place.port, ssl=self.secure, server_hostname=name)


class SlotFactory(Protocol):
    """Makes slots with the requests that they send."""

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        """So many more slots with open connections. Raises OSError."""
