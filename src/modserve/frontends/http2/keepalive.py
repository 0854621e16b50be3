"""Pings between one client and the server: when the server sends one, and how many the client may send.

The rule is gRPC's core's (grpc/grpc, doc/keepalive.md): pings without data in between must be rare. `now` is the time,
and `sent` the number of times that headers or data have been sent.
"""

from typing import final

from .endings import TOO_MANY_PINGS
from .frames import client_error
from .policies import Policies


@final
class Keepalive:
    """Keepalive pings of one connection, in both directions."""

    def __init__(self, policies: Policies, now: float) -> None:
        self._policies = policies
        self._heard = now
        self._waiting_since = 0.0
        """Time of a ping that the client has not replied to; 0: none."""
        self._sent = 0
        """Value of `sent` at the last look."""
        self._pings = 0
        """Pings of the server since then."""
        self._pinged = 0.0
        """Time of the client's last ping; 0: none since then."""
        self._strikes = 0

    def on_data(self, now: float) -> None:
        """Note that the client has sent something."""
        self._heard = now
        self._waiting_since = 0.0

    def on_ping(self, now: float, sent: int, idle: bool) -> None:
        """Account for a ping of the client; `idle`: it has no streams. Raises `Http2Error` for too many."""
        policies = self._policies
        self._look_at(sent)
        least = policies.ping_interval_idle if self._counts_as_idle(idle) else policies.ping_interval
        if self._pinged and now - self._pinged < least and policies.ping_strikes:
            self._strikes += 1
            if self._strikes > policies.ping_strikes:
                raise client_error(TOO_MANY_PINGS)
        self._pinged = now

    def is_dead(self, now: float) -> bool:
        """True if the client has not replied for too long."""
        return self._waiting_since > 0 and now - self._waiting_since > self._policies.keepalive_timeout

    def begin_ping(self, now: float, sent: int, idle: bool) -> bool:
        """Return True if it is time for a ping, which the caller sends."""
        policies = self._policies
        if self._waiting_since or now - self._heard <= policies.keepalive or self._counts_as_idle(idle):
            return False
        self._look_at(sent)
        if policies.pings_without_data and self._pings >= policies.pings_without_data:
            return False
        self._pings += 1
        self._waiting_since = now
        return True

    def _counts_as_idle(self, idle: bool) -> bool:
        return idle and not self._policies.keepalive_when_idle

    def _look_at(self, sent: int) -> None:
        if sent != self._sent:
            self._sent = sent
            self._pings = self._strikes = 0
            self._pinged = 0.0
