"""The repository indexes of several servers as one, with what differs between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .server_set import Outcome, failure_text, failure_verb
from .status_report import IndexRow, VersionUsage
from .terminal import count, duration, indent_lines, plural, table

Key = tuple[str, str]
_ABSENT = "not there"
_NOT_LOADED = "not loaded"
_HEAD = ("model", "version", "ready", "requests", "failed", "mean")


@dataclass(frozen=True, slots=True)
class ServerIndex:
    """Index of one server; `usage` is empty where restricted."""

    rows: Sequence[IndexRow]
    usage: Mapping[Key, VersionUsage]


@dataclass(frozen=True, slots=True)
class VersionStates:
    """A model version: its state by the URL of each server that responds, and its use on all of them."""

    model: str
    version: str
    states: Mapping[str, str]
    usage: VersionUsage

    @property
    def ready(self) -> int:
        return sum(state == "READY" for state in self.states.values())

    @property
    def same(self) -> bool:
        return len(set(self.states.values())) == 1


def merge(servers: Sequence[Outcome[ServerIndex]], names: Sequence[str] = ()) -> list[VersionStates]:
    """Merge the servers' rows by model and version. A model loaded on any server has no row without a version."""
    indexes = {each.url: {row.key: row for row in each.value.rows} for each in servers if each.error is None}
    keys = {key for rows in indexes.values() for key in rows if not names or key[0] in names}
    loaded = {model for model, version in keys if version}
    merged = []
    for key in sorted(keys, key=lambda key: (key[0], len(key[1]), key[1])):
        model, version = key
        if not version and model in loaded:
            continue
        known = {url: {name for name, _ in rows} for url, rows in indexes.items()}
        states = {url: _state(rows.get(key), model in known[url]) for url, rows in indexes.items()}
        usage = VersionUsage()
        for each in servers:
            if each.error is None and key in each.value.usage:
                usage = usage.plus(each.value.usage[key])
        merged.append(VersionStates(model, version, states, usage))
    return merged


def _state(row: IndexRow | None, has_model: bool) -> str:
    if row is None:
        return _NOT_LOADED if has_model else _ABSENT
    reason = f": {row.reason}" if row.reason and row.state != "READY" else ""
    return f"{row.state or _NOT_LOADED}{reason}"


def lines(
    servers: Sequence[Outcome[ServerIndex]], merged: Sequence[VersionStates], *, colours: bool = False
) -> Iterator[str]:
    """Yield a table; where servers differ, the others follow the row."""
    if merged:
        rows = [
            (
                each.model,
                each.version or "-",
                f"{each.ready} of {len(each.states)}",
                count(each.usage.requests),
                count(each.usage.failures),
                duration(each.usage.seconds / each.usage.requests) if each.usage.requests else "-",
            )
            for each in merged
        ]
        head, rule, *body = table(_HEAD, rows, "  rrrr", colours=colours)
        yield head
        yield rule
        for text, each in zip(body, merged, strict=True):
            yield text
            if not each.same:
                yield from indent_lines("\n".join(f"{url}: {state}" for url, state in each.states.items()))
    for server in servers:
        if server.error is not None:
            yield f"\n{server.url} {failure_verb(server.error)}:"
            yield from indent_lines(failure_text(server.error, server.url))
    different = len({each.model for each in merged if not each.same})
    reached = sum(server.error is None for server in servers)
    end = f"{plural(different, 'model')} differ{'s' * (different == 1)}" if different else "no model differs"
    yield f"\n{end} between {plural(reached, 'server')}"


def document(servers: Sequence[Outcome[ServerIndex]], merged: Sequence[VersionStates]) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
    return {
        "same": all(each.same for each in merged),
        "servers": [
            {"url": each.url} if each.error is None else {"url": each.url, "error": each.error.message}
            for each in servers
        ],
        "models": [
            {
                "model": each.model,
                "version": each.version,
                "same": each.same,
                "states": dict(each.states),
                "requests": each.usage.requests,
                "failures": each.usage.failures,
                "seconds": each.usage.seconds,
            }
            for each in merged
        ],
    }
