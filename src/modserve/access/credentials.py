"""Credentials of a call: the headers with a key or a token, or the names in a client certificate."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from modserve.core.errors import UnauthenticatedError

Credentials: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Names and values as received. Equal credentials belong to the same caller."""

AUTHORIZATION: Final = b"authorization"
API_KEY: Final = b"x-api-key"
HEADERS: Final = frozenset((AUTHORIZATION, API_KEY))
"""Names of HTTP headers and gRPC metadata."""
CERTIFICATE: Final = b"certificate"
"""Name used in place of a header for the names in a client certificate. No received header has it."""
LONGEST: Final = 16 * 1024
"""Limit of a key or token, in bytes."""
_BEARER: Final = b"bearer"
_HOW: Final = "send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
NO_KEY: Final = f"this call needs a key: {_HOW}"
_QUERIES: Final = (b"api_key=", b"api-key=", b"apikey=", b"key=", b"token=", b"access_token=")


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> Credentials:
    """Return the credentials among headers with lower-case names."""
    return tuple([(name, value) for name, value in headers if name in HEADERS])


def of_certificate(names: Sequence[str]) -> Credentials:
    """Return the credentials for a client certificate with these names."""
    return tuple([(CERTIFICATE, name.encode()) for name in names])


def secret_of(credentials: Credentials) -> bytes:
    """Return the key or token. Raises `UnauthenticatedError` unless there is exactly one."""
    secrets: dict[bytes, None] = {}
    scheme = b""
    for name, value in credentials:
        if name == API_KEY:
            secrets[value.strip()] = None
        elif name == AUTHORIZATION:
            first, _, rest = value.strip().partition(b" ")
            if first.lower() == _BEARER:
                secrets[rest.strip()] = None
            else:
                scheme = first
    if len(secrets) > 1:
        raise UnauthenticatedError(f"the call has {len(secrets)} keys that differ; send one")
    for secret in secrets:
        if not secret:
            raise UnauthenticatedError(f"the call has an empty key; {_HOW}")
        if len(secret) > LONGEST:
            raise UnauthenticatedError(f"the call's key has {len(secret)} bytes, at most {LONGEST} are possible")
        return secret
    if scheme:
        # The message omits the header's text, which may be the key itself.
        raise UnauthenticatedError(f"the Authorization header holds no 'Bearer KEY'; {_HOW}")
    raise UnauthenticatedError(NO_KEY)


def missing(query: bytes) -> UnauthenticatedError:
    """Return the error for a call without credentials. Keys in a query are ignored: URLs end up in logs."""
    if any(part.lower().startswith(_QUERIES) for part in query.split(b"&")):
        return UnauthenticatedError(f"a key in the address is not read, since addresses get into logs; {_HOW}")
    return UnauthenticatedError(NO_KEY)
