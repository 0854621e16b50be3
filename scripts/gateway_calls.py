"""Which calls a gateway passes on and may send again: the table of docs/gateways.md, and the routes of the Gateway API.

    python scripts/gateway_calls.py            # prints the table
    python scripts/gateway_calls.py --write    # writes it into the page, and the routes into deploy/k8s and the chart

Every path and RPC of the server belongs to exactly one row. `tests/project/test_gateway_calls_table.py` compares the
files of all gateways with the rows, and `tests/e2e/test_gateway_calls.py` makes every call through those in
deploy/gateways.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from modserve.access.calls import OWNED_PATHS, PATH_NEEDS, RPC_NEEDS

PATHS = {path: need for path, need in PATH_NEEDS.items() if not path.startswith("/models")}
"""Those that may be behind a gateway: SageMaker's are not, since SageMaker stands before its containers."""
_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "gateways.md"
COMPONENT = _ROOT / "deploy" / "k8s" / "components" / "gateway-api"
CHART_MATCHES = _ROOT / "deploy" / "helm" / "modserve" / "files" / "routes.yaml"
SERVICES = {
    "ServerReflectionInfo": "grpc.reflection.v1.ServerReflection",
    "StreamCoreMetrics": "xds.service.orca.v3.OpenRcaService",
    **dict.fromkeys(("Check", "Watch", "List"), "grpc.health.v1.Health"),
}
"""By the name of the RPC, where it is not KServe's."""
_BEGIN, _END = (
    "<!-- The table of calls: python scripts/gateway_calls.py --write -->",
    "<!-- End of the table of calls. -->",
)

_VERSIONED = re.compile(r"/(versions/\{version\}|labels/\{label\})")
_SHORTER = re.compile(r"^/openai(?=/v1/)|/region/\{region\}|(?<=repository)/\{repository\}")
_ANY_METHOD, _CHANGING, _READING = ("GET", "POST"), ("POST",), ("GET",)


class Row(NamedTuple):
    """A group of calls. `tries`: how many servers may see a request that the first does not answer; 0: none may."""

    name: str
    tries: int
    rule: str
    paths: str
    """A pattern of path templates, without the parts for versions and labels."""
    methods: tuple[str, ...] = _ANY_METHOD
    rpcs: str = "(?!)"
    streams: bool = False
    """Responses may pause for long, so that time-outs for whole responses do not apply."""


ROWS = (
    Row(
        "inference",
        2,
        "yes, until the response begins: models compute the same again. Those that keep something between requests "
        "have sequences",
        r"/v2/models/\{model\}/(infer|generate)|/v1/models/\{model\}:\w+|(/openai)?/v1/(embeddings|rerank|score)|/v2/rerank"
        r"|/(embed|embeddings|rerank|score|predict|similarity|tokenize|decode)",
        rpcs="ModelInfer",
    ),
    Row(
        "streams from the server",
        2,
        "yes, until the response begins; never afterwards",
        r"/v2/models/\{model\}/(infer|generate)_stream|(/openai)?/v1/(chat/completions|completions|responses)"
        r"|/console/events",
        streams=True,
    ),
    Row(
        "other streams",
        1,
        "only if no server has seen anything of the call (connection refused, `REFUSED_STREAM`): the client may have "
        "sent more than one request",
        "(?!)",
        rpcs="ModelStreamInfer|Watch|ServerReflectionInfo|StreamCoreMetrics",
        streams=True,
    ),
    Row(
        "health, metadata, statistics, pages; `POST /`, which runs a model",
        2,
        "yes. Statistics, index and settings are those of one server",
        r"/|/v2(/health/(live|ready)|/models(/stats)?|/memory|/repository(/\{repository\})?/index)?"
        r"|/info|/health|/version|/openapi\.json"
        r"|/docs(/\w+/\{model\})?|/console(/about|/failures|/peers|/texts/\{model\})?"
        r"|/v2/models/\{model\}(/(ready|config|stats|batches|engine|openapi\.json))?"
        r"|/v1/models(/\{model\}(/metadata)?)?|/openai/v1/models(/\{model\})?"
        r"|/v2/(system|cuda)sharedmemory/(region/\{region\}/)?status",
        rpcs=r"Server(Live|Ready|Metadata)|Model(Ready|Metadata|Config|Statistics)|RepositoryIndex|Check|List|\w+SharedMemoryStatus",
    ),
    Row(
        "settings, read",
        2,
        "yes",
        r"/v2/(logging|(models/\{model\}/)?trace/setting|models/\{model\}/routing)",
        _READING,
    ),
    Row(
        "settings, changed",
        0,
        "never: they change one server, so the gateway refuses them. `LogSettings` and `TraceSetting` also read",
        r"/v2/(logging|(models/\{model\}/)?trace/setting|models/\{model\}/routing)",
        _CHANGING,
        "LogSettings|TraceSetting",
    ),
    Row(
        "loads, unloads, drains, shared memory, metrics, stacks",
        0,
        "never: they are about one server, so the gateway refuses them",
        r"/v2/repository(/\{repository\})?/models/\{model\}/(un)?load|/v2/health/drain|/v2/stacks|/metrics"
        r"|/v2/(system|cuda)sharedmemory/(region/\{region\}/)?(un)?register",
        rpcs=r"RepositoryModel(Load|Unload)|\w+SharedMemory(Register|Unregister)",
    ),
)


