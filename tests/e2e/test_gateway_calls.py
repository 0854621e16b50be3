"""Which calls Envoy, nginx and HAProxy send again, with the configurations in deploy/gateways: what the table says.

The servers behind them vanish as soon as they have seen a call.
"""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import foreign_clients
import gateway_calls
import grpc
import pytest
import yaml
from vanishing_servers import MARK, VanishingServers, vanishing
from wire import SECONDS

import gateway_stage
import gateways
import overhead
from gateway_stage import NAMES, Gateway
from modserve.access.permissions import PATH_NEEDS, RPC_NEEDS

PATIENT = {
    "envoy": {"consecutive_local_origin_failure: 2": "consecutive_local_origin_failure: 1000"},
    "nginx": {"max_fails=2": "max_fails=0", "keepalive 64;": ""},
    "haproxy": {"error-limit 2": "error-limit 1000"},
}
"""A server stays in service however often it vanishes, or the others would be counted only. nginx
forgives a kept connection that was closed meanwhile: a try more."""
REFUSED = "gateway: this call is for operators, or about one server: send it to each server itself"
VALUES = {"model": "simple", "version": "1", "label": "stable", "region": "r", "repository": "models"}


@pytest.fixture(scope="module")
def servers() -> Iterator[VanishingServers]:
    with vanishing(3) as servers:
        yield servers


@pytest.fixture(scope="module")
def running(servers: VanishingServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Gateway]]:
    foreign_clients.install()
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                gateway_stage.gateway(name, servers.addresses, tmp_path_factory.mktemp(name), PATIENT[name])
            )
            for name in NAMES
        }


@pytest.fixture(params=NAMES)
def gateway(request: pytest.FixtureRequest, running: dict[str, Gateway], servers: VanishingServers) -> Gateway:
    servers.take()
    return running[request.param]


def send(
    gateway: Gateway, method: str, path: str, headers: dict[str, str], *, marked: bool = True
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=SECONDS)
    try:
        connection.request(
            method, path, b"{}" if method != "GET" else None, {**headers, **({MARK: "1"} if marked else {})}
        )
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def rpc(channel: grpc.Channel, name: str, metadata: tuple[tuple[str, str], ...] = ()) -> tuple[grpc.StatusCode, str]:
    service = gateway_calls.services(name)[-1]
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f"/{service}/{name}", None, None)(b"", timeout=SECONDS, metadata=metadata)
    return raised.value.code(), raised.value.details() or ""


def test_http(gateway: Gateway, servers: VanishingServers) -> None:
    for method in ("GET", "POST"):
        for template in sorted(PATH_NEEDS):
            (row,) = gateway_calls.rows_of_path(template)
            path = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], template)
            status, body = send(gateway, method, path, {})
            calls = servers.take()
            assert len(calls) == len(set(calls)) == row.tries, f"{method} {path}: {row.name}"
            assert status == 403 if not row.tries else status in (502, 503), f"{method} {path}"
            message = json.loads(body)["error"]
            assert message == REFUSED if not row.tries else message.startswith("gateway: "), f"{method} {path}"


@pytest.mark.parametrize("path", ["/v2/models/simple/infer", "/v1/chat/completions", "/v2/models/simple"])
def test_http_requests_of_sequences(gateway: Gateway, servers: VanishingServers, path: str) -> None:
    """Those of one sequence go to one server, those of many to all."""
    places = []
    for number in range(48):
        headers = {"x-sequence-id": f"{number * 7919}"}
        assert send(gateway, "POST", path, headers, marked=False)[0] == 200  # the connection is kept, if any is
        for _ in range(2):
            status, body = send(gateway, "POST", path, headers)
            assert status in (502, 503)
            assert json.loads(body)["error"].startswith("gateway: ")
        first, second = servers.take()
        assert first == second
        places.append(first)
    assert set(places) == {0, 1, 2}


def test_http_calls_that_are_not_known(gateway: Gateway, servers: VanishingServers) -> None:
    send(gateway, "POST", "/v3/models/simple/infer", {})
    assert len(servers.take()) == 1


