"""Authenticates callers by API key, token or client certificate, and delays answers to failed attempts.

A key is looked up by the hash of its secret. A caller with the same headers as before is known by them, which takes one
look into a dictionary: the front ends ask `recognise` for every request. Tokens that were not seen before take
longer; only `authenticate` waits for them, and for the time that a failure has to wait.

Delays of answers to failed attempts, by address and time.

An address may fail `FREE` times, and once more each second. Beyond that, its failures are answered later and later, by
up to `LONGEST` seconds. Only failures wait: a valid key is served at once, also behind the same address.

Keys for a server: from its file, from the environment, or from both.
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
from .calls import CallNeed, CallScope
from .credentials import CERTIFICATE, Credentials, secret_of
from .identity import KINDS, Identity
from .key_file import SHORTEST, AccessFile, Key, digest, format_time
from .tokens import TokenVerifier
from .watched_file import WatchedFile

FREE: Final = 10.0
"""Failures of an address that are answered at once."""
_FORGIVEN: Final = 1.0
"""Failures a second that are forgotten."""
_STEP: Final = 0.05
"""Seconds by which each further failure is answered later."""
LONGEST: Final = 5.0
_ADDRESSES: Final = 4096
"""Number of remembered addresses, the latest to fail."""
_PREFIX: Final = 64
"""Bits of an IPv6 address: a client has all addresses of a network."""


class SlowDown:
    """Addresses that have failed lately. Bounded: there may be any number of them."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Failures that are not forgotten, and the time of that count."""

    def __len__(self) -> int:
        return len(self._levels)

    def on_failure(self, address: str, now: float) -> float:
        """An attempt from the address has failed at `now`, by a clock that never goes back; seconds to wait."""
        before, then = self._levels.pop(address, (0.0, now))
        level = max(0.0, before - (now - then) * _FORGIVEN) + 1.0
        self._levels[address] = level, now
        if len(self._levels) > _ADDRESSES:
            self._levels.popitem(last=False)
        return min(LONGEST, max(0.0, level - FREE) * _STEP)


def address_of(client: object) -> str:
    """Return the host, or for IPv6 its network, whose failures count together. `client` is a socket's peer name."""
    host = str(client[0]) if isinstance(client, tuple) and client else str(client or "")
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{_PREFIX}", strict=False))
    except ValueError:
        return host


_log = logging.getLogger(__name__)

_REMEMBERED: Final = 4096
"""Credentials that are known as they came. If there are more, the oldest eighth is forgotten."""
_WAITING: Final = 10_000
"""Failures that wait at the same time; others are answered at once."""
_WARNING_SECONDS: Final = 60.0
_UNKNOWN: Final = "the key is not known"
_INVALID: Final = 'Bearer error="invalid_token"'


class Authority:
    """Authentication of callers by the content of the key file, and by further `keys`, by the hashes of their secrets.

    For the event loop's thread. `health_open`: the health of the server needs no key. `clock` tells seconds since 1970,
    `steady` seconds that never go back.
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
        """The file has changed: from now on, it is this one that counts."""
        self._keys = {**file.keys, **self._own}
        self._certificates = file.certificates
        former = self._tokens
        self._tokens = TokenVerifier(file.issuers, self._clock, self._steady, former)
        former.close()
        self._known.clear()
        self.generation += 1

    @property
    def key_ends(self) -> dict[str, float]:
        """Ends of the keys that have one and were not revoked, in seconds since 1970."""
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
        """True if clients may be known by their certificates."""
        return bool(self._certificates)

    def is_open(self, need: CallNeed) -> bool:
        """True if such a call needs no credentials."""
        return need.reach is CallScope.OPEN or (need.reach is CallScope.HEALTH and self._health_open)

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the caller if it is known without waiting; None for any other, also without credentials."""
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
            raise UnauthenticatedError("no rule of the server's file of keys is for the client's certificate")
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
        """End all waits: the server stops."""
        for pause in self._pauses:
            _end(pause)
        self._tokens.close()

    async def authenticate(self, credentials: Credentials, client: object) -> Identity:
        """Return the caller with these credentials. `client`: its address, as a socket has it.

        Raises `UnauthenticatedError`, after some time if the address has failed often, and OVERLOADED where more tokens
        wait to be verified than the server can.
        """
        try:
            try:
                return self.resolve(credentials)
            except UnauthenticatedError as error:
                if error.message != _UNKNOWN or not self._tokens.expected(secret_of(credentials)):
                    raise
            tokens = self._tokens
            await tokens.verify(secret_of(credentials))
            if self._tokens is not tokens:  # the file has changed meanwhile
                await self._tokens.verify(secret_of(credentials))
            return self.resolve(credentials)
        except UnauthenticatedError as error:
            failure = UnauthenticatedError(error.message, error.challenge)
        await self._wait(address_of(client))
        raise failure

    async def _wait(self, address: str) -> None:
        """Let a failure of the address wait, if it has to."""
        now = self._steady()
        if count := self._failures.due(now):
            _log.warning("%d calls without a valid key were refused, the last one from %s", count, address)
        seconds = self._slow_down.on_failure(address, now)
        if seconds > 0 and self._waiting < _WAITING:
            self._waiting += 1
            try:
                await self._sleep(seconds * random.uniform(0.5, 1.0))  # or failures would end all at once
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
"""The name of a single key."""


class AccessControl:
    """Access rules of a server, kept up to date between `start` and `stop`. Raises INVALID_ARG for an invalid key or
    file.

    `file`: the path of the file of keys; `single`: a key with all rights; empty for none. `health_open`: any caller may
    ask for the health of the server.
    """

    def __init__(self, file: str, single: str = "", health_open: bool = True) -> None:
        self._watched = WatchedFile(Path(file)) if file else None
        keys = {digest(single): single_key(single)} if single else {}
        content = AccessFile({}) if self._watched is None else self._watched.content
        self.authority = Authority(content, keys, health_open=health_open)

    def start(self) -> None:
        """Follow the file from now on, on the running event loop."""
        if self._watched is not None:
            self._watched.start(self.authority.replace)

    def stop(self) -> None:
        if self._watched is not None:
            self._watched.stop()
        self.authority.close()


def single_key(secret: str) -> Key:
    """Return a key with all rights. Raises INVALID_ARG for a secret that is too short, or cannot be in a header."""
    if len(secret) < SHORTEST or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise invalid(
            f"{SINGLE} has {len(secret)} characters, expected at least {SHORTEST}, printable ASCII without spaces"
        )
    return Key(Identity(SINGLE, Tenant("default"), {"*": frozenset(KINDS)}))
