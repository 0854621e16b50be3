"""Origin of a request: its connection, and what its head says about the client, the proxies before it included.

A request's path only keeps the values; the logs read them when they write a line.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, final

from .trace_context import TraceHeaders

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Lines: TypeAlias = tuple[tuple[bytes, bytes], ...]

_AGENT: Final = b"user-agent"
_CHAIN: Final = b"x-forwarded-for"
_STANDARD_CHAIN: Final = b"forwarded"
_TRACE: Final = b"traceparent"

AGENT: Final = frozenset((_AGENT,))
CHAINS: Final = frozenset((_CHAIN, _STANDARD_CHAIN))
"""Headers in which proxies name a request's client (RFC 7239)."""
_ALL: Final = AGENT | CHAINS | {_TRACE}

_LONGEST: Final = 1024
"""Bytes kept of a line: the last ones of a chain, which the nearest proxies wrote."""


@final
class Origin:
    """Origin of a request. `peer` is the connection's address as a socket has it, `lines` the head's relevant lines.

    `caller` is the name of the caller's key; `call` the path or RPC, where the wire knows one.
    """

    __slots__ = ("call", "caller", "lines", "peer")

    def __init__(self, peer: object, lines: Lines = (), call: str = "") -> None:
        self.peer = peer
        self.lines = lines
        self.caller = ""
        self.call = call

    @property
    def agent(self) -> str:
        """The User-Agent, empty if there is none."""
        return _value(self.lines, _AGENT)

    @property
    def trace(self) -> TraceHeaders | None:
        """The client's span."""
        value = _value(self.lines, _TRACE)
        return TraceHeaders(value.encode("latin-1")) if value else None


NOWHERE: Final = Origin(None)


def lines_of(head: Iterable[tuple[bytes, bytes]], names: frozenset[bytes] = _ALL) -> Lines:
    """Return the relevant lines of a head with lower-case names."""
    return tuple([(name, cut(name, value)) for name, value in head if name in names])


def cut(name: bytes, value: bytes) -> bytes:
    return value if len(value) <= _LONGEST else value[-_LONGEST:] if name in CHAINS else value[:_LONGEST]


def _value(lines: Lines, name: bytes) -> str:
    """Join lines with the same name to one value (RFC 9110, 5.3)."""
    return ",".join([value.decode("latin-1") for each, value in lines if each == name])


class Proxies:
    """Trusted proxies, by their addresses and networks: none by default."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self.networks = networks

    def client(self, origin: Origin) -> object:
        """Return the client's address: the nearest one of no trusted proxy, as a socket has it or as text.

        A chain is more reliable the further to the right: a host that is not a trusted proxy may have made up the part
        left of it. X-Forwarded-For counts before Forwarded, which most proxies pass on unchanged.
        """
        client = origin.peer
        if not self.networks or not isinstance(client, tuple) or not self._trusts(_address(str(client[0]))):
            return client
        for hop in reversed(_hops(origin.lines)):
            address = _address(hop)
            if address is None:
                break  # "unknown", or a name: nobody knows who is before it
            client = str(address)
            if not self._trusts(address):
                break
        return client

    def _trusts(self, address: "ipaddress.IPv4Address | ipaddress.IPv6Address | None") -> bool:
        return address is not None and any(address in network for network in self.networks)


def _hops(lines: Lines) -> list[str]:
    """Return the addresses in a chain, the client's first, with their attributes."""
    chain = _value(lines, _CHAIN)
    if chain:
        return chain.split(",")
    parts = [element.split(";") for element in _value(lines, _STANDARD_CHAIN).split(",")]
    pairs = [[part.strip().partition("=") for part in element] for element in parts]
    return [next((value for name, _, value in element if name.lower() == "for"), "") for element in pairs]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an address with or without a port, in brackets or quotes; None for anything else."""
    text = text.strip().strip('"').partition("%")[0]
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def network_of(text: str) -> Network:
    """Read a network. Raises ValueError, with what would be right."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"'{text}' is no address and no network ({error}); expected one like 10.0.0.5 or 10.0.0.0/8"
        ) from None
