"""Probe of a running server's TLS: its certificate, the protocol versions, and client certificates."""

import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from modserve.client.address import CONNECT_SECONDS, Address

from ..errors import UnreachableError
from ..terminal import plural
from .checks import OK, PROBLEM, WARNING, Check

_SOON_DAYS: Final = 14
_DAY: Final = 86_400
_EXPIRED, _HOST, _ADDRESS = 10, 62, 64
"""OpenSSL's error numbers for certificates."""
_OTHER_VERSION: Final = ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE")
"""Reasons of handshake failures with a server that has newer versions only."""
_WHOLE_CHAIN: Final = "--http-server-cert, or --grpc-server-cert, with a certificate that clients trust, and its chain"
_RENEW: Final = "renew it: the server reads changed files at the next handshake"


class _Session(NamedTuple):
    version: str
    certificate: bytes
    """DER."""


def checks(address: Address) -> Iterator[Check]:
    """Check a server with TLS. Raises UnreachableError if there is none."""
    try:
        session = _session(address, _context(verify=False))
    except OSError as error:
        raise UnreachableError(f"cannot reach {address}: {getattr(error, 'strerror', None) or error}") from error
    yield Check(OK, "TLS", f"on, {session.version}")
    yield from _certificate(address, session.certificate)
    yield _trust(address)
    yield _old_versions(address)
    yield Check(OK, "client certificates", "needed" if needs_certificate(address) else "not needed")


def needs_certificate(address: Address) -> bool:
    """Return True if the server refuses clients without a certificate; a TLS 1.2 handshake shows it at once."""
    context = _context(verify=False)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        _session(address, context)
    except OSError as error:  # some servers say why they end the handshake, others just do
        return getattr(error, "reason", "") not in _OTHER_VERSION
    return False


def certificate_of(address: Address) -> bytes:
    """Return the server's certificate as PEM. Raises OSError."""
    return ssl.DER_cert_to_PEM_cert(_session(address, _context(verify=False)).certificate).encode()


def name_options(address: Address) -> list[tuple[str, str]]:
    """Return the options of a gRPC channel that trusts `certificate_of`: the name to expect. Raises OSError."""
    certificate = _session(address, _context(verify=False)).certificate
    names = _details(address, _context(verify=True, certificate=certificate)).get("subjectAltName", ())
    dns = [str(value) for kind, value in names if kind == "DNS"]
    return [("grpc.ssl_target_name_override", dns[0].replace("*", "any"))] if dns else []


def _certificate(address: Address, certificate: bytes) -> Iterator[Check]:
    """Check a certificate's expiry and names. It is its own authority here, so any signer is accepted."""
    context = _context(verify=True, certificate=certificate)
    try:
        end = ssl.cert_time_to_seconds(str(_details(address, context).get("notAfter")))
        days = int((end - time.time()) // _DAY)
    except ssl.SSLCertVerificationError as error:
        text = "has expired" if error.verify_code == _EXPIRED else f"cannot be used: {error.verify_message}"
        yield Check(PROBLEM, "certificate", text, _RENEW)
        return
    if days < _SOON_DAYS:
        yield Check(WARNING, "certificate", f"ends in {plural(days, 'day')}", _RENEW)
    else:
        yield Check(OK, "certificate", f"ends in {plural(days, 'day')}")
    context.check_hostname = True
    try:
        _session(address, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in (_HOST, _ADDRESS):
            raise
        text = f"the certificate is not for '{address.host}': clients that check names refuse it"
        yield Check(PROBLEM, "host name", text, "a certificate with this name among its subject alternative names")
    else:
        yield Check(OK, "host name", f"the certificate is for '{address.host}'")


def _trust(address: Address) -> Check:
    context = _context(verify=True)
    context.load_default_certs()
    try:
        _session(address, context)
    except ssl.SSLCertVerificationError as error:
        text = f"not by the authorities of this machine: {error.verify_message}"
        return Check(WARNING, "trust", text, f"give clients the root certificate; or {_WHOLE_CHAIN}")
    return Check(OK, "trust", "an authority of this machine has signed the certificate")


def _old_versions(address: Address) -> Check:
    """Check that TLS 1.0 and 1.1, with their known weaknesses, are refused."""
    context = _context(verify=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with suppress(ssl.SSLError):
        context.set_ciphers("ALL:@SECLEVEL=0")
    try:
        version = _session(address, context).version
    except OSError:
        return Check(OK, "old versions", "TLS 1.0 and 1.1 are refused")
    return Check(PROBLEM, "old versions", f"{version} is accepted", "allow TLS 1.2 at least, in the proxy that has it")


def _context(*, verify: bool, certificate: bytes | None = None) -> ssl.SSLContext:
    """Make a context that ignores host names. With a certificate, it trusts only this one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if certificate is not None:
        context.load_verify_locations(cadata=certificate)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _session(address: Address, context: ssl.SSLContext) -> _Session:
    with (
        socket.create_connection((address.host, address.port), CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secure,
    ):
        return _Session(secure.version() or "", secure.getpeercert(binary_form=True) or b"")


def _details(address: Address, context: ssl.SSLContext) -> dict[str, Any]:
    """Return the fields of the server's certificate, if trusted."""
    with (
        socket.create_connection((address.host, address.port), CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secure,
    ):
        return dict(secure.getpeercert() or {})
