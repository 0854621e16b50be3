"""``modserve models``: lists the models of a server, or describes some of them with inputs and outputs."""

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from modserve.client.transport import METADATA
from modserve.core.statistics.time_parts import PARTS, advice
from modserve.settings.options import did_you_mean

from .destination import destinations
from .errors import RefusedError
from .remote_server import RemoteServer
from .server_set import ServerSet, connect_all
from .status_report import IndexRow, VersionUsage, engine, index, usage
from .syntax import add_destination, add_json, add_watch, parser
from .terminal import again, count, duration, indent_lines, table, takes_colours

PARSER = parser(
    "models",
    "Lists the models of a server with state and reason, engine, requests and mean time. With names:\n"
    "only these models, with their inputs and outputs. Of several servers: how many have each version ready,\n"
    "and what differs between them.",
    "  modserve models\n  modserve models simple\n  modserve models --watch 1",
    "0 listed, 1 server unreachable, or no such model, 2 wrong command line",
)
PARSER.add_argument("names", nargs="*", metavar="MODEL", help="Models to describe; by default, all models are listed.")
add_watch(PARSER)
add_json(PARSER)
add_destination(PARSER, 10.0, several=True)

_NOT_USED = VersionUsage()
_NOTHING = ("", "")


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    return again(options.watch, lambda: _draw(options))


def _draw(options: Namespace) -> tuple[int, str]:
    """Draw once. A name may stand for other servers the next time."""
    with closing(connect_all(destinations(options))) as servers:
        if len(servers.servers) > 1:
            return _draw_all(servers, options)
        return _draw_one(servers.servers[0], options)


def _draw_one(server: RemoteServer, options: Namespace) -> tuple[int, str]:
    rows = choose_rows(index(server), options.names)
    used = _usage(server)
    engines = {row.key: engine(server, row) for row in rows if row.state == "READY"}
    tensors = {name: _tensors(server, name) for name in options.names}
    if options.json:
        return 0, json.dumps(document(rows, used, engines, tensors), indent=2, ensure_ascii=False)
    out = list(lines(rows, used, engines, colours=takes_colours()))
    for name, body in tensors.items():
        out += ["", *describe_model(name, body), *reasons(name, engines), *times(name, used)]
    return 0, "\n".join(out)


def _draw_all(servers: ServerSet, options: Namespace) -> tuple[int, str]:
    from . import several_indexes

    outcomes = servers.call(lambda server: several_indexes.ServerIndex(index(server), _usage(server)))
    code = int(any(each.error is not None for each in outcomes))
    if not code:
        choose_rows([row for each in outcomes for row in each.value.rows], options.names)
    merged = several_indexes.merge(outcomes, options.names)
    if options.json:
        return code, json.dumps(several_indexes.document(outcomes, merged), indent=2, ensure_ascii=False)
    return code, "\n".join(several_indexes.lines(outcomes, merged, colours=takes_colours()))


def _usage(server: RemoteServer) -> Mapping[tuple[str, str], VersionUsage]:
    try:
        return usage(server)
    except RefusedError:
        return {}


def choose_rows(rows: Sequence[IndexRow], names: Sequence[str]) -> list[IndexRow]:
    """Return the rows of these models, all if none is named. Raises RefusedError for an unknown name."""
    known = sorted({row.model for row in rows})
    for name in names:
        if name not in known:
            models = f"the models are {', '.join(known)}" if known else "the server has no models"
            hint = did_you_mean(name, known) or f"; {models}"
            raise RefusedError(f"model '{name}' does not exist{hint}")
    return [row for row in rows if not names or row.model in names]


def _tensors(server: RemoteServer, name: str) -> Mapping[str, Any]:
    try:
        body: Mapping[str, Any] = server.call(METADATA, name)
    except RefusedError:
        return {}
    return body


_HEAD = ("model", "version", "state", "engine", "requests", "failed", "mean", "last")


def lines(
    rows: Sequence[IndexRow],
    used: Mapping[tuple[str, str], VersionUsage],
    engines: Mapping[tuple[str, str], tuple[str, str]],
    *,
    colours: bool = False,
) -> Iterator[str]:
    """Yield a table; reasons follow their rows. Times are by the server's clock, not by the local one."""
    if not rows:
        yield "The server has no models."
        return
    cells = []
    for row in rows:
        each = used.get(row.key, _NOT_USED)
        last = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(each.last_ms // 1000)) if each.last_ms else "-"
        mean = duration(each.seconds / each.requests) if each.requests else "-"
        counts = (count(each.requests), count(each.failures)) if row.key in used else ("-", "-")
        cells.append(
            (
                row.model,
                row.version or "-",
                row.state or "not loaded",
                engines.get(row.key, _NOTHING)[0] or "-",
                *counts,
                mean,
                last,
            )
        )
    head, rule, *body = table(_HEAD, cells, "    rrrr", colours=colours)
    yield head
    yield rule
    for text, row in zip(body, rows, strict=True):
        yield text
        yield from indent_lines(row.reason)


def describe_model(name: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the inputs and outputs of a model, from its metadata, and how to call it."""
    if not body:
        yield f"{name} is not ready: its inputs and outputs are unknown."
        return
    rows = [
        (kind, row["name"], row["datatype"], shape(row["shape"]))
        for kind in ("input", "output")
        for row in body.get(f"{kind}s", ())
    ]
    if not rows:
        yield f"{name} has no inputs and no outputs."
        return
    yield from table((name, "name", "type", "shape"), rows)
    values = " ".join(f"{row['name']}=…" for row in body.get("inputs", ()))
    yield f"\nmodserve infer {name} {values}"


def reasons(name: str, engines: Mapping[tuple[str, str], tuple[str, str]]) -> Iterator[str]:
    """Yield the reasons for the engines that the server chose for a model's versions."""
    for (model, version), (_, reason) in engines.items():
        if model == name and reason:
            yield f"\nengine of version {version}: {reason}"


def times(name: str, used: Mapping[tuple[str, str], VersionUsage]) -> Iterator[str]:
    """Yield the mean times of requests to a model's versions, in parts, and advice on the largest one."""
    versions = {version: each for (model, version), each in used.items() if model == name}
    if not versions:
        return
    cells = [
        (version, *(duration(each.mean_ms(part) / 1e3) if each.requests else "-" for part in ("total", *PARTS)))
        for version, each in versions.items()
    ]
    yield ""
    yield from table(("version", "mean", *PARTS), cells, " rrrrr")
    for version, each in versions.items():
        if text := advice(name, each.total_ns, each.parts_ns):
            yield f"version {version}: {text}"


def shape(sizes: Sequence[int | str]) -> str:
    """Format a shape as configurations do; -1 is any size."""
    return f"[{', '.join(map(str, sizes))}]"


def document(
    rows: Sequence[IndexRow],
    used: Mapping[tuple[str, str], VersionUsage],
    engines: Mapping[tuple[str, str], tuple[str, str]],
    tensors: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
    return {
        "models": [
            {
                "model": row.model,
                "version": row.version,
                "state": row.state,
                "reason": row.reason,
                "engine": engines.get(row.key, _NOTHING)[0],
                "engine_reason": engines.get(row.key, _NOTHING)[1],
                "requests": used.get(row.key, _NOT_USED).requests,
                "failures": used.get(row.key, _NOT_USED).failures,
                "seconds": used.get(row.key, _NOT_USED).seconds,
                "last_ms": used.get(row.key, _NOT_USED).last_ms,
            }
            for row in rows
        ],
        **({"metadata": dict(tensors)} if tensors else {}),
    }
