"""What the decorator reads of functions and classes, and what it says of those that cannot be models."""

import functools
import types
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from modserve.backends.python.worker.decorator import Context, Spec, definition_of, find, model
from modserve.backends.python.worker.definition import Definition

Points = Annotated[NDArray[np.float32], Spec(shape=[-1, 3])]
X = {"x": ("FP32", [3])}
Y = {"y": ("FP32", [1])}


def definition(target: object) -> Definition:
    known = definition_of(target)
    assert known is not None
    return known


def tensors(target: object) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    config = definition(target).config()
    return config["input"], config["output"]


# What hints say


class Label(TypedDict):
    label: str
    score: Annotated[float, Spec("FP32")]


class Pair(NamedTuple):
    first: NDArray[np.int64]
    second: Annotated[NDArray[np.str_], Spec(shape=[2], name="SECOND")]


def plain(text: str, count: int, scale: float, on: bool, raw: bytes, exact: np.uint8) -> str:
    return text


def arrays(
    any_length: NDArray[np.float32],
    points: Points,
    declared: Annotated[Any, Spec("FP16", [2])] | None = None,
) -> np.ndarray:
    return points


def test_single_values_are_tensors_with_one_element() -> None:
    inputs, outputs = tensors(model(plain))
    assert [(each["name"], each["data_type"], each["dims"]) for each in inputs] == [
        ("text", "TYPE_STRING", [1]),
        ("count", "TYPE_INT64", [1]),
        ("scale", "TYPE_FP64", [1]),
        ("on", "TYPE_BOOL", [1]),
        ("raw", "TYPE_STRING", [1]),
        ("exact", "TYPE_UINT8", [1]),
    ]
    assert outputs == [{"name": "output", "data_type": "TYPE_STRING", "dims": [1]}]


def test_arrays_have_the_datatype_of_their_hint_and_the_shape_of_their_spec() -> None:
    inputs, outputs = tensors(model(outputs={"y": (np.float32, (4,))})(arrays))
    assert inputs == [
        {"name": "any_length", "data_type": "TYPE_FP32", "dims": [-1]},
        {"name": "points", "data_type": "TYPE_FP32", "dims": [-1, 3]},
        {"name": "declared", "data_type": "TYPE_FP16", "dims": [2], "optional": True},
    ]
    assert outputs == [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}]


@pytest.mark.parametrize(("max_batch_size", "dims"), [(0, [-1]), (8, [1])])
def test_a_list_has_a_value_for_each_row(max_batch_size: int, dims: list[int]) -> None:
    @model(max_batch_size=max_batch_size)
    def upper(texts: list[str], others: Sequence[float]) -> list[str]:
        return texts

    inputs, outputs = tensors(upper)
    assert [each["dims"] for each in (*inputs, *outputs)] == [dims] * 3
    assert not definition(upper).by_row


def test_several_outputs_have_the_names_of_the_class_or_numbers() -> None:
    @model
    def labels(text: str) -> Label:
        return {"label": text, "score": 1}

    @model
    def pair(text: str) -> Pair:
        return Pair(np.zeros(1, np.int64), np.array(["a", "b"]))

    @model
    def two(text: str) -> tuple[str, float]:
        return text, 1.0

    def names(target: object) -> list[tuple[str, str]]:
        return [(each["name"], each["data_type"]) for each in tensors(target)[1]]

    assert names(labels) == [("label", "TYPE_STRING"), ("score", "TYPE_FP32")]
    assert names(pair) == [("first", "TYPE_INT64"), ("SECOND", "TYPE_STRING")]
    assert names(two) == [("output_0", "TYPE_STRING"), ("output_1", "TYPE_FP64")]


def test_a_default_makes_an_optional_input() -> None:
    @model
    def cut(text: str, length: int = 3, end: str | None = None) -> str:
        return text

    assert [each.get("optional", False) for each in tensors(cut)[0]] == [False, True, True]


