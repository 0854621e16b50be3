"""Who issues tokens that the server believes, and what these say of their callers."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modserve.core.errors import UnauthenticatedError, unavailable
from modserve.core.pip_command import pip_install
from modserve.core.tenants import Tenant
from modserve.core.texts import is_unicode, unicode_text

from .identity import CallKind, Identity, Scopes

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. With HMAC, whoever can check a token could issue one."""
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
        """The caller by the claims of a token that is verified. Raises `UnauthenticatedError`."""
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
    """The values of a claim: those of a list, or the words of a text (RFC 8693, section 4.2)."""
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else ()
