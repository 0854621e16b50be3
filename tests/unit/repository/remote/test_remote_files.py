"""Which files make up a model, from their keys."""

import pytest

from modserve.repository.remote.transfer import RemoteFile, beside, identity, models_of, trick


def listed(*keys: str, empty: tuple[str, ...] = ()) -> list[RemoteFile]:
    return [RemoteFile(key, 1, "mark", key) for key in keys] + [RemoteFile(key, 0, "mark", key) for key in empty]


def test_models_and_versions() -> None:
    keys = ("m/config.pbtxt", "m/labels.txt", "m/1/model.onnx", "m/10/a/b", "m/010/x", "m/v1/y", "n/2/model.onnx")
    models = models_of(listed(*keys))
    assert set(models) == {"m", "n"}
    paths = {version: [file.path for file in files] for version, files in models["m"].by_version.items()}
    assert paths == {
        None: ["m/010/x", "m/config.pbtxt", "m/labels.txt", "m/v1/y"],
        1: ["m/1/model.onnx"],
        10: ["m/10/a/b"],
    }
    assert models["m"].versions == (1, 10)
    config = models["m"].file("config.pbtxt")
    assert config is not None
    assert config.path == "m/config.pbtxt"
    assert (models["n"].file("config.pbtxt"), models["n"].versions) == (None, (2,))


def test_names_that_differ_by_case_only() -> None:
    assert set(models_of(listed("M/1/a", "m/1/a", "m/1/A"))) == {"M", "m"}


def test_folders_that_consoles_make() -> None:
    files = listed("m/config.pbtxt", "m/2/model.onnx", empty=("m", "m/1", "m/2", "n"))
    models = models_of(files)
    assert set(models) == {"m"}
    assert (models["m"].versions, models["m"].problem) == ((1, 2), "")
    assert models["m"].by_version[1] == []
    assert beside(files, models) == []


def test_a_file_without_bytes_is_a_file() -> None:
    (model,) = models_of(listed("m/config.pbtxt", empty=("m/1/model", "m/empty"))).values()
    assert [file.path for file in model.by_version[1]] == ["m/1/model"]
    assert "m/empty" in [file.path for file in model.by_version[None]]


@pytest.mark.parametrize("key", ["m/1", "m/1/model.onnx"])
def test_what_is_both_a_file_and_a_folder(key: str) -> None:
    models = models_of(listed(key, f"{key}/x/y", "n/1/x"))
    assert f"'{key}' is both a file and a folder" in models["m"].problem
    assert models["n"].problem == ""


@pytest.mark.parametrize("key", ["m/../x", "m//x", "m/./x", "m/a\\b", "m/1/\n", "m/1/\x00", "m/1/" + "x" * 256, "m/1/"])
def test_tricks_with_keys(key: str) -> None:
    assert trick(key)
    models = models_of(listed(key, "n/1/x"))
    assert "rename or delete it" in models["m"].problem
    assert models["m"].all == []
    assert models["n"].problem == ""


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "./x", "a\\b/1/x"])
def test_tricks_that_name_no_model(key: str) -> None:
    files = listed(key, "n/1/x")
    models = models_of(files)
    assert set(models) == {"n"}
    assert beside(files, models) == [key.partition("/")[0]]


def test_what_is_beside_models() -> None:
    files = listed("model.onnx", "README.md", ".hidden", ".git/config", "m/1/x", "m/1/__pycache__/x.pyc")
    models = models_of(files)
    assert set(models) == {"m"}
    assert len(models["m"].all) == 1
    assert beside(files, models) == ["README.md", "model.onnx"]


def test_identities() -> None:
    assert identity("a", "b") != identity("ab", "")
    assert len({identity("b", 1), identity("b", 2), identity("b", "1")}) == 3
