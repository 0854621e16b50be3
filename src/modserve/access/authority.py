"""Authenticates callers by API key, token or client certificate, and delays answers to failed attempts.

Keys come from the key file, the environment, or both, and are looked up by the hash of their secret. The front ends
call `recognise` for every request; a caller with unchanged headers costs one dictionary lookup. Only `authenticate`
waits: for the verification of a new token, and for the delay of a failure.

An address may fail `FREE` times, and once more each second, without a delay. Each further failure is answered later
than the one before, by up to `LONGEST` seconds. Valid keys from the same address are served at once.
"""

import asyncio
import ipaddress
import logging
import math
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from modserve.core.errors import UnauthenticatedError, invalid
from modserve.core.runtime.log_limit import LogInterval
from modserve.core.secret_names import KEY_VARIABLE
from modserve.core.tenants import Tenant

from . import certificates
from .credentials import CERTIFICATE, Credentials, secret_of
from .identity import KINDS, Identity
from .key_file import SHORTEST, AccessFile, Key, digest, format_time
from .permissions import CallNeed, CallScope
from .tokens import TokenVerifier
from .watched_file import WatchedFile

FREE: Final = 10.0
"""Failures of an address that are answered without a delay."""
_FORGIVEN: Final = 1.0
"""Failures forgotten per second."""
_STEP: Final = 0.05
"""Additional delay of each further failure, in seconds."""
LONGEST: Final = 5.0
_ADDRESSES: Final = 4096
"""Number of remembered addresses; the oldest failure is dropped first."""
_PREFIX: Final = 64
"""Significant bits of an IPv6 address: a client controls all addresses of its network."""


class SlowDown:
    """Recent failures by address, for at most `_ADDRESSES` addresses."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Failures not yet forgotten, and the time of that count."""

    def __len__(self) -> int:
        return len(self._levels)

    def on_failure(self, address: str, now: float) -> float:
        """Count a failed attempt at `now` (monotonic clock); returns the delay in seconds."""
        before, then = self._levels.pop(address, (0.0, now))
        level = max(0.0, before - (now - then) * _FORGIVEN) + 1.0
        self._levels[address] = level, now
        if len(self._levels) > _ADDRESSES:
            self._levels.popitem(last=False)
        return min(LONGEST, max(0.0, level - FREE) * _STEP)


def address_of(client: object) -> str:
    """Return the host, or the network of an IPv6 host, for counting failures. `client` is a socket's peer name."""
    host = str(client[0]) if isinstance(client, tuple) and client else str(client or "")
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{_PREFIX}", strict=False))
    except ValueError:
        return host


_log = logging.getLogger(__name__)

_REMEMBERED: Final = 4096
"""Limit of cached credentials. At the limit, the oldest eighth is dropped."""
_WAITING: Final = 10_000
"""Limit of concurrently delayed failures; further ones are answered at once."""
_WARNING_SECONDS: Final = 60.0
_UNKNOWN: Final = "the key is not known"
_INVALID: Final = 'Bearer error="invalid_token"'


