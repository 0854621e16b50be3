"""Which calls a gateway may send again: the table of docs/gateways.md.

    python scripts/gateway_calls.py            # prints it
    python scripts/gateway_calls.py --write    # writes it into the page

Every path and RPC of the server belongs to exactly one row (`tests/unit/test_gateway_calls_table.py`), and the
configurations in deploy/gateways do what the row says (`tests/e2e/test_gateway_calls.py`).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from modserve.access.calls import PATH_NEEDS, RPC_NEEDS

PATHS = {path: need for path, need in PATH_NEEDS.items() if not path.startswith("/models")}
"""Those that may be behind a gateway: SageMaker's are not, since SageMaker stands before its containers."""
PAGE = Path(__file__).resolve().parent.parent / "docs" / "gateways.md"
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
    ),
    Row(
        "other streams",
        1,
        "only if no server has seen anything of the call (connection refused, `REFUSED_STREAM`): the client may have "
        "sent more than one request",
        "(?!)",
        rpcs="ModelStreamInfer|Watch|ServerReflectionInfo|StreamCoreMetrics",
    ),
    Row(
        "health, metadata, statistics, pages; `POST /`, which runs a model",
        2,
        "yes. Statistics, index and settings are those of one server",
        r"/|/v2(/health/(live|ready)|/models(/stats)?|/memory|/stacks|/repository(/\{repository\})?/index)?"
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
        "loads, unloads, drains, shared memory, metrics",
        0,
        "never: they are about one server, so the gateway refuses them",
        r"/v2/repository(/\{repository\})?/models/\{model\}/(un)?load|/v2/health/drain|/metrics"
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


def main() -> None:
    if "--write" not in sys.argv[1:]:
        print(table())
        return
    text = PAGE.read_text()
    head, rest = text.split(_BEGIN)
    PAGE.write_text(f"{head}{_BEGIN}\n\n{table()}\n\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
