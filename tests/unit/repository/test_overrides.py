"""Files that come with a load request."""

from pathlib import Path

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.repository import overrides


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../x",
        "../../x",
        "../../../x",
        "1/../../../x",
        "/../x",
        "1/../../x",
        "1/../..",
        "1/",
        "1/.",
        "1/x/..",
        "1\\x",
        "1/\0",
        "/",
        "//",
        ".",
    ],
)
def test_paths_outside_the_model(path: str) -> None:
    with pytest.raises(ModserveError) as caught:
        overrides.normalize({"1/model.onnx": b"", path: b""})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith(f"invalid path '{path}' of a file override: expected")


@pytest.mark.parametrize("path", ["1/model.onnx", "1/a/b/c", "labels.txt", "1/..x", "1/x..y", "1/ü"])
def test_paths_inside_the_model(path: str) -> None:
    assert overrides.normalize({path: b"x"}) == {path: b"x"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/1/model.onnx", "1/model.onnx"),
        ("//1///model.onnx", "1/model.onnx"),
        ("./1/./model.onnx", "1/model.onnx"),
        ("1/../2/model.onnx", "2/model.onnx"),
        ("/etc/passwd", "etc/passwd"),
    ],
)
def test_paths_count_from_the_models_directory_as_in_triton(path: str, expected: str) -> None:
    assert overrides.normalize({path: b"x"}) == {expected: b"x"}


def test_a_path_with_a_leading_slash_is_written_below_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    repository = overrides.write("m", {"/1/model.onnx": b"x"})
    assert (repository.path / "m/1/model.onnx").read_bytes() == b"x"
    repository.remove()


def test_two_paths_of_one_file() -> None:
    with pytest.raises(ModserveError, match="file overrides '1/x' and '/1/x' are the same file"):
        overrides.normalize({"1/x": b"a", "/1/x": b"b"})


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("1/" + "a/" * 2000 + "x", "it has 2002 parts, at most 64 are allowed"),
        ("1/" + "a" * 300, "it has 300 bytes in one of its parts, at most 255 are allowed"),
        ("1/" + "ü" * 128, "it has 256 bytes in one of its parts, at most 255 are allowed"),
        ("1" + ("/" + "a" * 200) * 30, "it has 6031 bytes, at most 4096 are allowed"),
        ("1/\ud800", "it is not valid Unicode text"),
    ],
    ids=["deep", "long part", "long part in bytes", "long", "half a character"],
)
def test_paths_that_no_file_can_have(path: str, fault: str) -> None:
    with pytest.raises(ModserveError) as caught:
        overrides.write("m", {path: b""})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.endswith(f"of a file override: {fault}")
    assert len(caught.value.message) < 300
    caught.value.message.encode()


def test_the_longest_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long only together with where it is written is a mistake, too, and leaves nothing behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    overrides.normalize({"1/" + "a/" * 62 + "x": b"", "2/" + "a" * 255: b""})
    with pytest.raises(ModserveError, match="cannot write the files of the load request: File name too long") as caught:
        overrides.write("m", {"/".join(["1", *["a" * 255] * 15, "a" * 250]): b""})
    assert caught.value.code is Code.INVALID_ARG
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_a_directory() -> None:
    with pytest.raises(ModserveError, match="file override '1' is also a directory of file override '1/a/b'"):
        overrides.normalize({"1/a/b": b"", "1": b""})


@pytest.mark.parametrize("name", [".", "..", " ..\t", "a/b", "../x", "a\\b", "a\0b"])
def test_names_that_are_paths(name: str) -> None:
    with pytest.raises(ModserveError, match="must not contain path traversal characters"):
        overrides.check_model_name(name)


def test_a_name_that_no_directory_can_have() -> None:
    with pytest.raises(ModserveError, match="of 300 bytes, at most 255 are allowed") as caught:
        overrides.check_model_name("a" * 300)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", ["a", "a.b", "..a", "a..b", "ü", "a b"])
def test_good_names(name: str) -> None:
    overrides.check_model_name(name)


async def test_it_is_deleted_when_nobody_holds_it() -> None:
    repository = overrides.write("m", {"3/model": b"x"})
    listing = (await repository.look())["m"]
    assert (listing.name, listing.versions) == ("m", (3,))
    lease = await listing.repository.fetch(listing, 3)
    await repository.release()
    assert (lease.path / "3" / "model").read_bytes() == b"x"
    await lease.release()
    assert not repository.path.exists()


def test_what_can_not_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nosuch"))
    text = "failed to load 'm', failed to poll from model repository: cannot write the files .*: No such file"
    with pytest.raises(ModserveError, match=text) as caught:
        overrides.write("m", {"1/x": b""})
    assert caught.value.code is Code.INTERNAL
