"""Origin of a request: its connection, and the headers that describe the client and its proxies.

A request only stores the raw values. Logs parse them when they write a line.
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
"""Headers with the chain of clients and proxies (RFC 7239)."""
_ALL: Final = AGENT | CHAINS | {_TRACE}

_LONGEST: Final = 1024
"""Bytes kept of a line. Of a chain these are the last ones, written by the nearest proxies."""


@final
class Origin:
    """Origin of a request. `peer` is the socket's peer name, `lines` are the relevant header lines.

    `caller` is the name of the caller's key; `call` is the path or RPC, if known.
    """

    __slots__ = ("call", "caller", "lines", "peer")

    def __init__(self, peer: object, lines: Lines = (), call: str = "") -> None:
        self.peer = peer
        self.lines = lines
        self.caller = ""
        self.call = call

    @property
    def agent(self) -> str:
        """User-Agent; empty if there is none."""
        return _value(self.lines, _AGENT)

    @property
    def trace(self) -> TraceHeaders | None:
        """Trace context of the client's span."""
        value = _value(self.lines, _TRACE)
        return TraceHeaders(value.encode("latin-1")) if value else None


NOWHERE: Final = Origin(None)


def lines_of(head: Iterable[tuple[bytes, bytes]], names: frozenset[bytes] = _ALL) -> Lines:
    """Return the relevant lines of a head with lower-case names."""
    return tuple([(name, cut(name, value)) for name, value in head if name in names])


def cut(name: bytes, value: bytes) -> bytes:
    return value if len(value) <= _LONGEST else value[-_LONGEST:] if name in CHAINS else value[:_LONGEST]


def _value(lines: Lines, name: bytes) -> str:
    """Join the values of lines with the same name (RFC 9110, 5.3)."""
    return ",".join([value.decode("latin-1") for each, value in lines if each == name])


class Proxies:
    """Trusted proxies, by address and network; none by default."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self.networks = networks

    def client(self, origin: Origin) -> object:
        """Return the address of the nearest host that is not a trusted proxy, as a peer name or as text.

        The chain is read from the right, as a host that is not a trusted proxy may have forged everything to its left.
        X-Forwarded-For takes precedence over Forwarded, which most proxies pass on unchanged.
        """
        client = origin.peer
        if not self.networks or not isinstance(client, tuple) or not self._trusts(_address(str(client[0]))):
            return client
        for hop in reversed(_hops(origin.lines)):
            address = _address(hop)
            if address is None:
                break  # "unknown" or a name: the host cannot be checked
            client = str(address)
            if not self._trusts(address):
                break
        return client

    def _trusts(self, address: "ipaddress.IPv4Address | ipaddress.IPv6Address | None") -> bool:
        return address is not None and any(address in network for network in self.networks)


def _hops(lines: Lines) -> list[str]:
    """Return the addresses in a chain, the client's first, including their attributes."""
    chain = _value(lines, _CHAIN)
    if chain:
        return chain.split(",")
    parts = [element.split(";") for element in _value(lines, _STANDARD_CHAIN).split(",")]
    pairs = [[part.strip().partition("=") for part in element] for element in parts]
    return [next((value for name, _, value in element if name.lower() == "for"), "") for element in pairs]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address with or without port, brackets and quotes; None for anything else."""
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
    """Parse a network. Raises ValueError with the expected form."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"'{text}' is no address and no network ({error}); expected one like 10.0.0.5 or 10.0.0.0/8"
        ) from None