@pytest.mark.parametrize("path", ["/v2/logging", "/v2/models/simple/routing"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods_change_settings_too(gateway: Gateway, servers: VanishingServers, method: str, path: str) -> None:
    assert send(gateway, method, path, {})[0] == 403
    assert servers.take() == []


def test_grpc(gateway: Gateway, servers: VanishingServers) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}", [("grpc.enable_retries", 0)]) as channel:
        for name in sorted(RPC_NEEDS):
            (row,) = gateway_calls.rows_of_rpc(name)
            code, details = rpc(channel, name)
            calls = servers.take()
            # nginx passes a gRPC request on while it comes, and keeps nothing that it could send again.
            tries = min(row.tries, 1) if gateway.name == "nginx" else row.tries
            assert len(calls) == len(set(calls)) == tries, f"{name}: {row.name}"
            expected = grpc.StatusCode.UNAVAILABLE if tries else grpc.StatusCode.PERMISSION_DENIED
            assert code is expected, f"{name}: {details}"
            if gateway.name != "haproxy" or not tries:  # HAProxy passes on that the stream was reset
                assert (REFUSED if not tries else "gateway: ") in details, f"{name}: {details}"


def test_grpc_requests_of_sequences(gateway: Gateway, servers: VanishingServers) -> None:
    places = []
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}", [("grpc.enable_retries", 0)]) as channel:
        for number in range(48):
            for name in ("ModelInfer", "ModelStreamInfer"):
                code, _ = rpc(channel, name, (("x-sequence-id", f"{number * 7919}"),))
                assert code is grpc.StatusCode.UNAVAILABLE
            first, second = servers.take()
            assert first == second
            places.append(first)
    assert set(places) == {0, 1, 2}


# --- routes of the Gateway API, in Envoy, which several of its gateways run -------------------------------------------


def envoys_routes() -> list[dict[str, Any]]:
    """What such a gateway makes of them."""
    paths, rpcs = (
        yaml.safe_load((gateway_calls.COMPONENT / f"{kind}-route.yaml").read_text())["spec"]["rules"]
        for kind in ("http", "grpc")
    )
    made: list[dict[str, Any]] = []
    for rule in rpcs:
        for match in rule["matches"]:
            path = "/{service}/{method}".format(**match["method"])
            made.append({"match": {"path": path, "grpc": {}}, "route": {"cluster": "grpc", "timeout": "0s"}})
    for rule in paths:
        for match in rule["matches"]:
            kind, value = match["path"]["type"], match["path"]["value"]
            envoys: dict[str, Any] = {"path": value} if kind == "Exact" else {"safe_regex": {"regex": value}}
            if "method" in match:
                envoys["headers"] = [{"name": ":method", "string_match": {"exact": match["method"]}}]
            made.append({"match": envoys, "route": {"cluster": "http", "timeout": rule["timeouts"]["request"]}})
    return made


def test_routes_of_the_gateway_api(servers: VanishingServers, tmp_path: Path) -> None:
    foreign_clients.install()
    text = (gateway_stage.CONFIGURATIONS / "envoy.yaml").read_text()
    own = text[text.index("                      routes:\n") : text.index("\n  clusters:")]
    limits = text[text.index("layered_runtime:") : text.index("static_resources:")]  # which such gateways do not set
    edits = {own: f"                      routes: {json.dumps(envoys_routes())}\n", limits: "", **PATIENT["envoy"]}
    with gateway_stage.gateway("envoy", servers.addresses, tmp_path, edits) as gateway:
        servers.take()
        for method in ("GET", "POST"):
            for template in sorted(PATH_NEEDS):
                (row,) = gateway_calls.rows_of_path(template)
                path = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], template)
                status, _ = send(gateway, method, path, {})
                assert len(servers.take()) == min(row.tries, 1), f"{method} {path}: {row.name}"
                assert (status == 404) == (row.tries == 0), f"{method} {path}"
        with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}", [("grpc.enable_retries", 0)]) as channel:
            for name in sorted(RPC_NEEDS):
                (row,) = gateway_calls.rows_of_rpc(name)
                code, details = rpc(channel, name)
                assert len(servers.take()) == min(row.tries, 1), f"{name}: {row.name}"
                expected = grpc.StatusCode.UNAVAILABLE if row.tries else grpc.StatusCode.UNIMPLEMENTED
                assert code is expected, f"{name}: {details}"


def test_the_measured_tables_have_the_faults_of_all_gateways() -> None:
    assert f"| event | {' | '.join(gateways.TITLES.values())} |" in overhead.REPORT.read_text()
