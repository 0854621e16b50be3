"""JSON that is small on the wire and large in memory, or much work: refused in little of either."""

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import pytest
from server_process import ServerProcess

from attack.measuring import Limits, attacked
from attack.sending import (
    GZIP,
    INFER,
    REFUSALS,
    assert_answers,
    gzipped,
    json_input,
    post,
    repeated,
)

TEXTS: Final = "/v2/models/texts/infer"
NUMBERS: Final = "/v2/models/numbers/infer"
MOST: Final = 17_500_000
"""More than fit into 24 bits, which is where a parser's own count of elements may end."""

_ERROR_BYTES = 6 * 1024
"""An error's text, and the JSON around it."""

Parts = Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class Row:
    """A body that is made when it is sent; `path` is where, `right` the statuses that are right."""

    name: str
    parts: Parts
    path: str = INFER
    packed: bool = True
    right: frozenset[int] = REFUSALS
    limits: Limits = field(default_factory=Limits)
    times: int = 1


def text(before: str, element: str, count: int, after: str) -> Parts:
    return functools.partial(repeated, element.encode(), count, before.encode(), after.encode())


def document(value: object) -> Parts:
    return lambda: [json.dumps(value, separators=(",", ":")).encode()]


LOAD: Final = "/v2/repository/models/simple/load"
PREDICT: Final = "/v1/models/numbers:predict"
_TENSOR = '{"inputs":[{"name":"INPUT0","datatype":"%s","shape":[1,1],'
_LARGE = Limits(peak_mb=1000, cpu_seconds=8)
"""Of bodies that inflate to tens of megabytes: what they become may fill the server's memory budget, not more."""

MANY_ELEMENTS: Final = (
    # 2 bytes an element: 33.6 MB, which is within the limit on JSON.
    Row("a list of outputs", text('{"outputs":[', "0", MOST, '],"inputs":[]}'), limits=_LARGE),
    Row("a list of inputs", text('{"inputs":[', "0", MOST, "]}"), limits=_LARGE),
    Row("a shape", text('{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[', "1", MOST, '],"data":[1]}]}'),
        limits=_LARGE),
    Row("a parameter", text('{"parameters":{"x":[', "0", MOST, ']},"inputs":[]}'), limits=_LARGE),
    Row("an unknown key", text('{"inputs":[],"zzz":[', "0", MOST, "]}"), limits=_LARGE),
    Row("data of another type", text(_TENSOR % "BYTES" + '"data":[', "0", MOST, "]}]}"), TEXTS, limits=_LARGE),
    Row("data of numbers", text(_TENSOR % "FP32" + '"data":[', "0", MOST, "]}]}"), NUMBERS, limits=_LARGE),
    Row("data of booleans", text(_TENSOR % "FP32" + '"data":[', "[]", MOST, "]}]}"), NUMBERS, limits=_LARGE),
    Row("the document itself", text("[", "0", MOST, "]"), limits=_LARGE),
    Row("plain: a parameter", text('{"parameters":{"x":[', "0", MOST, ']},"inputs":[]}'), packed=False, limits=_LARGE),
    Row("plain: outputs", text('{"outputs":[', "0", MOST, '],"inputs":[]}'), packed=False, limits=_LARGE),
    Row("generate", text('{"text_input":[', "0", MOST, "]}"), "/v2/models/repeat/generate", limits=_LARGE),
    Row("v1", text('{"instances":[', "0", MOST, "]}"), PREDICT, limits=_LARGE),
    Row("a load's parameter", text('{"parameters":{"x":[', "0", MOST, "]}}"), LOAD, limits=_LARGE),
    Row("a log setting", text('{"log_verbose_level":[', "0", MOST, "]}"), "/v2/logging", limits=_LARGE),
)  # fmt: skip

BOMBS: Final = (
    # What a Python object costs for two bytes of text.
    Row("lists", text('{"parameters":{"x":[', "[]", 8_000_000, ']},"inputs":[]}'), limits=_LARGE),
    Row("objects", text('{"parameters":{"x":[', "{}", 8_000_000, ']},"inputs":[]}'), limits=_LARGE, times=3),
    Row("objects of one key", text('{"parameters":{"x":[', '{"a":0}', 4_000_000, ']},"inputs":[]}'), limits=_LARGE),
    Row("lists, plain", text('{"parameters":{"x":[', "[]", 8_000_000, ']},"inputs":[]}'), packed=False, limits=_LARGE),
    Row("floating point numbers", text('{"parameters":{"x":[', "1.5", 8_000_000, ']},"inputs":[]}'), limits=_LARGE),
    Row("deep", lambda: [b"[" * 1_000_000] * 30, limits=_LARGE),
    Row("one long number", lambda: [b'{"id":', b"9" * 30_000_000, b"}"], limits=_LARGE),
    Row("one long text", lambda: [b'{"id":"', b"a" * 30_000_000, b'","inputs":[]}'], limits=_LARGE),
    Row("keys", lambda: [b'{"parameters":{', b",".join(b'"k%d":0' % n for n in range(1_000_000)), b'},"inputs":[]}'],
        limits=_LARGE),
)  # fmt: skip

_LITTLE = Limits(peak_mb=128, cpu_seconds=1.5)
"""Of bodies of some kilobytes: nothing in them is worth more than a look."""


def shape_of(dimensions: int, size: int, **more: object) -> dict[str, object]:
    return {"inputs": [{**json_input([size] * dimensions, [1]), **more}]}


def outputs_twice(count: int) -> dict[str, object]:
    names = [f"n{index}" for index in range(count)]
    return {
        "inputs": [json_input([1, 16], [1] * 16), json_input([1, 16], [1] * 16, "INPUT1")],
        "outputs": [{"name": name} for name in [*names, names[-1]]],
    }


