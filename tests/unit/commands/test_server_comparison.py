"""How two tensors count as alike, and the command line of a comparison."""

import numpy as np
import pytest

from modserve import cli
from modserve.commands.check.server_comparison import differs
from modserve.commands.remote_server import connect
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor


def floats(*values: float, kind: dtypes.Datatype = dtypes.FP32) -> Tensor:
    return Tensor.from_array(np.array(values, kind.numpy), kind)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (floats(1.0, 100.0), floats(1.0005, 100.09)),
        (floats(float("nan"), float("inf"), -float("inf")), floats(float("nan"), float("inf"), -float("inf"))),
        (floats(1e-9, 1.0), floats(-1e-9, 1.0)),  # nothing beside the others
        (floats(0.0), floats(0.0)),
        (floats(1.0, kind=dtypes.BF16), floats(1.0078125, kind=dtypes.BF16)),  # neighbours
        (floats(), floats()),
    ],
)
def test_alike(ours: Tensor, theirs: Tensor) -> None:
    assert differs(ours, theirs, "URL", 1e-3) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (
            floats(1, 2, 3),
            floats(1, 2.1, 3.1),
            "differs in 2 of 3 elements, first at [1] with 2.0 here, and 2.1 at",
        ),
        (floats(1.0), floats(float("nan")), "differs in 1 of 1 elements, first at [0] with 1.0 here, and nan at URL"),
        (floats(float("inf")), floats(-float("inf")), "with inf here, and -inf at URL"),
        (floats(1e-9), floats(2e-9), "differs in 1 of 1"),
        (floats(1.0), floats(1.0, 2.0), "is FP32 [1] here, and FP32 [2] at URL"),
        (floats(1.0), floats(1.0, kind=dtypes.FP64), "is FP32 [1] here, and FP64 [1] at URL"),
        (
            Tensor.from_array(np.array([[b"a", b"b"]], object), dtypes.BYTES),
            Tensor.from_array(np.array([[b"a", b"{c}"]], object), dtypes.BYTES),
            "differs in 1 of 2 elements, first at [0, 1] with b'b' here, and b'{c}' at URL",
        ),
        (
            Tensor.from_array(np.array(7, np.int64)),
            Tensor.from_array(np.array(8, np.int64)),
            "differs in 1 of 1 elements, first with 7 here, and 8 at URL",
        ),
    ],
)
def test_different(ours: Tensor, theirs: Tensor, text: str) -> None:
    assert text in differs(ours, theirs, "URL", 1e-3)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "grpc://[", "http://host:99999"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ModserveError, match=r"is not (an|the) address"):
        connect(url)


@pytest.mark.parametrize(
    "url", ["host", "host:8000", "http://host/prefix/", "https://host", "grpc://[::1]", "grpcs://h"]
)
def test_addresses(url: str) -> None:
    connect(url).close()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--against"], "option '--against' requires a value"),
        (["--tolerance", "1"], "option '--tolerance' is for '--against'"),
        (["--against", "host", "--tolerance", "-1"], "option '--tolerance': expected a number of 0 or more, got: -1"),
        (["--against", "host", "--tolerance", "x"], "option '--tolerance': expected a number of 0 or more, got: x"),
        (["--against", "host", "--tolerance", "inf"], "option '--tolerance': expected a number of 0 or more"),
    ],
)
def test_command_lines_that_are_none(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "models", *words]) == 2
    assert text in capsys.readouterr().err
