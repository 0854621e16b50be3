"""The command line of ``modserve bench``: what its words stand for, and which are refused."""

from pathlib import Path

import pytest

from modserve.commands.bench import plan
from modserve.commands.syntax import UsageError


def read(*words: str) -> plan.LoadPlan:
    return plan.read(plan.bench_parser().parse_args(["simple", *words]))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("X:3", ("X", (3,))),
        ("X:3,224,224", ("X", (3, 224, 224))),
        ("X:3x224x224", ("X", (3, 224, 224))),
        ("a:b:0", ("a:b", (0,))),
        ("X:999999999", ("X", (999_999_999,))),
    ],
)
def test_shapes(text: str, shape: tuple[str, tuple[int, ...]]) -> None:
    assert read("--shape", text).data.shapes == (shape,)


@pytest.mark.parametrize(
    "text", ["", "X", "3", ":3", ":", "X:", "X:3,", "X:a", "X:3,-1", "X:3,a", "X:٣", "X:1234567890"]
)
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read("--shape", text)
    assert f"expected NAME:SIZE,SIZE,…, got: {text}" in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "1234567890"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(UsageError, match="expected a whole number above 0"):
        read("--model-version", text)


def test_files_of_inputs() -> None:
    assert read("--input", "A=@f", "--input", "B=@a=b").data.files == (("A", Path("f")), ("B", Path("a=b")))


@pytest.mark.parametrize("text", ["", "A", "A=f", "A=@", "=@f"])
def test_what_is_no_file_of_an_input(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=@FILE"):
        read("--input", text)
