"""JSON bodies of calls other than inference."""

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.protocol.control import control_body


def test_an_object() -> None:
    assert control_body.read(b'{"a":[{"b":1}]}') == {"a": [{"b": 1}]}


def nested(depth: int) -> bytes:
    """A value in `depth` objects and arrays."""
    return b'{"a":' + b"[" * (depth - 1) + b"1" + b"]" * (depth - 1) + b"}"


def test_many_that_are_not_deep() -> None:
    assert len(str(control_body.read(b'{"a":[' + b",".join([b"[{}]"] * 200) + b"]}"))) > 200


def test_brackets_in_text() -> None:
    assert control_body.read(b'{"a":"%b"}' % (b"[{" * 200)) == {"a": "[{" * 200}


def test_the_deepest() -> None:
    assert list(control_body.read(nested(99))) == ["a"]


@pytest.mark.parametrize("depth", [100, 1000, 2000, 100_000])
def test_deeper(depth: int) -> None:
    with pytest.raises(ModserveError) as caught:
        control_body.read(nested(depth))
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "JSON nesting depth exceeds maximum allowed limit (100)",
    )


@pytest.mark.parametrize("part", [b"0,", b"[],", b"{},"])
def test_values_of_calls_other_than_inference_are_few(part: bytes) -> None:
    """Of a few megabytes of them, Python objects take hundreds."""
    with pytest.raises(ModserveError, match="values, lists and objects, at most 100000 are possible"):
        control_body.read(b'{"x":[' + part * 100_001 + b"0]}")


def test_long_texts_of_calls_other_than_inference() -> None:
    assert control_body.read(b'{"x":"%b"}' % (b"A" * 1_000_000)) == {"x": "A" * 1_000_000}
