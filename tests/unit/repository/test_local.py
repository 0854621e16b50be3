"""What counts as a model and as a version in a repository on disk."""

import os
from pathlib import Path

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.loading import Listing
from modserve.repository.local import LocalRepository
from modserve.repository.scanning import Scan, repositories_at
from modserve.repository.scanning import scan as scan_repositories
from modserve.testing import write_model


async def scan(paths: list[Path], names: tuple[str, ...] | None = None) -> Scan:
    return await scan_repositories(repositories_at(paths), names)


def read_model(path: Path) -> Listing:
    return LocalRepository(path.parent).read(path.name)


async def test_models_and_versions(tmp_path: Path) -> None:
    write_model(tmp_path, "one", versions=("2", "10", "1"))
    write_model(tmp_path, "two", 'backend: "identity"')
    present = await scan([tmp_path])
    assert present.models == {
        "one": Listing("one", LocalRepository(tmp_path), tmp_path / "one", (1, 2, 10)),
        "two": Listing("two", LocalRepository(tmp_path), tmp_path / "two", (1,)),
    }
    assert present.duplicates == ()


async def test_other_directories_are_no_versions(tmp_path: Path) -> None:
    model = write_model(tmp_path, "model", versions=("3", "01", "x", "0", "1x", "-1", "configs", "warmup", ".4"))
    (model / "5").write_text("a file")
    assert read_model(model).versions == (3,)


async def test_a_model_may_have_no_versions(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert (await scan([tmp_path])).models["model"].versions == ()


async def test_files_and_hidden_directories_are_no_models(tmp_path: Path) -> None:
    write_model(tmp_path, ".git")
    (tmp_path / "README.md").write_text("a file")
    write_model(tmp_path, "model")
    assert list((await scan([tmp_path])).models) == ["model"]


async def test_links_to_directories_count(tmp_path: Path) -> None:
    elsewhere = write_model(tmp_path / "store", "weights", versions=("7",))
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model").symlink_to(elsewhere)
    (repository / "gone").symlink_to(tmp_path / "nowhere")
    model = repository / "model"
    assert (await scan([repository])).models == {"model": Listing("model", LocalRepository(repository), model, (7,))}


async def test_several_repositories(tmp_path: Path) -> None:
    write_model(tmp_path / "a", "one")
    write_model(tmp_path / "b", "two")
    present = await scan([tmp_path / "b", tmp_path / "a"])
    assert {name: model.path.parent.name for name, model in present.models.items()} == {"two": "b", "one": "a"}


async def test_a_name_in_two_repositories_is_no_model(tmp_path: Path) -> None:
    for repository in "abc":
        write_model(tmp_path / repository, "both")
    write_model(tmp_path / "b", "another")
    write_model(tmp_path / "c", "another")
    write_model(tmp_path / "b", "one")
    present = await scan([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert list(present.models) == ["one"]
    assert present.duplicates == ("another", "both")


async def test_a_repository_given_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "a", "one")
    monkeypatch.chdir(tmp_path)
    present = await scan([tmp_path / "a", Path("a")])
    assert (list(present.models), present.duplicates) == (["one"], ())
    assert present.models["one"].path.is_absolute()


@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere", "No such file or directory"), ("file", "Not a directory")], ids=["none", "file"]
)
async def test_a_repository_that_can_not_be_read(tmp_path: Path, name: str, reason: str) -> None:
    write_model(tmp_path, "model")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ModserveError) as caught:
        await scan([tmp_path, tmp_path / name])
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == f"cannot read model repository '{tmp_path / name}': {reason}"


async def test_nothing_to_scan(tmp_path: Path) -> None:
    assert (await scan([])).models == {}
    assert (await scan([tmp_path])).models == {}


async def test_models_that_lie_beside_the_folders(tmp_path: Path) -> None:
    write_model(tmp_path, "one")
    for name in ("resnet.onnx", "net.pth", "README.md"):
        (tmp_path / name).touch()
    (tmp_path / "folder.onnx").mkdir()
    ignored = "is ignored: a model is a folder, such as"
    assert await LocalRepository(tmp_path).remarks() == [
        f"'{tmp_path}/net.pth' {ignored} 'net/1/model.pth'",
        f"'{tmp_path}/resnet.onnx' {ignored} 'resnet/1/model.onnx'",
    ]


async def test_folders_of_systems_and_tools(tmp_path: Path) -> None:
    write_model(tmp_path, "one")
    for name in ("lost+found", "@eaDir", "__MACOSX", "__pycache__", ".git"):
        (tmp_path / name / "1").mkdir(parents=True)
    repository = LocalRepository(tmp_path)
    assert list((await scan([tmp_path])).models) == ["one"]
    assert await repository.remarks() == [
        f"'{tmp_path}/@eaDir' is ignored: it is a Synology's, not a model",
        f"'{tmp_path}/__MACOSX' is ignored: it is of an archive made on macOS, not a model",
        f"'{tmp_path}/__pycache__' is ignored: it is Python's, not a model",
        f"'{tmp_path}/lost+found' is ignored: it is the file system's, not a model",
    ]


async def test_folders_whose_names_are_no_text(tmp_path: Path) -> None:
    """Nobody could call such a model, and a list that has its name could not be sent."""
    write_model(tmp_path, "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    write_model(tmp_path, r"caf\udce9")
    os.mkdir(os.path.join(os.fsencode(tmp_path), b"caf\xe9"))
    os.close(os.open(os.path.join(os.fsencode(tmp_path), b"file\xe9"), os.O_CREAT))
    repository = LocalRepository(tmp_path)
    assert await repository.names() == [r"caf\udce9", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"]
    assert set(await repository.look()) == set(await repository.names())
    assert await repository.remarks() == [
        rf"'{tmp_path}/caf\udce9' is ignored: the name of a model's folder must be UTF-8; rename it"
    ]


async def test_a_look_at_some_models_only(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write_model(tmp_path, name)
    assert list((await scan([tmp_path], ("one", "three", "four"))).models) == ["one", "three"]
    assert await LocalRepository(tmp_path).names() == ["one", "three", "two"]


async def test_the_configuration_is_read_with_the_look(tmp_path: Path) -> None:
    model = write_model(tmp_path, "model", "max_batch_size: 8")
    assert read_model(model).content == b"max_batch_size: 8"
    (model / "config.pbtxt").unlink()
    assert read_model(model).content is None
    (model / "config.pbtxt").mkdir()
    content = read_model(model).content
    assert isinstance(content, ModserveError)
    assert (
        content.message
        == f"reading the configuration of model 'model': [Errno 21] Is a directory: '{model}/config.pbtxt'"
    )
