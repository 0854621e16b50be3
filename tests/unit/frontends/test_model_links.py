"""Models that lie anywhere, linked into a repository."""

from pathlib import Path

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.frontends.http.rest.model_links import ModelLinks, without_name

ENSEMBLE = 'name: "all" platform: "ensemble"'


def model(folder: Path, config: str = "") -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"weights")
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture
def links(tmp_path: Path) -> ModelLinks:
    (tmp_path / "root").mkdir()
    return ModelLinks(tmp_path / "root")


def names(tmp_path: Path) -> set[str]:
    return {each.name for each in (tmp_path / "root").iterdir() if not each.name.startswith(".")}


@pytest.mark.parametrize("depth", ["", "resnet"])
def test_a_folder_is_a_model_or_has_one(links: ModelLinks, tmp_path: Path, depth: str) -> None:
    model(tmp_path / "7c9" / depth, 'name: "resnet"\nbackend: "onnxruntime"')
    links.add("7c9", str(tmp_path / "7c9"))
    assert (tmp_path / "root" / "7c9" / "1" / "model.onnx").read_bytes() == b"weights"
    assert (tmp_path / "root" / "7c9" / "config.pbtxt").read_text() == '\nbackend: "onnxruntime"'
    assert links.urls() == {"7c9": str(tmp_path / "7c9")}
    links.remove("7c9")
    assert (names(tmp_path), links.urls()) == (set(), {})
    assert (tmp_path / "7c9" / depth / "1" / "model.onnx").exists()


def test_an_ensemble_brings_its_models(links: ModelLinks, tmp_path: Path) -> None:
    for archive in ("a", "b"):
        model(tmp_path / archive / "step")
        model(tmp_path / archive / "all", ENSEMBLE)
    links.add("7c9", str(tmp_path / "a"))
    assert names(tmp_path) == {"7c9", "step"}
    with pytest.raises(ModserveError, match="model 'step' is loaded already, with '7c9'") as caught:
        links.add("8d0", str(tmp_path / "b"))
    assert caught.value.code is Code.ALREADY_EXISTS
    assert names(tmp_path) == {"7c9", "step"}
    links.remove("7c9")
    links.add("8d0", str(tmp_path / "b"))
    assert names(tmp_path) == {"8d0", "step"}


def test_several_models_without_an_ensemble_are_refused(links: ModelLinks, tmp_path: Path) -> None:
    model(tmp_path / "a" / "one")
    model(tmp_path / "a" / "two")
    with pytest.raises(ModserveError, match=r"several models in .*: 'one', 'two'"):
        links.add("7c9", str(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    with pytest.raises(ModserveError, match="there is no model in"):
        links.add("7c9", str(tmp_path / "b"))
    assert (names(tmp_path), links.urls()) == (set(), {})


@pytest.mark.parametrize("url", ["/dev", "/proc/self", "/sys", "relative", "/nowhere", "{link}", "/tmp/../proc"])
def test_a_url_is_a_folder_and_none_of_the_systems(links: ModelLinks, tmp_path: Path, url: str) -> None:
    (tmp_path / "link").symlink_to("/proc")
    with pytest.raises(ModserveError, match="'url' is no folder of a model"):
        links.add("7c9", url.format(link=tmp_path / "link"))


@pytest.mark.parametrize("name", ["", ".", "..", ".sagemaker", "a/b", "a\0b"])
def test_a_name_is_one_of_a_folder(links: ModelLinks, tmp_path: Path, name: str) -> None:
    model(tmp_path / "a")
    with pytest.raises(ModserveError, match="cannot be the name of a model"):
        links.add(name, str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("config", "rest"),
    [
        (b'name: "m"\nbackend: "b"', b'\nbackend: "b"'),
        (b"backend: 'b' name : 'm' # name: no", b"backend: 'b'  # name: no"),
        (b'input [ { name: "x" } ] name: "m"', b'input [ { name: "x" } ] '),
        (b'# name: "c"\ninput < name: "x" >', b'# name: "c"\ninput < name: "x" >'),
        (b'default_model_filename: "name: \\"m\\" {"\nname:"m"', b'default_model_filename: "name: \\"m\\" {"\n'),
        (b"", b""),
        (b"name", b"name"),
    ],
)
def test_only_the_models_own_name_is_left_out(config: bytes, rest: bytes) -> None:
    assert without_name(config) == rest
