"""What the server's settings say about the HTTP front end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from modserve.frontends.certificates import TlsFiles
from modserve.protocol.restricted import Restriction


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """All but the address and the port."""

    max_json: int = 64 * 1024 * 1024
    """The longest JSON accepted in a request, in bytes; binary tensor data is not limited."""
    restrictions: Mapping[str, Restriction] = field(default_factory=dict)
    """By category of calls."""
    tls: TlsFiles | None = None
    """None: plain."""
    reuse_port: bool = False
    """Other servers may listen on the same port."""
    header_pattern: re.Pattern[str] | None = None
    """Headers with matching names become parameters of inference requests."""
    cors_origins: frozenset[str] = frozenset()
    """Origins, in lower case, whose pages may call the server from a browser; ``*`` for any."""
    server_timing: bool = False
    """Answers to inference requests tell what they have cost."""
