"""What tensors and files are called for the OpenVINO backend, and what its texts become. Without OpenVINO."""

from pathlib import Path

import pytest

from modserve.backends.openvino.files import model_file
from modserve.backends.openvino.messages import is_about_memory, one_line, with_hint
from modserve.backends.openvino.names import Port, find, labels
from modserve.core.errors import Code, ModserveError


def port(index: int, *names: str, operator: str = "operator") -> Port:
    return Port(index, frozenset(names), operator, "f32", (-1, 3))


PORTS = [port(0, "ids", "ids:0", operator="embedding"), port(1, "mask", operator="mask"), port(2, operator="third")]


@pytest.mark.parametrize(
    ("name", "index"),
    [("ids", 0), ("ids:0", 0), ("embedding", 0), ("mask:0", 1), ("third", 2), ("third:0", 2), ("other", None)],
)
def test_finding_a_tensor(name: str, index: int | None) -> None:
    match = find(PORTS, name)
    assert (match.index if match else None) == index


def test_a_name_of_two_tensors_is_none() -> None:
    assert find([port(0, "x"), port(1, "x")], "x") is None


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ((), ["ids", "mask", "third"]),
        (("embedding", "mask:0"), ["embedding", "mask:0", "third"]),
        (("ids:0", "ids"), ["ids:0", "mask", "third"]),
        (("unknown",), ["ids", "mask", "third"]),
    ],
)
def test_what_tensors_are_called(configured: tuple[str, ...], expected: list[str]) -> None:
    assert labels(PORTS, configured) == expected


def test_labels_are_all_different() -> None:
    assert labels([port(0, "a", "b"), port(1, "a", "b"), port(2, "a", "b"), port(3)], ()) == [
        "a",
        "b",
        "operator",
        "operator_3",
    ]


SHAPE_TEXT = """Exception from src/inference/src/cpp/infer_request.cpp:224:
Exception from src/plugins/intel_cpu/src/node.cpp:794:
[CPU] Add node with name 'Add_3' Check 'input_shape[j] == 1' failed at src/plugins/intel_cpu/src/eltwise.cpp:52:
Eltwise shape infer input shapes dim index: 0 mismatch


"""


def test_a_text_without_places_in_the_source() -> None:
    assert (
        one_line(SHAPE_TEXT)
        == "[CPU] Add node with name 'Add_3' Eltwise shape infer input shapes dim index: 0 mismatch"
    )
    assert one_line("Exception from src/a.cpp:1:\nFrontEnd API failed with GeneralFailure:\nCut\nCut") == "Cut"
    assert one_line("Exception from src/a.cpp:1:\n") == "OpenVINO does not give a reason"


def test_hints() -> None:
    assert "model.bin, must be beside it" in with_hint("Empty weights data in bin file or bin file cannot be found!")
    assert with_hint("Model can't be parsed") == "Model can't be parsed. The file is truncated or damaged."
    assert with_hint("Model can't be parsed.") == "Model can't be parsed. The file is truncated or damaged."
    assert with_hint("Something else") == "Something else"
    assert is_about_memory("Failed to allocate 12 bytes of memory")
    assert not is_about_memory("shapes mismatch")


# Files


def test_the_file_that_is_named_counts(tmp_path: Path) -> None:
    for name in ("other.xml", "model.onnx"):
        (tmp_path / name).touch()
    assert model_file(tmp_path / "other.xml", "m") == tmp_path / "other.xml"


def test_other_formats_in_place_of_the_default(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").touch()
    assert model_file(tmp_path / "model.xml", "m") == tmp_path / "model.tflite"
    assert model_file(tmp_path, "m") == tmp_path / "model.tflite"
    (tmp_path / "model.xml").touch()
    assert model_file(tmp_path / "model.xml", "m") == tmp_path / "model.xml"


def test_directories(tmp_path: Path) -> None:
    saved = tmp_path / "model.savedmodel"
    saved.mkdir()
    with pytest.raises(ModserveError, match=r"is not a SavedModel .* it has nothing$"):
        model_file(saved, "m")
    (saved / "saved_model.pb").touch()
    assert model_file(saved, "m") == saved
    assert model_file(tmp_path / "model.xml", "m") == saved


@pytest.mark.parametrize("name", ["model.xml", "model.onnx", "mine.xml"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "unrelated.txt").touch()
    with pytest.raises(ModserveError, match=f"unable to find model file '.*{name}' for model 'm'") as caught:
        model_file(tmp_path / name, "m")
    assert caught.value.code is Code.INVALID_ARG
