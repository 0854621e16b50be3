"""Which requests are inference, the one call that goes around the framework."""

import re
from urllib.parse import unquote_to_bytes

# A longer version may be none at all; the application says so.
_INFER = re.compile(rb"/v2/models/([^/?#]+)(?:/versions/([0-9]{1,18}))?/infer(?:\?|$)")
_BINARY = re.compile(rb"/v2/models/[^/?#]+(?:/versions/[0-9]+)?/infer(?:_stream)?(?:\?|$)")
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


def may_be_binary(target: bytes) -> bool:
    """Whether the body may be JSON of the length that a header states, followed by binary data."""
    return _BINARY.match(target) is not None


def without_origin(target: bytes) -> bytes:
    """The target without scheme and authority, which a client may send as well (RFC 9112, 3.2.2)."""
    match = _ORIGIN.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def match_infer(target: bytes) -> tuple[str, int | None] | None:
    """The model and version whose ``infer`` the target names; None for any other target."""
    match = _INFER.match(target)
    if match is None:
        return None
    name = unquote_to_bytes(match[1]).decode(errors="replace")
    return name, int(match[2]) if match[2] else None
