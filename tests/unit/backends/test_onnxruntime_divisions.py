"""Divisions of integers are guarded: they give what they gave before, or an error, and never end the process."""

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from modserve.backends.api import ModelSource
from modserve.backends.onnxruntime import element_types
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeModel
from modserve.backends.onnxruntime.divisions import GuardedModel, division_by_zero, guard_divisions
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KINDS = {name: helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (*INTEGERS, "float32")}
OPSET = 17


def value(name: str, kind: str = "int64", shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, KINDS[kind], shape)


def untyped(name: str) -> Any:
    return onnx.ValueInfoProto(name=name)


def model(nodes: Any, inputs: Any, outputs: Any, constants: Any = (), opset: int = OPSET, **more: Any) -> bytes:
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(constants).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), weights)
    more.setdefault("opset_imports", [helper.make_opsetid("", opset)])
    made: bytes = helper.make_model(graph, ir_version=8, **more).SerializeToString()
    return made


def division(op: str = "Div", kind: str = "int64", opset: int = OPSET, **attributes: Any) -> bytes:
    node = helper.make_node(op, ["A", "B"], ["C"], name="the division", **attributes)
    return model([node], [value("A", kind), value("B", kind)], [value("C", kind)], opset=opset)


def session(content: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"])


def loads(content: bytes) -> bool:
    try:
        session(content)
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        return False
    return True


def joined(after: GuardedModel) -> bytes:
    return b"".join(after.content)


def counts(content: bytes) -> "tuple[int, int] | None":
    """How many divisions have a guard, and how many cannot have one; None where nothing is changed."""
    after = guard_divisions(content)
    return None if after is None else (after.count, after.others)


def refused(content: bytes, feeds: dict[str, Any]) -> "str | None":
    """The name of the division that fails."""
    with pytest.raises(Exception, match="indices element out of data bounds") as caught:
        session(content).run(None, feeds)
    return division_by_zero(" ".join(str(caught.value).split()))


def exact(op: str, a: Array, b: Array) -> list[int]:
    """As by whole numbers of any size, in as many bits as there are."""
    results = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        result = quotient if op == "Div" else x % y
        results.append(result & (1 << 8 * a.itemsize) - 1)
    return np.array(results, f"u{a.itemsize}").view(a.dtype).tolist()  # type: ignore[no-any-return]


CASES = [
    (op, kind, opset)
    for op, kind, opset in itertools.product(("Div", "Mod"), INTEGERS, (7, 9, 13, 18))
    if (op == "Div" or opset >= 10) and (op == "Mod" or opset >= 14 or kind in ("int32", "int64"))
]


@pytest.mark.parametrize(("op", "kind", "opset"), CASES)
def test_results_are_as_before_and_nothing_traps(op: str, kind: str, opset: int) -> None:
    before = division(op, kind, opset)
    if not loads(before):  # older versions of ONNX Runtime divide fewer types
        assert kind not in ("int32", "int64")
        return
    after = guard_divisions(before)
    assert after is not None
    assert (after.count, after.others) == (1, 0)
    limits = np.iinfo(kind)
    numbers = [limits.min, limits.min + 1, -7 if limits.min else 9, 1, 7, limits.max]
    divisors = [-1 if limits.min else 3, 1, 2, 5, limits.max, limits.min or 4]
    pairs = np.array(list(itertools.product(numbers, divisors)), kind)
    a, b = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    run = session(joined(after))
    (results,) = run.run(None, {"A": a, "B": b})
    assert results.dtype == a.dtype
    assert results.tolist() == exact(op, a, b)
    for shape in ((), (1,), (2, 3), (0,)):
        ones = np.ones(shape, kind)
        assert run.run(None, {"A": ones, "B": ones})[0].shape == shape
    for zero in (np.zeros((), kind), np.array([1, 0, 1], kind)):
        assert refused(joined(after), {"A": np.array([1, 2, 3], kind), "B": zero}) == "the division"


@pytest.mark.parametrize(
    "content",
    [
        division("Div", "float32"),
        division("Mod", "int64", fmod=1),
        model([helper.make_node("Div", ["A", "B"], ["C"])], [value("A")], [value("C")], {"B": np.array([2, -2, 9])}),
        model(
            [helper.make_node("Div", ["A", "B"], ["C"])],
            [value("A", "uint8")],
            [value("C", "uint8")],
            {"B": np.array(255, np.uint8)},
        ),
        model(
            [
                helper.make_node("Constant", [], ["B"], value=numpy_helper.from_array(np.array(3))),
                helper.make_node("Mod", ["A", "B"], ["C"]),
            ],
            [value("A")],
            [value("C")],
        ),
        model(
            [
                helper.make_node("Sqrt", ["A"], ["ROOT"]),
                helper.make_node("ReduceMean", ["A"], ["MEAN"]),
                helper.make_node("Div", ["MEAN", "ROOT"], ["C"]),
            ],
            [value("A", "float32")],
            [value("C", "float32")],
        ),
        b"",
        b"no model",
        division()[:-4],
    ],
    ids=["floats", "fmod", "constant", "unsigned constant", "constant node", "followed", "empty", "text", "cut"],
)
def test_what_is_left_alone(content: bytes) -> None:
    assert guard_divisions(content) is None


def test_no_cut_of_a_model_is_a_fault() -> None:
    whole = within_an_if()
    for end in range(len(whole)):
        guard_divisions(whole[:end])


def test_what_is_made_is_onnx() -> None:
    node = helper.make_node("Div", ["A", "B"], ["C"])
    after = guard_divisions(model([node], [value(name, "int32", ["n"]) for name in "AB"], [value("C", "int32", ["n"])]))
    assert after is not None
    onnx.checker.check_model(onnx.load_from_string(joined(after)), full_check=True)


@pytest.mark.parametrize("constant", [[2, 0], [5, -1]], ids=["zero", "minus one"])
def test_constants_that_do_harm(constant: list[int]) -> None:
    content = model([helper.make_node("Div", ["A", "B"], ["C"])], [value("A")], [value("C")], {"B": np.array(constant)})
    assert counts(content) == (1, 0)


def test_a_constant_that_requests_may_replace(tmp_path: Path) -> None:
    inputs = [value("A"), value("B", shape=[])]
    assert counts(model([helper.make_node("Div", ["A", "B"], ["C"])], inputs, [value("C")], {"B": np.array(2)})) == (
        1,
        0,
    )


MAKERS: dict[str, Any] = {
    "Shape": ([helper.make_node("Shape", ["X"], ["B"])], "float32"),
    "Cast": ([helper.make_node("Cast", ["X"], ["B"], to=TensorProto.INT64)], "float32"),
    "ArgMax": ([helper.make_node("ArgMax", ["X"], ["B"], axis=0)], "float32"),
    "TopK": (
        [helper.make_node("Constant", [], ["K"], value_ints=[1]), helper.make_node("TopK", ["X", "K"], ["_", "B"])],
        "float32",
    ),
    "Unique": ([helper.make_node("Unique", ["X"], ["U", "", "", "B"])], "float32"),
    "Where": (
        [helper.make_node("Equal", ["X", "X"], ["E"]), helper.make_node("Where", ["E", "X", "X"], ["B"])],
        "int64",
    ),
    "OneHot": (
        [
            helper.make_node("Constant", [], ["K"], value_int=2),
            helper.make_node("Constant", [], ["V"], value_ints=[0, 1]),
            helper.make_node("OneHot", ["X", "K", "V"], ["B"]),
        ],
        "float32",
    ),
    "ConstantOfShape": (
        [
            helper.make_node("Shape", ["X"], ["S"]),
            helper.make_node("ConstantOfShape", ["S"], ["B"], value=numpy_helper.from_array(np.array([0]))),
        ],
        "float32",
    ),
    "Sequence": (
        [
            helper.make_node("Constant", [], ["K"], value_int=0),
            helper.make_node("SplitToSequence", ["X"], ["Q"]),
            helper.make_node("SequenceAt", ["Q", "K"], ["B"]),
        ],
        "int64",
    ),
    "EyeLike": ([helper.make_node("EyeLike", ["X"], ["B"], dtype=TensorProto.INT64)], "float32"),
    "Multinomial": ([helper.make_node("Multinomial", ["X"], ["B"])], "float32"),
    "QuantizeLinear": (
        [
            helper.make_node("Constant", [], ["K"], value_float=1.0),
            helper.make_node("QuantizeLinear", ["X", "K"], ["B"]),
        ],
        "float32",
    ),
    "ReduceProd": ([helper.make_node("ReduceProd", ["X"], ["B"])], "int64"),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_types_are_followed(maker: str) -> None:
    """Between the nodes, where the file says nothing."""
    nodes, kind = MAKERS[maker]
    content = model(
        [
            *nodes,
            helper.make_node("Div", ["B", "B"], ["D"]),
            helper.make_node("Cast", ["D"], ["C"], to=TensorProto.INT64),
        ],
        [value("X", kind)],
        [value("C")],
    )
    after = guard_divisions(content)
    assert after is not None
    assert (after.count, after.others) == (1, 0)
    session(joined(after))  # which checks the types


def test_the_other_operand_says_the_type() -> None:
    nodes = [
        helper.make_node("Somehow", ["X"], ["B"], domain="elsewhere"),
        helper.make_node("Div", ["A", "B"], ["C"]),
        helper.make_node("Div", ["B", "B"], ["D"]),
    ]
    assert counts(model(nodes, [value("X"), value("A")], [value("C"), untyped("D")])) == (1, 1)
    assert (
        counts(model(nodes, [value("X"), value("A", "float32")], [value("C", "float32"), value("D", "float32")]))
        is None
    )


def within_an_if() -> bytes:
    branch = helper.make_graph([helper.make_node("Div", ["A", "B"], ["Q"], name="inside")], "then", [], [untyped("Q")])
    other = helper.make_graph([helper.make_node("Identity", ["A"], ["I"])], "else", [], [untyped("I")])
    nodes = [
        helper.make_node("If", ["COND"], ["R"], then_branch=branch, else_branch=other),
        helper.make_node("Div", ["R", "B"], ["C"], name="outside"),
    ]
    cond = helper.make_tensor_value_info("COND", TensorProto.BOOL, [])
    return model(nodes, [cond, value("A"), value("B")], [value("C")])


def test_graphs_within_nodes() -> None:
    after = guard_divisions(within_an_if())
    assert after is not None
    assert (after.count, after.others) == (2, 0)
    one, zero = np.array([1]), np.array([0])
    assert refused(joined(after), {"COND": np.array(True), "A": one, "B": zero}) == "inside"
    assert refused(joined(after), {"COND": np.array(False), "A": one, "B": zero}) == "outside"
    lowest = np.array([np.iinfo(np.int64).min])
    assert session(joined(after)).run(None, {"COND": np.array(True), "A": lowest, "B": -one}) == [lowest]


def test_loops() -> None:
    """Whose graph's inputs need no types."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Div", ["value", "number"], ["next"], name="in a loop"),
        ],
        "body",
        [untyped("number"), untyped("go"), untyped("value")],
        [untyped("goes"), untyped("next")],
    )
    nodes = [helper.make_node("Loop", ["N", "", "A"], ["D"], body=body), helper.make_node("Div", ["D", "D"], ["C"])]
    content = model(nodes, [value("N", shape=[]), value("A", shape=[])], [value("C")])
    assert counts(content) == (2, 0)


def function_model(*kinds: str) -> bytes:
    """A function, called with each of some types, that calls another one which divides."""
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    divides = helper.make_function(
        "own", "Divide", ["X", "Y"], ["Z"], [helper.make_node("Div", ["X", "Y"], ["Z"], name="deep")], imports[:1]
    )
    calls = helper.make_function(
        "own", "Call", ["X", "Y"], ["Z"], [helper.make_node("Divide", ["X", "Y"], ["Z"], domain="own")], imports
    )
    nodes = [helper.make_node("Call", [f"A{kind}", f"B{kind}"], [f"C{kind}"], domain="own") for kind in kinds]
    inputs = [value(f"{letter}{kind}", kind) for kind in kinds for letter in "AB"]
    outputs = [value(f"C{kind}", kind) for kind in kinds]
    return model(nodes, inputs, outputs, functions=[divides, calls], opset_imports=imports)


def test_functions() -> None:
    after = guard_divisions(function_model("int32"))
    assert after is not None
    assert (after.count, after.others) == (1, 0)
    run = session(joined(after))
    lowest, one = np.array([-(2**31)], np.int32), np.array([1], np.int32)
    assert run.run(None, {"Aint32": lowest, "Bint32": -one}) == [lowest]
    assert refused(joined(after), {"Aint32": one, "Bint32": one - 1}) is not None
    assert counts(function_model("float32")) is None
    assert counts(function_model("float32", "int64")) == (0, 1)  # one guard cannot be for both


def test_functions_whose_type_the_call_says() -> None:
    own = helper.make_opsetid("own", 1)
    cast = helper.make_node("Cast", ["X"], ["Z"])
    cast.attribute.append(onnx.AttributeProto(name="to", type=onnx.AttributeProto.INT, ref_attr_name="kind"))
    function = helper.make_function(
        "own", "As", ["X"], ["Z"], [cast], [helper.make_opsetid("", OPSET)], attributes=["kind"]
    )
    for kind, expected in ((TensorProto.INT64, (1, 0)), (TensorProto.FLOAT, None)):
        nodes = [
            helper.make_node("As", ["A"], ["B"], domain="own", kind=kind),
            helper.make_node("Div", ["B", "B"], ["D"]),
            helper.make_node("Cast", ["D"], ["C"], to=TensorProto.INT64),
        ]
        content = model(
            nodes, [value("A")], [value("C")], functions=[function], opset_imports=[helper.make_opsetid("", OPSET), own]
        )
        assert counts(content) == expected


def test_functions_that_call_each_other_are_no_hang() -> None:
    """Each calls the next one twice."""
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(40):
        inner = f"F{level + 1}" if level < 39 else "Abs"
        domain = "own" if level < 39 else ""
        nodes = [
            helper.make_node(inner, ["X"], ["Y"], domain=domain),
            helper.make_node(inner, ["Y"], ["Z"], domain=domain),
        ]
        functions.append(helper.make_function("own", f"F{level}", ["X"], ["Z"], nodes, imports))
    nodes = [helper.make_node("F0", ["A"], ["B"], domain="own"), helper.make_node("Div", ["B", "B"], ["C"])]
    content = model(nodes, [value("A")], [value("C")], functions=functions, opset_imports=imports)
    assert counts(content) == (1, 0)


# In the backend

DIVIDES = ModelConfig(
    name="m",
    backend="onnxruntime",
    inputs=tuple(TensorSpec(name, dtypes.INT64, (-1,)) for name in "AB"),
    outputs=(TensorSpec("C", dtypes.INT64, (-1,)),),
)


def opened(path: Path, content: bytes) -> OnnxRuntimeModel:
    path.write_bytes(content)
    return OnnxRuntimeBackend().open(ModelSource(DIVIDES, 1, path, path.parent))


def test_a_division_by_zero_fails_its_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "modserve")
    instance = opened(tmp_path / "model.onnx", division()).instance(instance_spec(DIVIDES))
    assert "model 'm' divides integers in 1 nodes: requests with a divisor 0 are refused" in caplog.text
    with pytest.raises(ModserveError) as caught:
        instance.execute({"A": np.array([1, 2]), "B": np.array([1, 0])}, ("C",))
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == ("the request makes the graph divide an integer by 0, in node 'the division'")
    lowest = np.array([np.iinfo(np.int64).min])
    assert instance.execute({"A": lowest, "B": np.array([-1])}, ("C",))["C"] == lowest


def test_a_guard_that_does_not_fit_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(element_types, "_FIXED", {"Sqrt": (element_types.INT64,)})
    nodes = [helper.make_node("Sqrt", ["A"], ["R"]), helper.make_node("Div", ["R", "R"], ["C"])]
    content = model(nodes, [value("A", "float32", ["n"])], [untyped("C")])
    assert counts(content) == (1, 0)
    made = opened(tmp_path / "model.onnx", content).instance(instance_spec(config()))
    assert made.execute({"A": np.array([4], np.float32)}, ("C",))["C"].tolist() == [1]
    assert "may divide integers in 1 nodes that cannot be guarded" in caplog.text


def test_a_model_that_does_not_load_says_why_though_it_has_guards(tmp_path: Path) -> None:
    nodes = [helper.make_node("Unheard", ["A"], ["B"]), helper.make_node("Div", ["A", "B"], ["C"])]
    with pytest.raises(ModserveError, match="Unheard") as caught:
        opened(tmp_path / "model.onnx", model(nodes, [value("A")], [value("C")]))
    assert "modserve" not in caught.value.message


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Which are found, and are no constants that anything is known of."""
    content = model([helper.make_node("Div", ["A", "B"], ["C"])], [value("A")], [value("C")], {"B": np.array([3, 3])})
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load_from_string(content), path, save_as_external_data=True, location="weights", size_threshold=0)
    assert counts(path.read_bytes()) == (1, 0)
    made = opened(path, path.read_bytes()).instance(instance_spec(config()))
    assert made.execute({"A": np.array([7, 9])}, ("C",))["C"].tolist() == [2, 3]
