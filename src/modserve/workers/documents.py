"""Figures in JSON's values as tables of samples, and back: so the documents of several workers add up as pages do.

The sample is the path to a value: one that is neither an object nor a list of them, or the counts of a sketch by its
buckets, which are many. A row of a list is in the path by the fields that name it, whatever its place.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .pages import Families, SampleTable

_NAMES: Final = ("name", "version", "revision", "batch_size", "type", "id")
"""Fields by which a row of a list is known."""

_RULES: Mapping[str, str] = {
    **dict.fromkeys((*_NAMES, "at_ms", "decisions", "delay_us", "goal_us", "size_bounds", "weight"), "first"),
    **dict.fromkeys(("byte_size", "in_flight", "instances", "lost", "memory", "pending", "sequences"), "held"),
    **dict.fromkeys(("rss", "request_memory", "request_memory_limit", "model_memory", "model_memory_limit"), "held"),
    **dict.fromkeys(("serving", "share", "waiting", "workers"), "held"),
    **dict.fromkeys(("last_inference", "longest", "starts"), "latest"),
    **dict.fromkeys(("by_token", "load_ms", "p99_us"), "largest"),
    **dict.fromkeys(("engine", "phase", "reason", "state"), "worst"),
    "kv_cache": "joined",
    "ready": "least",
    "recorded": "known",
}
"""Ways to combine the values of several workers, by the name of the field. Other numbers only grow: they are sums.

Other texts are those of the first worker.
"""
_COUNTERS: Final = frozenset({"sum", "known", "latest"})


def tables(document: object) -> dict[str, SampleTable]:
    """A table for each rule."""
    made: dict[str, SampleTable] = {}
    for path, value in _values((), document):
        number = isinstance(value, int | float | list | dict) and not isinstance(value, bool)
        rule = _RULES.get(path[-1]) or ("sum" if number else "first")
        if rule not in made:
            made[rule] = SampleTable("counter" if rule in _COUNTERS else "gauge", "", {}, {}, rule)
        made[rule].values[path] = value
    return made


def _values(path: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict) and value and not isinstance(next(iter(value)), int):
        for key, each in value.items():
            yield from _values((*path, key), each)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for row in value:
            yield from _values((*path, tuple((name, row[name]) for name in _NAMES if name in row)), row)
    else:
        yield path, value


class _Node:
    """An object, or the rows of a list; not `live` if all that is left of it are counts of what is no more."""

    def __init__(self, empty: object = ...) -> None:
        self.values: dict[Any, Any] = {}
        self.live = False
        self.empty = empty
        """Return its value in a worker that has nothing in it."""


def document(families: Families) -> dict[str, Any]:
    """The document with these values. What is empty in one worker, and not in another, is not empty."""
    root = _Node()
    for table in families.values():
        for (*way, last), value in table.values.items():
            node = root
            for part in way:
                if not isinstance(inner := node.values.get(part, ...), _Node):
                    inner = node.values[part] = _Node(inner)
                node = inner
                node.live |= table.kind == "gauge"
            if isinstance(inner := node.values.get(last), _Node):
                inner.empty = value
            else:
                node.values[last] = value
    made: dict[str, Any] = _finished(root)
    return made


def _finished(node: _Node) -> Any:
    values = node.values
    if values and all(isinstance(key, tuple) for key in values):
        rows = sorted(values.items(), key=lambda row: _order(row[0]))
        # A model version has gone with its last worker; the size of a batch, or a tenant, has not.
        return [dict(key) | _finished(row) for key, row in rows if row.live or len(key) == 1]
    return {
        key: value if not isinstance(value, _Node) else value.empty if _is_past(value) else _finished(value)
        for key, value in values.items()
    }


def _is_past(node: _Node) -> bool:
    return node.empty is None and not node.live


def _order(names: tuple[tuple[str, object], ...]) -> list[tuple[int, str]]:
    texts = [str(value) for _, value in names]
    return [(int(text), "") if text.isdecimal() else (-1, text) for text in texts]
