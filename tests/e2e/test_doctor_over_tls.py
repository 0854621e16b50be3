"""``modserve doctor --security --url`` and TLS: certificates, versions, client certificates, and gRPC behind them."""

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from authority import Authority, Pair
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server
from wire import HOST

from modserve.client.address import Address, parse
from modserve.commands.doctor import grpc_probe, security_probe, tls_probe
from modserve.commands.doctor.checks import Check
from modserve.commands.errors import UnreachableError

CALLS = {"read", "infer", "model control", "logs", "traces", "shared memory", "statistics"}


def certificate(directory: Path, days: int, name: str = "localhost") -> Pair:
    """One that has signed itself, for a host of this name and for as many days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days, hours=1)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(end - datetime.timedelta(days=90)).not_valid_after(end)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    pair = Pair(directory / f"{name}{days}.pem", directory / f"{name}{days}.key")
    pair.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return pair


@contextmanager
def handshakes(pair: Pair, change: Callable[[ssl.SSLContext], None] = lambda context: None) -> Iterator[Address]:
    """A server that does nothing but TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    change(context)
    listening = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Address("https", "localhost", listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def rows(address: Address) -> dict[str, Check]:
    return {check.name: check for check in tls_probe.checks(address)}


def brief(address: Address) -> dict[str, tuple[str, str]]:
    return {name: (check.level, check.text) for name, check in rows(address).items()}


def test_a_certificate_that_signs_itself_and_ends_soon(tmp_path: Path) -> None:
    with handshakes(certificate(tmp_path, 3)) as address:
        found = brief(address)
    assert found["trust"][0] == "warning"
    assert "self-signed certificate" in found.pop("trust")[1].replace("self signed", "self-signed")
    assert found == {
        "TLS": ("ok", "on, TLSv1.3"),
        "certificate": ("warning", "ends in 3 days"),
        "host name": ("ok", "the certificate is for 'localhost'"),
        "old versions": ("ok", "TLS 1.0 and 1.1 are refused"),
        "client certificates": ("ok", "not needed"),
    }


def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    with handshakes(certificate(tmp_path, -1)) as address:
        found = rows(address)
    assert found["certificate"][:3] == ("problem", "certificate", "has expired")
    assert "renew it" in found["certificate"].advice


@pytest.mark.parametrize("host", ["localhost", HOST])
def test_a_certificate_for_another_host(tmp_path: Path, host: str) -> None:
    with handshakes(certificate(tmp_path, 60, "models.example")) as address:
        found = rows(Address("https", host, address.port))
    assert found["host name"].level == "problem"
    assert f"not for '{host}'" in found["host name"].text
    assert (found["certificate"].level, found["certificate"].text) == ("ok", "ends in 60 days")


def test_old_versions(tmp_path: Path) -> None:
    def allow(context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.set_ciphers("ALL:@SECLEVEL=0")

    with pytest.warns(DeprecationWarning, match="TLSv1"), handshakes(certificate(tmp_path, 60), allow) as address:
        found = rows(address)["old versions"]
    assert (found.level, found.text) == ("problem", "TLSv1.1 is accepted")


def test_no_tls_at_all(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
    with pytest.raises(UnreachableError, match=f"cannot reach https://{HOST}:{port}"):
        rows(Address("https", HOST, port))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    """gRPC over TLS, with restricted calls; HTTPS with client certificates."""
    pair = authority.issue("server")
    options = ["--grpc-use-ssl=true", "--http-use-ssl-mutual=true", f"--http-root-cert={authority.certificate}"]
    options += [f"--grpc-server-cert={pair.certificate}", f"--grpc-server-key={pair.key}"]
    options += ["--grpc-restricted-protocol=logging,trace:admin=secret"]
    with serving_here(EXAMPLES, options=options) as running:
        yield running


def test_grpc_over_tls(server: Server) -> None:
    found = {check.name: check for check in grpc_probe.all_checks(parse(f"grpcs://{HOST}:{server.grpc_port}"))}
    assert found["TLS"].text == "on, TLSv1.3"
    assert found["health"].text == "open, for probes"
    assert found["host name"].level == "ok"
    texts = {name: found[name].text for name in CALLS}
    refused = dict.fromkeys(("logs", "traces"), "refused without a key or header")
    assert {name: text for name, text in texts.items() if not text.startswith("open: ")} == {
        **refused,
        "model control": texts["model control"],
    }
    assert "is not allowed" in texts["model control"]


def test_who_has_no_client_certificate_learns_nothing_more(server: Server) -> None:
    checks = list(security_probe.all_checks(parse(f"https://{HOST}:{server.http_port}")))
    assert [(check.name, check.level, check.text) for check in checks[-2:]] == [
        ("client certificates", "ok", "needed"),
        ("calls", "ok", "none without a client certificate"),
    ]
