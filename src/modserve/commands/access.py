"""Where a server is, and what it takes to be let in: the options that all commands share which call one."""

import os
import ssl
import urllib.parse
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from modserve.core.errors import ModserveError, invalid, unavailable

DEFAULT_URL = "http://localhost:8000"
URL_VARIABLE = "MODSERVE_URL"
HTTP_PORT, GRPC_PORT = 8000, 8001
_TLS_PORT = 443
_UNAVAILABLE = unavailable("").code
_INVALID = invalid("").code


class UnreachableError(ModserveError):
    """Nobody answers at the address, or no server that speaks the protocol. `advice` says what helps."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(_UNAVAILABLE, message)
        self.advice = advice


class RefusedError(ModserveError):
    """The server's own error: `message` is its text, `status` that of HTTP, or the name of gRPC's code."""

    def __init__(self, message: str, status: int | str, advice: str = "") -> None:
        super().__init__(_INVALID, message)
        self.status = status
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Address:
    """A URL in parts. `scheme` is http, https, grpc or grpcs; `path` is what stands before those of the protocol."""

    url: str
    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def over_grpc(self) -> bool:
        return self.scheme.startswith("grpc")

    def at_port(self, port: int, scheme: str) -> "Address":
        """Another port of the same host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return replace(self, url=f"{scheme}://{host}:{port}", scheme=scheme, port=port, path="")


def address(url: str) -> Address:
    """Read ``http://…``, ``https://…``, ``grpc://…`` or ``grpcs://…``; a bare host is HTTP. Raises INVALID_ARG."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise invalid(f"'{url}' is no address: {error}") from None
    if not host or parts.scheme not in _PORTS:
        raise invalid(f"'{url}' is no address of a server; expected such as http://127.0.0.1:8000 or grpc://host:8001")
    return Address(url, parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/"))


_PORTS = {"http": HTTP_PORT, "https": _TLS_PORT, "grpc": GRPC_PORT, "grpcs": GRPC_PORT}
"""The port of a URL without one, by its scheme."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is called. `seconds`: how long a call may take."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    seconds: float = 60.0

    def context(self) -> ssl.SSLContext:
        """What TLS over HTTP needs. Raises INVALID_ARG for files that are none."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.certificate, self.key)))
            raise invalid(
                f"cannot use {files} for TLS: {error}; see '--ca-file', '--cert' and '--key', which name PEM files"
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def access(options: Namespace) -> Access:
    """From the options of `syntax.add_access`. Raises INVALID_ARG."""
    return Access(
        address(options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL),
        headers(options.header),
        options.ca_file,
        options.cert,
        options.key,
        options.insecure,
        options.timeout,
    )


def headers(texts: Sequence[str]) -> dict[str, str]:
    """Read ``NAME: VALUE``, and ``@FILE`` for a file with such lines. Raises INVALID_ARG."""
    lines: list[str] = []
    for text in texts:
        if not text.startswith("@"):
            lines.append(text)
            continue
        try:
            lines += filter(None, map(str.strip, Path(text[1:]).read_text("utf-8").splitlines()))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise invalid(f"option '--header': cannot read {text[1:]}: {why}") from None
    pairs = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not (colon and name.strip() and line.isprintable()):
            raise invalid("option '--header': expected 'NAME: VALUE', or @FILE for a file with such lines")
        pairs[name.strip()] = value.strip()
    return pairs
