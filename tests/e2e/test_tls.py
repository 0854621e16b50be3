"""HTTPS and gRPC over TLS with the real clients, and certificates that change meanwhile."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from authority import Authority, Pair
from repositories import EXAMPLES
from server_here import serving_here, started_here
from server_process import LOADED, Server, eventually, own_ports, refuses, serving, started
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, UNLIMITED, Ask, binary_request, http, infer_path, send, stub

from attack.measuring import footprint
from modserve.frontends.certificates import CertificateError, Certificates
from modserve.settings import TlsFiles

SETTINGS = 4
"""The kind of an HTTP/2 server's first frame."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.issue("client")


def install(source: Pair, target: Pair) -> None:
    """As certificate managers do it: each file is replaced at once."""
    for old, new in zip(source, target, strict=True):
        fresh = new.with_suffix(".new")
        shutil.copyfile(old, fresh)
        os.replace(fresh, new)


def files_of(pair: Pair, protocol: str = "grpc") -> list[str]:
    return [f"--{protocol}-server-cert={pair.certificate}", f"--{protocol}-server-key={pair.key}"]


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[Server]:
    options = ["--grpc-use-ssl=true", "--http-use-ssl=true", *files_of(authority.issue("server"))]
    with serving(EXAMPLES, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[Server]:
    options = [
        "--grpc-use-ssl-mutual=true",
        "--http-use-ssl-mutual=true",
        f"--grpc-root-cert={authority.certificate}",
        *files_of(authority.issue("mutual")),
    ]
    with serving(EXAMPLES, options=options) as running:
        yield running


# The clients


def http_client(server: Server, root: Path, pair: Pair | None = None) -> Any:
    options = {"ca_certs": str(root)}
    if pair is not None:
        options |= {"certfile": str(pair.certificate), "keyfile": str(pair.key)}
    return tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}", ssl=True, ssl_options=options)


def grpc_arguments(root: Path, pair: Pair | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"ssl": True, "root_certificates": str(root)}
    if pair is not None:
        found |= {"certificate_chain": str(pair.certificate), "private_key": str(pair.key)}
    return found


def grpc_client(server: Server, root: Path, pair: Pair | None = None) -> Any:
    return tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}", **grpc_arguments(root, pair))


def context_for(root: Path, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=root)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def given(module: Any) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.arange(16, dtype=np.int32).reshape(1, 16))
        found.append(tensor)
    return found


SUM = [2 * number for number in range(16)]


def check_infer_over_both(server: Server, root: Path, pair: Pair | None = None) -> None:
    with http_client(server, root, pair) as by_http, grpc_client(server, root, pair) as by_grpc:
        for client, module in ((by_http, tritonclient.http), (by_grpc, tritonclient.grpc)):
            assert client.infer("simple", given(module)).as_numpy("OUTPUT0").ravel().tolist() == SUM


async def check_infer_over_both_aio(server: Server, root: Path, pair: Pair | None = None) -> None:
    http_aio, grpc_aio = tritonclient.http.aio, tritonclient.grpc.aio
    arguments = grpc_arguments(root, pair)
    async with (
        http_aio.InferenceServerClient(
            f"{HOST}:{server.http_port}", ssl=True, ssl_context=context_for(root, pair)
        ) as by_http,
        grpc_aio.InferenceServerClient(f"{HOST}:{server.grpc_port}", **arguments) as by_grpc,
    ):
        for client, module in ((by_http, http_aio), (by_grpc, grpc_aio)):
            result = await client.infer("simple", given(module))
            assert result.as_numpy("OUTPUT0").ravel().tolist() == SUM


def refused_over_both(server: Server, root: Path, pair: Pair | None = None) -> None:
    connection = HTTPSConnection(HOST, server.http_port, context=context_for(root, pair))
    with closing(connection), pytest.raises((ssl.SSLError, ConnectionError)):
        send(connection, "GET", "/v2/health/live")
    with grpc_client(server, root, pair) as client, pytest.raises(InferenceServerException) as raised:
        client.is_server_live(client_timeout=SECONDS)
    assert raised.value.status() == "StatusCode.UNAVAILABLE"


async def test_every_client_with_the_root_certificate(secure: Server, authority: Authority) -> None:
    check_infer_over_both(secure, authority.certificate)
    await check_infer_over_both_aio(secure, authority.certificate)


def test_a_client_that_trusts_another(secure: Server, stranger: Authority) -> None:
    refused_over_both(secure, stranger.certificate)


def test_clients_without_tls(secure: Server, authority: Authority) -> None:
    with socket.create_connection((HOST, secure.http_port), timeout=SECONDS) as plain:
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1" not in plain.recv(1000)
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{secure.grpc_port}")
    with client, pytest.raises(InferenceServerException):
        client.is_server_live(client_timeout=SECONDS)
    check_infer_over_both(secure, authority.certificate)


