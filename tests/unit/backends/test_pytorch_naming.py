"""Which tensor of a configuration is which argument or result of a PyTorch model. Without PyTorch."""

import json
import logging
from typing import Any

import pytest

from modserve.backends.pytorch import naming
from modserve.backends.pytorch.naming import Argument, ProgramTensor, Structure
from modserve.core.errors import Code, ModserveError

TENSORS = [Argument("x", "tensor"), Argument("y", "tensor")]
LEAF: dict[str, object] = {"type": None, "context": None, "children_spec": []}


def bound(arguments: list[Argument], *names: str) -> dict[str, Any]:
    heard: list[str] = []
    return {argument.name: part for argument, part in naming.bind_arguments("m", arguments, names, heard.append)}


def refusal(arguments: list[Argument], *names: str) -> str:
    with pytest.raises(ModserveError) as caught:
        bound(arguments, *names)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "index"),
    [("x__0", 0), ("x__12", 12), ("__3", 3), ("x__", None), ("x", None), ("x__a", None), ("x_0", None)],
)
def test_index(name: str, index: int | None) -> None:
    assert naming.index_of(name) == index


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("y", "x"), {"x": "x", "y": "y"}),
        (("b__1", "a__0"), {"x": "a__0", "y": "b__1"}),
        (("second", "first"), {"x": "second", "y": "first"}),
        (("x", "why"), {"x": "x", "y": "why"}),
        (("b__1", "a"), {"x": "b__1", "y": "a"}),
    ],
    ids=["names", "indices", "order", "order since one is unknown", "order since one has no index"],
)
def test_the_three_conventions(names: tuple[str, ...], expected: dict[str, str]) -> None:
    assert bound(TENSORS, *names) == expected


def test_the_order_is_told() -> None:
    heard: list[str] = []
    naming.bind_arguments("model 'm'", TENSORS, ["a", "b"], heard.append)
    assert heard == [
        "model 'm': inputs 'a', 'b' are matched in this order to 'x', 'y', "
        "because their names are neither these nor NAME__index"
    ]


