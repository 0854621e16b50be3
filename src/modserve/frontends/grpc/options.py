"""What the server's settings say about the gRPC front end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from modserve.frontends.offload import Limits
from modserve.protocol.restricted import Restriction
from modserve.settings import TlsFiles


@dataclass(frozen=True, slots=True)
class Connections:
    """How connections are watched and ended; times in milliseconds. The defaults are gRPC's, and Triton's."""

    keepalive_time: int = 7_200_000
    keepalive_timeout: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data: int = 300_000
    max_ping_strikes: int = 2
    max_age: int = 0
    """0: connections do not age."""
    max_age_grace: int = 0
    """0: without end."""


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """All but the address and the port."""

    restrictions: Mapping[str, Restriction] = field(default_factory=dict)
    """By category of calls."""
    tls: TlsFiles | None = None
    """None: plain."""
    reuse_port: bool = False
    """Other servers may listen on the same port."""
    compression: str = "none"
    """A name of `arguments.COMPRESSION_LEVELS`."""
    connections: Connections = Connections()
    max_message: int = 0
    """Bytes of a message from a client; 0: any number."""
    max_streams: int = 1_000
    """Calls that a client may have open on one connection; 0: any number."""
    header_pattern: re.Pattern[str] | None = None
    """Metadata with matching names become parameters of inference requests."""
    server_timing: bool = False
    """Answers to ``ModelInfer`` tell what they have cost, in trailing metadata."""
    limits: Limits = field(default_factory=Limits)
    """How much work is done on the event loop."""
