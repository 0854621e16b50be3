"""The calls of commands to a server, and what helps where one fails."""

import http.client
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.client.address import Access
from modserve.client.errors import ClientError, bad_response, from_status, make_timeout_error, unreachable
from modserve.client.input_values import ClientCall, Result
from modserve.client.transport import CONFIG, INDEX, METADATA, SERVER, STATISTICS, ControlCall
from modserve.commands.destination import Destination, address
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.remote_server import RemoteServer, advice_on, connect, failure
from modserve.commands.status_report import usage
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.tensor import Tensor

TENSORS = {"x": Tensor.from_array(np.array([1], np.int32))}


class Prepared:
    """A transport that answers by `outcome`, and notes what it is to do."""

    def __init__(self, outcome: Callable[[Any], Any]) -> None:
        self._outcome = outcome
        self.calls: list[Any] = []

    def start(self) -> None: ...

    def call(self, control: ControlCall) -> Any:
        self.calls.append(control)
        return self._outcome(control.operation)

    def infer(self, call: ClientCall) -> Result:
        self.calls.append(call)
        result = self._outcome(call)
        assert isinstance(result, Result)
        return result

    def stream(self, call: ClientCall) -> Generator[Result]:
        yield self.infer(call)

    def close(self) -> None: ...


def prepared(outcome: Callable[[Any], Any], seconds: float = 3.0) -> tuple[RemoteServer, Prepared]:
    transport = Prepared(outcome)
    return RemoteServer(Destination(address("http://host"), seconds=seconds), transport), transport


def raising(error: Exception) -> Callable[[Any], Any]:
    def outcome(_: Any) -> Any:
        raise error

    return outcome


def test_calls_about_models() -> None:
    server, transport = prepared(
        {
            METADATA: {"name": "m", "inputs": [{"name": "i", "datatype": "FP32", "shape": ["-1"]}], "outputs": []},
            CONFIG: {"name": "m", "max_batch_size": 8, "of another server": 1},
            STATISTICS: {"model_stats": [{"name": "m", "inference_count": "7"}]},
            SERVER: {"name": "s", "extensions": ["a", "b"]},
            INDEX: [{"name": "m", "state": "READY"}, {"name": "n", "state": "UNAVAILABLE"}, {"name": "o"}],
        }.__getitem__
    )
    assert server.metadata("m", 2).inputs[0].shape == (-1,)
    assert server.config("m").max_batch_size == 8
    assert [each.inferences for each in usage(server, "m").values()] == [7]
    assert (server.extensions(), server.ready_models()) == ({"a", "b"}, {"m"})
    control = transport.calls[0]
    assert (control.model, control.version, control.timeout) == ("m", 2, 3.0)


def test_inferences_have_the_time_of_a_call() -> None:
    server, transport = prepared(lambda call: Result(call.model, 1, call.tensors))
    call = ClientCall("m", None, TENSORS, classes=2)
    assert server.infer(call).tensors == TENSORS
    assert [result.model for result in server.stream(call)] == ["m"]
    assert [(each.timeout, each.classes) for each in transport.calls] == [(3.0, 2), (3.0, 2)]


@pytest.mark.parametrize("call", [lambda server: server.metadata("m"), lambda server: server.config("m")])
def test_another_protocol(call: Callable[[RemoteServer], Any]) -> None:
    for outcome in (
        lambda _: {"name": "m", "inputs": [1], "max_batch_size": "x"},
        raising(bad_response("it is not JSON")),
    ):
        with pytest.raises(UnreachableError, match="http://host:8000 does not speak the protocol: "):
            call(prepared(outcome)[0])


def test_a_refusal() -> None:
    error = from_status(404, "Request for unknown model: 'x' is not found")
    server, _ = prepared(raising(error))
    calls: list[Callable[[], Any]] = [
        lambda: server.call(SERVER),
        lambda: server.infer(ClientCall("x", None, {})),
        lambda: list(server.stream(ClientCall("x", None, {}))),
    ]
    for call in calls:
        with pytest.raises(RefusedError, match="unknown model") as raised:
            call()
        assert "modserve models" in raised.value.advice
    assert len(failure(from_status(500, "x" * 10_000), Destination(address("host"))).message) == 2000


