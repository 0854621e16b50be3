"""What the server's settings say about the HTTP front end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from modserve.frontends.offload import Limits
from modserve.protocol.restricted import Restriction
from modserve.settings import TlsFiles


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """All but the address and the port."""

    max_json: int = 64 * 1024 * 1024
    """The longest JSON accepted in a request, in bytes; of binary tensor data, the memory budget is the limit."""
    max_connections: int = 0
    """How many may be open at the same time; 0: any number."""
    idle_timeout: float = 0
    """Seconds for which a connection without a request may stay open; 0: for ever."""
    client_timeout: float = 0
    """Seconds in which a client must finish a head, send more of a body, or read more of a response; 0: any time."""
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
    limits: Limits = field(default_factory=Limits)
    """How much work is done on the event loop."""
