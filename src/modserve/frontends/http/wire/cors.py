"""Which pages of other origins may call the server from a browser (Fetch standard, the CORS protocol)."""

from collections.abc import Iterable

ANY = "*"
_EXPOSED = (
    b"Access-Control-Expose-Headers: Inference-Header-Content-Length, Retry-After, Server-Timing, X-Request-ID\r\n"
)
_METHODS = b"Access-Control-Allow-Methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"
_REMEMBERED = b"Access-Control-Max-Age: 600\r\n"


def header_block(origins: frozenset[str], method: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The header lines of a response, by the origins that are let in; `headers` have lower-case names.

    Empty if none are. Where any origin is let in, responses are the same for all, and caches may keep them.
    """
    if not origins:
        return b""
    fields = dict(headers)
    origin = fields.get(b"origin")
    if ANY in origins:
        block = b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
    elif origin is None or origin.decode("latin-1").lower() not in origins:
        return b"Vary: Origin\r\n"
    else:
        block = b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n%b" % (origin, _EXPOSED)
    if method == b"OPTIONS" and b"access-control-request-method" in fields:
        block += _METHODS + _REMEMBERED
        if names := fields.get(b"access-control-request-headers"):
            block += b"Access-Control-Allow-Headers: %b\r\n" % names
    return block
