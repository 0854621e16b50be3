"""Recognition of clients on the server's own machine."""

import ipaddress
from collections.abc import Iterable
from typing import Final

from modserve.core.runtime import unix_socket

_FORWARDED: Final = ("forwarded", "via", "x-forwarded-", "x-real-ip", "x-envoy-")
"""Beginnings of the headers by which proxies say that a request comes from elsewhere."""


def is_local(address: str | None, headers: Iterable[str]) -> bool:
    """True if a client is on this machine and no proxy for a remote one. Clients of Unix sockets have no address."""
    if any(name.lower().startswith(_FORWARDED) for name in headers):
        return False
    if address is None or address == unix_socket.PEER:
        return True
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