def rows_of_path(method: str, template: str) -> list[Row]:
    """One, for a path template of `PATHS`."""
    short = _VERSIONED.sub("", template)
    return [row for row in ROWS if method in row.methods and re.fullmatch(row.paths, short)]


def rows_of_rpc(name: str) -> list[Row]:
    return [row for row in ROWS if re.fullmatch(row.rpcs, name)]


def table() -> str:
    lines = ["| calls | over HTTP | over gRPC | sent again? |", "|---|---|---|---|"]
    for row in ROWS:
        paths = sorted({path for method in row.methods for path in _short_paths(method, row)})
        rpcs = [name for name in RPC_NEEDS if row in rows_of_rpc(name)]
        cells = [", ".join(f"`{name}`" for name in names) for names in (paths, rpcs)]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.rule} |")
    lines.append(
        "| any of these with the header `x-sequence-id` | | | never: a step of the [sequence](#sequences) would count "
        "twice |"
    )
    lines.append("| anything else | | | only if no server has seen anything of the call |")
    return "\n".join(lines)


def _short_paths(method: str, row: Row) -> Iterator[str]:
    for template in PATHS:
        if row in rows_of_path(method, template) and not _VERSIONED.search(template):
            yield _SHORTER.sub("", template).replace("cudashared", "*shared").replace("systemshared", "*shared")


# --- routes of the Gateway API: what they do not list, the gateway does not pass on -----------------------------------


def path_matches(*, streams: bool) -> list[dict[str, Any]]:
    """Matches of an HTTPRoute: paths without names as they are, the others in one pattern for what begins alike."""
    exact: list[dict[str, Any]] = []
    suffixes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for template in sorted(PATHS):
        rows = {method: row for method in _ANY_METHOD for row in rows_of_path(method, template)}
        methods = [method for method, row in rows.items() if row.tries and row.streams == streams]
        if not methods:
            continue
        method = "" if len(methods) == len(_ANY_METHOD) else methods[0]
        if "{" not in template:
            exact.append(_match("Exact", template, method))
        else:
            stem, brace, suffix = template.rpartition("}")
            name = "([^/]+/)?[^/]+" if template in OWNED_PATHS else "[^/]+"
            suffixes[re.sub(r"\{\w+\}", name, stem + brace), method].append(re.escape(suffix))
    for (stem, method), several in suffixes.items():
        end = f"({'|'.join(several)})" if len(several) > 1 else several[0]
        exact.append(_match("RegularExpression", f"^{stem}{end}$", method))
    return exact


def _match(kind: str, path: str, method: str) -> dict[str, Any]:
    return {"path": {"type": kind, "value": path}} | ({"method": method} if method else {})


def rpc_matches() -> list[dict[str, Any]]:
    """Matches of a GRPCRoute."""
    names = sorted(name for name in RPC_NEEDS if rows_of_rpc(name)[0].tries)
    services = [(SERVICES.get(name, "inference.GRPCInferenceService"), name) for name in names]
    return [{"method": {"service": service, "method": name}} for service, name in sorted(services)]


def routes() -> dict[Path, str]:
    """The files that are made of the table."""
    comment = "# Written by scripts/gateway_calls.py. Calls that are not listed are about one server, and get 404.\n"
    calls, streams, rpcs = path_matches(streams=False), path_matches(streams=True), rpc_matches()
    http = [
        {"matches": calls, "timeouts": {"request": "60s"}, "backendRefs": [{"name": "modserve", "port": 8000}]},
        {"matches": streams, "timeouts": {"request": "0s"}, "backendRefs": [{"name": "modserve", "port": 8000}]},
    ]
    grpc = [{"matches": rpcs, "backendRefs": [{"name": "modserve", "port": 8001}]}]
    matches = {"calls": calls, "streams": streams, "rpcs": rpcs}
    return {
        COMPONENT / "http-route.yaml": comment + _dump(_route("HTTPRoute", http)),
        COMPONENT / "grpc-route.yaml": comment + _dump(_route("GRPCRoute", grpc)),
        CHART_MATCHES: comment + _dump(matches),
    }


def _route(kind: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "modserve", "app.kubernetes.io/component": "inference-server"}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "modserve", "labels": labels},
        "spec": {"parentRefs": [{"name": "gateway"}], "rules": rules},
    }


class _Dumper(yaml.SafeDumper):
    """Writes what occurs twice twice."""

    def ignore_aliases(self, _: object) -> bool:
        return True


def _dump(value: object) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000)


def main() -> None:
    if "--write" not in sys.argv[1:]:
        print(table())
        return
    text = PAGE.read_text()
    head, rest = text.split(_BEGIN)
    PAGE.write_text(f"{head}{_BEGIN}\n\n{table()}\n\n{_END}{rest.split(_END)[1]}")
    for path, content in routes().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