def test_generators_are_decoupled() -> None:
    @model
    def count(upto: int) -> Iterator[int]:
        yield from range(upto)

    @model
    async def count_async(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @model
    def made(upto: int) -> Iterator[int]:
        return iter(range(upto))

    @model(inputs={"upto": ("INT64", [1])}, outputs={"n": ("INT64", [1])})
    def unhinted(upto):  # type: ignore[no-untyped-def]
        yield upto

    for each in (count, count_async, made, unhinted):
        assert definition(each).config()["model_transaction_policy"] == {"decoupled": True}
        assert definition(each).is_async == (each is count_async)


# The configuration


@pytest.mark.parametrize("isolation", ["process", "thread", "inline"])
def test_where_a_function_runs(isolation: str) -> None:
    @model(isolation=isolation)
    def f(x: float) -> float:
        return x

    parameters = None if isolation == "process" else {"EXECUTION_MODE": {"string_value": isolation}}
    assert definition(f).config().get("parameters") == parameters


def test_a_generator_cannot_run_on_the_event_loop() -> None:
    def f(x: float) -> Iterator[float]:
        yield x

    with pytest.raises(TypeError, match="'inline', where a generator cannot wait for slow readers; expected 'process'"):
        model(isolation="inline")(f)


def test_batching_and_the_rest_of_the_configuration() -> None:
    policy = {"latest": {"num_versions": 1}}

    @model(
        inputs=X,
        outputs=Y,
        max_batch_size=16,
        dynamic_batching={"max_queue_delay_microseconds": 100},
        instances=3,
        isolation="thread",
        config={"version_policy": policy, "parameters": {"a": {"string_value": "b"}}},
    )
    def f(x: Any) -> Any:
        return x

    assert definition(f).config() == {
        "backend": "python",
        "max_batch_size": 16,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
        "instance_group": [{"count": 3, "kind": "KIND_CPU"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
        "version_policy": policy,
        "parameters": {"a": {"string_value": "b"}, "EXECUTION_MODE": {"string_value": "thread"}},
    }


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, False),
        ({"max_batch_size": 1}, False),
        ({"max_batch_size": 2}, True),
        ({"max_batch_size": 2, "dynamic_batching": False}, False),
        ({"max_batch_size": 1, "dynamic_batching": True}, True),
        ({"max_batch_size": 2, "config": {"sequence_batching": {}}}, False),
    ],
)
def test_requests_are_merged_by_default_where_they_can_be(keywords: dict[str, Any], expected: bool) -> None:
    decorate: Callable[[Any], Any] = model(inputs=X, outputs=Y, **keywords)
    assert ("dynamic_batching" in definition(decorate(lambda x: x)).config()) == expected


def test_instances_may_be_an_instance_group() -> None:
    group = {"count": 1, "kind": "KIND_GPU", "gpus": [0]}
    for instances in (group, [group]):
        target = model(inputs=X, outputs=Y, instances=instances)(lambda x: x)
        assert definition(target).config()["instance_group"] == [group]


# Objects of several kinds


def test_a_decorated_object_stays_what_it_is() -> None:
    def f(x: float) -> float:
        return x + 1

    assert model(f) is f
    assert f(1) == 2


def test_classes_partial_functions_and_callable_objects() -> None:
    @model
    class Predict:
        def __init__(self, context: Context) -> None: ...
        def predict(self, x: float) -> float:
            return x

        def __call__(self) -> None: ...

    @model
    class Call:
        def __init__(self, scale: float = 1) -> None: ...
        def __call__(self, x: float) -> float:
            return x

    class Plain:
        @staticmethod
        def predict(x: float) -> float:
            return x

        def __call__(self, y: float) -> float:
            return y

    whole = functools.partial(lambda x, k: x * k, k=2)
    assert (definition(Predict).method, definition(Predict).takes_context) == ("predict", True)
    assert (definition(Call).method, definition(Call).takes_context) == ("__call__", False)
    assert definition(model(Plain)).inputs[0].key == "x"
    assert definition(model(Plain())).inputs[0].key == "y"
    assert definition(model(inputs=X, outputs=Y)(whole)).method == ""


def test_a_derived_class_is_no_model() -> None:
    @model(inputs=X, outputs=Y)
    class Base:
        def predict(self, x: Any) -> Any:
            return x

    class Derived(Base):
        pass

    assert definition_of(Derived) is None
    assert definition_of(3) is None


# Errors


def no_hint(x):  # type: ignore[no-untyped-def]
    return x


def bad_hint(x: dict[str, int]) -> str:
    return ""


def bare_array(x: np.ndarray) -> str:
    return ""


def no_return(x: str):  # type: ignore[no-untyped-def]
    return x


def no_input() -> str:
    return ""


def starred(*x: str) -> str:
    return ""


def positional(x: str, /) -> str:
    return x


def mixed(x: str, y: list[str]) -> str:
    return x


def stream(x: str) -> Iterator[str]:
    yield x


def unknown_name(x: "Unknown") -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def wrong_shape(x: Annotated[NDArray[np.float32], Spec(shape=[0])]) -> str:
    return ""


def twice(x: Annotated[str, Spec(name="a")], y: Annotated[str, Spec(name="a")]) -> str:
    return x


class NoCall:
    pass


class Needs:
    def __init__(self, a: int, b: int) -> None: ...
    def predict(self, x: str) -> str:
        return x


def one(x: Any) -> Any:
    return x


