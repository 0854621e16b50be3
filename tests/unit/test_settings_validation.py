"""Values by annotations: what is converted, what is refused, and where a mistake is."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from modserve.settings.validation import After, Before, Bounds, Instead, SettingsError, checked, converted


def positive(value: int) -> int:
    if value <= 0:
        raise ValueError("not positive")
    return value


@pytest.mark.parametrize(
    ("annotation", "value", "result"),
    [
        *((int, 3, 3), (int, "3", 3), (int, 3.0, 3), (int, True, 1)),
        *((bool, True, True), (bool, 0, False), (str, "x", "x")),
        *((int | None, None, None), (int | None, 5, 5)),
        (Literal["a", "b"], "b", "b"),
        (tuple[str, ...], ["a", "b"], ("a", "b")),
        (tuple[str, int], ["a", "2"], ("a", 2)),
        (frozenset[int], {1, "2"}, frozenset({1, 2})),
        (Mapping[str, tuple[str, ...]], {"a": ["b"]}, {"a": ("b",)}),
        (Mapping[str, object], {"a": 1j}, {"a": 1j}),
        (Annotated[str, Before(str)], 3, "3"),
        (Annotated[int, Before(str), Before(abs)], -3, 3),
        (Annotated[str, After(str.upper)], "a", "A"),
        (Annotated[Path, Instead(Path)], "a", Path("a")),
        (Annotated[int, Bounds(1, 3)], 3, 3),
        (Annotated[int | None, Bounds(1)], None, None),
    ],
)
def test_what_is_converted(annotation: Any, value: Any, result: object) -> None:
    made = converted(annotation, value)
    assert (type(made), made) == (type(result), result)


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, "x", "Input should be a valid integer"),
        (int, 1.5, "Input should be a valid integer"),
        (int, float("nan"), "Input should be a valid integer"),
        (int, None, "Input should be a valid integer"),
        (bool, "maybe", "Input should be a valid boolean"),
        (str, 3, "Input should be a valid string"),
        (Path, 3, "Input should be a valid Path"),
        (Literal["a", "b", "c"], "d", "Input should be 'a', 'b' or 'c'"),
        (Literal["a"], ["a"], "Input should be 'a'"),
        (tuple[str, ...], "ab", "Input should be a valid tuple"),
        (tuple[str, str], ("a",), "Input should have 2 items"),
        (frozenset[str], 7, "Input should be a valid set"),
        (Mapping[str, str], [], "Input should be a valid dictionary"),
        (Mapping[str, str], {"a": 1}, "Input should be a valid string"),
        (Annotated[int, Bounds(1)], 0, "Input should be greater than or equal to 1"),
        (Annotated[int, Bounds(1, 3)], 4, "Input should be less than or equal to 3"),
        (Annotated[int, After(positive)], 0, "not positive"),
    ],
)
def test_what_is_refused(annotation: Any, value: object, text: str) -> None:
    with pytest.raises(ValueError, match="^" + text):
        converted(annotation, value)


@dataclasses.dataclass
class Inner:
    number: Annotated[int, Bounds(0)] = 0


@dataclasses.dataclass
class Outer:
    inner: Inner
    names: frozenset[Annotated[str, After(str.lower)]] = frozenset()


def test_all_mistakes_with_their_places() -> None:
    with pytest.raises(SettingsError) as caught:
        checked(Outer, {"inner": {"number": -1, "nosuch": 2}, "names": ["a", 3]})
    assert caught.value.mistakes == (
        (("inner", "number"), "Input should be greater than or equal to 0", -1),
        (("inner", "nosuch"), "there is no such setting", None),
        (("names",), "Input should be a valid string", 3),
    )
    assert str(caught.value).splitlines()[0] == "inner.number: Input should be greater than or equal to 0"


def test_a_class_inside_another_may_be_a_mapping() -> None:
    assert checked(Outer, {"inner": {"number": "3"}, "names": ["A"]}) == {"inner": Inner(3), "names": frozenset("a")}
    assert checked(Outer, {"inner": Inner(5)}) == {"inner": Inner(5)}
