"""Request to several servers, and the differences between their responses."""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from modserve.client.input_values import ClientCall, Result

from ..server_set import Outcome, ServerSet, failure_text
from ..terminal import duration, indent_lines, table
from . import output

_HEAD = ("server", "version", "after", "outputs")


def infer_on_all(servers: ServerSet, call: ClientCall) -> list[Outcome[Result]]:
    """Send `call` to all servers concurrently. It must suit all of them."""
    return servers.call(lambda server: server.infer(call))


def text_lines(outcomes: Sequence[Outcome[Result]]) -> Iterator[str]:
    """Yield the first response, and a row for each server."""
    first = next((each for each in outcomes if each.error is None), None)
    if first is not None:
        yield from output.lines(first.value, first.seconds)
        yield ""
    head, rule, *body = table(_HEAD, [_row(each, first) for each in outcomes])
    yield head
    yield rule
    for text, each in zip(body, outcomes, strict=True):
        yield text
        if each.error is not None:
            yield from indent_lines(failure_text(each.error, each.url))


def _row(each: Outcome[Result], first: Outcome[Result] | None) -> tuple[str, str, str, str]:
    if each.error is not None or first is None:
        return each.url, "-", duration(each.seconds), "failed"
    version = "-" if each.value.version is None else str(each.value.version)
    shown = "these" if each is first else difference(each.value, first.value) or "the same"
    return each.url, version, duration(each.seconds), shown


def difference(other: Result, first: Result) -> str:
    """Describe the differences between two responses; empty if there are none."""
    texts = []
    for name in sorted(other.tensors.keys() | first.tensors.keys()):
        if name not in other.tensors or name not in first.tensors:
            texts.append(f"{name} is only in one response")
            continue
        one, two = other.tensors[name], first.tensors[name]
        if (one.datatype, one.shape) != (two.datatype, two.shape):
            texts.append(f"{name} is {one.datatype} {list(one.shape)}, not {two.datatype} {list(two.shape)}")
        elif one.datatype.json_kind == "float":
            values, others = one.array.astype(np.float64), two.array.astype(np.float64)
            if not np.array_equal(values, others, equal_nan=True):
                texts.append(f"{name} differs by up to {np.nanmax(np.abs(values - others), initial=0.0):.2g}")
        elif unequal := int(np.sum(one.array != two.array)):
            texts.append(f"{name} differs in {unequal} of {one.array.size} elements")
    return ", ".join(texts)


def json_lines(outcomes: Sequence[Outcome[Result]]) -> Iterator[str]:
    """Yield a JSON document for each server."""
    for each in outcomes:
        row = {"url": each.url, "seconds": each.seconds}
        body = {"error": each.error.message} if each.error is not None else output.document(each.value)
        yield json.dumps({**row, **body}, ensure_ascii=False)
