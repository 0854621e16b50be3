"""What a server says when another one has its ports."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from answering_server import LOOPBACK, answering
from modserve.process.port_conflict import advice, command
from modserve.process.ports import PortError, PortOpenings, RefusedPort, opening


@pytest.fixture(autouse=True)
def started_as_modserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/modserve"])


def refused(*ports: tuple[str, int]) -> PortError:
    """The error of a server whose ports are in use."""
    openings = PortOpenings()
    for name, port in ports:
        with openings.opening(name, LOOPBACK, port), socket.create_server((LOOPBACK, port)):
            pass
    with pytest.raises(PortError) as caught:
        openings.end()
    return caught.value


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as other:
        yield other.getsockname()[1]


def test_all_ports_in_one_sentence() -> None:
    with listening() as first, listening() as second, listening() as third:
        text = str(refused(("HTTP", first), ("gRPC", second), ("metrics", third)))
    assert text.startswith(
        f"cannot open the ports {LOOPBACK}:{first} (HTTP), {LOOPBACK}:{second} (gRPC) and "
        f"{LOOPBACK}:{third} (metrics): they are in use"
    )
    assert text.endswith("; '--http-port', '--grpc-port' and '--metrics-port' choose others")


def test_ports_with_different_reasons() -> None:
    refusals = [
        RefusedPort("HTTP", "::", 80, "this user may not open it"),
        RefusedPort("gRPC", LOOPBACK, 8001, "the port is in use", True),
    ]
    error = PortError(refusals)
    assert (
        str(error)
        == f"cannot open the HTTP port [::]:80: this user may not open it; cannot open the gRPC port {LOOPBACK}:8001: "
        "the port is in use"
    )
    assert advice(error, []) == str(error)


def test_no_port_refused() -> None:
    PortOpenings().end()


def test_an_error_of_an_address_is_left_as_it_is() -> None:
    with pytest.raises(PortError) as caught, opening("gRPC", "192.0.2.1", 1), socket.create_server(("192.0.2.1", 1)):
        pass
    assert advice(caught.value, ["m.onnx"]) == str(caught.value)


@pytest.mark.parametrize(
    ("body", "is_modserve"), [(b'{"name": "modserve"}', True), (b'{"name": "triton"}', False), (b"[1]", False)]
)
def test_whether_a_modserve_answers(body: bytes, is_modserve: bool) -> None:
    with answering(body) as port:
        first, *lines = advice(refused(("HTTP", port)), ["serve", "a=b c.onnx", f"--http-port={port}"]).split("\n")
        running = f"modserve is running there already: 'modserve status --url http://{LOOPBACK}:{port}' shows it"
        assert first.startswith("cannot open the HTTP port ")
        assert lines[:-2] == ([running] if is_modserve else [])
        assert lines[-2] == "this starts on free ports:"
        start, _, free = lines[-1].rpartition(" --http-port=")
        assert start == "modserve serve 'a=b c.onnx'"
        socket.create_server((LOOPBACK, int(free))).close()


def test_no_port_is_offered_twice() -> None:
    with listening() as first, listening() as second:
        words = ["--http_port", str(first), f"--grpc-port={second}", "--metrics-port=9"]
        shown = advice(refused(("HTTP", first), ("gRPC", second)), words).split("\n")[-1].split()
    assert shown[:3] == ["modserve", "serve", "--metrics-port=9"]
    assert len({word.partition("=")[2] for word in shown[3:]}) == 2


def test_a_port_above_which_there_is_none() -> None:
    error = PortError([RefusedPort("HTTP", LOOPBACK, 65530, "the port is in use", True)])
    assert advice(error, []).endswith("modserve serve --http-port=0")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--http-restricted-api=trace:key=SECRET"], "--http-restricted-api=…"),
        (["--grpc_restricted_protocol=trace:key=SECRET"], "--grpc_restricted_protocol=…"),
        (["--cache-c=redis,password=SECRET"], "--cache-c=…"),
        (["--model-repository=s3://key:SECRET@host/models"], "--model-repository=…"),
        (["--log-verbose=1"], "--log-verbose=1"),
    ],
)
def test_secrets_are_not_shown(words: list[str], shown: str) -> None:
    assert command(words) == f"modserve serve {shown}"


def test_a_secret_in_a_word_of_its_own() -> None:
    with listening() as port:
        text = advice(refused(("gRPC", port)), ["--http-restricted-api", "trace:key=SECRET", "--exit-on-error", "true"])
    assert "modserve serve --http-restricted-api=… --exit-on-error true --grpc-port=" in text


def test_a_server_that_was_started_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/src/modserve/__main__.py"])
    monkeypatch.setattr("sys.orig_argv", [".venv/bin/python", "-m", "modserve", "m.onnx"])
    assert command(["m.onnx"]) == ".venv/bin/python -m modserve serve m.onnx"
