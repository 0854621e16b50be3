"""From words of the command line and files to tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.commands.infer.arguments import InputSpec, parameter, remark_on_sizes, sample, tensors
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array


def no_pictures(file: str, content: bytes, spec: InputSpec) -> Array:
    return np.full(spec.shape[-1:], len(content), spec.datatype.numpy)[None]


def spec(datatype: Datatype = dtypes.INT32, *shape: int, name: str = "IN") -> InputSpec:
    return InputSpec(name, datatype, shape)


def value(text: str, datatype: Datatype = dtypes.INT32, *shape: int) -> Any:
    return tensors([f"IN={text}"], [spec(datatype, *shape)], no_pictures)["IN"].array.tolist()


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("7", (), 7),
        ("7", (-1, 3), [[7, 7, 7]]),
        ("1,2,3", (3,), [1, 2, 3]),
        ("1,2,3", (-1, 3), [[1, 2, 3]]),
        ("[1, 2, 3]", (-1, 3), [[1, 2, 3]]),
        ("[1,2,3],[4,5,6]", (-1, 3), [[1, 2, 3], [4, 5, 6]]),
        ("1,2,3,4,5,6", (-1, 3), [[1, 2, 3], [4, 5, 6]]),
        ("1,2,3,4", (2, 2), [[1, 2], [3, 4]]),
        ("1,2,3", (-1, -1), [[1, 2, 3]]),
        ("5", (-1, -1), [[5]]),
        ("-1", (1,), [-1]),
        ("2.0", (1,), [2]),
        ("[]", (-1,), []),
    ],
)
def test_numbers(text: str, shape: tuple[int, ...], expected: Any) -> None:
    assert value(text, dtypes.INT32, *shape) == expected


@pytest.mark.parametrize(
    ("text", "datatype", "expected"),
    [
        ("0.5", dtypes.FP32, [0.5]),
        ("NaN", dtypes.FP64, [pytest.approx(float("nan"), nan_ok=True)]),
        ("1", dtypes.BF16, [1.0]),
        ("true", dtypes.BOOL, [True]),
        ("0", dtypes.BOOL, [False]),
        ("hello", dtypes.BYTES, [b"hello"]),
        ("a=b, c", dtypes.BYTES, [b"a=b, c"]),
        ('"quoted"', dtypes.BYTES, [b"quoted"]),
        ('["one"]', dtypes.BYTES, [b"one"]),
        ("[no JSON", dtypes.BYTES, [b"[no JSON"]),
        ("@@handle", dtypes.BYTES, [b"@handle"]),
        ("42", dtypes.BYTES, [b"42"]),
    ],
)
def test_types(text: str, datatype: Datatype, expected: Any) -> None:
    assert value(text, datatype, 1) == expected


@pytest.mark.parametrize(
    ("text", "datatype", "shape", "message"),
    [
        (
            "1,2",
            dtypes.INT32,
            (-1, 3),
            "has shape [2]; expected 3 elements for each row, or one number for all of them",
        ),
        ("1,2", dtypes.INT32, (3,), "has shape [2]; expected 3 elements, or one number"),
        ("1,2,3", dtypes.INT32, (-1, 2, -1), "expected 3 dimensions, where -1 is any size"),
        ("abc", dtypes.INT32, (1,), "expected numbers such as 1, [1, 2, 3] or 1,2,3, got: abc"),
        ('{"a": 1}', dtypes.INT32, (1,), "expected numbers"),
        ("[[1,2],[3]]", dtypes.INT32, (-1, 2), "different lengths"),
        ("0.5", dtypes.INT32, (1,), "takes whole numbers from -2147483648 to 2147483647"),
        ("300", dtypes.UINT8, (1,), "takes whole numbers from 0 to 255"),
        ("2", dtypes.BOOL, (1,), "takes true and false"),
        ("x", dtypes.BYTES, (2,), "has shape []"),
    ],
)
def test_what_does_not_fit(text: str, datatype: Datatype, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModserveError) as raised:
        value(text, datatype, *shape)
    assert f"input 'IN {datatype} {list(shape)}'" in raised.value.message
    assert message in raised.value.message


def test_rows_of_a_batch() -> None:
    made = tensors(["IN=1,2", "IN=3"], [spec(dtypes.INT32, -1, 2)], no_pictures)
    assert made["IN"].array.tolist() == [[1, 2], [3, 3]]
    with pytest.raises(ModserveError, match="takes one value: its first dimension is fixed"):
        tensors(["IN=1,2", "IN=3"], [spec(dtypes.INT32, 2)], no_pictures)
    with pytest.raises(ModserveError, match=r"do not form a batch: their shapes are \[1, 1\], \[1, 2\]"):
        tensors(["IN=1", "IN=1,2"], [spec(dtypes.INT32, -1, -1)], no_pictures)


def test_the_name_of_the_only_input_may_be_left_out() -> None:
    assert tensors(["1,2"], [spec(dtypes.INT32, 2)], no_pictures)["IN"].array.tolist() == [1, 2]
    assert tensors(["1 + 1 = 2"], [spec(dtypes.BYTES, 1)], no_pictures)["IN"].array.tolist() == [b"1 + 1 = 2"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "MASKS=1",
            "'MASKS=1' does not name an input of the model; did you mean 'MASK'?; "
            "its inputs are IN INT32 [1]; MASK INT32 [1]",
        ),
        ("1", "'1' does not name an input of the model, expected NAME=VALUE; its inputs are IN"),
    ],
)
def test_for_no_input(word: str, message: str) -> None:
    inputs = [spec(dtypes.INT32, 1), spec(dtypes.INT32, 1, name="MASK")]
    with pytest.raises(ModserveError) as raised:
        tensors([word], inputs, no_pictures)
    assert raised.value.message.startswith(message)


# Files


def write(folder: Path, name: str, content: "str | bytes | Array") -> str:
    file = folder / name
    if isinstance(content, np.ndarray):
        np.save(file, content)
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return f"@{file}"


@pytest.mark.parametrize(
    ("name", "content", "datatype", "shape", "expected"),
    [
        ("a.npy", np.array([1.5, 2]), dtypes.FP32, (-1, 2), [[1.5, 2.0]]),
        ("a.npy", np.array([1, 2], np.int64), dtypes.INT32, (2,), [1, 2]),
        ("a.npy", np.array(["a", "bc"]), dtypes.BYTES, (2,), [b"a", b"bc"]),
        ("a.json", "[[1, 2]]", dtypes.INT32, (-1, 2), [[1, 2]]),
        ("a.csv", "1,2\n3;4\n", dtypes.FP32, (-1, 2), [[1, 2], [3, 4]]),
        ("a.csv", "mean radius,mean area\n1,2\n3,4\n", dtypes.FP32, (-1, 2), [[1, 2], [3, 4]]),
        ("a.txt", "1\n2\n", dtypes.INT32, (2,), [1, 2]),
        ("a.txt", "two words\n", dtypes.BYTES, (-1, 1), [[b"two words"]]),
        ("a.wav", b"\x00\xff\n", dtypes.BYTES, (1,), [b"\x00\xff\n"]),
        ("a.jpg", b"\xff\xd8", dtypes.BYTES, (1,), [b"\xff\xd8"]),
        ("a.jpg", b"\xff\xd8", dtypes.UINT8, (-1, 1), [[2]]),
        ("a.bin", b"\x01\x00\x02\x00", dtypes.UINT16, (-1,), [1, 2]),
    ],
)
def test_files(
    tmp_path: Path, name: str, content: Any, datatype: Datatype, shape: tuple[int, ...], expected: Any
) -> None:
    assert value(write(tmp_path, name, content), datatype, *shape) == expected


def test_an_archive_of_arrays(tmp_path: Path) -> None:
    file = tmp_path / "all.npz"
    np.savez(file, IN=np.array([1]), MASK=np.array([2]))
    inputs = [spec(dtypes.INT32, 1), spec(dtypes.INT32, 1, name="MASK")]
    made = tensors([f"@{file}"], inputs, no_pictures)
    assert {name: tensor.array.tolist() for name, tensor in made.items()} == {"IN": [1], "MASK": [2]}
    assert value(f"@{file}", dtypes.INT32, 1) == [1]
    with pytest.raises(ModserveError, match="has an array 'IN', which is not an input"):
        tensors([f"@{file}"], inputs[1:], no_pictures)
    with pytest.raises(ModserveError, match="has no array 'OTHER', but IN, MASK"):
        tensors([f"OTHER=@{file}"], [spec(dtypes.INT32, 1, name="OTHER")], no_pictures)


@pytest.mark.parametrize(
    ("name", "content", "datatype", "message"),
    [
        ("a.npy", "nothing", dtypes.FP32, "is not a numpy file, or contains Python objects"),
        ("a.npy", np.array(["a"]), dtypes.FP32, "takes numbers"),
        ("a.npy", np.array([1]), dtypes.BYTES, "takes texts"),
        ("a.csv", "a,b", dtypes.FP32, "is not a table of numbers"),
        ("a.txt", b"\xff", dtypes.FP32, "is not UTF-8 text"),
        ("a.pt", b"x", dtypes.FP32, "is not a file for input 'IN FP32 [1]': expected .npy, .npz, .json"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, name: str, content: Any, datatype: Datatype, message: str) -> None:
    with pytest.raises(ModserveError) as raised:
        value(write(tmp_path, name, content), datatype, 1)
    assert message in raised.value.message


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.array([object()]), allow_pickle=True)
    with pytest.raises(ModserveError, match="or contains Python objects"):
        value(f"@{file}", dtypes.BYTES, 1)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(
        ModserveError, match=r"cannot read nosuch: No such file.*; write @@ for a text that begins with @"
    ):
        value("@nosuch", dtypes.BYTES, 1)


# Others


def test_made_up_sizes_are_said_to_be_so() -> None:
    inputs = [
        spec(dtypes.FP32, -1, 3, -1, -1, name="image"),
        spec(dtypes.FP32, -1, 16),
        spec(dtypes.INT64, 1, -1, name="ids"),
    ]
    samples = {each.name: sample(each, "m") for each in inputs}
    assert remark_on_sizes(samples, inputs) == (
        "the variable sizes of 'image' [-1, 3, -1, -1] and 'ids' [1, -1] are made up; set them with --shape "
        "image:3,224,224 --shape ids:1,64"
    )
    assert remark_on_sizes(samples, inputs[1:2]) == ""


def test_samples_of_other_sizes() -> None:
    image = spec(dtypes.FP32, -1, 3, -1, -1, name="image")
    assert sample(image, "m", (3, 48, 320)).shape == (1, 3, 48, 320)
    assert sample(image, "m", (2, 3, 48, 320)).shape == (2, 3, 48, 320)
    for wrong in ((4, 48, 320), (48, 320), (1, 1, 3, 48, 320)):
        with pytest.raises(ModserveError, match=r"option '--shape': input 'image' has shape \[-1, 3, -1, -1\], got "):
            sample(image, "m", wrong)


def test_made_up_data() -> None:
    assert sample(spec(dtypes.FP32, -1, 16), "m").shape == (1, 16)
    assert sample(spec(dtypes.INT64, 3, -1), "m").shape == (3, 64)
    assert sample(spec(dtypes.BYTES, -1, 1), "m").array.tolist() == [[b"a short text"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a=1", 1), ("a=1.5", 1.5), ("a=true", True), ("a=text", "text"), ("a=[1]", "[1]"), ('a="1"', "1"), ("a=", "")],
)
def test_parameters(text: str, expected: object) -> None:
    assert parameter(text) == ("a", expected)


def test_a_parameter_without_a_name() -> None:
    with pytest.raises(ModserveError, match="expected NAME=VALUE, got: 1"):
        parameter("1")