@pytest.mark.parametrize(
    ("arguments", "names", "expected"),
    [
        ([Argument("d", "dict")], ("a", "d[b]", "c__0"), {"d": {"a": "a", "b": "d[b]", "c__0": "c__0"}}),
        ([Argument("xs", "list")], ("a", "b"), {"xs": ["a", "b"]}),
        ([Argument("xs", "list")], ("b__1", "a__0"), {"xs": ["a__0", "b__1"]}),
        ([Argument("p", "tuple", size=2), TENSORS[0]], ("x", "p[1]", "p[0]"), {"p": ("p[0]", "p[1]"), "x": "x"}),
        ([Argument("p", "tuple", size=2), TENSORS[0]], ("a__0", "b__1", "c__2"), {"p": ("a__0", "b__1"), "x": "c__2"}),
        ([TENSORS[0], Argument("xs", "list")], ("xs[1]", "xs[0]", "x"), {"x": "x", "xs": ["xs[0]", "xs[1]"]}),
        ([TENSORS[0], Argument("d", "dict")], ("x", "d[a b]"), {"x": "x", "d": {"a b": "d[a b]"}}),
        ([TENSORS[0], Argument("y", "tensor", required=False)], ("x",), {"x": "x"}),
        ([TENSORS[0], Argument("odd", "", "Device", required=False)], ("x",), {"x": "x"}),
        ([Argument("t", "strings"), Argument("n", "number")], ("n", "t"), {"t": "t", "n": "n"}),
    ],
)
def test_structures(arguments: list[Argument], names: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert bound(arguments, *names) == expected


@pytest.mark.parametrize(
    ("arguments", "names", "text"),
    [
        (TENSORS, ("x",), "m: the model takes 2 inputs ('x', 'y'), but the configuration has none for 'y'"),
        (
            TENSORS,
            ("a", "b", "c"),
            "input 'c' is the model's input number 2, counted from 0, but it has 2 ('x', 'y')",
        ),
        (TENSORS, ("a__1", "b__1"), "m: two of the inputs 'a__1', 'b__1' are the same input of the model"),
        (
            [Argument("odd", "", "Device")],
            ("odd",),
            "'odd' of the model is a Device, which cannot be an input",
        ),
        (
            [*TENSORS, Argument("d", "dict")],
            ("x", "y"),
            "'d' is a dict of tensors; inputs for it are called d[key]",
        ),
    ],
)
def test_what_does_not_fit(arguments: list[Argument], names: tuple[str, ...], text: str) -> None:
    assert text in refusal(arguments, *names)


def spec(kind: str, context: object, *children: object) -> dict[str, object]:
    return {"type": kind, "context": json.dumps(context), "children_spec": list(children)}


PAIR = spec("builtins.tuple", None, LEAF, spec("builtins.dict", ["deep", "flat"], LEAF, LEAF))
CALL = json.dumps([1, spec("builtins.tuple", None, PAIR, spec("builtins.dict", ["kw"], LEAF))])


def test_structures_as_pytorch_writes_them() -> None:
    inputs = naming.parse_structure(CALL)
    assert inputs.paths() == [(0, 0), (0, 1, "deep"), (0, 1, "flat"), (1, "kw")]
    assert inputs.template(iter("abcd")) == (("a", {"deep": "b", "flat": "c"}), {"kw": "d"})
    slots = naming.program_inputs(inputs, ("x", "options"))
    assert [slot.names for slot in slots] == [
        ("x", "ARGS[0]"),
        ("options[deep]", "ARGS[1][deep]"),
        ("options[flat]", "ARGS[1][flat]"),
        ("kw", "KWARGS[kw]"),
    ]
    assert naming.program_inputs(inputs)[0].names == ("ARGS[0]",)


def test_a_structure_that_cannot_be_served() -> None:
    with pytest.raises(ModserveError, match=r"takes or returns a my\.Class; only tensors and"):
        naming.parse_structure(json.dumps([1, spec("my.Class", None, LEAF)]))


def test_results() -> None:
    paths: list[naming.Path] = [("b",), ("a", 0), ("a", 1)]
    for names in (("a[1]", "b"), ("RESULT[a][1]", "RESULT[b]"), ("o__2", "o__0")):
        assert naming.bind_results("m", names, paths) == {names[0]: 2, names[1]: 0}
    assert naming.bind_results("m", ["o"], [()]) == {"o": 0}
    assert naming.bind_results("m", ["RESULT"], [()]) == {"RESULT": 0}
    assert naming.bind_results("m", ["p", "q"], [(0,), (1,), (2,)]) == {"p": 0, "q": 1}
    assert naming.bind_results("m", ["p__1", "q__1"], [(0,), (1,)]) == {"p__1": 1, "q__1": 1}
    with pytest.raises(ModserveError, match=r"m has no output 'c': it has 'b', 'a\[0\]', 'a\[1\]'"):
        naming.bind_results("m", ["b", "c"], paths)


def test_flatten() -> None:
    value = {"a": (1, [2, 3]), "s": ["x", "y"], "e": [], "n": None}
    assert list(naming.flatten(value)) == [
        (("a", 0), 1),
        (("a", 1, 0), 2),
        (("a", 1, 1), 3),
        (("s",), ["x", "y"]),
        (("e",), []),
        (("n",), None),
    ]
    assert list(naming.flatten(5)) == [((), 5)]


def test_fill() -> None:
    assert naming.fill(("a", ["b"], {"k": "a"}), {"a": 1, "b": 2}) == (1, [2], {"k": 1})
    with pytest.raises(KeyError):
        naming.fill(["z"], {})


def test_a_list_has_its_slots() -> None:
    assert Structure("list", (0,), (Structure("leaf"),)).template(iter("a")) == ["a"]
    assert naming.result_slots([("k", 1)]) == [ProgramTensor(("k", 1), ("k[1]", "RESULT[k][1]"))]


def test_instances_that_bind_the_same_names_write_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    note = naming.OnceLog(logging.getLogger("modserve.test"))
    for _ in range(2):
        naming.bind_arguments("m", TENSORS, ["first", "second"], note)
    assert [record.message for record in caplog.records] == [
        "m: inputs 'first', 'second' are matched in this order to 'x', 'y', "
        "because their names are neither these nor NAME__index"
    ]
