"""What a model file is by its contents, and whether its end is missing."""

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from modserve.models.diagnosis import file_contents

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content" * 100)
    return buffer.getvalue()


def onnx_model() -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [value])
    return bytes(helper.make_model(graph).SerializeToString())


def hdf5(version: int, end: int) -> bytes:
    """The beginning of a file whose superblock says how long it is."""
    if version < 2:
        fields = bytes([version, 0, 0, 0, 0, 8, 8, 0]) + bytes(8) + (bytes(4) if version else b"")
    else:
        fields = bytes([version, 8, 8, 0])
    return b"\x89HDF\r\n\x1a\n" + fields + struct.pack("<QQQ", 0, 2**64 - 1, end) + bytes(64)


def safetensors(length: int) -> bytes:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", length or len(header)) + header + bytes(4)


TORCHSCRIPT = zipped("archive/data.pkl", "archive/code/model.py", "archive/constants.pkl")
STATE = zipped("archive/data.pkl", "archive/data/0")
KERAS = zipped("metadata.json", "config.json", "model.weights.h5")

WRONG = {
    "git lfs": (
        "model.onnx",
        LFS,
        "is not a model: it is the pointer of Git LFS to a file that was not fetched: run 'git",
    ),
    "zeros": ("model.onnx", bytes(10_000), "is not a model: it begins with zeros"),
    "a web page": ("model.pt", b"<!DOCTYPE html><html>", "is not a model: it is a web page"),
    "gzip": ("model.onnx", b"\x1f\x8b\x08", "is not a model: it is compressed by gzip"),
    "a zip archive": ("model.onnx", zipped("readme"), "is not a model: it is a zip archive"),
    "torchscript": (
        "model.onnx",
        TORCHSCRIPT,
        "it is TorchScript: name it 'model.pt', for backend 'pytorch', or export",
    ),
    "weights of torch": (
        "model.pt",
        STATE,
        "it is a file of torch.save, which no engine runs: save the model as Torch",
    ),
    "keras": ("model.onnx", KERAS, "it is a Keras file: save the model with model.export('model.savedmodel')"),
    "a pickle": ("model.onnx", b"\x80\x04\x95", "is not a model: it is a pickle"),
    "hdf5": ("model.onnx", hdf5(0, 100), "is not a model: it is an HDF5 file"),
    "empty": ("model.onnx", b"", "is empty"),
}


@pytest.mark.parametrize(("name", "content", "expected"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_model(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    text = file_contents.problem(path)
    assert text.startswith(f"'{path}' ")
    assert expected in text


CUT = {
    "onnx": ("model.onnx", onnx_model(), 10, "bytes or more, but has"),
    "a frozen graph": ("model.graphdef", onnx_model(), 10, "bytes or more, but has"),
    "torchscript": ("model.pt", TORCHSCRIPT, 30, "the directory at the end of a zip archive is missing"),
    "keras": ("model.keras", KERAS, 30, "the directory at the end of a zip archive is missing"),
    "hdf5 0": ("model.h5", hdf5(0, 112), 30, "it should have 112 bytes, but has"),
    "hdf5 1": ("model.h5", hdf5(1, 116), 30, "it should have 116 bytes, but has"),
    "hdf5 3": ("model.h5", hdf5(3, 100), 30, "it should have 100 bytes, but has"),
    "openvino": ("model.xml", b'<?xml version="1.0"?><net><layers></layers></net>\n', 10, "there is no '>' at its end"),
    "xgboost": ("xgboost.json", b'{"learner": {}}', 2, "there is no '}' at its end"),
    "safetensors": ("a.safetensors", safetensors(0), 10, "its header has"),
}


@pytest.mark.parametrize(("name", "content", "missing", "expected"), CUT.values(), ids=CUT.keys())
def test_what_is_cut_off(tmp_path: Path, name: str, content: bytes, missing: int, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert file_contents.problem(path) == ""
    path.write_bytes(content[:-missing])
    text = file_contents.problem(path)
    assert text.startswith(f"'{path}' is truncated: ")
    assert expected in text
    assert text.endswith("; copy it again")


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 12, 20, 40])
@pytest.mark.parametrize(
    "content",
    [bytes(range(1, 60)), b"\xff" * 60, hdf5(0, 9)[:60], hdf5(2, 9)[:60], onnx_model()[:60]],
    ids=["numbers", "ones", "hdf5 0", "hdf5 2", "onnx"],
)
@pytest.mark.parametrize("name", ["a.onnx", "a.h5", "a.safetensors", "a.pt", "a.json"])
def test_any_bytes_are_looked_at_without_failing(tmp_path: Path, name: str, content: bytes, size: int) -> None:
    path = tmp_path / name
    path.write_bytes(content[:size])
    assert isinstance(file_contents.problem(path), str)


def test_the_files_of_a_directory(tmp_path: Path) -> None:
    saved = tmp_path / "model.savedmodel"
    (saved / "variables").mkdir(parents=True)
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    (saved / "variables" / "variables.index").write_bytes(LFS)
    text = file_contents.problem(saved)
    assert text.startswith(f"'{saved}/variables/variables.index' is not a model: it is the pointer of Git LFS")


def test_files_beside_a_model_may_be_of_any_kind(tmp_path: Path) -> None:
    saved = tmp_path / "model.savedmodel"
    (saved / "assets").mkdir(parents=True)
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    for name, content in (("vocab.json", b'["a"]'), ("empty.txt", b""), ("words.gz", b"\x1f\x8b"), ("m.onnx", b"")):
        (saved / "assets" / name).write_bytes(content)
    (saved / "notes.txt").write_bytes(b"")
    assert file_contents.problem(saved) == ""
    (saved / "assets" / "vocab.json").write_bytes(LFS)
    assert "it is the pointer of Git LFS" in file_contents.problem(saved)


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
@pytest.mark.parametrize("entry", ["constants.pkl", "archive_format"])
def test_a_model_of_pytorch_may_have_either_name(tmp_path: Path, entry: str, name: str) -> None:
    (tmp_path / name).write_bytes(zipped(entry))
    assert file_contents.problem(tmp_path / name) == ""


def test_an_archive_with_features_that_python_lacks(tmp_path: Path) -> None:
    content = zipped("data.pkl")
    place = content.rindex(b"PK\x01\x02") + 6  # the version that is needed to read an entry
    (tmp_path / "model.pt").write_bytes(content[:place] + b"\x63" + content[place + 1 :])
    assert file_contents.problem(tmp_path / "model.pt") == ""


def test_weights_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_bytes(b"<net></net>")
    (tmp_path / "model.bin").write_bytes(b"\x00" * 40)
    assert file_contents.beside(tmp_path / "model.xml") == ""
    (tmp_path / "model.bin").write_bytes(LFS)
    text = file_contents.beside(tmp_path / "model.xml")
    assert text.startswith(f"'{tmp_path}/model.bin' is not a model: it is the pointer of Git LFS")


def test_what_is_not_there(tmp_path: Path) -> None:
    assert file_contents.problem(tmp_path / "nosuch") == ""
    assert file_contents.beside(tmp_path / "nosuch" / "model.onnx") == ""
