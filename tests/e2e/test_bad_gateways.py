"""Gateways that speak HTTP/1.0, buffer, drop trailers, cut silence, or send a load twice: what clients get of it."""

import http.client
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from bad_gateways import bad_gateway, buffers, cuts_silence, drops_trailers, sends_twice, speaks_http_1_0
from open_server import OpenServer
from repositories import EXAMPLES
from server_process import ServerProcess, eventually
from wire import (
    HOST,
    SECONDS,
    SUM,
    Ask,
    binary_outputs,
    binary_request,
    infer_path,
    message,
    metric,
    stub,
)
from wire import (
    http as send,
)

import gateway_stage
import modserve
from gateway_stage import Gateway

INPUTS = {"INPUT0": np.ones((1, 16), np.int32), "INPUT1": np.ones((1, 16), np.int32)}
QUICK: dict[str, list[int]] = {"IN": [4, 5, 6], "DELAY": [0, 0, 0], "WAIT": [0]}
EVENTS = [{"OUT": 4, "IDX": 0}, {"OUT": 5, "IDX": 1}, {"OUT": 6, "IDX": 2}]
SLOW: dict[str, list[int]] = {"IN": [4, 5], "DELAY": [0, 1000], "WAIT": [0]}
NEVER: dict[str, list[int]] = {"IN": [4, 5], "DELAY": [0, 60_000], "WAIT": [0]}
SOON_S = 0.2


@pytest.fixture(scope="module")
def served(open_server: OpenServer) -> Iterator[ServerProcess]:
    with open_server.host(EXAMPLES) as server:
        yield server


def url(port: int, scheme: str = "http") -> str:
    return f"{scheme}://{HOST}:{port}"


def in_flight(served: ServerProcess) -> float:
    """Requests of `repeat` that the server has accepted and not settled."""
    return metric(served, "modserve_requests_in_flight", model="repeat")


def test_http_1_0(served: ServerProcess) -> None:
    """Everything works, with a connection for each request. A stream ends with its connection."""
    with bad_gateway(served.http_port, speaks_http_1_0) as port:
        body, headers = binary_request(Ask(outputs=("OUTPUT0",)))
        assert binary_outputs(send(port, "POST", infer_path("simple"), body, headers)) == {"OUTPUT0": SUM}
        response = send(port, "POST", infer_path("nosuch"), b"{}")
        assert (response.status, response.json) == (
            404,
            {"error": "Request for unknown model: 'nosuch' is not found"},
        )
        with modserve.connect(url(port)) as client:
            assert list(client.generate_stream("repeat", QUICK)) == EVENTS


def test_http_1_0_at_the_grpc_port(served: ServerProcess) -> None:
    """The server says in HTTP/2 what it wants, then closes: whoever looks at the bytes finds the reason."""
    with bad_gateway(served.grpc_port, speaks_http_1_0) as port, pytest.raises(http.client.BadStatusLine) as raised:
        send(port, "POST", "/inference.GRPCInferenceService/ServerLive", b"")
    assert "this port accepts only HTTP/2" in str(raised.value)


def test_a_buffered_stream(served: ServerProcess) -> None:
    """All events come at the end, complete; a client that waits for the first one with a time-out says so."""
    with bad_gateway(served.http_port, buffers) as port, modserve.connect(url(port)) as client:
        assert list(client.generate_stream("repeat", QUICK)) == EVENTS
        with pytest.raises(modserve.ClientTimeoutError, match=r"no response within 0.2 s"):
            next(iter(client.generate_stream("repeat", SLOW, timeout=SOON_S)))


def through_nginx(served: ServerProcess, directory: Path, edits: dict[str, str]) -> AbstractContextManager[Gateway]:
    addresses = [(served.http_port, served.grpc_port)] * gateway_stage.SERVER_COUNT
    return gateway_stage.gateway("nginx", addresses, directory, edits)


UNTUNED = {"proxy_buffering off;": "proxy_buffering on;", "proxy_http_version 1.1;": "proxy_http_version 1.0;"}
"""What nginx 1.22 does if nobody says anything."""


