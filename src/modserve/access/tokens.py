"""Verification of tokens (JWT, RFC 7519) from trusted issuers, on a thread. Results are cached until the token expires.

The issuer's settings, not the token, determine the key and the algorithm of a signature. `alg` must be one of the
issuer's algorithms, all of which are public-key signatures, and the key's own algorithm if the key names one.

An issuer's public keys (RFC 7517) are read from a file or a URL, and again when they may have changed. If reading
fails, the previous keys stay. Tokens may name any key, so keys are read at most once in `LEAST_SECONDS`.
"""

import asyncio
import hashlib
import importlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from modserve.core.errors import OverloadedError, UnauthenticatedError, unavailable
from modserve.core.files import regular_file
from modserve.core.pip_command import pip_install
from modserve.core.runtime.failures import count_failure
from modserve.core.tenants import Tenant
from modserve.core.texts import is_unicode, unicode_text

from .identity import CallKind, Identity, Scopes

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Public-key signatures. With HMAC, a server that can verify a token could also issue one."""
_LONGEST_TENANT: Final = 100


@dataclass(frozen=True, slots=True)
class Issuer:
    """Issuer of tokens for `audience`, signed with a key of `jwks`: a file or a URL, valid for `refresh` seconds.

    Every token has `scopes`, and `scopes_by_value` adds scopes for each value of its claim `scope_claim`. `leeway` is
    the tolerated clock difference in seconds. `tenants` are indexed by name.
    """

    issuer: str
    audience: str
    jwks: str
    algorithms: tuple[str, ...]
    leeway: float
    refresh: float
    tenant_claim: str
    scope_claim: str
    scopes: Scopes
    scopes_by_value: Mapping[str, Scopes]
    tenants: Mapping[str, Tenant]

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        """Return the caller from the claims of a verified token. Raises `UnauthenticatedError`."""
        name = claims.get(self.tenant_claim)
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_TENANT or not is_unicode(name):
            raise UnauthenticatedError(f"the token's claim '{self.tenant_claim}' does not name a tenant")
        scopes: dict[str, frozenset[CallKind]] = dict(self.scopes)
        for value in _values(claims.get(self.scope_claim)):
            for pattern, kinds in self.scopes_by_value.get(value, {}).items():
                scopes[pattern] = scopes.get(pattern, frozenset()) | kinds
        tenant = self.tenants[name] if name in self.tenants else Tenant(name)
        expires = float(claims["exp"]) + self.leeway
        subject = unicode_text(str(claims.get("sub", name))[:_LONGEST_TENANT])
        return Identity(subject, tenant, scopes, expires, "token")


def check_library() -> None:
    """Raise UNAVAILABLE if the library for token verification is not installed."""
    try:
        importlib.import_module("jwt.algorithms")
    except ImportError:
        raise unavailable(f"tokens need PyJWT: {pip_install('auth')}") from None


def _values(claim: object) -> Iterable[str]:
    """Return the values of a claim: the texts in a list, or the words of a text (RFC 8693, section 4.2)."""
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else ()


_log = logging.getLogger(__name__)

LEAST_SECONDS: Final = 10.0
"""Minimum time between two reads, in seconds."""
_PATIENCE: Final = 5.0
_LARGEST: Final = 1024 * 1024
_URLS: Final = ("https://", "http://")


class PublicKey(NamedTuple):
    """A key and its only algorithm; empty allows all algorithms of the key's type."""

    key: Any
    algorithm: str


class KeySetError(Exception):
    """Failure to read a key set; the text gives the reason."""


