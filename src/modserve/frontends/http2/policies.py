"""Policies by which connections are kept and ended."""

from dataclasses import dataclass
from typing import Final

_TICK: Final = 1.0
"""Seconds between two looks at all connections, unless a policy needs them more often."""


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies of a port: times in seconds, 0: never."""

    keepalive: float = 7200.0
    """Silence of a client after which it is sent a ping."""
    keepalive_timeout: float = 20.0
    """Time until the client must have sent anything."""
    keepalive_when_idle: bool = False
    pings_without_data: int = 2
    """Pings that are sent with no data in between; 0: any number."""
    ping_interval: float = 300.0
    """A client that pings more often, without data in between, gets a strike."""
    ping_interval_idle: float = 7200.0
    """Least interval of pings without streams, unless `keepalive_when_idle`."""
    ping_strikes: int = 2
    """Strikes that it may have; 0: any number."""
    age: float = 0.0
    """Time after which a connection is told to end."""
    grace: float = 0.0
    """Time that its streams may still take."""

    @property
    def tick(self) -> float:
        times = [each for each in (self.keepalive, self.keepalive_timeout, self.age, self.grace) if each]
        return max(0.02, min([_TICK, *(each / 4 for each in times)]))
