"""Calls that a gateway passes on and may send again: the table of docs/gateways.md, and what gateways have of it.

    python scripts/gateway_calls.py            # prints the table
    python scripts/gateway_calls.py --write    # writes it into the page, deploy/gateways, deploy/k8s and the chart

Every path and RPC of the server belongs to exactly one row. Those of operators are not for the public, just as another
port does not serve them beside an admin port. `tests/e2e/test_gateway_calls.py` makes every call through each gateway.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from modserve.access.permissions import OWNED_PATHS, PATH_NEEDS, RPC_NEEDS
from modserve.protocol.restricted import ADMIN_PATHS, ADMIN_RPCS

_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "gateways.md"
COMPONENT = _ROOT / "deploy" / "k8s" / "components" / "gateway-api"
CHART_MATCHES = _ROOT / "deploy" / "helm" / "modserve" / "files" / "routes.yaml"
GATEWAYS = tuple(_ROOT / "deploy" / "gateways" / name for name in ("envoy.yaml", "haproxy.cfg", "nginx.conf"))
_SERVICES = {
    "ServerReflectionInfo": ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"),
    "StreamCoreMetrics": ("xds.service.orca.v3.OpenRcaService",),
    **dict.fromkeys(("Check", "Watch", "List"), ("grpc.health.v1.Health",)),
}
"""By the name of the RPC, where it is not KServe's."""
_BEGIN, _END = (
    "<!-- The table of calls: python scripts/gateway_calls.py --write -->",
    "<!-- End of the table of calls. -->",
)

_VERSIONED = re.compile(r"/(versions/\{version\}|labels/\{label\})")
_SHORTER = re.compile(r"^/openai(?=/v1/)|/region/\{region\}|(?<=repository)/\{repository\}")


class Row(NamedTuple):
    """A group of calls. `tries`: how many servers may see a request that the first does not answer; 0: none may."""

    name: str
    tries: int
    rule: str
    paths: str
    """A pattern of path templates, without the parts for versions and labels."""
    rpcs: str = "(?!)"
    streams: bool = False
    """Responses may pause for long, so that time-outs for whole responses do not apply."""
    http: str = ""
    grpc: str = ""
    """What the table has in place of a long list of paths or RPCs."""


ROWS = (
    Row(
        "inference",
        2,
        "yes, until the response begins",
        r"/v2/models/\{model\}/(infer|generate)|/v1/models/\{model\}:\w+|(/openai)?/v1/(embeddings|rerank|score)|/v2/rerank"
        r"|/(embed|embeddings|rerank|score|predict|similarity|tokenize|decode)",
        rpcs="ModelInfer",
        http="`infer`, `generate`, KServe v1, embeddings, rerank, score, and the calls of TEI",
    ),
    Row(
        "streams from the server",
        2,
        "yes, until the response begins",
        r"/v2/models/\{model\}/(infer|generate)_stream|(/openai)?/v1/(chat/completions|completions|responses)",
        streams=True,
    ),
    Row(
        "other streams",
        1,
        "only if no server has seen the call (connection refused, `REFUSED_STREAM`)",
        "(?!)",
        rpcs="ModelStreamInfer|Watch|ServerReflectionInfo|StreamCoreMetrics",
        streams=True,
    ),
    Row(
        "health, metadata, statistics",
        2,
        "yes; statistics are those of one server",
        r"/|/v2(/health/(live|ready)|/models(/stats)?|/memory)?|/info|/health|/version"
        r"|/v2/models/\{model\}(/(ready|config|stats|batches|engine|openapi\.json))?"
        r"|/v1/models(/\{model\}(/metadata)?)?|/openai/v1/models(/\{model\})?"
        r"|/v2/(system|cuda)sharedmemory/(region/\{region\}/)?status",
        rpcs=r"Server(Live|Ready|Metadata)|Model(Ready|Metadata|Config|Statistics)|Check|List|\w+SharedMemoryStatus",
        http="their calls, and `POST /`, which runs a model",
        grpc="their calls",
    ),
    Row(
        "[for operators](#calls-for-operators)",
        0,
        "never: refused",
        "|".join(map(re.escape, sorted(ADMIN_PATHS))),
        rpcs="|".join(ADMIN_RPCS),
        http="those of an [admin port](access.md#an-admin-port)",
    ),
    Row(
        "shared memory",
        0,
        "never: refused",
        r"/v2/(system|cuda)sharedmemory/(region/\{region\}/)?(un)?register",
        rpcs=r"\w+SharedMemory(Register|Unregister)",
        http="registration",
        grpc="registration",
    ),
)


def rows_of_path(template: str) -> list[Row]:
    """One, for a path template of the server."""
    short = _VERSIONED.sub("", template)
    return [row for row in ROWS if re.fullmatch(row.paths, short)]


