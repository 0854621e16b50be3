"""Connection quota: when there is no room, evicts the oldest connection of the address with the most.

So no client keeps others out by opening as many connections as the server takes. An address is a host, or for IPv6 its
network, as for failed keys.
"""

from typing import Final, Generic, TypeVar

from modserve.access.authority import address_of

ConnectionT = TypeVar("ConnectionT")

LINGERING: Final = 8
"""Connections above the limit that may stay until others have closed, or they have read why they are refused."""


class ConnectionPlaces(Generic[ConnectionT]):
    """Open connections by the addresses of their clients, the oldest first."""

    def __init__(self) -> None:
        self._addresses: dict[ConnectionT, str] = {}
        self._connections: dict[str, dict[ConnectionT, None]] = {}

    def add(self, connection: ConnectionT, peer: object) -> None:
        """Add a connection. `peer` is the client's address as a socket has it."""
        address = address_of(peer)
        self._addresses[connection] = address
        self._connections.setdefault(address, {})[connection] = None

    def remove(self, connection: ConnectionT) -> None:
        """Remove a connection that is closed or has to close. May be called again."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        connections = self._connections[address]
        del connections[connection]
        if not connections:
            del self._connections[address]

    def make_room(self, connection: ConnectionT) -> ConnectionT | None:
        """Remove and return the connection that must close for an added one; None if the added one is refused.

        It is the oldest one of the address with most connections, if that has at least two more than this one's.
        """
        largest = max(self._connections.values(), key=len)
        if len(largest) < len(self._connections[self._addresses[connection]]) + 2:
            return None
        oldest = next(iter(largest))
        self.remove(oldest)
        return oldest