def test_the_metrics_port_is_plain(secure: Server) -> None:
    answer = http(secure.metrics_port, "GET", "/metrics")
    assert answer.status == 200
    ends = re.findall(r'^modserve_certificate_end_timestamp_seconds{file="\S+"} (\S+)$', answer.body.decode(), re.M)
    assert ends
    assert min(map(float, ends)) > time.time()


def test_the_start_says_how_to_call(secure: Server) -> None:
    secure.wait_for(rf"^  modserve infer \S+ --sample --url https://localhost:{secure.http_port}")


def test_large_and_pipelined_requests_over_tls(secure: Server, authority: Authority) -> None:
    body, headers = binary_request(Ask())
    lines = [f"POST {infer_path('simple')} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    one = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    context = context_for(authority.certificate)
    with (
        socket.create_connection((HOST, secure.http_port), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        connection.sendall(one * 2000)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 2000:
            data = connection.recv(1 << 16)
            assert data, "the connection has ended"
            received += data
    tensor = tritonclient.http.InferInput("INPUT0", [1, 1 << 20], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 1 << 20), np.int32))
    with http_client(secure, authority.certificate) as client, pytest.raises(InferenceServerException) as raised:
        client.infer("simple", [tensor, tensor])
    assert raised.value.status() == "400"


# Clients' certificates


async def test_clients_with_a_certificate(mutual: Server, authority: Authority, client_pair: Pair) -> None:
    check_infer_over_both(mutual, authority.certificate, client_pair)
    await check_infer_over_both_aio(mutual, authority.certificate, client_pair)


def test_probes_without_a_certificate_ask_the_metrics_port(mutual: Server) -> None:
    for name in ("live", "ready"):
        answer = http(mutual.metrics_port, "GET", f"/v2/health/{name}")
        assert (answer.status, answer.json) == (200, {name: True})


def test_clients_without_a_certificate(mutual: Server, authority: Authority) -> None:
    refused_over_both(mutual, authority.certificate)


def test_clients_with_a_stranger_s_certificate(mutual: Server, authority: Authority, stranger: Authority) -> None:
    refused_over_both(mutual, authority.certificate, stranger.issue("stranger_s"))


# Certificates that change


def presented(port: int) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate((HOST, port), timeout=SECONDS)


def test_a_new_certificate_is_for_new_connections(tmp_path: Path, authority: Authority, stranger: Authority) -> None:
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    first, second = authority.issue("first"), stranger.issue("second")
    install(first, live)
    options = ["--grpc-use-ssl=1", "--http-use-ssl=1", *files_of(live)]
    unusable = rf"ERROR .*cannot use private key '{live.key}': it holds no PEM-encoded private key"
    with serving_here(EXAMPLES, options=options, errors=[unusable]) as server:
        context = context_for(authority.certificate)
        opened = grpc.secure_channel(
            f"{HOST}:{server.grpc_port}",
            grpc.ssl_channel_credentials(authority.certificate.read_bytes()),
            UNLIMITED,
        )
        with closing(HTTPSConnection(HOST, server.http_port, context=context)) as connection, opened:
            live_request = service_pb2.ServerLiveRequest()
            assert send(connection, "GET", "/v2/health/live").status == 200
            assert stub(opened).ServerLive(live_request, timeout=SECONDS).live

            install(second, live)
            check_infer_over_both(server, stranger.certificate)
            refused_over_both(server, authority.certificate)
            for port in (server.http_port, server.grpc_port):
                assert presented(port).strip() == second.certificate.read_text().strip()

            # What makes no sense changes nothing, and is said once.
            live.key.write_text("no key")
            for _ in range(3):
                check_infer_over_both(server, stranger.certificate)
            install(first, live)
            check_infer_over_both(server, authority.certificate)

            # The connections from the start go on.
            assert send(connection, "GET", "/v2/health/live").status == 200
            assert stub(opened).ServerLive(live_request, timeout=SECONDS).live
    assert server.log.count("it holds no PEM-encoded private key") == 2  # one a port


def test_new_roots_for_clients(tmp_path: Path, authority: Authority, stranger: Authority, client_pair: Pair) -> None:
    root = tmp_path / "root.pem"
    shutil.copyfile(stranger.certificate, root)
    options = ["--grpc-use-ssl-mutual=1", "--http-use-ssl-mutual=1", f"--grpc-root-cert={root}"]
    with serving_here(EXAMPLES, options=[*options, *files_of(authority.issue("rooted"))]) as server:
        refused_over_both(server, authority.certificate, client_pair)
        root.write_bytes(stranger.certificate.read_bytes() + authority.certificate.read_bytes())
        check_infer_over_both(server, authority.certificate, client_pair)
        root.write_bytes(stranger.certificate.read_bytes())
        refused_over_both(server, authority.certificate, client_pair)


# Files that can not be used


def test_the_server_does_not_start_with_files_it_can_not_use(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("unused")
    absent = tmp_path / "absent.pem"
    options = ["--grpc-use-ssl=1", f"--grpc-server-cert={absent}", f"--grpc-server-key={pair.key}"]
    with started_here(EXAMPLES, options=options) as server:
        server.wait(1, errors=[rf"ERROR .*cannot read certificate '{absent}': No such file or directory"])
        assert "Traceback" not in server.log
    with started_here(
        EXAMPLES, options=["--http-use-ssl=1", *files_of(Pair(pair.key, pair.certificate), "http")]
    ) as server:
        server.wait(1, errors=[rf"cannot use certificate '{pair.key}': it holds no PEM-encoded certificate"])


@pytest.fixture
def usable(tmp_path: Path, authority: Authority) -> TlsFiles:
    """Copies that a test may change."""
    pair = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    install(authority.issue("own"), pair)
    root = tmp_path / "root.pem"
    shutil.copyfile(authority.certificate, root)
    return TlsFiles(*pair, root, True)


def in_use(context: ssl.SSLContext) -> str:
    """The certificate that a server's context presents, as PEM: by a handshake in memory."""
    context.verify_mode = ssl.CERT_NONE
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there)
    server = context.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = client.getpeercert(True)
    assert certificate is not None
    return ssl.DER_cert_to_PEM_cert(certificate)


@pytest.mark.parametrize(
    ("which", "content", "text"),
    [
        ("certificate", None, "cannot read certificate '{certificate}': No such file or directory"),
        ("key", None, "cannot read private key '{key}': No such file or directory"),
        ("root", None, "cannot read root certificate '{root}': No such file or directory"),
        ("certificate", "", "cannot use certificate '{certificate}': it holds no PEM-encoded certificate"),
        ("root", "x", "cannot use root certificate '{root}': it holds no PEM-encoded certificate"),
        ("key", "x", "cannot use private key '{key}': it holds no PEM-encoded private key"),
        (
            "key",
            "other",
            "cannot use certificate '{certificate}' with private key '{key}': they do not match",
        ),
        ("certificate", "cut", "cannot use certificate '{certificate}' with private key '{key}': "),
        ("root", "cut", "cannot use root certificate '{root}': "),
    ],
    ids=lambda value: value if value is None or len(value) < 12 else "",
)
def test_what_is_said_of_files(
    usable: TlsFiles, authority: Authority, which: str, content: str | None, text: str
) -> None:
    path: Path = getattr(usable, which)
    good = path.read_text()
    if content is None:
        path.unlink()
    else:
        path.write_text({"other": authority.issue("other").key.read_text(), "cut": good[:100]}.get(content, content))
    with pytest.raises(CertificateError) as raised:
        Certificates(usable)
    names = {"certificate": usable.certificate, "key": usable.key, "root": usable.root}
    assert str(raised.value).startswith(text.format(**names))
    assert len(str(raised.value)) > len(text.format(**names)) or not text.endswith(": ")
    path.write_text(good)
    assert in_use(Certificates(usable).current()) == usable.certificate.read_text()


def test_an_encrypted_key(usable: TlsFiles, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(usable.key), "-out", str(encrypted), "-passout", "pass:x"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(CertificateError, match="the key is encrypted; it must not be"):
        Certificates(TlsFiles(usable.certificate, encrypted))


def test_mutual_tls_without_a_root(usable: TlsFiles) -> None:
    with pytest.raises(CertificateError, match="mutual TLS needs a root certificate"):
        Certificates(TlsFiles(usable.certificate, usable.key, None, True))


def test_files_are_read_when_they_have_changed(usable: TlsFiles, authority: Authority) -> None:
    certificates = Certificates(usable)
    first = certificates.current()
    assert certificates.current() is first
    # Half of a change: the key does not fit yet.
    other = authority.issue("fresh")
    shutil.copyfile(other.certificate, usable.certificate)
    assert certificates.current() is first
    shutil.copyfile(other.key, usable.key)
    second = certificates.current()
    assert in_use(second) == other.certificate.read_text()
    usable.certificate.unlink()
    assert certificates.current() is second


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_clients_that_agree_while_the_server_stops_are_answered(authority: Authority, protocol: str) -> None:
    """They have connected before, and the event loop has taken them: the last word on TLS is theirs to say."""
    options = [f"--{protocol}-use-ssl=true", *files_of(authority.issue(f"stopping-{protocol}"), protocol)]
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    if protocol == "grpc":
        trust.set_alpn_protocols(["h2"])
    with started(EXAMPLES, options=[*options, *own_ports()]) as server:
        server.wait_for(LOADED)
        port = server.grpc_port if protocol == "grpc" else server.http_port
        before = footprint(server.pid).descriptors
        with ExitStack() as stack:
            connections = [stack.enter_context(socket.create_connection((HOST, port), timeout=20)) for _ in range(4)]
            eventually(lambda: footprint(server.pid).descriptors >= before + len(connections))  # it has taken them
            server.signal(signal.SIGTERM)
            eventually(lambda: refuses(port))
            for connection in connections:
                agreed = stack.enter_context(trust.wrap_socket(connection, server_hostname="localhost"))
                if protocol == "grpc":
                    assert agreed.recv(9)[3] == SETTINGS
                else:
                    agreed.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
                    assert agreed.recv(9) == b"HTTP/1.1 "
        server.wait(0)
