"""A slot sends one request at a time and reports its response. There are slots for HTTP and for gRPC.

A load on several servers: its connections go to them in turns, and each server's responses are counted apart.
"""

import asyncio
import ssl
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from modserve.client.address import Address

clock = time.perf_counter_ns
"""Nanoseconds of the clock that all latencies are differences of."""

RETRY_SECONDS = 0.1
"""Delay after a failed connection."""


class RequestSlot(Protocol):
    start: int
    """Time by `clock` at which its request was or was to be sent; 0 while idle."""

    def send(self, index: int, tag: bytes = b"") -> None:
        """Send the prepared request with this number; `ResponseListener.on_done` follows, once.

        `tag` has the request's sequence parameters, made by `requests.http_tag` or `grpc_tag`.
        """

    def abort(self, why: str) -> None:
        """End a request that gets no response: its error is `why`."""

    def close(self) -> None:
        """Abort the connection."""


class ResponseListener(Protocol):
    """Receiver of each request's outcome."""

    def on_done(self, slot: RequestSlot, error: str) -> None:
        """Receive the end of the slot's request; `error` is empty for success."""

    def on_response(self, slot: RequestSlot) -> None:
        """Receive notice of one response of a decoupled model; `on_done` follows the last one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The port that slots connect to."""

    address: Address
    secure: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """Host name of the server in requests."""
        return self.address.virtual_host

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Connect a protocol. Raises OSError."""
        loop, place = asyncio.get_running_loop(), self.address
        if place.socket:
            await loop.create_unix_connection(protocol, place.socket)
            return
        name = place.host_name if self.secure else None
        await loop.create_connection(protocol, place.host, place.port, ssl=self.secure, server_hostname=name)


class SlotFactory(Protocol):
    """Factory of slots with the requests that they send."""

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        """Open `count` more slots with connections. Raises OSError."""


@dataclass(slots=True)
class ServerShare:
    """The requests that a server responded to, or that failed at it. Latencies are in nanoseconds."""

    url: str
    latencies: "array[int]" = field(default_factory=lambda: array("q"))
    failures: int = 0

    def add(self, more: "ServerShare") -> None:
        self.latencies.extend(more.latencies)
        self.failures += more.failures


class SpreadSlots:
    """Implementation of `SlotFactory` with one factory for each server."""

    def __init__(self, factories: Mapping[str, SlotFactory]) -> None:
        self._factories = list(factories.items())
        self._servers: dict[RequestSlot, int] = {}
        self._next = 0
        self._shares = self._empty()

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        """Open slots that alternate between the servers. Raises OSError, which names the server."""
        turns = [(self._next + index) % len(self._factories) for index in range(count)]
        self._next += count
        opened = await asyncio.gather(
            *(self._open(server, owner, turns.count(server)) for server in range(len(self._factories)))
        )
        rest = [list(slots) for slots in opened]
        slots = [rest[server].pop() for server in turns]
        self._servers |= zip(slots, turns, strict=True)
        return slots

    async def _open(self, server: int, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        url, factory = self._factories[server]
        if not count:
            return []
        try:
            return await factory.open(owner, count)
        except OSError as error:
            raise OSError(error.errno, f"{url}: {error.strerror or error}") from error

    def url(self, slot: RequestSlot) -> str:
        """Return the address of the slot's server."""
        return self._factories[self._servers[slot]][0]

    def record(self, slot: RequestSlot, latency: int, error: str) -> None:
        """Record the end of the slot's request."""
        share = self._shares[self._servers[slot]]
        if error:
            share.failures += 1
        else:
            share.latencies.append(latency)

    def take(self) -> list[ServerShare]:
        """Return the records since the last call, for each server."""
        shares, self._shares = self._shares, self._empty()
        return shares

    def _empty(self) -> list[ServerShare]:
        return [ServerShare(url) for url, _ in self._factories]


def spread(factories: Mapping[str, SlotFactory]) -> SlotFactory:
    """Return the only factory, or one that uses all in turn."""
    return SpreadSlots(factories) if len(factories) > 1 else next(iter(factories.values()))