PROBLEMS: list[tuple[Any, dict[str, Any], str]] = [
    (no_hint, {}, "parameter 'x' has no type hint, and there is no inputs={'x': …}"),
    (bad_hint, {}, "input 'x': the type hint dict[str, int] does not describe a tensor; expected str, bytes, int"),
    (bare_array, {}, "input 'x': the type hint ndarray does not say the datatype"),
    (no_return, {}, "it has no return type hint, and there is no outputs="),
    (no_input, {}, "it has no inputs; expected parameters with type hints"),
    (starred, {}, "the parameter '*x' cannot be passed by keyword, as inputs are"),
    (positional, {}, "the parameter 'x' cannot be passed by keyword"),
    (mixed, {"max_batch_size": 2}, "it mixes single values (called once per row) with lists"),
    (stream, {"max_batch_size": 2}, "a generator with single values is called once for each request; expected max_"),
    (unknown_name, {}, "its type hints cannot be read: name 'Unknown' is not defined; import"),
    (wrong_shape, {}, "input 'x': shape is [0], expected a list of lengths without the batch dimension"),
    (twice, {}, "two of its inputs have the name 'a'"),
    (NoCall, {}, "the class has no method predict or __call__"),
    (Needs, {}, "its __init__ needs a, b; expected no parameters, or one for a modserve.Context"),
    (
        one,
        {"inputs": {"z": ("FP32", [1])}, "outputs": Y},
        "input 'z' is not a parameter of the function; its parameters: x",
    ),
    (one, {"inputs": {"x": ("FP33", [1])}, "outputs": Y}, "input 'x': 'FP33' is not a datatype; expected BOOL, UINT8"),
    (one, {"inputs": {"x": (np.complex64, [1])}, "outputs": Y}, "is not a datatype"),
    (
        one,
        {"inputs": {"x": "FP32"}, "outputs": Y},
        "input 'x': 'FP32' does not declare a tensor, expected (datatype, shape)",
    ),
    (one, {"inputs": {"x": ("FP32", 3)}, "outputs": Y}, "input 'x': shape is 3, expected a list of lengths"),
    (
        one,
        {"inputs": {"x": ("FP32", [])}, "outputs": Y},
        "shape is [], expected at least one length; a single number is",
    ),
    (one, {"inputs": {"x": Spec("FP32")}, "outputs": Y}, "has no shape, expected one such as [-1, 3]"),
    (one, {"inputs": [("x", "FP32")], "outputs": Y}, "expected tensors by name such as {'x': ('FP32', [-1, 3])}"),
    (one, {"inputs": X, "outputs": {}}, "it has no outputs; expected at least one"),
    (one, {"inputs": {"x": Spec("FP32", [1], optional=True)}, "outputs": Y}, "its parameter needs a default"),
    (one, {"inputs": X, "outputs": {"y": Spec("FP32", [1], optional=True)}}, "output 'y' is optional; only inputs"),
    (one, {"inputs": {}, "outputs": Y}, "it has no inputs"),
    (one, {"max_batch_size": -1}, "max_batch_size is -1, expected a number of 0 (no batch dimension) or more"),
    (one, {"max_batch_size": True}, "max_batch_size is True"),
    (one, {"isolation": "container"}, "isolation is 'container', expected 'process', 'thread' or 'inline'"),
    (one, {"dynamic_batching": 3}, "dynamic_batching is 3, expected True, False or a dict as in a configuration"),
    (one, {"dynamic_batching": True}, "dynamic_batching needs a max_batch_size above 0"),
    (one, {"instances": 0}, "instances is 0, expected a number of 1 or more, or an instance_group"),
    (one, {"instances": True}, "instances is True, expected a number of 1 or more"),
    (one, {"instances": [3]}, "instances is [3], expected a number of 1 or more"),
    (one, {"config": {"input": []}}, "config has the field 'input': use inputs=…"),
    (3, {}, "it is neither a function nor a class"),
    (len, {"inputs": X, "outputs": Y}, "parameter"),
]


@pytest.mark.parametrize(("target", "keywords", "text"), PROBLEMS, ids=[text[:30] for _, _, text in PROBLEMS])
def test_what_cannot_be_a_model_is_said_where_it_is_decorated(target: Any, keywords: dict[str, Any], text: str) -> None:
    decorate: Callable[[Any], Any] = model(**keywords)
    with pytest.raises(TypeError) as caught:
        decorate(target)
    assert text in str(caught.value)
    if hasattr(target, "__code__"):
        assert f"model '{target.__name__}' ({__file__}, line {target.__code__.co_firstlineno}): " in str(caught.value)


def test_what_takes_no_attributes_cannot_be_decorated() -> None:
    class Slotted:
        __slots__ = ()

        def __call__(self, x: str) -> str:
            return x

    with pytest.raises(TypeError, match="a Slotted cannot be decorated; decorate a function that calls it"):
        model(Slotted())


# In a module


def module(**names: object) -> types.ModuleType:
    made = types.ModuleType(__name__)
    made.__file__ = "model.py"
    vars(made).update(names)
    return made


def fresh(name: str = "f") -> Callable[[str], str]:
    def f(x: str) -> str:
        return x

    f.__qualname__ = name
    return model(f)


def test_the_model_of_a_module() -> None:
    first, second, imported = fresh(), fresh(), fresh()
    imported.__module__ = "elsewhere"
    assert find(module(x=3)) is None
    assert find(module(one=first, same=first, other=imported)) is definition_of(first)
    assert find(module(imported=imported)) is definition_of(imported)
    assert find(module(one=first, model=second)) is definition_of(second)
    with pytest.raises(TypeError, match=r"model.py has several decorated models \(a, b\); expected one, or one called"):
        find(module(a=first, b=second))
