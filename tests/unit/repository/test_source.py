"""What counts as a model and as a version in a repository on disk."""

from pathlib import Path

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.servable import ModelDirectory
from modserve.repository.source import loose_files, read_model, scan
from modserve.testing import write_model


def test_models_and_versions(tmp_path: Path) -> None:
    write_model(tmp_path, "one", versions=("2", "10", "1"))
    write_model(tmp_path, "two", 'backend: "identity"')
    found = scan([tmp_path])
    assert found.models == {
        "one": ModelDirectory("one", tmp_path / "one", (1, 2, 10)),
        "two": ModelDirectory("two", tmp_path / "two", (1,)),
    }
    assert found.duplicates == ()


def test_other_directories_are_no_versions(tmp_path: Path) -> None:
    model = write_model(tmp_path, "model", versions=("3", "01", "x", "0", "1x", "-1", "configs", "warmup", ".4"))
    (model / "5").write_text("a file")
    assert read_model(model).versions == (3,)


def test_a_model_may_have_no_versions(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert scan([tmp_path]).models["model"].versions == ()


def test_files_and_hidden_directories_are_no_models(tmp_path: Path) -> None:
    write_model(tmp_path, ".git")
    (tmp_path / "README.md").write_text("a file")
    write_model(tmp_path, "model")
    assert list(scan([tmp_path]).models) == ["model"]


def test_links_to_directories_count(tmp_path: Path) -> None:
    elsewhere = write_model(tmp_path / "store", "weights", versions=("7",))
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model").symlink_to(elsewhere)
    (repository / "gone").symlink_to(tmp_path / "nowhere")
    model = repository / "model"
    assert scan([repository]).models == {"model": ModelDirectory("model", model, (7,))}


def test_several_repositories(tmp_path: Path) -> None:
    write_model(tmp_path / "a", "one")
    write_model(tmp_path / "b", "two")
    found = scan([tmp_path / "b", tmp_path / "a"])
    assert {name: model.path.parent.name for name, model in found.models.items()} == {"two": "b", "one": "a"}


def test_a_name_in_two_repositories_is_no_model(tmp_path: Path) -> None:
    for repository in "abc":
        write_model(tmp_path / repository, "both")
    write_model(tmp_path / "b", "another")
    write_model(tmp_path / "c", "another")
    write_model(tmp_path / "b", "one")
    found = scan([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert list(found.models) == ["one"]
    assert found.duplicates == ("another", "both")


def test_a_repository_given_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "a", "one")
    monkeypatch.chdir(tmp_path)
    found = scan([tmp_path / "a", Path("a")])
    assert (list(found.models), found.duplicates) == (["one"], ())
    assert found.models["one"].path.is_absolute()


@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere", "No such file or directory"), ("file", "Not a directory")], ids=["none", "file"]
)
def test_a_repository_that_can_not_be_read(tmp_path: Path, name: str, reason: str) -> None:
    write_model(tmp_path, "model")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ModserveError) as caught:
        scan([tmp_path, tmp_path / name])
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == f"can not read model repository '{tmp_path / name}': {reason}"


def test_nothing_to_scan(tmp_path: Path) -> None:
    assert scan([]).models == {}
    assert scan([tmp_path]).models == {}


def test_models_that_lie_beside_the_folders(tmp_path: Path) -> None:
    write_model(tmp_path, "one")
    for name in ("resnet.onnx", "net.pth", "README.md"):
        (tmp_path / name).touch()
    (tmp_path / "folder.onnx").mkdir()
    assert loose_files([tmp_path, tmp_path / "nosuch"]) == [tmp_path / "net.pth", tmp_path / "resnet.onnx"]