def load(place: str) -> dict[str, PublicKey]:
    """Read the keys by id; the id is empty if a key has none. Blocks. Raises `KeySetError`."""
    import jwt

    try:
        document = json.loads(_text(place))
        rows: list[object] = list(document["keys"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeySetError(f"{type(error).__name__}: {error}") from None
    keys: dict[str, PublicKey] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("kty") == "oct" or row.get("use", "sig") != "sig":
            continue  # not a public key, or not for signatures
        try:
            keys[str(row.get("kid", ""))] = PublicKey(jwt.PyJWK(row).key, str(row.get("alg", "")))
        except jwt.PyJWTError:
            continue  # unsupported key type
    if not keys:
        raise KeySetError("it has no public key for signatures")
    return keys


def _text(place: str) -> bytes:
    if not place.startswith(_URLS):
        with regular_file.open_regular(place) as file:
            return file.read(_LARGEST)
    import urllib.request  # slow to import

    with urllib.request.urlopen(place, timeout=_PATIENCE) as response:
        if urlsplit(response.url).scheme not in ("http", "https"):
            raise OSError(f"it leads to {urlsplit(response.url).scheme}:")
        text: bytes = response.read(_LARGEST)
        return text


class KeySet:
    """Keys at `place`, read again after `fresh` seconds. `steady` returns monotonic seconds."""

    def __init__(
        self,
        place: str,
        fresh: float,
        steady: Callable[[], float],
        load: Callable[[str], Mapping[str, PublicKey]] = load,
    ) -> None:
        self.place = place
        self.fresh = fresh
        self._steady = steady
        self._load = load
        self._keys: Mapping[str, PublicKey] = {}
        self._read_at: float | None = None
        """Start time of the last read."""
        self._reading: asyncio.Task[None] | None = None
        self._complaint = ""
        self.read_s = 0.0
        """Time of the last successful read, in seconds since 1970; 0 for never."""

    async def key(self, kid: str) -> PublicKey | None:
        """Return the key with this id; None if there is none. An empty id selects the only key."""
        key = self._find(kid)
        overdue = self._read_at is None or self._steady() - self._read_at >= self.fresh
        if key is None or overdue:
            reading = self._begin()
            if key is None and reading is not None:
                await asyncio.shield(reading)
                key = self._find(kid)
        return key

    def _find(self, kid: str) -> PublicKey | None:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _begin(self) -> "asyncio.Task[None] | None":
        """Return the read in progress, or start one; None if the last one began within `LEAST_SECONDS`."""
        if self._reading is None:
            now = self._steady()
            if self._read_at is not None and now - self._read_at < LEAST_SECONDS:
                return None
            self._read_at = now
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="key set")
        return self._reading

    async def _read(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._load, self.place)
            self._complaint, self.read_s = "", time.time()
        except KeySetError as error:
            count_failure("key_set")
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("cannot read the keys of tokens at %s, the previous ones stay: %s", self.place, error)
        except Exception as error:
            count_failure("key_set", error)
        finally:
            self._reading = None


_REMEMBERED: Final = 16_384
"""Limit of cached tokens. At the limit, the oldest eighth is dropped and must be verified again."""
_WAITING: Final = 256
"""Limit of tokens that wait for verification."""
_RETRY_NS: Final = 1_000_000_000
_INVALID: Final = 'Bearer error="invalid_token"'
_SHOWN: Final = 100


class TokenVerifier:
    """Verifies tokens of `issuers`. `clock` returns seconds since 1970, `steady` monotonic seconds.

    Public keys already read by `former`, the verifier that this one replaces, are kept.
    """

    def __init__(
        self,
        issuers: Sequence[Issuer],
        clock: Callable[[], float],
        steady: Callable[[], float],
        former: "TokenVerifier | None" = None,
    ) -> None:
        self._issuers = {each.issuer: each for each in issuers}
        known = {} if former is None else {(each.place, each.fresh): each for each in former._key_sets.values()}
        self._key_sets: dict[str, KeySet] = {
            each.issuer: known.get((each.jwks, each.refresh)) or KeySet(each.jwks, each.refresh, steady)
            for each in issuers
        }
        self._clock = clock
        self._verified: dict[bytes, Identity] = {}
        self._waiting = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tokens") if issuers else None

    @property
    def key_sets_read(self) -> dict[str, float]:
        """Times of the last successful read by issuer, in seconds since 1970; 0 for never."""
        return {issuer: each.read_s for issuer, each in self._key_sets.items()}

    def close(self) -> None:
        """Shut down the executor without waiting. No calls may follow."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def may_be_token(self, secret: bytes) -> bool:
        """True if the secret may be a token of one of the issuers."""
        return self._executor is not None and secret.count(b".") == 2

    def find_verified(self, secret: bytes) -> Identity | None:
        """Return the cached identity of a verified token; None otherwise. Raises `UnauthenticatedError` if expired."""
        if not self._verified:
            return None
        identity = self._verified.get(hashlib.sha256(secret).digest())
        if identity is not None and identity.expires <= self._clock():
            raise _make_refusal("the token has expired")
        return identity

    async def verify(self, secret: bytes) -> None:
        """Verify and cache a token, for `find_verified`. Raises `UnauthenticatedError`; OVERLOADED if too many wait."""
        if self._waiting >= _WAITING:
            raise OverloadedError(f"{_WAITING} tokens wait to be verified; try again later", _RETRY_NS, too_many=True)
        self._waiting += 1
        try:
            header, claims = _read_unverified(secret)
            issuer = self._issuers.get(claims) if isinstance(claims, str) else None
            if issuer is None:
                raise _make_refusal(f"the token's issuer is {_format_claim(claims)}, which this server does not know")
            algorithm, kid = header.get("alg"), header.get("kid", "")
            if algorithm not in issuer.algorithms:
                allowed = ", ".join(issuer.algorithms)
                raise _make_refusal(f"the token's algorithm is {_format_claim(algorithm)}, expected one of {allowed}")
            key = await self._key_sets[issuer.issuer].key(str(kid))
            if key is None:
                raise _make_refusal(f"the token's key is {_format_claim(kid)}, which its issuer does not have")
            loop = asyncio.get_running_loop()
            identity = await loop.run_in_executor(self._executor, _identify, secret, issuer, algorithm, key)
        finally:
            self._waiting -= 1
        if len(self._verified) >= _REMEMBERED:
            for old in list(islice(self._verified, _REMEMBERED // 8)):
                del self._verified[old]
        self._verified[hashlib.sha256(secret).digest()] = identity


def _read_unverified(secret: bytes) -> tuple[dict[str, Any], object]:
    """Return the unverified header and issuer, for finding the key. Raises `UnauthenticatedError`."""
    import jwt

    try:
        parts = jwt.decode_complete(secret, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _make_refusal("the key is neither known nor a token") from None
    return parts["header"], parts["payload"].get("iss")


def _identify(secret: bytes, issuer: Issuer, algorithm: str, key: PublicKey) -> Identity:
    """Verify a token and return its identity. Runs on a thread. Raises `UnauthenticatedError`."""
    import jwt

    try:
        if key.algorithm and key.algorithm != algorithm:
            raise _make_refusal(f"the token's algorithm is {algorithm}, its key is for {key.algorithm}")
        claims = jwt.decode(
            secret,
            key.key,
            algorithms=[algorithm],
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=issuer.leeway,
            options={"require": ["exp", "iss", "aud"]},
        )
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise _make_refusal(f"the token is not valid: {str(error)[:_SHOWN]}") from None
    return issuer.identity(claims)


def _make_refusal(message: str) -> UnauthenticatedError:
    return UnauthenticatedError(message, _INVALID)


def _format_claim(value: object) -> str:
    return "missing" if value is None else repr(value)[:_SHOWN]
