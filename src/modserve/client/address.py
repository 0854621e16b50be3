"""Addresses of servers, with the headers and TLS files for connections.

A server's Unix socket is ``unix:PATH``, and speaks HTTP.
"""

import re
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from modserve.core.errors import Code
from modserve.core.runtime import unix_socket

from .errors import ClientError

PORTS = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 8001}
"""Default ports by scheme."""
CONNECT_SECONDS = 10.0
"""Time limit for opening a connection, independent of the call's `timeout`."""
_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_RESTRICTED = "triton-grpc-protocol-"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server. `prefix` is the path before ``/v2``; `host` has no brackets.

    `name` is set if `host` is one of the addresses of a DNS name; it is used for certificates and ``Host`` headers.
    `socket` is the path of a Unix socket; scheme, host and port then stand for HTTP on localhost.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""
    name: str = ""
    socket: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme in ("https", "grpcs")

    @property
    def over_grpc(self) -> bool:
        return self.scheme in ("grpc", "grpcs")

    @property
    def authority(self) -> str:
        if self.socket:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_name(self) -> str:
        """Host name expected in certificates."""
        return self.name or self.host

    @property
    def virtual_host(self) -> str:
        """Value of the ``Host`` header and of ``:authority``."""
        return f"{self.name}:{self.port}" if self.name else self.authority

    def __str__(self) -> str:
        return f"{unix_socket.PREFIX}{self.socket}" if self.socket else f"{self.scheme}://{self.authority}{self.prefix}"

    def at_port(self, port: int, scheme: str) -> "Address":
        """Return the address of another port on the same host."""
        return Address(scheme, self.host, port, name=self.name)


@dataclass(frozen=True, slots=True)
class Access:
    """Headers (metadata over gRPC) for every call, and PEM files for TLS.

    `insecure` trusts any certificate, over HTTP only: gRPC's library always checks them.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    root_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Raise INVALID_ARG for invalid headers."""
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name):
                raise ClientError(Code.INVALID_ARG, f"'{name}' is not a valid header name")
            if not _VALUE.fullmatch(value):
                text = f"the value of header '{name}' has characters that headers cannot contain"
                raise ClientError(Code.INVALID_ARG, text)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for HTTP. Raises INVALID_ARG for files that are not PEM."""
        with self._unusable_files():
            context = ssl.create_default_context(cafile=self.root_cert)
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert, self.client_key)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the roots, the key and the certificate, for gRPC. Raises INVALID_ARG for files that cannot be read."""
        with self._unusable_files():
            roots, key, chain = (
                None if file is None else file.read_bytes()
                for file in (self.root_cert, self.client_key, self.client_cert)
            )
        return roots, key, chain

    def metadata(self) -> Iterator[tuple[str, str]]:
        """Yield the headers as gRPC metadata: unchanged, and with the prefix that unlocks restricted calls."""
        for name, value in self.headers.items():
            lower = name.lower()
            yield lower, value
            if not lower.startswith(_RESTRICTED):
                yield f"{_RESTRICTED}{lower}", value

    @contextmanager
    def _unusable_files(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # ssl.SSLError is one
            why = error.strerror or error
            files = ", ".join(str(each) for each in (self.root_cert, self.client_cert, self.client_key) if each)
            raise ClientError(Code.INVALID_ARG, f"cannot use {files} for TLS: {why}; expected PEM files") from error


def is_url(target: str) -> bool:
    """Return True if `target` is a server's address. Other schemes belong to model repositories."""
    return target.startswith(unix_socket.PREFIX) or (target.partition("://")[0].lower() in PORTS and "://" in target)


def parse(url: str) -> Address:
    """Parse an address. Raises INVALID_ARG."""
    if url.startswith(unix_socket.PREFIX):
        try:
            unix_socket.check(url)
        except ValueError as error:
            raise ClientError(Code.INVALID_ARG, str(error)) from None
        return Address("http", "localhost", PORTS["http"], socket=unix_socket.path_of(url))
    scheme, _, rest = url.partition("://")
    if scheme in PORTS and rest.startswith(unix_socket.PREFIX):
        text = (
            f"'{url}' is not an address: '{rest}' is that of a Unix socket, which is for HTTP; {scheme} needs HOST:PORT"
        )
        raise ClientError(Code.INVALID_ARG, text)
    try:
        parts = urllib.parse.urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme.lower()
        (host or "").encode("idna")  # as the resolver does
    except ValueError as error:
        raise ClientError(Code.INVALID_ARG, f"'{url}' is not an address: {error}") from None
    if not host or scheme not in PORTS or parts.query or parts.fragment or "@" in parts.netloc:
        raise ClientError(
            Code.INVALID_ARG,
            f"'{url}' is not the address of a server; expected, for example, http://127.0.0.1:8000 or grpc://host:8001",
        )
    return Address(scheme, host, port or PORTS[scheme], parts.path.rstrip("/"))
