"""A load on several servers: its connections go to them in turns, and each server's responses are counted apart."""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .slots import RequestSlot, ResponseListener, SlotFactory


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
    """Implements `SlotFactory` by one factory for each server."""

    def __init__(self, factories: Mapping[str, SlotFactory]) -> None:
        self._factories = list(factories.items())
        self._servers: dict[RequestSlot, int] = {}
        self._next = 0
        self._shares = self._empty()

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        """The slots of the servers alternate. Raises OSError, which names the server."""
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
        """Of the slot's server."""
        return self._factories[self._servers[slot]][0]

    def record(self, slot: RequestSlot, latency: int, error: str) -> None:
        """The slot's request is over."""
        share = self._shares[self._servers[slot]]
        if error:
            share.failures += 1
        else:
            share.latencies.append(latency)

    def take(self) -> list[ServerShare]:
        """What was recorded since the last call, for each server."""
        shares, self._shares = self._shares, self._empty()
        return shares

    def _empty(self) -> list[ServerShare]:
        return [ServerShare(url) for url, _ in self._factories]


def spread(factories: Mapping[str, SlotFactory]) -> SlotFactory:
    """The only one, or all in turns."""
    return SpreadSlots(factories) if len(factories) > 1 else next(iter(factories.values()))
