"""How long an answer to a failed attempt waits: a rule of address and time.

An address may fail `FREE` times, and once more each second. Beyond that, its failures are answered later and later, by
up to `LONGEST` seconds. Only failures wait: who shows a valid key is served at once, also behind the same address.
"""

import ipaddress
from collections import OrderedDict
from typing import Final

FREE: Final = 10.0
"""Failures of an address that are answered at once."""
_FORGIVEN: Final = 1.0
"""Failures a second that are forgotten."""
_STEP: Final = 0.05
"""Seconds by which each further failure is answered later."""
LONGEST: Final = 1.0
_ADDRESSES: Final = 4096
"""Addresses that are remembered, those that failed last."""
_PREFIX: Final = 64
"""Bits of an IPv6 address: a client has all addresses of a network."""


class SlowDown:
    """What addresses have failed lately. Bounded: there may be any number of them."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Failures that are not forgotten, and when there were so many."""

    def __len__(self) -> int:
        return len(self._levels)

    def failed(self, address: str, now: float) -> float:
        """An attempt from the address has failed at `now`, by a clock that never goes back; seconds to wait."""
        before, then = self._levels.pop(address, (0.0, now))
        level = max(0.0, before - (now - then) * _FORGIVEN) + 1.0
        self._levels[address] = level, now
        if len(self._levels) > _ADDRESSES:
            self._levels.popitem(last=False)
        return min(LONGEST, max(0.0, level - FREE) * _STEP)


def address_of(client: object) -> str:
    """Whose failures count together: a host, or for IPv6 its network. `client` is a socket's name of its peer."""
    host = str(client[0]) if isinstance(client, tuple) and client else str(client or "")
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{_PREFIX}", strict=False))
    except ValueError:
        return host