def rows_of_rpc(name: str) -> list[Row]:
    return [row for row in ROWS if re.fullmatch(row.rpcs, name)]


def services(name: str) -> tuple[str, ...]:
    """Services that have an RPC."""
    return _SERVICES.get(name, ("inference.GRPCInferenceService",))


def table() -> str:
    lines = ["| calls | over HTTP | over gRPC | sent again? |", "|---|---|---|---|"]
    for row in ROWS:
        paths = sorted(set(_short_paths(row)))
        rpcs = [name for name in RPC_NEEDS if row in rows_of_rpc(name)]
        http, grpc = (", ".join(f"`{name}`" for name in names) for names in (paths, rpcs))
        lines.append(f"| {row.name} | {row.http or http} | {row.grpc or grpc} | {row.rule} |")
    lines.append(
        "| any call with the header `x-sequence-id` | | | never: a [sequence](#sequences) would count it twice |"
    )
    lines.append("| anything else | | | only if no server has seen the call |")
    return "\n".join(lines)


def _short_paths(row: Row) -> Iterator[str]:
    for template in PATH_NEEDS:
        if row in rows_of_path(template) and not _VERSIONED.search(template):
            yield _SHORTER.sub("", template).replace("cudashared", "*shared").replace("systemshared", "*shared")


# --- routes of the Gateway API: what they do not list, the gateway does not pass on -----------------------------------


def path_matches(*, streams: bool) -> list[dict[str, Any]]:
    """Matches of an HTTPRoute: paths without names as they are, the others in one pattern for what begins alike."""
    exact: list[dict[str, Any]] = []
    suffixes: dict[str, list[str]] = defaultdict(list)
    for template in sorted(PATH_NEEDS):
        (row,) = rows_of_path(template)
        if not row.tries or row.streams != streams:
            continue
        if "{" not in template:
            exact.append(_match("Exact", template))
        else:
            stem, brace, suffix = template.rpartition("}")
            name = "([^/]+/)?[^/]+" if template in OWNED_PATHS else "[^/]+"
            suffixes[re.sub(r"\{\w+\}", name, stem + brace)].append(re.escape(suffix))
    for stem, several in suffixes.items():
        end = f"({'|'.join(several)})" if len(several) > 1 else several[0]
        exact.append(_match("RegularExpression", f"^{stem}{end}$"))
    return exact


def _match(kind: str, path: str) -> dict[str, Any]:
    return {"path": {"type": kind, "value": path}}


def rpc_matches() -> list[dict[str, Any]]:
    """Matches of a GRPCRoute."""
    names = [name for name in RPC_NEEDS if rows_of_rpc(name)[0].tries]
    calls = sorted((service, name) for name in names for service in services(name))
    return [{"method": {"service": service, "method": name}} for service, name in calls]


# --- patterns for the files of deploy/gateways ------------------------------------------------------------------------

_MARKED = re.compile(r"\^/[^\s\"]+(?=.*# table: ([\w ]+)$)", re.MULTILINE)
"""A pattern in a line of a file whose comment names what it has to be."""
_ENDS = "$"


def patterns() -> dict[str, str]:
    """Regular expressions by what gateways do with the calls whose paths match; for RPCs as for paths."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for template in PATH_NEEDS:
        kind = _kind(rows_of_path(template)[0])
        kinds[kind].append(template)
        if template in OWNED_PATHS:
            kinds[kind].append(template.replace("{", "{owner}/{"))
    for name in RPC_NEEDS:
        kinds[f"{_kind(rows_of_rpc(name)[0])} over gRPC"] += [f"/{service}/{name}" for service in services(name)]
    return {kind: pattern(paths) for kind, paths in kinds.items()}


def _kind(row: Row) -> str:
    return "refused" if not row.tries else "streams" if row.streams else "sent again"


def pattern(paths: Iterable[str]) -> str:
    """One regular expression for path templates; what begins alike stands there once."""
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for part in path.split("/")[1:]:
            node = node.setdefault(re.sub(r"\{\w+\}", "[^/]+", part.replace(".", "[.]")), {})
        node[_ENDS] = {}
    return f"^{_following(tree)}$"


def _following(node: dict[str, Any]) -> str:
    ways = [part + _following(below) for part, below in sorted(node.items()) if part != _ENDS]
    if not ways:
        return ""
    text = "/" + (ways[0] if len(ways) == 1 else f"({'|'.join(ways)})")
    return f"({text})?" if _ENDS in node else text


def files() -> dict[Path, str]:
    """The files that are made of the table, or have patterns that are."""
    made = patterns()
    marked = {path: _MARKED.sub(lambda match: made[match[1]], path.read_text()) for path in GATEWAYS}
    return {**routes(), **marked}


def routes() -> dict[Path, str]:
    """The files of the Gateway API."""
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
    for path, content in files().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
