"""Servers named by ``--url``: comma-separated addresses, and DNS names with one address for each server."""

import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

from modserve.core.errors import Code

from .address import Address, is_url, parse
from .errors import ClientError

_DNS = {"dns": "http", "dns+http": "http", "dns+https": "https", "dns+grpc": "grpc", "dns+grpcs": "grpcs"}
"""Schemes of DNS names → schemes of the servers."""
_FORMS = "http://HOST:PORT, grpc://HOST:PORT, or dns:///NAME:PORT for all addresses of a name"

Lookup: TypeAlias = Callable[[str, int], Sequence[str]]
"""Resolves a name to IP addresses, for connections to a port. Raises OSError."""


def lookup(name: str, port: int) -> list[str]:
    """Resolve a name with the system's resolver, for the preferred one of IPv4 and IPv6 only.

    Otherwise a server with an address of each family would count as two. Raises OSError.
    """
    rows = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in rows if row[0] == rows[0][0]]


def changes(text: str) -> bool:
    """Return True if the addresses may change because a DNS name stands for them."""
    return any(_scheme(part) in _DNS for part in text.split(","))


def addresses(text: str, resolve: Lookup = lookup) -> list[Address]:
    """Return each server once, in the order of `text`. A name's servers are sorted by address.

    A bare ``HOST:PORT`` is HTTP. Raises INVALID_ARG for an invalid address, UNAVAILABLE for a name without addresses.
    """
    servers: dict[Address, None] = {}
    for part in map(str.strip, text.split(",")):
        if not part:
            raise ClientError(Code.INVALID_ARG, f"'{text}' has a comma without an address beside it; expected {_FORMS}")
        scheme = _scheme(part)
        if scheme in _DNS:
            servers |= dict.fromkeys(_of_name(part, _DNS[scheme], resolve))
        else:
            servers[parse(part if scheme or is_url(part) else f"http://{part}")] = None
    return list(servers)


def _scheme(part: str) -> str:
    return part.partition("://")[0].strip().lower() if "://" in part else ""


def _of_name(part: str, scheme: str, resolve: Lookup) -> list[Address]:
    rest = part.partition("://")[2]
    if not rest.startswith("/"):
        raise ClientError(Code.INVALID_ARG, f"'{part}' needs a third slash; expected, for example, dns:///{rest}")
    place = parse(f"{scheme}://{rest[1:]}")
    try:
        hosts = resolve(place.host, place.port)
    except OSError as error:
        why = f": {error.strerror}" if error.strerror else ""
        raise ClientError(Code.UNAVAILABLE, f"the name '{place.host}' has no address{why}") from error
    if not hosts:
        raise ClientError(Code.UNAVAILABLE, f"the name '{place.host}' has no address")
    return [Address(scheme, host, place.port, place.prefix, place.host) for host in sorted(set(hosts))]
