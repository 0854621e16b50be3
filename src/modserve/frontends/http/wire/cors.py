"""Cross-origin requests: web pages that may call the server from a browser (CORS, Fetch standard)."""

import logging
from collections.abc import Iterable

_log = logging.getLogger(__name__)
ANY = "*"
_EXPOSED = (
    b"Access-Control-Expose-Headers: Inference-Header-Content-Length, Retry-After, Server-Timing, X-Request-ID\r\n"
)
_METHODS = b"Access-Control-Allow-Methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"
_REMEMBERED = b"Access-Control-Max-Age: 600\r\n"
_MOST_LOGGED = 100
_LONGEST_ORIGIN = 200

_logged: set[bytes] = set()
"""Origins with a logged refusal. Their users only see a network failure."""


def header_block(origins: frozenset[str], method: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the CORS header lines of a response; empty if there are none. `headers` have lower-case names.

    With any origin allowed, all responses are the same, and caches may keep them. A refused preflight is logged once
    for each origin.
    """
    fields = dict(headers)
    origin = fields.get(b"origin")
    is_preflight = method == b"OPTIONS" and b"access-control-request-method" in fields
    if ANY in origins:
        block = b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
    elif origin is None or origin.decode("latin-1").lower() not in origins:
        if is_preflight and origin is not None:
            _log_refusal(origin)
        return b"Vary: Origin\r\n" if origins else b""
    else:
        block = b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n%b" % (origin, _EXPOSED)
    if is_preflight:
        block += _METHODS + _REMEMBERED
        if names := fields.get(b"access-control-request-headers"):
            block += b"Access-Control-Allow-Headers: %b\r\n" % names
    return block


def _log_refusal(origin: bytes) -> None:
    if origin in _logged or len(_logged) == _MOST_LOGGED or len(origin) > _LONGEST_ORIGIN:
        return
    _logged.add(origin)
    name = origin.decode("latin-1")
    _log.warning(
        "pages of %s may not call this server, and their browser says no more than that it fails: "
        "--http-cors-allow-origin=%s lets them",
        name,
        name,
    )