UNTRUSTED = ssl.SSLCertVerificationError(1, "x")
UNTRUSTED.verify_message = "self-signed certificate"


@pytest.mark.parametrize(
    ("error", "text", "helps"),
    [
        (ConnectionRefusedError(111, "Connection refused"), ": Connection refused", "'modserve serve --model-repo"),
        (http.client.RemoteDisconnected("x"), "closed the connection without a response", "--url https://host:8000"),
        (http.client.BadStatusLine("x"), "its response is not HTTP", "--url needs the HTTP port"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service", "unknown host 'host'; --url or "),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset", "--url https://host:8000"),
        (ssl.SSLError(1, "[SSL] wrong"), "no TLS connection", "--url http://"),
        (UNTRUSTED, "is not trusted: self-signed certificate", "--ca-file"),
    ],
)
def test_what_helps_over_http(error: Exception, text: str, helps: str) -> None:
    raised = unreachable("http://host:8000", error)
    raised.__cause__ = error
    made = failure(raised, Destination(address("host")))
    assert isinstance(made, UnreachableError)
    assert made.message.startswith("cannot reach a server at http://host:8000: ")
    assert text in made.message
    assert helps in made.advice


@pytest.mark.parametrize(
    ("error", "kind", "helps"),
    [
        (unreachable("there", Exception("failed to connect")), UnreachableError, "--url grpc://HOST:PORT names"),
        (unreachable("there", Exception("x CERTIFICATE_VERIFY_FAILED y")), UnreachableError, "--ca-file"),
        (make_timeout_error(60.0), UnreachableError, "--timeout allows more than 60 s; 'modserve status' shows"),
        (ClientError(Code.UNAVAILABLE, "restricted, is restricted, expecting header 'k'", 503), RefusedError, "--head"),
        (ClientError(Code.INVALID_ARG, "it is wrong", 400), RefusedError, ""),
    ],
)
def test_what_helps_over_grpc(error: ClientError, kind: type, helps: str) -> None:
    made = failure(error, Destination(address("grpc://host")))
    assert type(made) is kind
    assert error.message in made.message
    assert made.advice.startswith(helps)


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("This API is restricted, expecting header 'k'", "--header"),
        ("explicit model load / unload is not allowed if polling is enabled: …", "--model-control-mode explicit"),
        ("Request for unknown model: 'x' is not found", "modserve models"),
        ("anything else", ""),
    ],
)
def test_what_helps_against_refusals(text: str, helps: str) -> None:
    assert helps in advice_on(text)
    assert bool(helps) == bool(advice_on(text))


# Connecting


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_files_for_tls_that_are_none(scheme: str, tmp_path: Path) -> None:
    own = Destination(address(f"{scheme}://h"), Access(root_cert=tmp_path / "ca.pem"))
    with pytest.raises(RefusedError, match=r"cannot use .*ca\.pem for TLS: .*; expected PEM files") as raised:
        connect(own)
    assert raised.value.advice.startswith("--ca-file, --cert and --key")


def test_certificates_are_always_checked_over_grpc() -> None:
    with pytest.raises(ModserveError, match="gRPC always checks certificates; '--ca-file'"):
        connect(Destination(address("grpcs://host"), Access(insecure=True)))
    connect(Destination(address("https://host"), Access(insecure=True))).close()


def test_pages_are_for_http() -> None:
    server = connect("grpc://host")
    with pytest.raises(ModserveError, match="grpc://host:8001 is not the address of an HTTP port"):
        server.page("/metrics")
    server.close()


def test_a_page_has_the_time_of_a_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = address(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with (
            closing(connect(Destination(place, seconds=0.05))) as server,
            pytest.raises(UnreachableError, match=r"no response within 0\.05 s"),
        ):
            server.page("/metrics")
