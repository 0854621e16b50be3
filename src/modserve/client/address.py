"""Addresses of servers, and what connections to them have in common."""

import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modserve.core.errors import Code

from .errors import ClientError

PORTS = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 8001}
"""By scheme, where the address names none."""
CONNECT_SECONDS = 10.0
"""For a connection to be there, whatever the call's `timeout`."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `prefix` is the path in front of ``/v2``; `host` has no brackets."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme in ("https", "grpcs")

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Access:
    """How to get in: headers (metadata over gRPC) for every call, and PEM files for TLS."""

    headers: Mapping[str, str] = field(default_factory=dict)
    root_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """For HTTP. Raises OSError for files that cannot be read."""
        context = ssl.create_default_context(cafile=self.root_cert)
        if self.client_cert is not None:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


def is_url(target: str) -> bool:
    """Whether `target` names a server by its address; other schemes are those of model repositories."""
    return target.partition("://")[0].lower() in PORTS and "://" in target


def parse(url: str) -> Address:
    """Raises INVALID_ARG."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme.lower()
    except ValueError as error:
        raise ClientError(Code.INVALID_ARG, f"'{url}' is no address: {error}") from None
    if not host or scheme not in PORTS or parts.query or parts.fragment or "@" in parts.netloc:
        raise ClientError(
            Code.INVALID_ARG,
            f"'{url}' is no address of a server; expected such as http://127.0.0.1:8000 or grpc://host:8001",
        )
    return Address(scheme, host, port or PORTS[scheme], parts.path.rstrip("/"))