def test_nginx_as_it_is_by_default_does_not_buffer_events(served: ServerProcess, tmp_path: Path) -> None:
    """The server's responses ask it not to."""
    with (
        through_nginx(served, tmp_path, UNTUNED) as nginx,
        closing(http.client.HTTPConnection(HOST, nginx.http_port, timeout=5)) as connection,
    ):
        # The second event would come after the client's time-out. Over HTTP/1.0 it is computed in any case.
        connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps({**SLOW, "DELAY": [0, 6000]}))
        assert json.loads(connection.getresponse().readline().removeprefix(b"data: "))["OUT"] == 4


def test_nginx_that_buffers_events_all_the_same(served: ServerProcess, tmp_path: Path) -> None:
    """Over HTTP/1.0, and told not to care: as with the gateway above, all comes at once, and nothing is lost."""
    deaf = UNTUNED | {"proxy_buffering off;": "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;"}
    with through_nginx(served, tmp_path, deaf) as nginx, modserve.connect(url(nginx.http_port)) as client:
        body, headers = binary_request(Ask(outputs=("OUTPUT0",)))
        assert binary_outputs(send(nginx.http_port, "POST", infer_path("simple"), body, headers)) == {"OUTPUT0": SUM}
        with pytest.raises(modserve.ClientTimeoutError, match=r"no response within 0.2 s"):
            next(iter(client.generate_stream("repeat", SLOW, timeout=SOON_S)))
        assert list(client.generate_stream("repeat", QUICK)) == EVENTS


@pytest.mark.parametrize("method", ["infer", "stream"])
def test_dropped_trailers(served: ServerProcess, method: str) -> None:
    """Never a success, though all tensors have arrived; errors, which are in the response's head, still arrive."""
    with bad_gateway(served.grpc_port, drops_trailers()) as port, modserve.connect(url(port, "grpc")) as client:
        inputs: Any = INPUTS if method == "infer" else QUICK
        with pytest.raises(modserve.ClientError, match="END_STREAM"):
            list(getattr(client, method)("simple" if method == "infer" else "repeat", inputs))
        with pytest.raises(modserve.ClientError, match=r"^Request for unknown model: 'nosuch' is not found$"):
            client.infer("nosuch", INPUTS)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_silence_that_is_cut(served: ServerProcess, scheme: str) -> None:
    """The client gets an error rather than a stream that looks complete, and the server drops the request."""
    target = served.http_port if scheme == "http" else served.grpc_port
    with bad_gateway(target, cuts_silence(SOON_S)) as port, modserve.connect(url(port, scheme)) as client:
        stream = client.stream("repeat", NEVER)
        assert next(stream).plain("OUT") == 4
        with pytest.raises(modserve.ClientError, match=r"IncompleteRead|Socket closed"):
            next(stream)
    eventually(lambda: not in_flight(served))


def test_loads_that_are_sent_twice(served: ServerProcess) -> None:
    """The second finds everything done: 200, and nothing is loaded again."""
    with bad_gateway(served.http_port, sends_twice) as port:
        for call, ready in (("unload", 400), ("load", 200), ("load", 200), ("unload", 400), ("load", 200)):
            assert send(port, "POST", f"/v2/repository/models/simple/{call}", b"{}").status == 200
            assert send(served.http_port, "GET", "/v2/models/simple/ready").status == ready, call
        response = send(port, "POST", "/v2/repository/models/nosuch/load", b"{}")
        assert response.status == 404
        assert "failed to load 'nosuch'" in response.json["error"]
    eventually(lambda: served.log.count("model 'simple', version 1: ready after") == 3)  # the first at the start


def test_inference_that_is_sent_twice_is_computed_twice(served: ServerProcess) -> None:
    with bad_gateway(served.http_port, sends_twice) as port, modserve.connect(url(port)) as client:
        assert client.infer("simple", INPUTS)["OUTPUT0"].tolist() == [[2] * 16]


def test_grpc_through_a_gateway_for_http_1_1(served: ServerProcess) -> None:
    """Pointed at the HTTP port instead of the gRPC port."""
    with grpc.insecure_channel(f"{HOST}:{served.http_port}") as channel, pytest.raises(grpc.RpcError) as raised:
        stub(channel).ModelInfer(message(Ask()), timeout=SECONDS)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
