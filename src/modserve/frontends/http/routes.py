"""Which requests are inference, the one path that goes around the framework."""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from modserve.protocol.http.infer_body import InferHead

# Longer versions may be none at all; the application tells.
_INFER = re.compile(rb"/v2/models/([^/?#]+)(?:/versions/([0-9]{1,18}))?/infer(?:\?|$)")


@dataclass(frozen=True, slots=True)
class InferRoute:
    """What the head of an inference request says."""

    model: str
    version: int | None
    content_length: int
    head: InferHead
    keep_alive: bool
    old: bool
    """HTTP/1.0, whose clients must be told that the connection stays open."""
    cors: bytes = b""
    """Header lines for the answer."""


_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_BINARY = re.compile(rb"/v2/models/[^/?#]+(?:/versions/[0-9]+)?/infer(?:_stream)?(?:\?|$)")


def may_be_binary(target: bytes) -> bool:
    """Whether a request's body may be JSON of the length that a header gives, and binary data behind it."""
    return _BINARY.match(target) is not None


def without_origin(target: bytes) -> bytes:
    """A request target as servers know it, also of a client that sends the whole URL (RFC 9112, 3.2.2)."""
    match = _ORIGIN.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def match_infer(target: bytes) -> tuple[str, int | None] | None:
    """The model and version whose ``infer`` a request target names; None for any other target."""
    match = _INFER.match(target)
    if match is None:
        return None
    name = unquote_to_bytes(match[1]).decode(errors="replace")
    return name, int(match[2]) if match[2] else None