class Authority:
    """Authenticates callers against the key file and further `keys`, which are indexed by the hash of their secret.

    Used on the event loop's thread. `health_open`: server health needs no key. `clock` returns seconds since 1970,
    `steady` monotonic seconds.
    """

    def __init__(
        self,
        file: AccessFile,
        keys: Mapping[str, Key] | None = None,
        *,
        health_open: bool = True,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._own = keys or {}
        self._health_open = health_open
        self._clock = clock
        self._steady = steady
        self._sleep = sleep or self._pause
        self._pauses: set[asyncio.Future[None]] = set()
        self._slow_down = SlowDown()
        self._waiting = 0
        self._failures = LogInterval(_WARNING_SECONDS)
        self._known: dict[Credentials, Identity] = {}
        self._tokens = TokenVerifier((), clock, steady)
        self.generation = 0
        """Number that changes whenever a caller may have lost access."""
        self.replace(file)

    def replace(self, file: AccessFile) -> None:
        """Replace the content of the key file after a change."""
        self._keys = {**file.keys, **self._own}
        self._certificates = file.certificates
        former = self._tokens
        self._tokens = TokenVerifier(file.issuers, self._clock, self._steady, former)
        former.close()
        self._known.clear()
        self.generation += 1

    @property
    def key_ends(self) -> dict[str, float]:
        """Expiry times of keys that expire and are not revoked, in seconds since 1970."""
        ends: dict[str, float] = {}
        for each in self._keys.values():
            if not each.revoked:
                ends[each.identity.name] = max(ends.get(each.identity.name, 0.0), each.identity.expires)
        return {name: end for name, end in ends.items() if end < math.inf}

    @property
    def key_sets_read(self) -> dict[str, float]:
        return self._tokens.key_sets_read

    @property
    def knows_certificates(self) -> bool:
        """True if there are rules for client certificates."""
        return bool(self._certificates)

    def is_open(self, need: CallNeed) -> bool:
        """True if the call needs no credentials."""
        return need.reach is CallScope.OPEN or (need.reach is CallScope.HEALTH and self._health_open)

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the caller if it can be identified without waiting; None otherwise, also without credentials."""
        identity = self._known.get(credentials)
        if identity is not None and self._clock() < identity.expires:
            return identity
        if not credentials:
            return None
        try:
            return self.resolve(credentials)
        except UnauthenticatedError:
            return None

    def expired(self, identity: Identity) -> bool:
        return identity.expires <= self._clock()

    def resolve(self, credentials: Credentials) -> Identity:
        """Return the caller, like `recognise`; a token must have been verified. Raises `UnauthenticatedError`."""
        self._known.pop(credentials, None)
        identity = self._identify_certificate(credentials) or self._by_secret(secret_of(credentials))
        if len(self._known) >= _REMEMBERED:
            for old in list(islice(self._known, _REMEMBERED // 8)):
                del self._known[old]
        self._known[credentials] = identity
        return identity

    def _identify_certificate(self, credentials: Credentials) -> Identity | None:
        if not credentials or credentials[0][0] != CERTIFICATE:
            return None
        names = [name.decode() for _, name in credentials]
        identity = certificates.identify(self._certificates, names)
        if identity is None:
            raise UnauthenticatedError("the client certificate matches no rule in the server's file of keys")
        return identity

    def _by_secret(self, secret: bytes) -> Identity:
        key = self._keys.get(digest(secret))
        if key is None:
            identity = self._tokens.find_verified(secret)
            if identity is None:
                raise UnauthenticatedError(_UNKNOWN, _INVALID)
            return identity
        identity = key.identity
        if key.revoked:
            raise UnauthenticatedError(f"the key '{identity.name}' was revoked", _INVALID)
        if self.expired(identity):
            raise UnauthenticatedError(
                f"the key '{identity.name}' expired at {format_time(identity.expires)}", _INVALID
            )
        return identity

    def close(self) -> None:
        """End all delays when the server stops."""
        for pause in self._pauses:
            _end(pause)
        self._tokens.close()

    async def authenticate(self, credentials: Credentials, client: object) -> Identity:
        """Return the caller with these credentials. `client` is the socket's peer name.

        Raises `UnauthenticatedError`, with a delay if the address has failed often, and OVERLOADED if too many tokens
        wait for verification.
        """
        try:
            try:
                return self.resolve(credentials)
            except UnauthenticatedError as error:
                if error.message != _UNKNOWN or not self._tokens.may_be_token(secret_of(credentials)):
                    raise
            tokens = self._tokens
            await tokens.verify(secret_of(credentials))
            if self._tokens is not tokens:  # the file changed during the verification
                await self._tokens.verify(secret_of(credentials))
            return self.resolve(credentials)
        except UnauthenticatedError as error:
            failure = UnauthenticatedError(error.message, error.challenge)
        await self._wait(address_of(client))
        raise failure

    async def _wait(self, address: str) -> None:
        """Delay the answer to a failure of the address, if necessary."""
        now = self._steady()
        if count := self._failures.due(now):
            _log.warning("%d calls without a valid key were refused, the last one from %s", count, address)
        seconds = self._slow_down.on_failure(address, now)
        if seconds > 0 and self._waiting < _WAITING:
            self._waiting += 1
            try:
                await self._sleep(seconds * random.uniform(0.5, 1.0))  # jitter: failures must not end all at once
            finally:
                self._waiting -= 1

    async def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        pause: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end, pause)
        self._pauses.add(pause)
        try:
            await pause
        finally:
            timer.cancel()
            self._pauses.discard(pause)


def _end(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)


SINGLE = KEY_VARIABLE
"""Name of the single key."""


class AccessControl:
    """Access rules of a server, updated from the key file between `start` and `stop`.

    `file` is the path of the key file and `single` a key with all rights; either may be empty. `health_open`: server
    health needs no key. Raises INVALID_ARG for an invalid key or file.
    """

    def __init__(self, file: str, single: str = "", health_open: bool = True) -> None:
        self._watched = WatchedFile(Path(file)) if file else None
        keys = {digest(single): single_key(single)} if single else {}
        content = AccessFile({}) if self._watched is None else self._watched.content
        self.authority = Authority(content, keys, health_open=health_open)

    def start(self) -> None:
        """Start watching the key file, on the running event loop."""
        if self._watched is not None:
            self._watched.start(self.authority.replace)

    def stop(self) -> None:
        if self._watched is not None:
            self._watched.stop()
        self.authority.close()


def single_key(secret: str) -> Key:
    """Return a key with all rights. Raises INVALID_ARG if the secret is too short or not valid in a header."""
    if len(secret) < SHORTEST or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise invalid(
            f"{SINGLE} has {len(secret)} characters, expected at least {SHORTEST}, printable ASCII without spaces"
        )
    return Key(Identity(SINGLE, Tenant("default"), {"*": frozenset(KINDS)}))
