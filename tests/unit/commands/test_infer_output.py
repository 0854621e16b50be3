"""What is shown and written of a response."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modserve.client.input_values import Result
from modserve.commands.infer.output import document, format_elements, lines, targets, write
from modserve.commands.syntax import UsageError
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor


def tensor(value: Any, datatype: dtypes.Datatype = dtypes.FP32) -> Tensor:
    return Tensor.from_array(np.array(value, datatype.numpy), datatype)


def result(**outputs: Tensor) -> Result:
    return Result("m", 3, outputs, "7", {"final": True})


def test_what_a_person_reads() -> None:
    text = "\n".join(lines(result(OUT=tensor([[1, 2.5]]), TEXT=tensor([b"one", b"two"], dtypes.BYTES)), 0.0123))
    assert text == (
        "m version 3, after 12.3 ms, id 7, final=True\nOUT  FP32 [1, 2]\n  [[1.  2.5]]\nTEXT  BYTES [2]\n  one\n  two"
    )


def test_much_is_left_out() -> None:
    assert "..." in format_elements(tensor(np.zeros(1000)))
    assert format_elements(tensor([b"x"] * 103, dtypes.BYTES)).endswith("\n… and 3 more")
    assert format_elements(tensor([])) == "empty"
    assert format_elements(tensor([b"\xff", b"\x1b[31m", b"a\nb"], dtypes.BYTES)) == "b'\\xff'\nb'\\x1b[31m'\na\nb"


def test_for_programs() -> None:
    made = document(result(A=tensor([1], dtypes.BF16), B=tensor([b"x", b"\xff"], dtypes.BYTES)))
    assert json.loads(json.dumps(made)) == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "parameters": {"final": True},
        "outputs": [
            {"name": "A", "datatype": "BF16", "shape": [1], "data": [1.0]},
            {"name": "B", "datatype": "BYTES", "shape": [2], "data": ["x", {"b64": "/w=="}]},
        ],
    }


def test_files(tmp_path: Path) -> None:
    both = result(A=tensor([1, 2]), B=tensor([[b"x"], [b"yz"]], dtypes.BYTES))
    assert write(both, "", tmp_path / "a.npz") == f"wrote A, B to {tmp_path / 'a.npz'}"
    with np.load(tmp_path / "a.npz") as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == {"A": [1, 2], "B": [[b"x"], [b"yz"]]}
    for name, output, content in (
        ("a.bin", "A", b"\0\0\x80?\0\0\0@"),
        ("a.txt", "A", b"[1. 2.]\n"),
        ("b.txt", "B", b"x\nyz"),
        ("b.bin", "B", b"xyz"),
    ):
        write(both, output, tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    write(both, "A", tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").tolist() == [1, 2]
    write(both, "", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == document(both)


def test_pictures(tmp_path: Path) -> None:
    pixels = np.zeros((1, 3, 2, 5), np.uint8)
    pixels[0, 0] = 255
    write(result(A=tensor(pixels, dtypes.UINT8)), "", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert (image.size, image.getpixel((0, 0))) == ((5, 2), (255, 0, 0))
    with pytest.raises(
        ModserveError, match=r"FP32 \[2\] cannot be written as a picture to .*a\.png; pictures are UINT8"
    ):
        write(result(A=tensor([1, 2])), "", tmp_path / "a.png")


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    both = result(A=tensor([1]), B=tensor([2]))
    with pytest.raises(ModserveError, match=r"takes one output; NAME=FILE says which of A, B"):
        write(both, "", tmp_path / "a.npy")
    with pytest.raises(ModserveError, match=r"output 'C' does not exist; the outputs are A, B"):
        write(both, "C", tmp_path / "a.npy")
    with pytest.raises(ModserveError, match=r"cannot write .*: No such file or directory"):
        write(both, "A", tmp_path / "nosuch" / "a.npy")


def test_names_of_files() -> None:
    assert targets(["a.npz", "OUT=b.npy"]) == [("", Path("a.npz")), ("OUT", Path("b.npy"))]
    with pytest.raises(UsageError, match=r"expected a file ending in \.npy, .*, got: a\.pt"):
        targets(["a.pt"])
