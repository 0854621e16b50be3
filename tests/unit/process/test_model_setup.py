"""What a command line names one by one: files and directories of models, and what they are called."""

from pathlib import Path
from typing import Any

import pytest

from modserve import ModserveError, Settings
from modserve.config import parse
from modserve.models.loading.loader import LoaderOptions
from modserve.process.model_setup import models_to_load, read_named_files, repositories
from modserve.repository.local import FileRepository
from modserve.settings import OptionError, from_command_line
from modserve.testing import write_model


def settings(*words: str) -> Settings:
    return from_command_line(list(words), {}).settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with some files of models."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "models", "resnet", 'backend: "onnxruntime"')
    (tmp_path / "models" / "resnet" / "1" / "model.onnx").touch()
    for file in ("bert.onnx", "trees.ubj", "graph.xml", "net.pt", "lines.py", "a=b.onnx", "a:b.onnx", "model.txt"):
        (tmp_path / file).write_text("class TritonPythonModel: ..." if file.endswith(".py") else "")
    (tmp_path / "flowers.savedmodel").mkdir()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "saved_model.pb").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("word", "name", "backend"),
    [
        ("bert.onnx", "bert", "onnxruntime"),
        ("./bert.onnx", "bert", "onnxruntime"),
        ("small=bert.onnx", "small", "onnxruntime"),
        ("a=b.onnx", "a=b", "onnxruntime"),
        ("a:b.onnx", "a:b", "onnxruntime"),
        ("trees.ubj", "trees", "fil"),
        ("model.txt", "model", "fil"),
        ("graph.xml", "graph", "openvino"),
        ("net.pt", "net", "pytorch"),
        ("lines.py", "lines", "python"),
        ("flowers.savedmodel", "flowers", "tensorflow"),
        ("export", "export", "tensorflow"),
        ("models/resnet/1/model.onnx", "resnet", "onnxruntime"),
    ],
)
async def test_files(folder: Path, word: str, name: str, backend: str) -> None:
    (repository,) = repositories(settings(word))
    (listing,) = (await repository.look()).values()
    assert isinstance(listing.content, bytes)
    draft = parse(listing.content.decode(), folder, name)
    assert (listing.name, listing.versions, draft.backend) == (name, (1,), backend)
    lease = await repository.fetch(listing, 1)
    assert (lease.path / "1" / draft.provisional().default_model_filename).samefile(listing.path)
    await lease.release()
    assert not lease.path.parent.exists()


@pytest.mark.parametrize("word", ["models/resnet", "models/resnet/", "resnet=models/../models/resnet"])
async def test_a_directory_of_a_model(folder: Path, word: str) -> None:
    write_model(folder / "models", "another")
    (repository,) = repositories(settings(word))
    assert list(await repository.names()) == ["resnet"]
    listing = (await repository.look())["resnet"]
    assert (listing.path, listing.content) == (folder / "models" / "resnet", b'backend: "onnxruntime"')
    assert (str(repository), list(await repository.remarks())) == (str(folder / "models" / "resnet"), [])


def test_as_keywords(folder: Path) -> None:
    files: list[Any] = ["bert.onnx", Path("bert.onnx"), [Path("bert.onnx")], {"bert": "bert.onnx"}]
    assert [read_named_files(Settings(model_file=each)).names for each in files] == [("bert",)] * 4
    with pytest.raises(ValueError, match="expected a path, a list of paths, or"):
        Settings(model_file=[3])


def test_mode_explicit_loads_what_is_named(folder: Path) -> None:
    words = ("bert.onnx", "models/resnet", "--model-control-mode=explicit", "--load-model=x")
    assert models_to_load(settings(*words)) == ("x", "bert", "resnet")


async def test_the_fastest_engine(folder: Path) -> None:
    (repository,) = repositories(settings("bert.onnx", "trees.ubj", "--default-backend=auto"))
    contents = [listing.content for listing in (await repository.look()).values()]
    assert [b"auto" in content for content in contents if isinstance(content, bytes)] == [True, False]


async def test_changes_are_seen_and_neighbours_do_not_count(folder: Path) -> None:
    (repository,) = repositories(settings("bert.onnx"))

    async def mark() -> object:
        return (await repository.look())["bert"].mark(1)

    before = await mark()
    (folder / "unrelated.onnx").touch()
    assert await mark() == before
    (folder / "bert.onnx.data").touch()
    with_weights = await mark()
    assert with_weights != before
    (folder / "bert.onnx").write_text("longer")
    assert await mark() not in (before, with_weights)
    (folder / "bert.onnx").unlink()
    assert list(await repository.names()) == []


def test_the_log_says_what_is_served(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert isinstance(repositories(settings("models/resnet/1/model.onnx"))[0], FileRepository)
    assert [record.message for record in caplog.records] == [
        f"'{folder}/models/resnet/1/model.onnx' is model 'resnet', version 1, of backend 'onnxruntime'",
        f"'{folder}/models/resnet/config.pbtxt' is not read; to serve the model with it: modserve serve "
        f"{folder}/models/resnet",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["absent.onnx"], "there is no file"),
        (["models"], "is a repository, with models in it: modserve serve --model-repository"),
        (["bert.onnx", "bert=net.pt"], "two models are called 'bert'; NAME=FILE gives one of them another name"),
        (["x=models/resnet"], "is called 'resnet' after its directory, not 'x'"),
        (["..=bert.onnx"], "must not contain path traversal characters"),
        ([f"{'x' * 300}=bert.onnx"], "of 300 bytes, at most 255 are allowed"),
    ],
)
def test_what_is_refused(folder: Path, words: list[str], text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        read_named_files(settings(*words))
    assert text in caught.value.message


def test_words_that_look_like_no_file(folder: Path) -> None:
    with pytest.raises(OptionError, match="Unexpected argument: bert"):
        settings("bert")


def test_options_that_refuse_all_python_models() -> None:
    for option in ("deny-code", "require-digests"):
        with pytest.raises(OptionError, match=f"'--{option}' refuses all Python models"):
            settings("functions:double", f"--{option}")


def test_a_guard_by_default_refuses_nothing() -> None:
    guard = LoaderOptions(1).guard
    assert (guard.require_digests, guard.deny_code) == (False, False)