QUADRATIC: Final = (
    Row("40,000 dimensions", document(shape_of(40_000, 1 << 62)), limits=_LITTLE),
    Row("120,000 dimensions", document(shape_of(120_000, 1 << 62)), limits=_LITTLE),
    Row("300,000 dimensions, plain", document(shape_of(300_000, 1 << 62)), packed=False, limits=Limits(cpu_seconds=3)),
    Row("1,000,000 dimensions of 2", document(shape_of(1_000_000, 2)), limits=Limits(cpu_seconds=3)),
    Row("nested v1 instances", lambda: [b'{"instances":', b"[" * 100_000, b"1", b"]" * 100_000, b"}"],
        PREDICT, limits=_LITTLE),
    Row("v1, 40,000 dimensions", document({"inputs": [json_input([1 << 62] * 40_000, [1])]}), PREDICT,
        limits=_LITTLE),
    Row("outputs listed twice, 20,000", document(outputs_twice(20_000)), limits=_LITTLE),
    Row("outputs listed twice, 100,000", document(outputs_twice(100_000)), packed=False, limits=Limits(cpu_seconds=3)),
    Row("the same output 100,000 times", document({**outputs_twice(1), "outputs": [{"name": "OUTPUT0"}] * 100_000}),
        limits=Limits(cpu_seconds=3)),
    Row("the same input 100,000 times", document({"inputs": [json_input([1, 1], [1])] * 100_000}),
        limits=Limits(cpu_seconds=3)),
    Row("100,000 inputs", document({"inputs": [json_input([1, 1], [1], f"n{n}") for n in range(100_000)]}),
        limits=Limits(cpu_seconds=3)),
    Row("100,000 parameters", document({"parameters": {f"k{n}": n for n in range(100_000)}, "inputs": []}),
        limits=Limits(cpu_seconds=3)),
    Row("a name of 8 MB", document({"inputs": [json_input([1, 1], [1], "n" * (8 << 20))]}),
        limits=Limits(cpu_seconds=3)),
    Row("a datatype of 8 MB", document({"inputs": [json_input([1, 1], [1], datatype="n" * (8 << 20))]}),
        limits=Limits(cpu_seconds=3)),
)  # fmt: skip


def check(server: ServerProcess, row: Row) -> None:
    body = gzipped(row.parts()) if row.packed else b"".join(row.parts())
    headers = {"Content-Type": "application/json", **(GZIP if row.packed else {})}
    with attacked(server, f"JSON: {row.name}, {len(body):,} B", row.limits):
        for _ in range(row.times):
            answer = post(server, row.path, body, headers)
            assert answer.status in row.right, answer.body[:300]
            assert len(answer.body) <= _ERROR_BYTES
    assert_answers(server)


@pytest.mark.parametrize("row", MANY_ELEMENTS, ids=lambda row: row.name)
def test_arrays_of_more_than_2_to_the_24_elements(server: ServerProcess, row: Row) -> None:
    check(server, row)


@pytest.mark.parametrize("row", BOMBS, ids=lambda row: row.name)
def test_bombs(server: ServerProcess, row: Row) -> None:
    check(server, row)


@pytest.mark.parametrize("row", QUADRATIC, ids=lambda row: row.name)
def test_lists_longer_than_any_model_has_use_for(server: ServerProcess, row: Row) -> None:
    check(server, row)


def test_refused_bodies_leave_nothing(server: ServerProcess) -> None:
    """Eight of what is 48 KB on the wire and a gigabyte in Python objects, one after the other."""
    row = Row("objects", text('{"parameters":{"x":[', "{}", 16_500_000, ']},"inputs":[]}'))
    body = gzipped(row.parts())
    with attacked(server, "JSON: eight refused bodies", Limits(peak_mb=1000)):
        for _ in range(8):
            assert post(server, INFER, body, GZIP).status in REFUSALS


def test_gzip_bombs(server: ServerProcess) -> None:
    """A gigabyte of zeros in a megabyte, once and in two layers."""
    bomb = gzipped([bytes(1 << 20)] * 1024)
    with attacked(server, "gzip bombs", Limits(peak_mb=256, cpu_seconds=6)):
        for body in (bomb, gzipped([bomb]), bomb * 3, bomb[: len(bomb) // 2], bomb[:-8] + bytes(8)):
            assert post(server, INFER, body, GZIP).status in REFUSALS
        assert post(server, INFER, bomb, {"Content-Encoding": "gzip, gzip"}).status in REFUSALS | {415, 501}
        assert post(server, INFER, bomb, {"Content-Encoding": "deflate"}).status in REFUSALS
        assert post(server, INFER, bomb, {**GZIP, "Inference-Header-Content-Length": "100"}).status in REFUSALS


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_millions_of_empty_texts(server: ServerProcess, packed: bool) -> None:
    """4 bytes each on the wire, and a Python object each where somebody makes objects of them."""
    size = 4 * 8_000_000
    header = {
        "inputs": [
            {"name": "INPUT0", "datatype": "BYTES", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}
        ],
        "parameters": {"binary_data_output": True},
    }
    prefix = json.dumps(header).encode()
    parts = [prefix, *([bytes(1 << 20)] * (size >> 20)), bytes(size & ((1 << 20) - 1))]
    body = gzipped(parts) if packed else b"".join(parts)
    headers = {"Inference-Header-Content-Length": str(len(prefix)), **(GZIP if packed else {})}
    with attacked(server, f"8,000,000 empty texts, {len(body):,} B", Limits(peak_mb=1000, cpu_seconds=12)):
        answer = post(server, TEXTS, body, headers)
        assert answer.status in REFUSALS | {200}
        assert answer.status != 200 or answer.body.endswith(bytes(size))
