"""The table of calls that a gateway may send again: complete, and as the documentation and all gateways have it."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import gateway_calls
import pytest
import yaml

from modserve.access.permissions import OWNED_PATHS, PATH_NEEDS, RPC_NEEDS


@pytest.mark.parametrize("template", sorted(PATH_NEEDS))
def test_each_path_has_one_row(template: str) -> None:
    assert len(gateway_calls.rows_of_path(template)) == 1, "ROWS of scripts/gateway_calls.py"


@pytest.mark.parametrize("name", sorted(RPC_NEEDS))
def test_each_rpc_has_one_row(name: str) -> None:
    assert len(gateway_calls.rows_of_rpc(name)) == 1, "ROWS of scripts/gateway_calls.py"


def test_what_changes_a_server_is_never_sent_again() -> None:
    changing = {name for name, need in RPC_NEEDS.items() if need.kind in ("control", "admin")}
    reads = {"SystemSharedMemoryStatus", "CudaSharedMemoryStatus"}
    refused = {name for name in RPC_NEEDS if gateway_calls.rows_of_rpc(name)[0].tries == 0}
    assert refused == changing - reads | {"RepositoryIndex"}
    for template, need in PATH_NEEDS.items():
        (row,) = gateway_calls.rows_of_path(template)
        if need.of("POST").kind in ("control", "admin") and not template.endswith("/status"):
            assert row.tries == 0, template


def test_the_page_has_the_table() -> None:
    assert gateway_calls.table() in gateway_calls.PAGE.read_text(), "python scripts/gateway_calls.py --write"


def test_the_files_are_made_of_the_table() -> None:
    for path, text in gateway_calls.files().items():
        assert path.read_text() == text, f"python scripts/gateway_calls.py --write: {path}"


VALUES = {"model": "simple", "version": "1", "label": "stable", "region": "r", "repository": "models"}
KINDS = ("refused", "sent again", "streams", "refused over gRPC", "sent again over gRPC", "streams over gRPC")


@cache
def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", gateway_calls.GATEWAYS, ids=lambda path: path.name)
def test_each_gateway_has_the_patterns(path: Path) -> None:
    """nginx sends no RPC again."""
    marked = re.findall(r"# table: ([\w ]+)$", path.read_text(), re.MULTILINE)
    unused = {"sent again over gRPC"} if path.name == "nginx.conf" else set()
    assert sorted(marked) == sorted(set(KINDS) - unused)


def test_one_pattern_fits_each_call() -> None:
    patterns = gateway_calls.patterns()
    assert patterns.keys() == set(KINDS)
    for template in sorted(PATH_NEEDS):
        path = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], template)
        (row,) = gateway_calls.rows_of_path(template)
        expected = "refused" if not row.tries else "streams" if row.streams else "sent again"
        assert [kind for kind, pattern in patterns.items() if re.search(pattern, path)] == [expected], path


def test_operators_calls_are_refused() -> None:
    """Just as another port does not serve them beside an admin port."""
    patterns = gateway_calls.patterns()
    for path in ("/console", "/docs", "/v2/logging", "/v2/models/m/routing", "/v2/repository/index", "/metrics"):
        assert re.search(patterns["refused"], path), path
    for path in ("/v2/models/m", "/v2x", "/v2/models/a/b/infer", "/consoles"):
        assert not re.search(patterns["refused"], path), path


def by_routes(path: str) -> str:
    rules = parsed(gateway_calls.COMPONENT / "http-route.yaml")["spec"]["rules"]
    kinds = {
        rule["timeouts"]["request"] for rule in rules for match in rule["matches"] if fits(**match["path"], path=path)
    }
    assert len(kinds) <= 1, f"{path}: gateways differ in which rule goes first"
    return {"": "refused", "0s": "stream", "60s": "call"}["".join(kinds)]


def fits(type: str, value: str, path: str) -> bool:
    return path == value if type == "Exact" else re.search(value, path) is not None


def test_routes_do_what_the_row_says() -> None:
    for template in sorted(PATH_NEEDS):
        path = re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], template)
        (row,) = gateway_calls.rows_of_path(template)
        assert by_routes(path) == ("refused" if not row.tries else "stream" if row.streams else "call"), path


@pytest.mark.parametrize(
    "path", ["/v2/models/a/b/infer", "/v2/models/simple/routing/", "/v2x", "/models", "/v2/repository/a/b/index"]
)
def test_routes_have_nothing_that_the_table_has_not(path: str) -> None:
    assert by_routes(path) == "refused"


def test_routes_have_models_with_owners() -> None:
    for path in sorted(OWNED_PATHS):
        assert by_routes(path.replace("{model}", "organisation/simple")) == "call"


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
