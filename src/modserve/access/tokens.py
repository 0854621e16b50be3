"""Tokens (JWT, RFC 7519): verified on a thread, and remembered by their hash until they expire.

Which key checks a token's signature, and by which algorithm, is the issuer's to say and not the token's: `alg` must be
one of the issuer's, all of which are signatures, and the one of the key if that names one.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from modserve.core.errors import OverloadedError, UnauthenticatedError

from .identity import Identity
from .issuers import Issuer
from .key_sets import KeySet, PublicKey

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
        """Nobody asks it any more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def expected(self, secret: bytes) -> bool:
        """Whether it may be a token of one of the issuers."""
        return self._executor is not None and secret.count(b".") == 2

    def verified(self, secret: bytes) -> Identity | None:
        """Whose token it is, if it was verified before."""
        if not self._verified:
            return None
        identity = self._verified.get(hashlib.sha256(secret).digest())
        if identity is not None and identity.expires <= self._clock():
            raise _refused("the token has expired")
        return identity

    async def verify(self, secret: bytes) -> None:
        """From then on it is `verified`. Raises `UnauthenticatedError`, and OVERLOADED if too many wait."""
        if self._waiting >= _WAITING:
            raise OverloadedError(f"{_WAITING} tokens wait to be verified; try again later", _RETRY_NS, too_many=True)
        self._waiting += 1
        try:
            header, claims = _unverified(secret)
            issuer = self._issuers.get(claims) if isinstance(claims, str) else None
            if issuer is None:
                raise _refused(f"the token's issuer is {_shown(claims)}, which this server does not know")
            algorithm, kid = header.get("alg"), header.get("kid", "")
            if algorithm not in issuer.algorithms:
                allowed = ", ".join(issuer.algorithms)
                raise _refused(f"the token's algorithm is {_shown(algorithm)}, expected one of {allowed}")
            key = await self._key_sets[issuer.issuer].key(str(kid))
            if key is None:
                raise _refused(f"the token's key is {_shown(kid)}, which its issuer does not have")
            loop = asyncio.get_running_loop()
            identity = await loop.run_in_executor(self._executor, _identify, secret, issuer, algorithm, key)
        finally:
            self._waiting -= 1
        if len(self._verified) >= _REMEMBERED:
            for old in list(islice(self._verified, _REMEMBERED // 8)):
                del self._verified[old]
        self._verified[hashlib.sha256(secret).digest()] = identity


def _unverified(secret: bytes) -> tuple[dict[str, Any], object]:
    """The header, and the claim of who has issued the token: enough to find the key. Raises `UnauthenticatedError`."""
    import jwt

    try:
        parts = jwt.decode_complete(secret, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _refused("the key is neither known nor a token") from None
    return parts["header"], parts["payload"].get("iss")


def _identify(secret: bytes, issuer: Issuer, algorithm: str, key: PublicKey) -> Identity:
    """On a thread: whose token it is. Raises `UnauthenticatedError`."""
    import jwt

    try:
        if key.algorithm and key.algorithm != algorithm:
            raise _refused(f"the token's algorithm is {algorithm}, its key is for {key.algorithm}")
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
        raise _refused(f"the token is not valid: {str(error)[:_SHOWN]}") from None
    return issuer.identity(claims)


def _refused(message: str) -> UnauthenticatedError:
    return UnauthenticatedError(message, _INVALID)


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:_SHOWN]
