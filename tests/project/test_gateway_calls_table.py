"""The table of calls that a gateway may send again: complete, and as the documentation and all gateways have it."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gateway_calls
import pytest
import yaml

from modserve.access.calls import OWNED_PATHS, RPC_NEEDS


@pytest.mark.parametrize("template", sorted(gateway_calls.PATHS))
def test_each_path_has_one_row_for_each_method(template: str) -> None:
    for method in ("GET", "POST"):
        assert len(gateway_calls.rows_of_path(method, template)) == 1, f"ROWS of scripts/gateway_calls.py, {method}"


@pytest.mark.parametrize("name", sorted(RPC_NEEDS))
def test_each_rpc_has_one_row(name: str) -> None:
    assert len(gateway_calls.rows_of_rpc(name)) == 1, "ROWS of scripts/gateway_calls.py"


def test_what_changes_a_server_is_never_sent_again() -> None:
    changing = {name for name, need in RPC_NEEDS.items() if need.kind in ("control", "admin")}
    reads = {"RepositoryIndex", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus"}
    assert {name for name in RPC_NEEDS if gateway_calls.rows_of_rpc(name)[0].tries == 0} == changing - reads
    for template, need in gateway_calls.PATHS.items():
        (row,) = gateway_calls.rows_of_path("POST", template)
        if need.of("POST").kind in ("control", "admin") and not template.endswith(("/status", "/failures", "/stacks")):
            assert row.tries == 0, template


def test_the_page_has_the_table() -> None:
    assert gateway_calls.table() in gateway_calls.PAGE.read_text(), "python scripts/gateway_calls.py --write"


def test_the_routes_of_the_gateway_api_are_made_of_the_table() -> None:
    for path, text in gateway_calls.routes().items():
        assert path.read_text() == text, f"python scripts/gateway_calls.py --write: {path}"


# --- what the files of each gateway do with each path: "refused", "stream", or "call" --------------------------------

GATEWAYS = Path(__file__).parents[2] / "deploy" / "gateways"
VALUES = {"model": "simple", "version": "1", "label": "stable", "region": "r", "repository": "models"}


@cache
def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def by_nginx(method: str, path: str) -> str:
    """The first location whose pattern fits, as nginx takes it."""
    for pattern, body in re.findall(
        r"    location ~ (\S+) \{\n(.*?)\n    \}", (GATEWAYS / "nginx.conf").read_text(), re.DOTALL
    ):
        if re.search(pattern, path):
            refused = "return 403;" in body or ("limit_except GET" in body and method != "GET")
            return "refused" if refused else "stream" if "proxy_read_timeout 1h" in body else "call"
    return "call"


def by_haproxy(method: str, path: str) -> str:
    patterns = re.findall(r"acl (control|setting|stream) path\S* -m reg (\S+)", (GATEWAYS / "haproxy.cfg").read_text())
    names = {name for name, pattern in patterns if re.search(pattern, path)}
    refused = "control" in names or ("setting" in names and method != "GET")
    return "refused" if refused else "stream" if "stream" in names else "call"


def by_envoy(method: str, path: str) -> str:
    (listener, *_) = parsed(GATEWAYS / "envoy.yaml")["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    for route in host["routes"]:
        match = route["match"]
        headers = {each["name"] for each in match.get("headers", ())}
        if "grpc" in match or "x-sequence-id" in headers or (":method" in headers and method == "GET"):
            continue
        if "prefix" in match or re.fullmatch(match["safe_regex"]["regex"], path):
            if "direct_response" in route:
                return "refused"
            return "call" if "per_try_idle_timeout" in route["route"]["retry_policy"] else "stream"
    raise AssertionError(path)


def by_routes(method: str, path: str) -> str:
    rules = parsed(gateway_calls.COMPONENT / "http-route.yaml")["spec"]["rules"]
    kinds = {kind_of(rule) for rule in rules for match in rule["matches"] if fits(match, method, path)}
    assert len(kinds) <= 1, f"{method} {path}: gateways differ in which rule goes first"
    return kinds.pop() if kinds else "refused"


def kind_of(rule: Mapping[str, Any]) -> str:
    return {"0s": "stream", "60s": "call"}[rule["timeouts"]["request"]]


def fits(match: Mapping[str, Any], method: str, path: str) -> bool:
    kind, value = match["path"]["type"], match["path"]["value"]
    return match.get("method", method) == method and (
        path == value if kind == "Exact" else re.search(value, path) is not None
    )


@pytest.mark.parametrize("decide", [by_nginx, by_haproxy, by_envoy, by_routes])
def test_each_gateway_does_what_the_row_says(decide: Any) -> None:
    for template in sorted(gateway_calls.PATHS):
        path = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], template)
        for method in ("GET", "POST"):
            (row,) = gateway_calls.rows_of_path(method, template)
            expected = "refused" if not row.tries else "stream" if row.streams else "call"
            assert decide(method, path) == expected, f"{method} {path}: {row.name}"


@pytest.mark.parametrize(
    "path", ["/v2/models/a/b/infer", "/v2/models/simple/routing/", "/v2x", "/models", "/v2/repository/a/b/index"]
)
def test_routes_have_nothing_that_the_table_has_not(path: str) -> None:
    assert by_routes("POST", path) == "refused"


def test_routes_have_models_with_owners() -> None:
    for path in sorted(OWNED_PATHS):
        assert by_routes("GET", path.replace("{model}", "organisation/simple")) == "call"


def test_routes_have_the_rpcs_that_may_pass_and_no_others() -> None:
    (rule,) = parsed(gateway_calls.COMPONENT / "grpc-route.yaml")["spec"]["rules"]
    passed = {name for name in RPC_NEEDS if gateway_calls.rows_of_rpc(name)[0].tries}
    assert {match["method"]["method"] for match in rule["matches"]} == passed
    assert all(match["method"].keys() == {"service", "method"} for match in rule["matches"])


def test_routes_are_within_the_limits_of_the_gateway_api() -> None:
    """64 matches a rule, 128 a route, and 1024 characters a path."""
    for name in ("http-route.yaml", "grpc-route.yaml"):
        rules = parsed(gateway_calls.COMPONENT / name)["spec"]["rules"]
        assert max(len(rule["matches"]) for rule in rules) <= 64
        assert sum(len(rule["matches"]) for rule in rules) <= 128
        assert max(len(str(match)) for rule in rules for match in rule["matches"]) <= 1024
