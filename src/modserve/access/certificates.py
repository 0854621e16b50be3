"""Callers that show a certificate: rules from its names to a tenant. TLS has checked its signature by then."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modserve.core.tenants import Tenant

from .identity import Identity, Scopes

_FIELDS = {"commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O"}


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """A certificate that has a name like `pattern`, in which ``*`` stands for any characters, is the tenant's.

    Names are ``CN=…``, ``OU=…`` and ``O=…`` of the subject, and ``DNS:…``, ``URI:…``, ``email:…`` and ``IP Address:…``.
    """

    pattern: str
    tenant: Tenant
    scopes: Scopes


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a certificate as the `ssl` module describes it."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [f"{_FIELDS[field]}={value}" for field, value in subject if field in _FIELDS]
    return (*names, *(f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())))


def identify(rules: Iterable[CertificateRule], names: Sequence[str]) -> Identity | None:
    """Return the identity of a certificate with these names: the first rule that matches one of them; or None."""
    for rule in rules:
        for name in names:
            if fnmatch.fnmatchcase(name, rule.pattern.replace("[", "[[]")):
                return Identity(name, rule.tenant, rule.scopes, origin="certificate")
    return None
