"""TLS certificates of both front ends, loaded from files and reloaded when these change.

New handshakes use the current files; open connections are not affected. An unusable change is logged once, and the
previous certificates stay in use until the files change again.
"""

import asyncio
import errno
import logging
import os
import re
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from modserve.access.certificates import names_of
from modserve.access.credentials import Credentials, of_certificate
from modserve.core.files import regular_file
from modserve.settings import TlsFiles

_log = logging.getLogger(__name__)

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY = b"PRIVATE KEY-----"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_VERSION, _UTC_TIME = 0xA0, 0x17
"""DER tags."""
_ATTEMPTS = 3
"""Attempts to read files that change while they are read."""


class CertificateError(Exception):
    """A certificate file that cannot be used; the text has its name and the reason."""


class Certificates:
    """Current content of the certificate files. Usable from any thread.

    Raises `CertificateError` if they cannot be used at the start.
    """

    def __init__(self, files: TlsFiles, protocols: Sequence[str] = ()) -> None:
        """Load the files. `protocols`: offered by ALPN (RFC 7301) to clients that use it."""
        self._files = files
        self._protocols = protocols
        self._lock = threading.Lock()
        self._seen = _stamp(files)
        self._context = _load(files, protocols)

    def current(self) -> ssl.SSLContext:
        """Return the context for a new handshake. Never raises."""
        with self._lock:
            stamp = _stamp(self._files)
            if stamp != self._seen:
                self._seen = stamp
                try:
                    self._context = _load(self._files, self._protocols)
                    _log.info("certificate '%s' was reloaded", self._files.certificate)
                except CertificateError as error:
                    _log.error("%s; the previous certificates stay in use", error)
            return self._context

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a listener; each handshake uses the current files."""
        context = _load(self._files, self._protocols)

        def renew(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, listening: ssl.SSLContext) -> None:
            connection.context = self.current()

        # Called at the beginning of each handshake, with or without SNI.
        context.sni_callback = renew
        return context


class CertificateEnds:
    """Expiry times of the certificates in some files. An unreadable file keeps its last known time."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = sorted(set(paths))
        self._ends: dict[str, float] = {}

    def read(self) -> Mapping[str, float]:
        """Return the earliest expiry of each file's certificates, in seconds since 1970. Blocking."""
        for path in self._paths:
            with suppress(OSError, ValueError, IndexError):
                self._ends[str(path)] = min(map(_end_of, _certificates(regular_file.read_text(path))))
        return self._ends


def _certificates(text: str) -> Iterator[bytes]:
    for match in _PEM.finditer(text):
        yield ssl.PEM_cert_to_DER_cert(match[0])


def _end_of(der: bytes) -> float:
    """Return the end of validity: the second time in the first sequence with two (RFC 5280, 4.1)."""
    fields = [each for each in _parts(_parts(_parts(der)[0][1])[0][1]) if each[0] != _VERSION]
    (_, _), (tag, text) = _parts(fields[3][1])  # after serial number, algorithm and issuer
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode(), form).replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents of consecutive DER elements. Raises IndexError."""
    parts, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(der[at : at + count]), at + count
        parts.append((tag, der[at : at + size]))
        at += size
    return parts


def read_credentials(transport: asyncio.BaseTransport) -> Credentials:
    """Return the names in the client certificate of the handshake; empty without one."""
    certificate = transport.get_extra_info("peercert")
    return of_certificate(names_of(certificate)) if certificate else ()


def _stamp(files: TlsFiles) -> tuple[object, ...]:
    """Return a value that changes when a file changes or becomes unreadable."""
    return tuple(_file_stamp(path) for path in files.paths)


def _file_stamp(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _load(files: TlsFiles, protocols: Sequence[str]) -> ssl.SSLContext:
    """Return a context from a consistent set of files: all old or all new. Raises CertificateError."""
    for _ in range(_ATTEMPTS):
        before = _stamp(files)
        _check(files.certificate, "certificate", _CERTIFICATE)
        _check(files.key, "private key", _PRIVATE_KEY)
        if files.root is not None:
            _check(files.root, "root certificate", _CERTIFICATE)
        context = _context(files)
        if protocols:
            context.set_alpn_protocols(protocols)
        if _stamp(files) == before:
            return context
    raise CertificateError(f"cannot read certificate '{files.certificate}': the files keep changing")


def _check(path: Path, kind: str, marker: bytes) -> None:
    """Check that a file has the expected kind of content. Raises CertificateError."""
    try:
        content = regular_file.read_bytes(path)
    except OSError as error:
        raise CertificateError(f"cannot read {kind} '{path}': {error.strerror or error}") from None
    if marker not in content:
        raise CertificateError(f"cannot use {kind} '{path}': it holds no PEM-encoded {kind.removeprefix('root ')}")


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"cannot use certificate '{files.certificate}' with private key '{files.key}': {_reason(error)}"
        ) from None
    if files.mutual:
        if files.root is None:
            raise CertificateError("mutual TLS needs a root certificate, which decides which clients are accepted")
        try:
            context.load_verify_locations(files.root)
        except (OSError, ValueError) as error:
            raise CertificateError(f"cannot use root certificate '{files.root}': {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
        # Resumed sessions skip the check against the root certificates, which may have changed.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; it must not be")


_REASONS = dict.fromkeys(("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"), "they do not match")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", error.reason or str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES):
        return str(error.strerror)
    return str(error)
