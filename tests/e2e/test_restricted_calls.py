"""Restricted APIs and protocols with the real clients."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, Ask, binary_request, channel, connect, http, infer_path, message, send, stub

import modserve

# Copied for each call: tritonclient's infer adds to the headers that it is given.
KEY = {"infer-key": "infer-value"}
GRPC_KEY = {"triton-grpc-protocol-infer-key": "infer-value"}
ADMIN = {"admin-key": "a=b:c"}
GRPC_ADMIN = {"triton-grpc-protocol-admin-key": "a=b:c"}


@pytest.fixture(scope="module")
def restricted() -> Iterator[Server]:
    groups = ("inference,health:infer-key=infer-value", "model-repository,logging:admin-key=a=b:c")
    options = [
        f"--{option}={group}" for option in ("http-restricted-api", "grpc-restricted-protocol") for group in groups
    ]
    with serving_here(EXAMPLES, options=options) as running:
        yield running


def given(module: Any) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), dtype=np.int32))
        found.append(tensor)
    return found


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_our_client(restricted: Server, scheme: str) -> None:
    port = restricted.http_port if scheme == "http" else restricted.grpc_port
    with modserve.connect(f"{scheme}://{HOST}:{port}", headers=KEY | ADMIN) as client:
        assert client.live()
        assert "simple" in {row["name"] for row in client.models()}
        assert client.infer("simple", dict.fromkeys(("INPUT0", "INPUT1"), [1] * 16))["OUTPUT0"].tolist() == [[2] * 16]


def test_http(restricted: Server) -> None:
    refused = r"This API is restricted, expecting header 'infer-key'"
    with tritonclient.http.InferenceServerClient(f"{HOST}:{restricted.http_port}") as client:
        tensors = given(tritonclient.http)
        for headers in ({}, ADMIN, {"infer-key": "other"}):
            with pytest.raises(InferenceServerException, match=refused) as raised:
                client.infer("simple", tensors, headers=dict(headers))
            assert raised.value.status() == "403"
            assert not client.is_server_live(headers=headers)
        assert client.infer("simple", tensors, headers=dict(KEY)).as_numpy("OUTPUT0").tolist() == [[2] * 16]
        assert client.is_server_live(headers=KEY)
        assert client.is_model_ready("simple", headers={"INFER-KEY": "infer-value"})
        with pytest.raises(InferenceServerException, match="expecting header 'admin-key'"):
            client.get_model_repository_index(headers=KEY)
        assert client.get_model_repository_index(headers=ADMIN)
        assert client.get_server_metadata()
        assert client.get_inference_statistics("simple")


def test_health_at_other_ports() -> None:
    """The metrics port has no restrictions, as in Triton, so that probes need no header there."""
    options = ["--http-restricted-api=health,statistics:key=value", f"--admin-address={HOST}:0", "--metrics-port=0"]
    with serving_here(EXAMPLES, options=options) as running:
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            statuses = {
                name: [http(port, "GET", path, headers=headers).status for headers in ({}, {"key": "value"})]
                for name, port in (("admin", running.admin_port), ("metrics", running.metrics_port))
            }
            assert statuses == {"admin": [403, 200], "metrics": [200, 200]}, path


def test_grpc(restricted: Server) -> None:
    refused = r"This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'"
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{restricted.grpc_port}") as client:
        tensors = given(tritonclient.grpc)
        for headers in ({}, KEY, GRPC_ADMIN, {"triton-grpc-protocol-infer-key": "other"}):
            with pytest.raises(InferenceServerException, match=refused) as raised:
                client.infer("simple", tensors, headers=headers)
            assert raised.value.status() == "StatusCode.UNAVAILABLE"
        assert client.infer("simple", tensors, headers=GRPC_KEY).as_numpy("OUTPUT0").tolist() == [[2] * 16]
        assert client.is_server_live(headers=GRPC_KEY)
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-admin-key'"):
            client.get_model_repository_index(headers=GRPC_KEY)
        assert client.get_model_repository_index(headers=GRPC_ADMIN)
        assert client.get_server_metadata()


def test_grpc_streams(restricted: Server) -> None:
    with channel(restricted.grpc_port) as opened:
        calls = stub(opened)
        with pytest.raises(grpc.RpcError) as raised:
            list(calls.ModelStreamInfer(iter([message(Ask())]), timeout=SECONDS))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == (
            "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'"
        )
        allowed = tuple(GRPC_KEY.items())
        (answer,) = calls.ModelStreamInfer(iter([message(Ask())]), metadata=allowed, timeout=SECONDS)
        assert not answer.error_message


def test_a_connection_that_was_let_in_once_needs_the_header_again(restricted: Server) -> None:
    body, headers = binary_request(Ask())
    path = infer_path("simple")
    with closing(connect(restricted.http_port)) as connection:
        allowed = {**headers, **KEY}
        statuses = [
            send(connection, "POST", path, body, asked).status for asked in (allowed, headers, allowed, headers)
        ]
    assert statuses == [200, 403, 200, 403]
    assert http(restricted.http_port, "GET", "/docs").status == 200
