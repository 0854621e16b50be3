"""Links in a repository on disk: those that leave it are refused, unless they are allowed."""

import sys
from pathlib import Path

import pytest

from modserve.core.errors import Code
from modserve.repository.local import DirectoryRepository, LocalRepository
from modserve.testing import write_model


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A model directory that is in no repository."""
    model = write_model(tmp_path / "store", "weights", 'backend: "identity"', ("1", "7"))
    (model / "1" / "model.onnx").write_text("weights")
    return model


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "fine")
    return tmp_path / "models"


def refused(root: Path, name: str) -> str:
    """Why a model is refused; empty if it is not."""
    refusal = LocalRepository(root).read(name).refusal
    assert LocalRepository(root, outside_links=True).read(name).refusal is None
    if refusal is None:
        return ""
    assert refusal.code is Code.INVALID_ARG
    return refusal.message


def test_a_link_to_a_file_outside(root: Path, outside: Path) -> None:
    (root / "fine" / "1" / "model.onnx").symlink_to(outside / "1" / "model.onnx")
    message = refused(root, "fine")
    assert message.startswith(f"model 'fine' is not loaded: '{root}/fine/1/model.onnx' is a link out of the model repo")
    assert f"to '{outside}/1/model.onnx'" in message
    assert message.endswith("start the server with --allow-outside-symlinks")


def test_a_link_in_place_of_a_folder(root: Path, outside: Path) -> None:
    (root / "model").symlink_to(outside)
    (root / "fine" / "7").symlink_to(outside / "7")
    assert f"'{root}/model' is a link out" in refused(root, "model")
    assert f"'{root}/fine/7' is a link out" in refused(root, "fine")


def test_a_link_behind_a_link(root: Path, outside: Path) -> None:
    (root / "shared").mkdir()
    (root / "shared" / "on").symlink_to(outside / "1")
    (root / "fine" / "1" / "data").symlink_to(root / "shared")
    assert f"'{root}/fine/1/data/on' is a link out" in refused(root, "fine")


def test_a_sibling_with_a_longer_name_is_outside(root: Path) -> None:
    write_model(root.parent / "models2", "other")
    (root / "model").symlink_to("../models2/other")
    assert "is a link out" in refused(root, "model")


def test_links_that_stay_inside(root: Path, tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap, and git-sync a repository: the files are links into a folder beside them."""
    write_model(root / "..2026_01", "mounted", "", ("1",))
    (root / "..data").symlink_to("..2026_01")
    (root / "mounted").symlink_to("..data/mounted")
    (root / "fine" / "2").symlink_to("1")
    (root / "fine" / "around").symlink_to(root)
    (root / "fine" / "broken").symlink_to("/nowhere/at/all")
    (root / "fine" / "itself").symlink_to("itself")
    assert [refused(root, name) for name in ("mounted", "fine")] == ["", ""]
    (tmp_path / "current").symlink_to(root)
    assert [refused(tmp_path / "current", name) for name in ("mounted", "fine")] == ["", ""]


def test_a_virtual_environment_in_a_models_directory(root: Path, outside: Path) -> None:
    """Its links to the interpreter, and nothing that is only called so."""
    model = write_model(root, "program")
    (model / "venv" / "bin").mkdir(parents=True)
    (model / "venv" / "bin" / "python").symlink_to(sys.executable)
    (model / "venv" / "bin" / "python3").symlink_to("python")
    assert "is a link out" in refused(root, "program")
    (model / "venv" / "pyvenv.cfg").touch()
    assert refused(root, "program") == ""
    (model / "venv" / "bin" / "python4").symlink_to(outside / "1" / "model.onnx")
    assert f"'{model}/venv/bin/python4' is a link out" in refused(root, "program")


def test_a_directory_that_is_named_may_be_a_link(root: Path, outside: Path) -> None:
    """As `root` may be; what is in it may not lead out of it."""
    (root / "model").symlink_to(outside)
    named = DirectoryRepository(root / "model")
    assert named.read("model").refusal is None
    (outside / "1" / "link").symlink_to(root / "fine")
    refusal = named.read("model").refusal
    assert refusal is not None
    assert f"'{root}/model/1/link' is a link out" in refusal.message


def test_a_refused_model_has_its_marks(root: Path, outside: Path) -> None:
    """Or polling would not see that it has changed."""
    (root / "fine" / "1" / "model.onnx").symlink_to(outside / "1" / "model.onnx")
    before = LocalRepository(root).read("fine")
    (outside / "1" / "model.onnx").write_text("other weights")
    after = LocalRepository(root).read("fine")
    assert before.versions == after.versions == (1,)
    assert before.mark(1) != after.mark(1)
