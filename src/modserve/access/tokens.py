"""Tokens (JWT, RFC 7519): verified on a thread, and remembered by their hash until they expire.

Which key checks a token's signature, and by which algorithm, is the issuer's to say and not the token's: `alg` must be
one of the issuer's, all of which are signatures, and the one of the key if that names one.

Issuers of tokens that the server trusts, and what their tokens say of callers.

The public keys of an issuer (RFC 7517): read from a file or a URL, and read again when they may have changed.

Reading fails as often as networks do: then the keys that were read last stay. Tokens may name any key, so however many
do, there is at most one reading in `LEAST_SECONDS`.
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
"""Signatures with a public key. With HMAC, a server that can check a token could issue one."""
_LONGEST_TENANT: Final = 100


@dataclass(frozen=True, slots=True)
class Issuer:
    """Tokens of `issuer` for `audience`, signed with a key of `jwks`: a file, or a URL that is read again when a token
    names an unknown key, at most every `refresh` seconds.

    Every token may do what is in `scopes`; and for each value of its claim `scope_claim`, what `scopes_by_value` has.
    `leeway`: seconds by which the clocks of issuer and server may differ. `tenants`: by name.
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
        """Return the caller by the claims of a token that is verified. Raises `UnauthenticatedError`."""
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
    """Raises UNAVAILABLE where the library that verifies tokens is not installed."""
    try:
        importlib.import_module("jwt.algorithms")
    except ImportError:
        raise unavailable(f"tokens need PyJWT: {pip_install('auth')}") from None


def _values(claim: object) -> Iterable[str]:
    """Return the values of a claim: those of a list, or the words of a text (RFC 8693, section 4.2)."""
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else ()


_log = logging.getLogger(__name__)

LEAST_SECONDS: Final = 10.0
"""Minimum seconds between two readings."""
_PATIENCE: Final = 5.0
_LARGEST: Final = 1024 * 1024
_URLS: Final = ("https://", "http://")


class PublicKey(NamedTuple):
    """A key, and the only algorithm that it is for; empty for any of its kind."""

    key: Any
    algorithm: str


class KeySetError(Exception):
    """A set of keys cannot be read; the text says why."""


def load(place: str) -> dict[str, PublicKey]:
    """Read the keys by their ids, empty for one without an id. Blocks. Raises `KeySetError`."""
    import jwt

    try:
        document = json.loads(_text(place))
        rows: list[object] = list(document["keys"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeySetError(f"{type(error).__name__}: {error}") from None
    keys: dict[str, PublicKey] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("kty") == "oct" or row.get("use", "sig") != "sig":
            continue  # no public key, or not one of signatures
        try:
            keys[str(row.get("kid", ""))] = PublicKey(jwt.PyJWK(row).key, str(row.get("alg", "")))
        except jwt.PyJWTError:
            continue  # of a kind that nobody here knows
    if not keys:
        raise KeySetError("it has no public key for signatures")
    return keys


def _text(place: str) -> bytes:
    if not place.startswith(_URLS):
        with regular_file.open_regular(place) as file:
            return file.read(_LARGEST)
    import urllib.request  # which imports much

    with urllib.request.urlopen(place, timeout=_PATIENCE) as response:
        if urlsplit(response.url).scheme not in ("http", "https"):
            raise OSError(f"it leads to {urlsplit(response.url).scheme}:")
        text: bytes = response.read(_LARGEST)
        return text


class KeySet:
    """The keys at `place`, which count as new for `fresh` seconds. `steady`: seconds that never go back."""

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
        """Time at which the last reading began."""
        self._reading: asyncio.Task[None] | None = None
        self._complaint = ""
        self.read_s = 0.0
        """Time of the last good reading, in seconds since 1970; 0 for never."""

    async def key(self, kid: str) -> PublicKey | None:
        """Return the key with this id, None if there is none; without an id, the only key."""
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
        """Return the reading under way, or one that begins now unless another began a short while ago."""
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
"""Tokens. If there are more, the oldest eighth is forgotten, and verified again."""
_WAITING: Final = 256
"""Tokens that wait to be verified."""
_RETRY_NS: Final = 1_000_000_000
_INVALID: Final = 'Bearer error="invalid_token"'
_SHOWN: Final = 100


class TokenVerifier:
    """The tokens of `issuers`. `clock` tells seconds since 1970, `steady` seconds that never go back."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        clock: Callable[[], float],
        steady: Callable[[], float],
        former: "TokenVerifier | None" = None,
    ) -> None:
        """`former`: those that these replace, whose public keys need not be read again."""
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
        """Times at which each issuer's keys were read last, in seconds since 1970; 0 for never."""
        return {issuer: each.read_s for issuer, each in self._key_sets.items()}

    def close(self) -> None:
        """Shut down the executor without waiting. No calls may follow."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def expected(self, secret: bytes) -> bool:
        """True if the secret may be a token of one of the issuers."""
        return self._executor is not None and secret.count(b".") == 2

    def find_verified(self, secret: bytes) -> Identity | None:
        """Return the identity of a token that was verified before; None otherwise."""
        if not self._verified:
            return None
        identity = self._verified.get(hashlib.sha256(secret).digest())
        if identity is not None and identity.expires <= self._clock():
            raise _make_refusal("the token has expired")
        return identity

    async def verify(self, secret: bytes) -> None:
        """Verify a token, for `find_verified`. Raises `UnauthenticatedError`, and OVERLOADED if too many wait."""
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
    """Return the header and the issuer that the token claims: enough to find the key. Raises `UnauthenticatedError`."""
    import jwt

    try:
        parts = jwt.decode_complete(secret, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _make_refusal("the key is neither known nor a token") from None
    return parts["header"], parts["payload"].get("iss")


def _identify(secret: bytes, issuer: Issuer, algorithm: str, key: PublicKey) -> Identity:
    """Return the identity of a token, on a thread. Raises `UnauthenticatedError`."""
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
