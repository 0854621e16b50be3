"""Every route and RPC has a place in the table of what calls need."""

from pathlib import Path

import pytest
from puppet_server import PuppetLoader, server_over
from starlette.routing import Route

from modserve.access.identity import CallKind
from modserve.access.permissions import PATH_NEEDS, RPC_NEEDS, CallNeed, CallScope, need_of
from modserve.frontends.grpc.load_reports import LoadReports
from modserve.frontends.grpc.message_inflater import MessageInflater
from modserve.frontends.grpc.service import rpc_table
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.deferred import expand
from modserve.settings import GrpcSettings, HttpSettings


def routes(repository: Path) -> set[tuple[str, str]]:
    app = create_app(server_over(repository, PuppetLoader()), HttpSettings())
    return {
        (method, route.path_format)
        for route in expand(app.router.routes)
        if isinstance(route, Route)
        for method in route.methods or ()
    }


def test_every_route_has_a_need(tmp_path: Path) -> None:
    served = {path for _, path in routes(tmp_path)}
    assert served - set(PATH_NEEDS) == set()
    assert {"/v2/models/{model}/infer", "/console/events", "/v1/embeddings", "/docs"} <= served


def test_every_rpc_has_a_need(tmp_path: Path) -> None:
    server, options = server_over(tmp_path, PuppetLoader()), GrpcSettings()
    inflater = MessageInflater(server.memory, 0, options.limits)
    rpcs = rpc_table(server, options, inflater, reports=LoadReports(server))
    assert {rpc.method.name for rpc in rpcs.values()} == set(RPC_NEEDS)


def test_a_path_with_a_model_is_about_that_model(tmp_path: Path) -> None:
    for method, path in routes(tmp_path):
        need, model = need_of(method, path.replace("{model}", "m"))
        assert (model == "m") is ("{model}" in path), path
        assert need.reach is CallScope.MODEL or "{model}" not in path, path


def test_what_changes_something_needs_more_than_reading(tmp_path: Path) -> None:
    reads = ("/v2/repository/index", "/v2/repository/{repository}/index")
    for method, path in routes(tmp_path):
        if method not in ("GET", "HEAD"):
            assert need_of(method, path)[0].kind != "read" or path in reads, path


@pytest.mark.parametrize(
    ("method", "path", "kind", "reach", "model"),
    [
        ("GET", "/v2/models/m/routing", "read", CallScope.MODEL, "m"),
        ("POST", "/v2/models/m/routing", "control", CallScope.MODEL, "m"),
        ("DELETE", "/v2/models/m/routing", "control", CallScope.MODEL, "m"),
        ("POST", "/v2/repository/r/models/m/load", "control", CallScope.MODEL, "m"),
        ("POST", "/v2/models/stats/infer", "infer", CallScope.MODEL, "stats"),
        ("GET", "/v2/models/stats", "read", CallScope.LIST, ""),
        ("POST", "/v1/models/m/versions/1:predict", "infer", CallScope.MODEL, "m"),
        ("POST", "/v1/models/m/labels/canary:predict", "infer", CallScope.MODEL, "m"),
        ("GET", "/v1/models/m", "read", CallScope.MODEL, "m"),
        ("POST", "/v1/chat/completions", "infer", CallScope.MODEL, ""),
        ("POST", "/v2/models/m/trace/setting", "admin", CallScope.MODEL, "m"),
        ("GET", "/v2/health/ready", "read", CallScope.HEALTH, ""),
        ("GET", "/v2/models/m/ready", "read", CallScope.MODEL, "m"),
        ("GET", "/console", "read", CallScope.OPEN, ""),
        ("GET", "/console/events", "read", CallScope.SERVER, ""),
        ("GET", "/nosuch", "read", CallScope.ANY, ""),
        ("GET", "/v2/models/m/infer/", "read", CallScope.ANY, ""),
    ],
)
def test_what_a_call_needs(method: str, path: str, kind: CallKind, reach: CallScope, model: str) -> None:
    assert need_of(method, path) == (CallNeed(kind, reach), model)
