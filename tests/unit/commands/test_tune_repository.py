"""Where `modserve tune` finds a model whose repository nobody names."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from modserve.commands.destination import address
from modserve.commands.syntax import UsageError
from modserve.commands.tune import repository
from modserve.commands.tune.command import PARSER
from modserve.commands.tune.repository import local_repositories, model_repository

HERE = address("localhost:8000")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, on a machine where no server runs."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.delenv("MODSERVE_URL", raising=False)
    monkeypatch.setattr(repository, "listener", lambda port: None)
    return tmp_path / "home"


def process(folder: Path, words: Sequence[str], variables: Sequence[str] = ()) -> Path:
    """A folder of /proc, of a server that was started in `folder`."""
    made = folder / "process"
    made.mkdir()
    for name, texts in (("cmdline", words), ("environ", variables)):
        (made / name).write_bytes(b"".join(text.encode() + b"\0" for text in texts))
    (made / "cwd").symlink_to(folder)
    return made


def test_the_line_of_the_help_is_a_whole_command() -> None:
    options = PARSER.read(["resnet50", "--goal-ms=50"])
    assert options.model_repository == ""


@pytest.mark.parametrize(
    "words",
    [
        ["/usr/bin/python", "-m", "modserve", "serve", "--model-repository=models", "--http-port=1"],
        ["/usr/bin/python", "-m", "modserve", "--model-repository", "models"],
        ["/usr/bin/python", "/opt/bin/modserve", "serve", "--model-repository", "models"],
        ["/usr/bin/python", "-m", "modserve", "worker", "0/2/x", "serve", "--model-repository=models"],
        ["/usr/bin/python", "-m", "modserve", "serve", "--config=options.yaml"],
        ["/usr/bin/python", "-m", "modserve"],
    ],
    ids=["serve", "as tritonserver", "script", "worker", "option file", "variable"],
)
def test_the_repositories_of_a_server(tmp_path: Path, words: Sequence[str]) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "options.yaml").write_text("model-repository: models\n")
    variables = ["HOME=/root", *(["MODSERVE_MODEL_REPOSITORY=models"] if words[-1] == "modserve" else [])]
    before = Path.cwd()
    assert local_repositories(HERE, process(tmp_path, words, variables)) == ([tmp_path / "models"], {})
    assert Path.cwd() == before


@pytest.mark.parametrize("words", [["nginx"], ["python", "-m", "modserve", "serve", "--nosuch=1"], []])
def test_other_processes_have_none(tmp_path: Path, words: Sequence[str]) -> None:
    assert local_repositories(HERE, process(tmp_path, words)) == ((), {})
    assert local_repositories(HERE, tmp_path / "nosuch") == ((), {})


@pytest.mark.parametrize(
    ("url", "ports"),
    [("localhost:81", [81]), ("http://127.0.0.2:82", [82]), ("[::1]:83", [83]), ("grpc://example.org:84", [])],
)
def test_only_servers_on_this_machine_count(monkeypatch: pytest.MonkeyPatch, url: str, ports: list[int]) -> None:
    seen: list[int] = []
    monkeypatch.setattr(repository, "listener", seen.append)
    assert local_repositories(address(url)) == ((), {})
    assert seen == ports


def test_the_current_folder(home: Path) -> None:
    for place in ("model_repository", "models", "."):
        (home / place / "m").mkdir(parents=True)
        assert model_repository("m", "") == Path(place)


def test_a_named_repository_is_the_only_one(home: Path) -> None:
    (home / "m").mkdir()
    (home / "other").mkdir()
    with pytest.raises(UsageError, match=r"^model 'm' does not exist in 'other'$"):
        model_repository("m", "other")


def test_the_server_comes_before_the_current_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = process(home.parent, ["python", "-m", "modserve", "--model-repository=served"])
    monkeypatch.setattr(repository, "listener", {8000: served}.get)
    for place in ("home/models/m", "home/models/n", "served/m"):
        (home.parent / place).mkdir(parents=True)
    assert model_repository("m", "") == home.parent / "served"
    assert model_repository("n", "") == Path("models")
    with pytest.raises(UsageError, match=r"does not exist in '.*/served', the current folder, 'models' or"):
        model_repository("nosuch", "")


def test_a_model_that_is_served_from_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["python", "-m", "modserve", "serve", "m=net.onnx", "stored/n/1/model.onnx", "n=stored/n/1/model.onnx"]
    for file in ("net.onnx", "stored/n/1/model.onnx"):
        (home.parent / file).parent.mkdir(parents=True, exist_ok=True)
        (home.parent / file).touch()
    served = process(home.parent, words)
    monkeypatch.setattr(repository, "listener", lambda port: served)
    assert model_repository("n", "") == home.parent / "stored"
    with pytest.raises(UsageError, match=r"'modserve init m --from \S+/net.onnx' puts a copy into ./models$"):
        model_repository("m", "")
